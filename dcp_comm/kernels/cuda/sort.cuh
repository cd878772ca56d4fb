// Sorts a row's distinct words by one block, descending, and hands each to where it belongs.
//
// One pass spreads a segment over bins that are monotone in the word, so that what is left to do is
// to rank words within their bin. Crowded bins are segments of their own, spread again: at first by
// the score's value, then by the bits of the words, which halves a segment's range at least, and
// divides it by the number of bins where words are many. A row of equal scores is spread by its ids.
#pragma once

#include "keys.cuh"

constexpr int ITEMS = 4;    // words a thread
constexpr int CROWD = 128;  // a bin with more words is spread again instead of compared pairwise

template <int CAPACITY>
struct Sorter {
  static constexpr int THREADS = CAPACITY / ITEMS;
  static constexpr int BINS = CAPACITY;
  static constexpr int WARPS = THREADS / 32;
  static constexpr int BITS = CAPACITY == 512 ? 9 : CAPACITY == 1024 ? 10 : CAPACITY == 2048 ? 11 : 12;
  static_assert(1 << BITS == CAPACITY, "a power of two from 512 on");
  // Segments of a round are disjoint, and larger than CROWD.
  static constexpr int SEGMENTS = CAPACITY / CROWD;

  struct Shared {
    u64 words[CAPACITY];
    u32 bins[BINS + 4];  // four more, so that what follows is aligned
    u64 low[WARPS], high[WARPS];
    u32 sums[WARPS];
    u32 segments[2][SEGMENTS];  // begin << 16 | end
    u32 pushed[2];
  };
  static_assert(sizeof(Shared) <= 12 * CAPACITY + 1024, "what primitives.py asks for");

  Shared& shared;
  const int thread = static_cast<int>(threadIdx.x);

  __device__ __forceinline__ explicit Sorter(Shared& memory) : shared(memory) {}

  __device__ __forceinline__ int place_of(int item) const { return item * THREADS + thread; }

  // Calls emit(rank, word) for each of `count` words; own[item] is word place_of(item) of them.
  //
  // All threads call it, and after a barrier if `shared` was in use.
  template <typename Emit>
  __device__ __forceinline__ void sort(u64 (&own)[ITEMS], int count, bool by_score,
                                       const Emit& emit) {
    if (thread == 0) shared.pushed[0] = 0;
    u32 place[ITEMS];
    if (!spread<true>(own, place, 0, count, by_score, 0) || shared.pushed[0] == 0) {
#pragma unroll
      for (int item = 0; item < ITEMS; ++item)
        if (place_of(item) < count) emit(static_cast<int>(place[item]), own[item]);
      return;
    }
    settle(own, place, 0, count);
    refine();
    for (int item = 0; item < ITEMS; ++item)
      if (place_of(item) < count) emit(place_of(item), shared.words[place_of(item)]);
  }

 private:
  // Spreads what was pushed until nothing is. Apart, so that it costs the common way no registers.
  __device__ __noinline__ void refine() {
    for (int round = 0; shared.pushed[round & 1] > 0; ++round) {
      const int now = round & 1, next = now ^ 1;
      if (thread == 0) shared.pushed[next] = 0;
      for (u32 which = 0; which < shared.pushed[now]; ++which) {
        const u32 segment = shared.segments[now][which];
        const int begin = static_cast<int>(segment >> 16), end = static_cast<int>(segment & 0xFFFF);
        u64 own[ITEMS];
        u32 place[ITEMS];
#pragma unroll
        for (int item = 0; item < ITEMS; ++item)
          own[item] = begin + place_of(item) < end ? shared.words[begin + place_of(item)] : 0;
        spread<false>(own, place, begin, end, false, next);
        settle(own, place, begin, end);
      }
    }
  }

  // A monotone map of a segment's words to bins; larger words come first.
  struct Spread {
    u64 high;
    int shift;
    bool divisible;
    float high_score, scale;  // scale 0: by bits

    __device__ __forceinline__ u32 bin(u64 word) const {
      if (scale == 0.0f) return static_cast<u32>(((high - word) << shift) >> 32) >> (32 - BITS);
      const float below = __fsub_rn(high_score, score_of_ordered(ordered_score(word)));
      // Added to 2^23, a number below it stands in the last bits of the sum.
      const float sum = __fadd_rn(__fmul_rn(below, scale), 8388608.0f);
      return min(__float_as_uint(sum) - 0x4B000000u, static_cast<u32>(BINS - 1));
    }
  };

  // Puts words into place.
  __device__ __forceinline__ void settle(const u64 (&own)[ITEMS], const u32 (&place)[ITEMS],
                                         int begin, int end) {
    __syncthreads();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (begin + place_of(item) < end) shared.words[begin + place[item]] = own[item];
    __syncthreads();
  }

