// The winners of unsorted lists, written, or those of them that a rank owns: one block a row.
#pragma once

#include "merge.cuh"
#include "selector.cuh"

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

  template <int THREADS, typename See>
  __device__ __forceinline__ void visit(const See& see) const {
    for (int list = 0; list < lists; ++list)
      for (int at = static_cast<int>(threadIdx.x); at < k; at += THREADS) see(word(list, at));
  }
};

// The ids of a row, by score; null where they are not wanted so.
struct Ids {
  int* ids;

  __device__ __forceinline__ bool is_there() const { return ids != nullptr; }
  __device__ __forceinline__ void operator()(int rank, u64 word) const { ids[rank] = id_of(word); }
};

// Of up to LISTS lists of up to CAPACITY words, ITEMS of each to a thread: own[item] is of list
// item / ITEMS.
template <int CAPACITY, int ITEMS, int LISTS>
struct ListSelector {
  using Core = Selector<CAPACITY, ITEMS, LISTS>;
  using Sort = typename Core::Sort;
  static constexpr int THREADS = Core::THREADS, WARPS = Core::WARPS, EACH = Core::EACH;

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
    prefetch_some(lists, row + Core::AT_ONCE);
    const bool direct = !to.by_position && !to.is_local;
    Core::spread(lists, own, scores, Ids{direct ? ids : nullptr});
    __syncthreads();
    const int count = min(static_cast<int>(Core::memory().end), k);
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
    Core::begin();
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
      if (threadIdx.x % 32 == 0) Core::memory().cuts[list][threadIdx.x / 32] = cut;
      least = min(least, cut);
    }
    if (least == 0) least = Core::least_valid(own);
    return Core::memory().sort.warps.joined(least, __reduce_max_sync(~0u, largest));
  }

  static __device__ __forceinline__ void prefetch_some(const Lists& lists, i64 row) {
    const int line = static_cast<int>(threadIdx.x) / LISTS * (LINE / sizeof(i64));
    const int list = static_cast<int>(threadIdx.x) % LISTS;
    if (row < lists.rows && lists.has(list, line)) prefetch(lists.of(list, row) + line);
  }

  // Writes winners that stand in shared memory, those that are owned if ids are local, in the order
  // that is wanted; returns how many.
  static __device__ __forceinline__ int write_some(int count, int k, const Emission& to) {
    u64 own[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int at = Sort::place_of(item);
      own[item] = at < count ? Core::memory().sort.words[at] : 0;
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
    u32* counts = Core::memory().sort.bins;  // of a warp's words, item after item
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
      const u32 least = Core::memory().cuts[list][threadIdx.x % 32 % WARPS];
      sure = sure && __reduce_min_sync(~0u, least) < score_half(Core::memory().last);
    }
    return sure;
  }
};

#define SELECT_PARAMETERS const i64 *keys, i64 rows, i64 lists, i64 k, i64 seal, EMISSION_PARAMETERS

#define SELECT(CAPACITY, ITEMS, LISTS)                                                        \
  ListSelector<CAPACITY, ITEMS, LISTS>::select(                                                   \
      Lists{keys, rows, static_cast<int>(lists), static_cast<int>(k)}, seal != 0, EMISSION)
