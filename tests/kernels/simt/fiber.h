// One CUDA thread, and how to leave one and go on with another.
#pragma once

#include <stdint.h>
#include <stddef.h>
#include <sys/mman.h>

#if !defined(__x86_64__) || defined(SIMT_PORTABLE)
#define SIMT_UCONTEXT
#include <ucontext.h>
#endif

namespace simt {

constexpr unsigned max_threads = 1024, warp_lanes = 32;
constexpr size_t page_bytes = 4096, stack_bytes = 128 << 10;

struct Index {
    unsigned x, y, z;
};

enum class State : unsigned char { ready, barrier, collective, exited };

#ifdef SIMT_UCONTEXT
using Context = ucontext_t;
#else
using Context = void*;  // the stack pointer; everything else is on the stack
#endif

struct Fiber {
    Index index;
    State state;
    int line;         // where it waits
    unsigned mask;    // of the collective that it waits for
    unsigned source;  // the lane that a shuffle reads
    uint64_t value, result;
    Context context;
};

inline Fiber fibers[max_threads];
inline Fiber* current = nullptr;
inline Context home;

// The stacks, each with an unmapped page below it.
inline unsigned char* stack_bottom(unsigned thread) {
    static unsigned char* all = [] {
        void* made = mmap(nullptr, max_threads * stack_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        auto* bottom = static_cast<unsigned char*>(made);
        for (unsigned i = 0; i < max_threads; i++)
            mprotect(bottom + i * stack_bytes, page_bytes, PROT_NONE);
        return bottom;
    }();
    return all + thread * stack_bytes;
}

// Stacks that began at one offset would fight for the same few lines of the cache.
inline size_t stack_size(unsigned thread) {
    return stack_bytes - (thread % 64) * 192;
}

#ifdef SIMT_UCONTEXT

inline void transfer(Context& from, Context& to) {
    swapcontext(&from, &to);
}

inline void prepare(Fiber& fiber, unsigned thread, void (*entry)()) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stack_bottom(thread);
    fiber.context.uc_stack.ss_size = stack_size(thread);
    makecontext(&fiber.context, entry, 0);
}

#else

// swapcontext would ask the kernel for the signal mask each time: fifty times as long.
extern "C" void simt_transfer(void** from, void* to);
asm(R"(
    .text
    .type simt_transfer, @function
simt_transfer:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size simt_transfer, .-simt_transfer
)");

inline void transfer(Context& from, Context& to) {
    simt_transfer(&from, to);
}

inline void prepare(Fiber& fiber, unsigned thread, void (*entry)()) {
    auto* top = reinterpret_cast<void**>(stack_bottom(thread) + stack_size(thread));
    *--top = nullptr;  // where a function's return address would stand: entry never returns
    *--top = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; saved++) *--top = nullptr;
    fiber.context = top;
}

#endif

}  // namespace simt
