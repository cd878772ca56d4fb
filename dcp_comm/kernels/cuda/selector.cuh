// The best of a row's words, in their order, by one block.
//
// Words lie in registers, as far as those go: to read them again would take as long as the first time,
// be it from L2. They are counted in bins that are monotone in the word, best first; then those up to
// the bin of the last winner are put where the words of their bin belong, and what is left to do is to
// rank words within their bin.
//
// Where that bin is crowded, or words are repeated, the last winner is found by its bits instead, and
// what wins is sorted.
#pragma once

#include "sort.cuh"

// Of up to LISTS * CAPACITY words, LISTS * ITEMS to a thread. A `Source` has them too: `k` of them are
// wanted, at most CAPACITY, and visit<THREADS>(see) shows all to the threads of a block.
template <int CAPACITY, int ITEMS, int LISTS>
struct Selector : Sorter<CAPACITY, ITEMS, CROWD> {
  using Sort = Sorter<CAPACITY, ITEMS, CROWD>;
  static constexpr int THREADS = Sort::THREADS, WARPS = Sort::WARPS;
  static constexpr int EACH = LISTS * ITEMS;
  static constexpr int KEPT = ITEMS + 1;  // words a thread of those up to the last winner's bin
  static constexpr int AT_ONCE = 132 * 1024 / THREADS;  // blocks that a GPU runs, about
  static_assert(CROWD <= THREADS, "or these are more");

  struct Shared {
    typename Sort::Shared sort;
    unsigned short bin_of[CAPACITY + CROWD];  // of sort.words
    u32 cuts[LISTS][WARPS];                   // the least score that a warp has of each list
    u32 ranks[WARPS];                         // sums of them
    u64 last;                                 // winner
    u32 last_bin, end;                        // its bin; words up to the end of that
    int taken;                                // words that win, if found by their bits
    bool crowded;                             // so is its bin
  };
  static_assert(sizeof(Shared) <= 10 * CAPACITY + 4 * Sort::BINS + 3328, "what launches ask for");

  // All dynamic shared memory of a block begins with it.
  static __device__ __forceinline__ Shared& memory() {
    extern __shared__ __align__(16) unsigned char memory[];
    return *reinterpret_cast<Shared*>(memory);
  }

  // Before bounds are told.
  static __device__ __forceinline__ void begin() {
    Sort::begin();
    if (threadIdx.x < 32) memory().sort.bins[Sort::BINS + threadIdx.x] = 0;
  }

  // Of a warp's scores.
  static __device__ __forceinline__ u32 least_valid(const u64 (&own)[EACH]) {
    u32 least = ~0u;
#pragma unroll
    for (int item = 0; item < EACH; ++item)
      least = min(least, own[item] != 0 ? score_half(own[item]) : ~0u);
    return __reduce_min_sync(~0u, least);
  }

  // Leaves the winners sorted in shared memory; or writes them, if there is where: to(rank, word).
  template <typename Source, typename To>
  static __device__ __forceinline__ void spread(const Source& source, const u64 (&own)[EACH],
                                                const Bounds& scores, const To& to) {
    Shared& all = memory();
    u64* words = all.sort.words;
    u32 places[EACH];
    if (Sort::are_uneven(scores, EACH * THREADS))
      count(Sort::by_uneven_values(own, EACH * THREADS, scores), own, places);
    else
      count(ByValue<Sort::ORDER>(scores.low, scores.high), own, places);
    __syncthreads();
    Sort::scan([&](u32 quad, const uint4& first, const uint4& counts) {
      hear(quad, first, counts, static_cast<u32>(source.k));
    });
    __syncthreads();
    const int end = static_cast<int>(all.end), found = min(end, source.k);
    u64 kept[KEPT];
    int place[KEPT];
    bool ranked = !all.crowded;
    if (ranked) {
      put(own, places);
      ranked = rank(end, kept, place);
    }
    if (!ranked) {
      search(source);
    } else if (to.is_there() && all.sort.pushed[0] == 0) {
#pragma unroll
      for (int item = 0; item < KEPT; ++item) {
        if (place[item] < found) to(place[item], kept[item]);
        if (place[item] == found - 1) all.last = kept[item];
      }
      return;
    } else {
      arrange(end, kept, place);
    }
    __syncthreads();
    const int winners = min(static_cast<int>(all.end), source.k);
    if (threadIdx.x == 0 && winners > 0) all.last = words[winners - 1];
    if (to.is_there()) Sort::emit_words(winners, to);
  }

 private:
  // Counts words in bins; places[item] becomes the bin of own[item], and its place there. Bins that
  // nobody reads count padding.
  template <typename Map>
  static __device__ __forceinline__ void count(const Map& map, const u64 (&own)[EACH],
                                               u32 (&places)[EACH]) {
#pragma unroll
    for (int item = 0; item < EACH; ++item) {
      const u32 mapped = map.bin(own[item]);
      const u32 bin = score_half(own[item]) != 0 ? mapped : Sort::BINS + threadIdx.x % 32;
      places[item] = (bin << 16) + atomicAdd(&memory().sort.bins[bin], 1u);
    }
  }

