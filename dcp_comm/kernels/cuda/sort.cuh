// Sorts a row's distinct words by one block, descending, and hands each to where it belongs.
//
// One pass spreads a segment over bins that are monotone in the word, so that what is left to do is
// to rank words within their bin. Crowded bins are segments of their own, spread again: at first by
// the score's value, then by the bits of the score and, where scores are equal, by those of the id.
// Each of that halves a segment's range at least, so that it ends, and soon where words are many.
#pragma once

#include "keys.cuh"

constexpr int CROWD = 128;  // a bin with more words is spread again instead of compared pairwise

// What words are sorted by: their scores' values and then all bits; all bits; the bits of their ids.
enum By { VALUE, BITS, ID };

// Of up to CAPACITY words, EACH to a thread.
template <int CAPACITY, int EACH>
struct Sorter {
  static constexpr int THREADS = CAPACITY / EACH;
  static constexpr int QUADS = 2;  // of bins, a thread
  static constexpr int BINS = 4 * QUADS * THREADS;
  static constexpr int WARPS = THREADS / 32;
  static constexpr int ORDER = BINS == 1024 ? 10 : BINS == 2048 ? 11 : BINS == 4096 ? 12 : 13;
  static_assert(1 << ORDER == BINS, "a power of two from 1024 to 8192");
  // Segments of a round are disjoint, and larger than CROWD.
  static constexpr int SEGMENTS = CAPACITY / CROWD;

  struct Shared {
    u64 words[CAPACITY];
    u32 bins[BINS + 4];  // four more, so that what follows is aligned
    unsigned short bin_of[CAPACITY];
    u32 low[WARPS], high[WARPS], sums[WARPS];
    u32 segments[2][SEGMENTS];  // begin << 16 | end
    u32 pushed[2];
  };
  static_assert(sizeof(Shared) <= 10 * CAPACITY + 4 * BINS + 1024, "what launches ask for");

  // All dynamic shared memory of a block that sorts begins with it.
  static __device__ __forceinline__ Shared& shared() {
    extern __shared__ __align__(16) unsigned char memory[];
    return *reinterpret_cast<Shared*>(memory);
  }

  static __device__ __forceinline__ int place_of(int item) {
    return item * THREADS + static_cast<int>(threadIdx.x);
  }

  // Calls emit(rank, word) for each of `count` words; own[item] is word place_of(item) of them.
  //
  // All threads call it, and after a barrier if the shared memory was in use.
  template <By BY, typename Emit>
  static __device__ __forceinline__ void sort(u64 (&own)[EACH], int count, const Emit& emit) {
    if (threadIdx.x == 0) shared().pushed[0] = 0;
    u32 place[EACH];
    spread<BY>(own, place, 0, count, 0);
    if (shared().pushed[0] == 0) {
#pragma unroll
      for (int item = 0; item < EACH; ++item)
        if (place_of(item) < count) emit(static_cast<int>(place[item]), own[item]);
      return;
    }
    settle(own, place, 0, count);
    refine();
    for (int at = threadIdx.x; at < count; at += THREADS) emit(at, shared().words[at]);
  }

  // Sorts the first `count` of shared().words in place.
  //
  // All threads call it, after a barrier, and may read what is sorted when it returns. Apart, so
  // that it costs the loops around it no registers.
  static __device__ __noinline__ void sort_words(int count) {
    if (threadIdx.x == 0) shared().pushed[0] = 0;
    sort_segment<VALUE>(0, count, 0);
    refine();
  }

 private:
  // A monotone map of a segment's words to bins; larger words come first.
  //
  // By value, bins are the finer the nearer to the least value, as the best of a long row lie: the
  // bits of (base - value) without their sign, for a base so far below all values that they span
  // four octaves. Where positive values span many more of themselves the base is 0. Few values far
  // above all others share the first bin. Where many scores tie at the least value, as on a plateau
  // that K cuts, those have half of the bins, by their ids.
  template <By BY>
  struct Spread {
    u32 high;  // the largest half word, or twice the bits of (base - the largest value)
    int shift;
    float base;
    u32 tied;      // the half word of the scores that tie at the least value; 0: not many do
    u32 ids_high;  // the largest half word of an id
    int ids_shift;
    bool by_score;
    bool divisible;  // not all words are equal

