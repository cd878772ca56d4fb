// Sorts a row's distinct words by one block, descending, and hands each to where it belongs.
//
// One pass spreads a segment over bins that are monotone in the word, so that what is left to do is
// to rank words within their bin. Crowded bins are segments of their own, spread again: at first by
// the score's value, then by the bits of the score and, where scores are equal, by those of the id.
// Each of that halves a segment's range at least, so that it ends, and soon where words are many.
// Rows that would crowd a bin as a rule, for a plateau or for a few large scores, have bins of their
// own kind; rows that fall already are left as they are.
#pragma once

#include "bounds.cuh"

// Of up to CAPACITY words, EACH to a thread, and room for SLACK more.
template <int CAPACITY, int EACH, int SLACK = 0>
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
    u64 words[CAPACITY + SLACK];
    u32 bins[BINS + 32];  // where the last bin ends stands behind it; the rest is for what does not count
    Warps<THREADS> warps;
    u32 segments[2][SEGMENTS];  // begin << 16 | end
    u32 pushed[2];
    bool falling;
  };
  static_assert(sizeof(Shared) <= 8 * (CAPACITY + SLACK) + 4 * BINS + 1280, "what launches ask for");

  // All dynamic shared memory of a block that sorts begins with it.
  static __device__ __forceinline__ Shared& shared() {
    extern __shared__ __align__(16) unsigned char memory[];
    return *reinterpret_cast<Shared*>(memory);
  }

  static __device__ __forceinline__ int place_of(int item) {
    return item * THREADS + static_cast<int>(threadIdx.x);
  }

  // Calls emit(rank, word) for each of `count` words; own[item] is word place_of(item) of them, which
  // may well fall already.
  //
  // All threads call it, and after a barrier if the shared memory was in use.
  template <bool MAY_FALL, typename Emit>
  static __device__ __forceinline__ void sort(u64 (&own)[EACH], int count, const Emit& emit) {
    begin();
    if (MAY_FALL) tell_whether_falling(own[0]);
    const Bounds scores = bounds_of_scores(own, count);
    if (are_uneven(scores, count) || (MAY_FALL && shared().falling)) {
      put(own, count);
      if (!MAY_FALL || !falls(own, count)) sort_words(count);
      emit_words(count, emit);
    } else {
      spread_all(ByValue<ORDER>(scores.low, scores.high), own, count, emit);
    }
  }

  // The same for a kernel that has registers to spare: words that lie unevenly stay where they are.
  template <typename Emit>
  static __device__ __forceinline__ void sort_in_registers(u64 (&own)[EACH], int count,
                                                           const Emit& emit) {
    begin();
    const Bounds scores = bounds_of_scores(own, count);
    if (are_uneven(scores, count))
      spread_all(by_uneven_values(own, count, scores), own, count, emit);
    else
      spread_all(ByValue<ORDER>(scores.low, scores.high), own, count, emit);
  }

  // The same by the halves of ids alone.
  template <typename Emit>
  static __device__ __forceinline__ void sort_by_id(u64 (&own)[EACH], int count, const Emit& emit) {
    begin();
    spread_all(by_ids(own, count), own, count, emit);
  }

  // Sorts the first `count` of shared().words in place.
  //
  // All threads call it, after a barrier, and may read what is sorted when it returns. Apart, so
  // that it costs the code around it no registers.
  static __device__ __noinline__ void sort_words(int count) {
    u64 own[EACH];
    u32 place[EACH];
    take(own, 0, count);
    begin();
    const Bounds scores = bounds_of_scores(own, count);
    if (are_uneven(scores, count))
      spread(by_uneven_values(own, count, scores), own, place, 0, count, 0);
    else
      spread(ByValue<ORDER>(scores.low, scores.high), own, place, 0, count, 0);
    settle(own, place, 0, count);
    refine();
  }

 protected:
  // Spreads what was pushed until nothing is. Apart, so that it costs the common way no registers.
  static __device__ __noinline__ void refine() {
    Shared& all = shared();
    for (int round = 0; all.pushed[round & 1] > 0; ++round) {
      const int now = round & 1, next = now ^ 1;
      if (threadIdx.x == 0) all.pushed[next] = 0;
      for (u32 which = 0; which < all.pushed[now]; ++which) {
        const u32 segment = all.segments[now][which];
        const int begin = static_cast<int>(segment >> 16), end = static_cast<int>(segment & 0xFFFF);
        sort_segment(begin, end, next);
      }
    }
  }

  // Puts a segment's words into place, but for those of crowded bins, whose segments are pushed.
  static __device__ __forceinline__ void sort_segment(int first, int end, int next) {
    u64 own[EACH];
    u32 place[EACH];
    take(own, first, end);
    clear();
    spread(by_bits(own, end - first), own, place, first, end, next);
    settle(own, place, first, end);
  }

  static __device__ __forceinline__ void take(u64 (&own)[EACH], int first, int end) {
#pragma unroll
    for (int item = 0; item < EACH; ++item)
      own[item] = first + place_of(item) < end ? shared().words[first + place_of(item)] : 0;
  }

  // Before words are spread for the first time.
  static __device__ __forceinline__ void begin() {
    if (threadIdx.x == 0) shared().pushed[0] = 0;
    clear();
  }
  static __device__ __forceinline__ void clear() {
    for (int which = 0; which < QUADS; ++which)
      reinterpret_cast<uint4*>(shared().bins)[which * THREADS + threadIdx.x] = make_uint4(0, 0, 0, 0);
  }

  template <typename Map, typename Emit>
  static __device__ __forceinline__ void spread_all(const Map& map, u64 (&own)[EACH], int count,
                                                    const Emit& emit) {
    u32 place[EACH];
    spread(map, own, place, 0, count, 0);
    if (shared().pushed[0] == 0) {
#pragma unroll
      for (int item = 0; item < EACH; ++item)
        if (place_of(item) < count) emit(static_cast<int>(place[item]), own[item]);
      return;
    }
    settle(own, place, 0, count);
    refine();
    emit_words(count, emit);
  }

  template <typename Emit>
  static __device__ __forceinline__ void emit_words(int count, const Emit& emit) {
    for (int at = threadIdx.x; at < count; at += THREADS) emit(at, shared().words[at]);
  }

  static __device__ __forceinline__ void put(const u64 (&own)[EACH], int count) {
#pragma unroll
    for (int item = 0; item < EACH; ++item)
      if (place_of(item) < count) shared().words[place_of(item)] = own[item];
    __syncthreads();
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
  template <typename Map>
  static __device__ __forceinline__ void spread(const Map& map, u64 (&own)[EACH],
                                                u32 (&place)[EACH], int begin, int end, int next) {
    Shared& all = shared();
    const int count = end - begin;
#pragma unroll
    for (int item = 0; item < EACH; ++item) {
      if (place_of(item) < count) {
        const u32 bin = map.bin(own[item]);
        place[item] = bin << 16 | atomicAdd(&all.bins[bin], 1u);
      }
    }
    __syncthreads();
    scan([&](u32, const uint4& first, const uint4& counts) {
      if (map.divisible) push_crowded(begin, first, counts, next);
    });
    __syncthreads();
    u64* words = all.words + begin;
#pragma unroll
    for (int item = 0; item < EACH; ++item) {
      if (place_of(item) < count)
        words[all.bins[place[item] >> 16] + (place[item] & 0xFFFF)] = own[item];
    }
    __syncthreads();
#pragma unroll
    for (int item = 0; item < EACH; ++item) {
      if (place_of(item) < count) {
        own[item] = words[place_of(item)];
        const u32* bin = all.bins + map.bin(own[item]);
        place[item] = rank(words, own[item], bin[0], bin[1], place_of(item));
      }
    }
  }

  // The place of the word that stands at `at` of its segment: within its bin, which has the words from
  // `begin` to `end`, if that is no segment.
  static __device__ __forceinline__ u32 rank(const u64* words, u64 word, u32 begin, u32 end, int at) {
    const int first = static_cast<int>(begin), behind = static_cast<int>(end);
    if (behind - first > CROWD) return static_cast<u32>(at);
    int before = first;
#pragma unroll 1  // bins have few words
    for (int other = first; other < behind; ++other) {
      // Of equal words, padding or repeated ids, the first comes first.
      before += other < at ? words[other] >= word : words[other] > word;
    }
    return static_cast<u32>(before);
  }

  // By the bits of scores, or of ids where scores are equal.
  static __device__ __forceinline__ ByHalf<ORDER> by_bits(const u64 (&own)[EACH], int count) {
    const auto every = [](u64) { return true; };
    const Bounds scores = shared().warps.bounds(own, count, score_half, every);
    if (scores.low != scores.high) return ByHalf<ORDER>(scores.low, scores.high, true);
    __syncthreads();
    return by_ids(own, count);
  }
  static __device__ __forceinline__ ByHalf<ORDER> by_ids(const u64 (&own)[EACH], int count) {
    const Bounds ids = shared().warps.bounds(own, count, id_half, [](u64) { return true; });
    return ByHalf<ORDER>(ids.low, ids.high, false);
  }

  template <int MANY>
  static __device__ __forceinline__ Uneven<ORDER> by_uneven_values(const u64 (&own)[MANY],
                                                                   int count, const Bounds& scores) {
    u32 large = scores.high;
    if (scores.have_outliers()) {
      __syncthreads();
      const Bounds usual = shared().warps.bounds(own, count, score_half, [&](u64 word) {
        return (word != 0) & scores.is_low(score_half(word));
      });
      if (shared().warps.few_above(own, usual.high)) large = usual.high;
    }
    Uneven<ORDER> map(scores.low, large);
    if (scores.template have_ties<WARPS>()) {
      __syncthreads();
      const Bounds ids = shared().warps.bounds(
          own, count, id_half, [&](u64 word) { return score_half(word) == scores.low; });
      map.divide(ids.low, ids.high);
    }
    return map;
  }

  static __device__ __forceinline__ bool are_uneven(const Bounds& scores, int count) {
    const bool ties = scores.template have_ties<WARPS>();
    return count > CROWD && (scores.have_outliers() || ties);
  }

  template <int MANY>
  static __device__ __forceinline__ Bounds bounds_of_scores(const u64 (&own)[MANY], int count) {
    return shared().warps.bounds(own, count, score_half, [](u64 word) { return word != 0; });
  }

  // Whether the first words of a row fall, told before a barrier: few that do not as a whole begin so.
  static __device__ __forceinline__ void tell_whether_falling(u64 word) {
    if (threadIdx.x >= 32) return;
    const u64 next = __shfl_down_sync(~0u, word, 1);  // the last lane's is its own
    const bool falling = __all_sync(~0u, word >= next);
    if (threadIdx.x == 0) shared().falling = falling;
  }

  // Whether all words of shared().words fall.
  static __device__ __forceinline__ bool falls(const u64 (&own)[EACH], int count) {
    bool falls = true;
#pragma unroll
    for (int item = 0; item < EACH; ++item) {
      const int next = place_of(item) + 1;
      falls = falls && (next >= count || own[item] >= shared().words[next]);
    }
    return __syncthreads_and(falls);
  }

  // Counts become first places; hears(quad, first places, counts) is told of every four bins.
  template <typename Hear>
  static __device__ __forceinline__ void scan(const Hear& hears) {
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
    if (lane == 31) all.warps.sums[warp] = before;
    __syncthreads();
    before += __reduce_add_sync(~0u, lane < warp ? all.warps.sums[lane] : 0) - sum;
#pragma unroll
    for (int quad = 0; quad < QUADS; ++quad) {
      mine[quad] = first_places(before, counts[quad]);
      hears(QUADS * threadIdx.x + quad, first_places(before, counts[quad]), counts[quad]);
      before += total(counts[quad]);
    }
    if (threadIdx.x == THREADS - 1) all.bins[BINS] = before;
  }

  static __device__ __forceinline__ u32 total(const uint4& counts) {
    return counts.x + counts.y + counts.z + counts.w;
  }

  static __device__ __forceinline__ uint4 first_places(u32 before, const uint4& counts) {
    return make_uint4(before, before + counts.x, before + counts.x + counts.y,
                      before + counts.x + counts.y + counts.z);
  }

  static __device__ __forceinline__ void push_crowded(int begin, const uint4& first,
                                                      const uint4& counts, int next) {
    if (max(max(counts.x, counts.y), max(counts.z, counts.w)) <= CROWD) return;
    push(begin, first.x, counts.x, next);
    push(begin, first.y, counts.y, next);
    push(begin, first.z, counts.z, next);
    push(begin, first.w, counts.w, next);
  }

  static __device__ __forceinline__ void push(int begin, u32 first, u32 count, int next) {
    if (count <= CROWD) return;
    const u32 from = static_cast<u32>(begin) + first;
    shared().segments[next][atomicAdd(&shared().pushed[next], 1u)] = from << 16 | (from + count);
  }
};