  // Of every four bins: the last winner's, if it is one, and crowded ones up to there.
  static __device__ __forceinline__ void hear(u32 quad, const uint4& first, const uint4& counts,
                                              u32 k) {
    Shared& all = memory();
    const u32 end = first.w + counts.w;
    if (first.x >= k) return;
    if (k <= end || quad == Sort::BINS / 4 - 1) {
      const u32 which = k <= first.y ? 0 : k <= first.z ? 1 : k <= first.w ? 2 : 3;
      const u32 begins = which == 0 ? first.x : which == 1 ? first.y : which == 2 ? first.z : first.w;
      all.last_bin = 4 * quad + which;
      all.end = which == 0 ? first.y : which == 1 ? first.z : which == 2 ? first.w : end;
      all.crowded = all.end - begins > CROWD && all.end > CAPACITY;
    }
    const uint4 wanted = make_uint4(counts.x, first.y < k ? counts.y : 0,
                                    first.z < k ? counts.z : 0, first.w < k ? counts.w : 0);
    Sort::push_crowded(0, first, wanted, 0);
  }

  // Puts the words up to the last winner's bin where those of their bin belong.
  static __device__ __forceinline__ void put(const u64 (&own)[EACH], const u32 (&places)[EACH]) {
    Shared& all = memory();
    const u32 behind = (all.last_bin + 1) << 16;
#pragma unroll
    for (int first = 0; first < EACH; first += ITEMS) {
      u32 at[ITEMS];
#pragma unroll
      for (int item = 0; item < ITEMS; ++item) {
        const u32 place = places[first + item];
        if (place < behind) at[item] = all.sort.bins[place >> 16] + (place & 0xFFFF);
      }
#pragma unroll
      for (int item = 0; item < ITEMS; ++item) {
        const u32 place = places[first + item];
        if (place < behind) all.sort.words[at[item]] = own[first + item];
        if (place < behind) all.bin_of[at[item]] = static_cast<unsigned short>(place >> 16);
      }
    }
    __syncthreads();
  }

  // Tells where each word belongs; in a crowded bin, only that it is in there. False if words are
  // repeated: ranks then add up to less than those of as many different words.
  static __device__ __forceinline__ bool rank(int end, u64 (&kept)[KEPT], int (&place)[KEPT]) {
    Shared& all = memory();
    u32 sum = 0;
#pragma unroll
    for (int item = 0; item < KEPT; ++item) {
      const int at = Sort::place_of(item);
      place[item] = CAPACITY + CROWD;
      if (at >= end) continue;
      kept[item] = all.sort.words[at];
      const u32* bin = all.sort.bins + all.bin_of[at];
      const u64 *other = all.sort.words + bin[0], *behind = all.sort.words + bin[1];
      u32 rank = bin[0];
      if (bin[1] - bin[0] > CROWD) {
        rank = static_cast<u32>(at);
      } else {
#pragma unroll 1  // bins have few words
        for (; other < behind; ++other) rank += *other > kept[item];
      }
      place[item] = static_cast<int>(rank);
      sum += rank;
    }
    sum = __reduce_add_sync(~0u, sum);
    if (threadIdx.x % 32 == 0) all.ranks[threadIdx.x / 32] = sum;
    __syncthreads();
    const u32 lane = threadIdx.x % 32;
    sum = __reduce_add_sync(~0u, lane < WARPS ? all.ranks[lane] : 0);
    return 2 * sum == static_cast<u32>(end) * static_cast<u32>(end - 1);
  }

  // Sorts the words up to the last winner's bin.
  static __device__ __forceinline__ void arrange(int end, const u64 (&kept)[KEPT],
                                                 const int (&place)[KEPT]) {
#pragma unroll
    for (int item = 0; item < KEPT; ++item)
      if (Sort::place_of(item) < end) memory().sort.words[place[item]] = kept[item];
    __syncthreads();
    Sort::refine();
  }

  // Finds the last winner by its bits, and sorts what wins. Apart, so that it costs the common way no
  // registers.
  template <typename Source>
  static __device__ __noinline__ void search(Source source) {
    Shared& all = memory();
    u64 low = 0, high = ~0ull;
    u32 wanted = static_cast<u32>(source.k);
    if (all.end < wanted) high = 0;
    for (int shift = 64; shift > 0 && high > 0;) {
      shift = max(64 - __clzll(static_cast<i64>(high - low)) - Sort::ORDER, 0);
      __syncthreads();  // all have read what the turn before found
      Sort::begin();
      __syncthreads();
      source.template visit<THREADS>([&](u64 word) {
        if (word != 0 && word >= low && word <= high)
          atomicAdd(&all.sort.bins[(high - word) >> shift], 1u);
      });
      __syncthreads();
      Sort::scan([&](u32 quad, const uint4& first, const uint4& counts) {
        hear(quad, first, counts, wanted);
      });
      __syncthreads();
      const u32 bin = all.last_bin;
      wanted -= all.sort.bins[bin];
      high -= static_cast<u64>(bin) << shift;
      low = max(low, high - ((1ull << shift) - 1));
    }
    __syncthreads();
    if (threadIdx.x == 0) all.taken = 0;
    __syncthreads();
    take(source, [&](u64 word) { return word > high; });
    if (high > 0) take(source, [&](u64 word) { return word == high; });
    const int winners = min(all.taken, source.k);
    if (threadIdx.x == 0) all.end = static_cast<u32>(winners);
    Sort::sort_words(winners);
  }

  // Appends the words that win, as many as are wanted.
  template <typename Source, typename Wins>
  static __device__ __forceinline__ void take(const Source& source, const Wins& wins) {
    Shared& all = memory();
    source.template visit<THREADS>([&](u64 word) {
      const int at = wins(word) ? atomicAdd(&all.taken, 1) : source.k;
      if (at < source.k) all.sort.words[at] = word;
    });
    __syncthreads();
  }
};
