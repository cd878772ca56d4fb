// Counts in bins, of which the last ones come first where a rank is looked for.
#pragma once

#include "topk_collect.cuh"

template <int THREADS, int CAPACITY>
struct Bins {
  using Collect = Collector<THREADS, CAPACITY>;
  static constexpr u32 COUNT = 2048;
  static constexpr int BITS = 11;
  static constexpr u32 EACH = COUNT / THREADS;
  static_assert(COUNT <= Collect::Sort::BINS, "they lie where the sort has its own");

  // Where a rank falls: in which bin, how many are counted in those before it, and how many in it.
  struct Found {
    u32 bin, before, count;
  };

  // By how many bits numbers below `span` are shifted to be bins.
  __device__ __forceinline__ static int shift_of(u32 span) {
    return max(32 - __clz(static_cast<int>(span)) - BITS, 0);
  }

  __device__ __forceinline__ static void clear() {
    for (u32 bin = threadIdx.x; bin < COUNT; bin += THREADS) shared().sort.bins[bin] = 0;
    __syncthreads();
  }

  __device__ __forceinline__ static void add(u32 bin) { atomicAdd(&shared().sort.bins[bin], 1u); }

  // The bin of a rank, which is 1 for the first; with a count of 0 if not so many are counted.
  // All threads call it, after a barrier.
  __device__ __forceinline__ static Found find(u32 rank) {
    typename Collect::Shared& all = shared();
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 counts[EACH], sum = 0;
#pragma unroll
    for (u32 each = 0; each < EACH; ++each) {
      counts[each] = all.sort.bins[bin_of(each)];
      sum += counts[each];
    }
    u32 before = sum_through(sum);
    if (lane == 31) all.sums[warp] = before;
    if (threadIdx.x == 0) all.found[2] = 0;
    __syncthreads();
    before += __reduce_add_sync(~0u, lane < warp ? all.sums[lane] : 0) - sum;
#pragma unroll
    for (u32 each = 0; each < EACH; ++each) {
      if (before < rank && rank <= before + counts[each]) {
        all.found[0] = bin_of(each);
        all.found[1] = before;
        all.found[2] = counts[each];
      }
      before += counts[each];
    }
    __syncthreads();
    return {all.found[0], all.found[1], all.found[2]};
  }

 private:
  __device__ __forceinline__ static typename Collect::Shared& shared() { return Collect::memory(); }

  __device__ __forceinline__ static u32 bin_of(u32 each) {
    return COUNT - 1 - (threadIdx.x * EACH + each);
  }
};