    __device__ __forceinline__ u32 bin(u64 word) const {
      if (BY != VALUE) return ((high - half(word, BY == BITS && by_score)) << shift) >> (32 - ORDER);
      // Padding, whose half words are 0, comes last.
      const u32 by_id = (ids_high - half(word, false)) >> ids_shift;
      const bool ties = half(word, true) <= tied;
      return ties ? BINS / 2 + min(by_id, BINS / 2 - 1u) : bin_of_score(half(word, true));
    }
    __device__ __forceinline__ u32 bin_of_score(u32 score) const {
      return min((high - min(twice_below(value_of(score)), high)) >> shift,
                 tied == 0 ? BINS - 1u : BINS / 2 - 1u);
    }

    // For values from the least to a large one.
    __device__ __forceinline__ void cover(float least, float large) {
      const float width = __fsub_rn(large, least), below = __fmul_rn(width, 0.06666667f);
      base = least > 0 && least < __fmul_rn(below, 0.25f) ? 0 : __fsub_rn(least, below);
      // Infinite scores leave all in one bin.
      if (!(width < 3.0e38f)) base = __int_as_float(0x7FC00000);
      high = twice_below(large);
      const u32 span = high - twice_below(least);
      shift = max(32 - __clz(static_cast<int>(span - (span >> 6))) - ORDER, 0);
    }

   private:
    // Twice the bits have no sign.
    __device__ __forceinline__ u32 twice_below(float value) const {
      return 2 * __float_as_uint(__fsub_rn(base, value));
    }
  };

  static __device__ __forceinline__ u32 half(u64 word, bool score) {
    return static_cast<u32>(score ? word >> 32 : word);
  }

  // Spreads what was pushed until nothing is. Apart, so that it costs the common way no registers.
  static __device__ __noinline__ void refine() {
    Shared& all = shared();
    for (int round = 0; all.pushed[round & 1] > 0; ++round) {
      const int now = round & 1, next = now ^ 1;
      if (threadIdx.x == 0) all.pushed[next] = 0;
      for (u32 which = 0; which < all.pushed[now]; ++which) {
        const u32 segment = all.segments[now][which];
        const int begin = static_cast<int>(segment >> 16), end = static_cast<int>(segment & 0xFFFF);
        sort_segment<BITS>(begin, end, next);
      }
    }
  }

  // Puts a segment's words into place, but for those of crowded bins, whose segments are pushed.
  template <By BY>
  static __device__ __forceinline__ void sort_segment(int begin, int end, int next) {
    u64 own[EACH];
    u32 place[EACH];
#pragma unroll
    for (int item = 0; item < EACH; ++item)
      own[item] = begin + place_of(item) < end ? shared().words[begin + place_of(item)] : 0;
    spread<BY>(own, place, begin, end, next);
    settle(own, place, begin, end);
  }

  // Puts words into place.
  static __device__ __forceinline__ void settle(const u64 (&own)[EACH],
                                                const u32 (&place)[EACH], int begin, int end) {
    __syncthreads();
#pragma unroll
    for (int item = 0; item < EACH; ++item)
      if (begin + place_of(item) < end) shared().words[begin + place[item]] = own[item];
    __syncthreads();
  }

