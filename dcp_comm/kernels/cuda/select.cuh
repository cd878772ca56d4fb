// The winners of unsorted lists, written, or those of them that a rank owns: one block a row.
//
// A row's words lie in registers, as far as those go: to read them again would take as long as the
// first time, be it from L2. They are counted in bins that are monotone in the word, best first; then
// those up to the bin of the last winner are put where the words of their bin belong, and what is left
// to do is to rank words within their bin.
//
// Where that bin is crowded, or words are repeated, the last winner is found by its bits instead, and
// what wins is sorted.
#pragma once

#include "merge.cuh"

// Lists (p, rows, k) of keys in any order, of which a block has one row.
struct Lists {
  const i64* keys;
  i64 rows;
  int lists, k;

  __device__ __forceinline__ const i64* of(int list, i64 row) const {
    return keys + (list * rows + row) * k;
  }
  __device__ __forceinline__ bool has(int list, int at) const { return list < lists && at < k; }
  __device__ __forceinline__ u64 word(int list, int at) const {
    return word_of_key(__ldg(of(list, blockIdx.x) + at));
  }
};

// Of up to LISTS lists of up to CAPACITY words, ITEMS of each to a thread: own[item] is of list
// item / ITEMS.
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

  // Writes the winners, and concludes the row; if `seal`, by a mark in the last of its ids.
  static __device__ __forceinline__ void select(const Lists& lists, bool seal,
                                                const Emission& to) {
    const int k = lists.k, thread = static_cast<int>(threadIdx.x);
    const i64 row = blockIdx.x;
    int* ids = to.ids + row * to.stride;
    u64 own[EACH];
    const bool aligned = reinterpret_cast<u64>(lists.keys) % sizeof(longlong2) == 0;
    const bool whole = lists.lists == LISTS && k == CAPACITY && aligned;
    const Bounds scores = whole ? load<true>(lists, own) : load<false>(lists, own);
    prefetch_some(lists, row + AT_ONCE);
    const bool direct = !to.by_position && !to.is_local;
    spread(lists, own, scores, direct ? ids : nullptr);
    __syncthreads();
    const int count = min(static_cast<int>(memory().end), k);
    int written = count;
    if (direct)
      for (int at = count + thread; at < k; at += THREADS) ids[at] = -1;
    else
      written = write_some(count, k, to);
    const bool sure = certifies(lists.lists, count, k);
    if (seal)
      to.seal(row, k, sure && count == k);
    else if (thread == 0)
      to.conclude(row, written, sure);
  }

 private:
  // The row's words: of whole lists, two at once.
  template <bool WHOLE>
  static __device__ __forceinline__ void fetch(const Lists& lists, u64 (&own)[EACH]) {
#pragma unroll
    for (int item = 0; item < EACH; item += 2) {
      const int list = item / ITEMS, pair = Sort::place_of(item % ITEMS / 2);
      if (WHOLE) {
        const longlong2* keys = reinterpret_cast<const longlong2*>(lists.of(list, blockIdx.x));
        const longlong2 two = __ldg(keys + pair);
        own[item] = word_of_key(two.x);
        own[item + 1] = word_of_key(two.y);
        continue;
      }
      const int at = Sort::place_of(item % ITEMS), next = at + THREADS;
      own[item] = lists.has(list, at) ? lists.word(list, at) : 0;
      own[item + 1] = lists.has(list, next) ? lists.word(list, next) : 0;
    }
  }

  // Fetches the row's words, and tells how far their scores reach.
  template <bool WHOLE>
  static __device__ __forceinline__ Bounds load(const Lists& lists, u64 (&own)[EACH]) {
    fetch<WHOLE>(lists, own);
    Sort::begin();
    if (threadIdx.x < 32) memory().sort.bins[Sort::BINS + threadIdx.x] = 0;
    u32 least = ~0u, largest = 0;
#pragma unroll
    for (int list = 0; list < LISTS; ++list) {
      u32 cut = ~0u;
#pragma unroll
      for (int item = 0; item < ITEMS; ++item) {
        const u32 score = score_half(own[list * ITEMS + item]);
        if (WHOLE || Sort::place_of(item) < lists.k) cut = min(cut, score);
        largest = max(largest, score);
      }
      cut = __reduce_min_sync(~0u, cut);
      if (threadIdx.x % 32 == 0) memory().cuts[list][threadIdx.x / 32] = cut;
      least = min(least, cut);
    }
    if (least == 0) least = least_valid(own);
    return memory().sort.warps.joined(least, __reduce_max_sync(~0u, largest));
  }

  // Of a warp's scores.
  static __device__ __forceinline__ u32 least_valid(const u64 (&own)[EACH]) {
    u32 least = ~0u;
#pragma unroll
    for (int item = 0; item < EACH; ++item)
      least = min(least, own[item] != 0 ? score_half(own[item]) : ~0u);
    return __reduce_min_sync(~0u, least);
  }

  static __device__ __forceinline__ void prefetch_some(const Lists& lists, i64 row) {
    const int line = static_cast<int>(threadIdx.x) / LISTS * (LINE / sizeof(i64));
    const int list = static_cast<int>(threadIdx.x) % LISTS;
    if (row < lists.rows && lists.has(list, line)) prefetch(lists.of(list, row) + line);
  }

  // Leaves the winners sorted in shared memory; or writes them, if it is told where.
  static __device__ __forceinline__ void spread(const Lists& lists, const u64 (&own)[EACH],
                                                const Bounds& scores, int* ids) {
    Shared& all = memory();
    u64* words = all.sort.words;
    u32 places[EACH];
    if (Sort::are_uneven(scores, EACH * THREADS))
      count(Sort::by_uneven_values(own, EACH * THREADS, scores), own, places);
    else
      count(ByValue<Sort::ORDER>(scores.low, scores.high), own, places);
    __syncthreads();
    Sort::scan([&](u32 quad, const uint4& first, const uint4& counts) {
      hear(quad, first, counts, static_cast<u32>(lists.k));
    });
    __syncthreads();
    const int end = static_cast<int>(all.end), found = min(end, lists.k);
    u64 kept[KEPT];
    int place[KEPT];
    bool ranked = !all.crowded;
    if (ranked) {
      put(own, places);
      ranked = rank(end, kept, place);
    }
    if (!ranked) {
      search(lists);
    } else if (ids != nullptr && all.sort.pushed[0] == 0) {
#pragma unroll
      for (int item = 0; item < KEPT; ++item) {
        if (place[item] < found) ids[place[item]] = id_of(kept[item]);
        if (place[item] == found - 1) all.last = kept[item];
      }
      return;
    } else {
      arrange(end, kept, place);
    }
    __syncthreads();
    const int winners = min(static_cast<int>(all.end), lists.k);
    if (threadIdx.x == 0 && winners > 0) all.last = words[winners - 1];
    if (ids != nullptr)
      Sort::emit_words(winners, [&](int rank, u64 word) { ids[rank] = id_of(word); });
  }

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
  static __device__ __noinline__ void search(Lists lists) {
    Shared& all = memory();
    u64 low = 0, high = ~0ull;
    u32 wanted = static_cast<u32>(lists.k);
    if (all.end < wanted) high = 0;
    for (int shift = 64; shift > 0 && high > 0;) {
      shift = max(64 - __clzll(static_cast<i64>(high - low)) - Sort::ORDER, 0);
      __syncthreads();  // all have read what the turn before found
      Sort::begin();
      __syncthreads();
      visit(lists, [&](u64 word) {
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
    take(lists, [&](u64 word) { return word > high; });
    if (high > 0) take(lists, [&](u64 word) { return word == high; });
    const int winners = min(all.taken, lists.k);
    if (threadIdx.x == 0) all.end = static_cast<u32>(winners);
    Sort::sort_words(winners);
  }

  // Appends the words that win, as many as are wanted.
  template <typename Wins>
  static __device__ __forceinline__ void take(const Lists& lists, const Wins& wins) {
    Shared& all = memory();
    visit(lists, [&](u64 word) {
      const int at = wins(word) ? atomicAdd(&all.taken, 1) : lists.k;
      if (at < lists.k) all.sort.words[at] = word;
    });
    __syncthreads();
  }

  template <typename See>
  static __device__ __forceinline__ void visit(const Lists& lists, const See& see) {
    for (int list = 0; list < lists.lists; ++list)
      for (int at = static_cast<int>(threadIdx.x); at < lists.k; at += THREADS)
        see(lists.word(list, at));
  }

  // Writes winners that stand in shared memory, those that are owned if ids are local, in the order
  // that is wanted; returns how many.
  static __device__ __forceinline__ int write_some(int count, int k, const Emission& to) {
    u64 own[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int at = Sort::place_of(item);
      own[item] = at < count ? memory().sort.words[at] : 0;
      if (to.is_local && !to.shard.owns(static_cast<u32>(id_of(own[item])))) own[item] = 0;
    }
    u32 place[ITEMS];
    const int written = close_up(own, place);
    const Emission::Row ids = to.of_row(blockIdx.x);
    if (to.by_position) {
      __syncthreads();
      write_row<Sort>(own, k, k, blockIdx.x, to);
      return written;
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (own[item] != 0) ids.write(static_cast<int>(place[item]), own[item]);
    for (int at = written + static_cast<int>(threadIdx.x); at < k; at += THREADS) ids.write(at, 0);
    return written;
  }

  // How many words there are, and the place of each among them.
  static __device__ __forceinline__ int close_up(const u64 (&own)[ITEMS], u32 (&place)[ITEMS]) {
    constexpr u32 SHARES = ITEMS * WARPS;
    u32* counts = memory().sort.bins;  // of a warp's words, item after item
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const u32 there = __ballot_sync(~0u, own[item] != 0);
      place[item] = __popc(there & ((1u << lane) - 1));
      if (lane == 0) counts[item * WARPS + warp] = __popc(there);
    }
    __syncthreads();
    u32 total = 0;
    for (u32 first = 0; first < SHARES; first += 32) {
      const u32 share = first + lane, number = share < SHARES ? counts[share] : 0;
      total += __reduce_add_sync(~0u, number);
#pragma unroll
      for (int item = 0; item < ITEMS; ++item)
        place[item] += __reduce_add_sync(~0u, share < item * WARPS + warp ? number : 0);
    }
    return static_cast<int>(total);
  }

  // Whether no word that a list was cut short of could tie with the last winner; by a whole warp.
  static __device__ __forceinline__ bool certifies(int lists, int count, int k) {
    bool sure = true;
    for (int list = 0; list < lists && count == k; ++list) {
      const u32 least = memory().cuts[list][threadIdx.x % 32 % WARPS];
      sure = sure && __reduce_min_sync(~0u, least) < score_half(memory().last);
    }
    return sure;
  }
};

#define SELECT_PARAMETERS const i64 *keys, i64 rows, i64 lists, i64 k, i64 seal, EMISSION_PARAMETERS

#define SELECT(CAPACITY, ITEMS, LISTS)                                                        \
  Selector<CAPACITY, ITEMS, LISTS>::select(                                                   \
      Lists{keys, rows, static_cast<int>(lists), static_cast<int>(k)}, seal != 0, EMISSION)
