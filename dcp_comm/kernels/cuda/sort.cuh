// Sorts a row's distinct words in shared memory by one block, descending.
//
// One pass spreads a segment over bins that are monotone in the word, so that what is left to do is
// to rank words within their bin. Crowded bins are segments of their own, spread again: at first by
// the score's value, then by the bits of the words, which halves a segment's range at least, and
// divides it by the number of bins where words are many. A row of equal scores is spread by its ids.
#pragma once

#include "keys.cuh"

constexpr int CROWD = 128;  // a bin with more words is spread again instead of compared pairwise

template <int THREADS, int ITEMS>
struct Sorter {
  static constexpr int CAPACITY = THREADS * ITEMS;
  static constexpr int BINS = CAPACITY;
  static constexpr int WARPS = THREADS / 32;
  static constexpr int BITS = CAPACITY == 512 ? 9 : CAPACITY == 1024 ? 10 : CAPACITY == 2048 ? 11 : 12;
  static_assert(1 << BITS == CAPACITY, "a power of two from 512 on");
  // A segment is pushed at most once a pass, and holds more than CROWD words of its own.
  static constexpr int SEGMENTS = CAPACITY / CROWD + 1;

  struct Shared {
    u64 words[CAPACITY];
    u32 bins[BINS + 1];
    u32 segments[2 * SEGMENTS];  // begin << 16 | end; those of this round and of the next
    u32 pushed;
    u32 warp_sums[WARPS];
    u64 low[WARPS], high[WARPS];
  };
  static_assert(sizeof(Shared) <= 12 * CAPACITY + 1024, "what dcp_comm/kernels/cuda asks for");

  // A monotone map of a segment's words to bins; larger words come first.
  struct Spread {
    u64 low, high;
    int shift;
    float high_score, scale;  // scale 0: by bits

    __device__ __forceinline__ int bin(u64 word) const {
      if (scale == 0.0f) {
        const u32 below = static_cast<u32>(((high - word) << shift) >> 32);
        return static_cast<int>(below >> (32 - BITS));
      }
      const float below = __fsub_rn(high_score, score_of_ordered(ordered_score(word)));
      const int at = __float2int_rz(__fmul_rn(below, scale));
      return at < BINS ? at : BINS - 1;
    }
  };

  Shared& shared;
  const int thread = static_cast<int>(threadIdx.x);

  __device__ __forceinline__ explicit Sorter(Shared& memory) : shared(memory) {}

  // Sorts shared.words[0, count); all threads call it, after a barrier behind the last write.
  __device__ __forceinline__ void sort(int count, bool by_score) {
    if (is_sorted(count)) return;
    u32 round = 0, segments = 1;
    if (thread == 0) shared.segments[0] = static_cast<u32>(count);
    while (segments > 0) {
      u32* current = shared.segments + (round & 1) * SEGMENTS;
      u32* next = shared.segments + (~round & 1) * SEGMENTS;
      if (thread == 0) shared.pushed = 0;
      __syncthreads();
      for (u32 at = 0; at < segments; ++at) {
        const u32 segment = current[at];
        spread(static_cast<int>(segment >> 16), static_cast<int>(segment & 0xFFFF),
               by_score && round == 0, next);
      }
      segments = shared.pushed;
      ++round;
      __syncthreads();
    }
  }

 private:
  __device__ __forceinline__ bool is_sorted(int count) {
    bool sorted = true;
    for (int at = thread; at + 1 < count; at += THREADS)
      sorted = sorted && shared.words[at] >= shared.words[at + 1];
    return __syncthreads_and(sorted);
  }

  // Sorts words[begin, end) but for crowded bins, which it pushes to `next`.
  __device__ __forceinline__ void spread(int begin, int end, bool by_score, u32* next) {
    u64 own[ITEMS];
    u64 low = ~0ull, high = 0;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int at = begin + item * THREADS + thread;
      if (at < end) {
        own[item] = shared.words[at];
        low = own[item] < low ? own[item] : low;
        high = own[item] > high ? own[item] : high;
      }
    }
    const Spread map = range(low, high, by_score);
    for (int bin = thread; bin <= BINS; bin += THREADS) shared.bins[bin] = 0;
    __syncthreads();

    u32 place[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      if (begin + item * THREADS + thread < end)
        place[item] = atomicAdd(&shared.bins[map.bin(own[item])], 1u);
    }
    __syncthreads();
    scan(begin, end - begin, map.high != map.low, next);
    __syncthreads();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      if (begin + item * THREADS + thread < end)
        shared.words[begin + shared.bins[map.bin(own[item])] + place[item]] = own[item];
    }
    __syncthreads();
    rank(begin, end, map, own, place);
    __syncthreads();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      if (begin + item * THREADS + thread < end) shared.words[begin + place[item]] = own[item];
    }
    __syncthreads();
  }

  // Where each word, now in the order of bins, belongs.
  __device__ __forceinline__ void rank(int begin, int end, const Spread& map, u64 (&own)[ITEMS],
                                       u32 (&place)[ITEMS]) {
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int at = begin + item * THREADS + thread;
      if (at >= end) continue;
      const u64 word = shared.words[at];
      const int bin = map.bin(word);
      const int first = static_cast<int>(shared.bins[bin]);
      const int behind = static_cast<int>(shared.bins[bin + 1]);
      int before = at - begin;
      if (behind - first <= CROWD) {
        before = first;
        for (int other = first; other < behind; ++other) {
          const u64 rival = shared.words[begin + other];
          before += rival > word || (rival == word && begin + other < at);
        }
      }
      own[item] = word;
      place[item] = static_cast<u32>(before);
    }
  }

  __device__ __forceinline__ Spread range(u64 low, u64 high, bool by_score) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const u64 lower = __shfl_xor_sync(~0u, low, step), higher = __shfl_xor_sync(~0u, high, step);
      low = lower < low ? lower : low;
      high = higher > high ? higher : high;
    }
    if (thread % 32 == 0) {
      shared.low[thread / 32] = low;
      shared.high[thread / 32] = high;
    }
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) {
      low = shared.low[warp] < low ? shared.low[warp] : low;
      high = shared.high[warp] > high ? shared.high[warp] : high;
    }
    Spread map;
    map.low = low;
    map.high = high;
    map.shift = high == low ? 0 : __clzll(static_cast<i64>(high - low));
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
  __device__ __forceinline__ void scan(int begin, int count, bool divisible, u32* next) {
    constexpr int EACH = BINS / THREADS;
    u32 counts[EACH], sum = 0;
#pragma unroll
    for (int at = 0; at < EACH; ++at) {
      counts[at] = shared.bins[thread * EACH + at];
      sum += counts[at];
    }
    u32 before = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const u32 left = __shfl_up_sync(~0u, before, step);
      if (thread % 32 >= step) before += left;
    }
    if (thread % 32 == 31) shared.warp_sums[thread / 32] = before;
    __syncthreads();
    before -= sum;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp)
      before += warp < thread / 32 ? shared.warp_sums[warp] : 0;
#pragma unroll
    for (int at = 0; at < EACH; ++at) {
      shared.bins[thread * EACH + at] = before;
      if (divisible && counts[at] > CROWD) push(begin + before, begin + before + counts[at], next);
      before += counts[at];
    }
    if (thread == THREADS - 1) shared.bins[BINS] = static_cast<u32>(count);
  }

  __device__ __forceinline__ void push(u32 begin, u32 end, u32* next) {
    next[atomicAdd(&shared.pushed, 1u)] = begin << 16 | end;
  }
};