  // Exchanges `own` so that each thread knows the place of its words within the segment.
  //
  // Words of crowded bins get any place of their bin, and their segments are pushed.
  template <By BY>
  static __device__ __forceinline__ void spread(u64 (&own)[EACH], u32 (&place)[EACH], int begin,
                                                int end, int next) {
    Shared& all = shared();
    const int count = end - begin;
    for (int which = 0; which < QUADS; ++which)
      reinterpret_cast<uint4*>(all.bins)[which * THREADS + threadIdx.x] = make_uint4(0, 0, 0, 0);
    if constexpr (BY == VALUE) tell_order(own);
    const Spread<BY> map = range<BY>(own, count);
    if constexpr (BY == VALUE) {
      if (may_fall() && falls(own, begin)) {
#pragma unroll
        for (int item = 0; item < EACH; ++item) place[item] = static_cast<u32>(place_of(item));
        return;
      }
    }
#pragma unroll
    for (int item = 0; item < EACH; ++item) {
      if (place_of(item) < count) {
        const u32 bin = map.bin(own[item]);
        place[item] = bin << 16 | atomicAdd(&all.bins[bin], 1u);
      }
    }
    __syncthreads();
    scan(begin, count, map.divisible, next);
    __syncthreads();
    u64* words = all.words + begin;
#pragma unroll
    for (int item = 0; item < EACH; ++item) {
      if (place_of(item) < count) {
        const u32 bin = place[item] >> 16, at = all.bins[bin] + (place[item] & 0xFFFF);
        words[at] = own[item];
        all.bin_of[at] = static_cast<unsigned short>(bin);
      }
    }
    __syncthreads();
#pragma unroll
    for (int item = 0; item < EACH; ++item) {
      if (place_of(item) < count) {
        own[item] = words[place_of(item)];
        place[item] = rank(words, own[item], all.bin_of[place_of(item)], place_of(item));
      }
    }
  }

  // Of words that fall already, as local_topk leaves them, the first of each thread do: seldom others.
  // What a warp sees of it may be read after the next barrier.
  static __device__ __forceinline__ void tell_order(const u64 (&own)[EACH]) {
    const u64 next = __shfl_down_sync(~0u, own[0], 1);  // the last lane's is its own
    const u32 fall = __ballot_sync(~0u, own[0] >= next);
    if (threadIdx.x % 32 == 0) shared().sums[threadIdx.x / 32] = fall;
  }
  static __device__ __forceinline__ bool may_fall() {
    return __all_sync(~0u, shared().sums[threadIdx.x % 32 % WARPS] == ~0u);
  }
  static __device__ __forceinline__ bool falls(const u64 (&own)[EACH], int begin) {
    u64* words = shared().words + begin;
#pragma unroll
    for (int item = 0; item < EACH; ++item)
      if (begin + place_of(item) < CAPACITY) words[place_of(item)] = own[item];
    __syncthreads();
    bool fall = true;
#pragma unroll
    for (int item = 0; item < EACH; ++item)
      if (begin + place_of(item) + 1 < CAPACITY) fall = fall && own[item] >= words[place_of(item) + 1];
    return __syncthreads_and(fall);
  }

  // The place of the word that stands at `at` of its segment: within its bin, if that is no segment.
  static __device__ __forceinline__ u32 rank(const u64* words, u64 word, u32 bin, int at) {
    const int first = static_cast<int>(shared().bins[bin]);
    const int behind = static_cast<int>(shared().bins[bin + 1]);
    if (behind - first > CROWD) return static_cast<u32>(at);
    int before = first;
#pragma unroll 1  // bins have few words
    for (int other = first; other < behind; ++other) {
      // Of equal words, padding or repeated ids, the first comes first.
      before += other < at ? words[other] >= word : words[other] > word;
    }
    return static_cast<u32>(before);
  }

  template <By BY>
  static __device__ __forceinline__ Spread<BY> range(const u64 (&own)[EACH], int count) {
    u32 low, high;
    Spread<BY> map;
    map.by_score = BY == BITS;
    bounds(own, count, BY != ID, BY == VALUE, &low, &high);
    if constexpr (BY == VALUE) {
      map.divisible = true;
      spread_values(&map, own, count, low, high);
      return map;
    }
    if (BY == BITS && low == high) {
      map.by_score = false;
      __syncthreads();
      bounds(own, count, false, false, &low, &high);
    }
    map.divisible = low != high;
    map.high = high;
    map.shift = __clz(static_cast<int>(high - low)) & 31;
    return map;
  }