  // Exchanges `own` so that each thread knows the place of its words within the segment.
  //
  // Words of crowded bins get any place of their bin, and their segments are pushed. Returns whether
  // anything was exchanged: the first time, words that are in order stay where they are.
  template <bool FIRST>
  __device__ __forceinline__ bool spread(u64 (&own)[ITEMS], u32 (&place)[ITEMS], int begin, int end,
                                         bool by_score, int next) {
    const int count = end - begin;
    const Spread map = range<FIRST>(own, count, by_score);
    bool ordered = FIRST;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int at = place_of(item);
      if (FIRST) {
        u64 behind = __shfl_down_sync(~0u, own[item], 1);
        if (thread % 32 == 31) behind = at + 1 < CAPACITY ? shared.words[(at + 1) / 32] : 0;
        ordered = ordered && (at + 1 >= count || own[item] >= behind);
      }
      if (at < count) {
        const u32 bin = map.bin(own[item]);
        place[item] = bin << 16 | atomicAdd(&shared.bins[bin], 1u);
      }
    }
    if (__syncthreads_and(ordered)) {
#pragma unroll
      for (int item = 0; item < ITEMS; ++item) place[item] = static_cast<u32>(place_of(item));
      return false;
    }
    scan(begin, count, map.divisible, next);
    __syncthreads();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      if (place_of(item) < count) {
        const u32 first = shared.bins[place[item] >> 16];
        shared.words[begin + first + (place[item] & 0xFFFF)] = own[item];
      }
    }
    __syncthreads();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      if (place_of(item) < count) {
        own[item] = shared.words[begin + place_of(item)];
        place[item] = rank(own[item], map.bin(own[item]), begin, place_of(item));
      }
    }
    return true;
  }

  // The place of the word that stands at `at` of its segment, within its bin.
  __device__ __forceinline__ u32 rank(u64 word, u32 bin, int begin, int at) const {
    const int first = static_cast<int>(shared.bins[bin]);
    const int behind = static_cast<int>(shared.bins[bin + 1]);
    if (behind - first > CROWD) return static_cast<u32>(at);
    const u64* words = shared.words + begin;
    int before = first;
#pragma unroll 1
    for (int other = first; other < at; ++other) before += words[other] >= word;
#pragma unroll 1
    for (int other = at + 1; other < behind; ++other) before += words[other] > word;
    return static_cast<u32>(before);
  }

  // Finds the range of a segment, and clears the bins.
  template <bool FIRST>
  __device__ __forceinline__ Spread range(const u64 (&own)[ITEMS], int count, bool by_score) {
    for (int bin = thread; bin < BINS; bin += THREADS) shared.bins[bin] = 0;
    u64 low = ~0ull, high = 0;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      if (place_of(item) >= count) continue;
      low = min(low, own[item]);
      high = max(high, own[item]);
      // The words are not in shared memory yet; each warp's first ones are lent to their neighbours.
      if (FIRST && thread % 32 == 0) shared.words[place_of(item) / 32] = own[item];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      low = min(low, __shfl_xor_sync(~0u, low, step));
      high = max(high, __shfl_xor_sync(~0u, high, step));
    }
    if (thread % 32 == 0) {
      shared.low[thread / 32] = low;
      shared.high[thread / 32] = high;
    }
    __syncthreads();
    const int warp = thread % 32 % WARPS;
    low = shared.low[warp];
    high = shared.high[warp];
#pragma unroll
    for (int step = WARPS / 2; step > 0; step /= 2) {
      low = min(low, __shfl_xor_sync(~0u, low, step));
      high = max(high, __shfl_xor_sync(~0u, high, step));
    }
    Spread map;
    map.high = high;
    map.divisible = high != low;
    map.shift = __clzll(static_cast<i64>(high - low)) & 63;
    map.high_score = score_of_ordered(ordered_score(high));
    map.scale = 0.0f;
    if (by_score) {
      const float width = __fsub_rn(map.high_score, score_of_ordered(ordered_score(low)));
      const float scale = __fdiv_rn(static_cast<float>(BINS), width);
      // Not for infinite, equal, or so close scores that the scale overflows.
      if (width > 0.0f && width < 3.0e38f && scale < 3.0e38f) map.scale = scale;
    }
    return map;
  }

  // Counts become first places; crowded bins become segments.
  __device__ __forceinline__ void scan(int begin, int count, bool divisible, int next) {
    uint4& mine = reinterpret_cast<uint4*>(shared.bins)[thread];
    const uint4 counts = mine;
    const u32 sum = counts.x + counts.y + counts.z + counts.w;
    u32 before = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const u32 left = __shfl_up_sync(~0u, before, step);
      if (thread % 32 >= step) before += left;
    }
    if (thread % 32 == 31) shared.sums[thread / 32] = before;
    __syncthreads();
    u32 left = thread % 32 < thread / 32 ? shared.sums[thread % 32] : 0;
    before += __reduce_add_sync(~0u, left) - sum;
    const uint4 first = make_uint4(before, before + counts.x, before + counts.x + counts.y,
                                   before + counts.x + counts.y + counts.z);
    mine = first;
    if (thread == 0) shared.bins[BINS] = static_cast<u32>(count);
    if (divisible && max(max(counts.x, counts.y), max(counts.z, counts.w)) > CROWD) {
      push(begin, first.x, counts.x, next);
      push(begin, first.y, counts.y, next);
      push(begin, first.z, counts.z, next);
      push(begin, first.w, counts.w, next);
    }
  }

  __device__ __forceinline__ void push(int begin, u32 first, u32 count, int next) {
    if (count <= CROWD) return;
    const u32 from = static_cast<u32>(begin) + first;
    shared.segments[next][atomicAdd(&shared.pushed[next], 1u)] = from << 16 | (from + count);
  }
};
