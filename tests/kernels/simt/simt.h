// What a CUDA C++ source needs to be compiled and run by a host compiler: one operating-system
// thread runs the blocks of a grid one after another, and the threads of a block as fibers.
//
// Shared memory is thread-local storage, because that is the one storage class that a host compiler
// accepts both inside a function (`__shared__ int bins[256];`) and after `extern`, and because the
// whole of it, which `arena.h` poisons, is one segment of the library.
#pragma once

#include "launch.h"
#include "numbers.h"
#include "sanitizer.h"

#define __global__
#define __device__
#define __host__
#define __shared__ thread_local
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

#define threadIdx (simt::current->index)
#define blockIdx (simt::grid.block)
#define blockDim (simt::grid.threads)
#define gridDim (simt::grid.blocks)
#define warpSize 32