  // What bounds() left of each warp tells of few values far above, and of many that tie.
  static __device__ __forceinline__ void spread_values(Spread<VALUE>* map, const u64 (&own)[EACH],
                                                       int count, u32 low, u32 high) {
    const u32 lane = threadIdx.x % 32;
    const u32 least = shared().low[lane % WARPS], largest = shared().high[lane % WARPS];
    map->tied = 0;
    map->ids_high = ~0u;
    map->ids_shift = 0;
    map->cover(value_of(low), value_of(high));
    const bool near = map->bin_of_score(largest) >= BINS - BINS / 8;
    const u32 usual = __reduce_max_sync(~0u, near ? largest : 0);
    if (__popc(__ballot_sync(~0u, near)) >= 32 - 32 / 4 && usual != 0 && few_above(own, usual))
      map->cover(value_of(low), value_of(usual));
    if (count <= CROWD || __popc(__ballot_sync(~0u, least == low)) < 32 / 4) return;
    __syncthreads();
    u32 last;
    bounds(own, count, false, true, &last, &map->ids_high);
    map->tied = low;
    map->shift += 1;
    map->ids_shift = max(32 - __clz(static_cast<int>(map->ids_high - last)) - (ORDER - 1), 0);
  }

  static __device__ __forceinline__ bool few_above(const u64 (&own)[EACH], u32 score) {
    int above = 0;
#pragma unroll
    for (int item = 0; item < EACH; ++item) above += __syncthreads_count(half(own[item], true) > score);
    return above <= CROWD;
  }

  static __device__ __forceinline__ float value_of(u32 half) {
    return score_of_ordered(static_cast<int>(half ^ 0x80000000u));
  }

  // The least and the largest of the segment's scores, or ids, in the order of words.
  static __device__ __forceinline__ void bounds(const u64 (&own)[EACH], int count, bool score,
                                                bool skip_padding, u32* least, u32* largest) {
    Shared& all = shared();
    u32 low = ~0u, high = 0;
#pragma unroll
    for (int item = 0; item < EACH; ++item) {
      if (place_of(item) >= count || (skip_padding && own[item] == 0)) continue;
      low = min(low, half(own[item], score));
      high = max(high, half(own[item], score));
    }
    low = __reduce_min_sync(~0u, low);
    high = __reduce_max_sync(~0u, high);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) {
      all.low[warp] = low;
      all.high[warp] = high;
    }
    __syncthreads();
    *least = __reduce_min_sync(~0u, all.low[lane % WARPS]);
    *largest = __reduce_max_sync(~0u, all.high[lane % WARPS]);
  }

  // Counts become first places; crowded bins become segments.
  static __device__ __forceinline__ void scan(int begin, int count, bool divisible, int next) {
    Shared& all = shared();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint4* mine = reinterpret_cast<uint4*>(all.bins) + QUADS * threadIdx.x;
    uint4 counts[QUADS];
    u32 sum = 0;
#pragma unroll
    for (int quad = 0; quad < QUADS; ++quad) {
      counts[quad] = mine[quad];
      sum += total(counts[quad]);
    }
    u32 before = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const u32 lower = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += lower;
    }
    if (lane == 31) all.sums[warp] = before;
    __syncthreads();
    before += __reduce_add_sync(~0u, lane < warp ? all.sums[lane] : 0) - sum;
#pragma unroll
    for (int quad = 0; quad < QUADS; ++quad) {
      mine[quad] = place(begin, before, counts[quad], divisible, next);
      before += total(counts[quad]);
    }
    if (threadIdx.x == 0) all.bins[BINS] = static_cast<u32>(count);
  }

  static __device__ __forceinline__ u32 total(const uint4& counts) {
    return counts.x + counts.y + counts.z + counts.w;
  }

  // The first places of four bins.
  static __device__ __forceinline__ uint4 place(int begin, u32 before, const uint4& counts,
                                                bool divisible, int next) {
    const uint4 first = make_uint4(before, before + counts.x, before + counts.x + counts.y,
                                   before + counts.x + counts.y + counts.z);
    if (divisible && max(max(counts.x, counts.y), max(counts.z, counts.w)) > CROWD) {
      push(begin, first.x, counts.x, next);
      push(begin, first.y, counts.y, next);
      push(begin, first.z, counts.z, next);
      push(begin, first.w, counts.w, next);
    }
    return first;
  }

  static __device__ __forceinline__ void push(int begin, u32 first, u32 count, int next) {
    if (count <= CROWD) return;
    const u32 from = static_cast<u32>(begin) + first;
    shared().segments[next][atomicAdd(&shared().pushed[next], 1u)] = from << 16 | (from + count);
  }
};
