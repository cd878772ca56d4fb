// What a block knows of a segment's words before it spreads them: how far they reach, and whether
// some would crowd a bin.
#pragma once

#include "spread.cuh"

constexpr int CROWD = 128;  // a bin with more words is spread again instead of compared pairwise

// The least and the largest half, of all words and of the warp that has this lane's number.
struct Bounds {
  u32 low, high, warp_low, warp_high;

  // Whether a score is in the lowest part of what the scores reach.
  __device__ __forceinline__ bool is_low(u32 score) const {
    const float least = value_of(low), largest = value_of(high);
    return __fsub_rn(value_of(score), least) < __fmul_rn(__fsub_rn(largest, least), 0.0625f);
  }

  // Whether most warps have no score but low ones.
  __device__ __forceinline__ bool have_outliers() const {
    return __popc(__ballot_sync(~0u, is_low(warp_high))) >= 24;
  }

  // Whether several warps have the least score itself.
  template <int WARPS>
  __device__ __forceinline__ bool have_ties() const {
    return __popc(__ballot_sync(~0u, warp_low == low)) >= max(8, 64 / WARPS);
  }
};

// What the warps of a block tell each other, in shared memory; own[item] is word
// item * THREADS + threadIdx.x of `count`.
template <int THREADS>
struct Warps {
  static constexpr int WARPS = THREADS / 32;
  u32 low[WARPS], high[WARPS], sums[WARPS];

  // Of the words that count.
  template <int EACH, typename Half, typename Counts>
  __device__ __forceinline__ Bounds bounds(const u64 (&own)[EACH], int count, const Half& half,
                                           const Counts& counts) {
    u32 least = ~0u, largest = 0;
#pragma unroll
    for (int item = 0; item < EACH; ++item) {
      const int place = item * THREADS + static_cast<int>(threadIdx.x);
      const bool counted = place < count && counts(own[item]);
      least = min(least, counted ? half(own[item]) : ~0u);
      largest = max(largest, counted ? half(own[item]) : 0);
    }
    return joined(__reduce_min_sync(~0u, least), __reduce_max_sync(~0u, largest));
  }

  // Of what each warp found.
  __device__ __forceinline__ Bounds joined(u32 least, u32 largest) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) {
      low[warp] = least;
      high[warp] = largest;
    }
    __syncthreads();
    least = low[lane % WARPS];
    largest = high[lane % WARPS];
    return Bounds{__reduce_min_sync(~0u, least), __reduce_max_sync(~0u, largest), least, largest};
  }

  // Whether a bin can hold all words with a larger score.
  template <int EACH>
  __device__ __forceinline__ bool few_above(const u64 (&own)[EACH], u32 score) {
    u32 above = 0;
#pragma unroll
    for (int item = 0; item < EACH; ++item) above += score_half(own[item]) > score;
    above = __reduce_add_sync(~0u, above);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = above;
    __syncthreads();
    return __reduce_add_sync(~0u, sums[threadIdx.x % 32 % WARPS]) <= CROWD * (32 / WARPS);
  }
};
