// What may win of a row, as several blocks list it and one takes it over.
//
// All blocks of a row begin at one threshold. A list holds whatever of its part of the row may win:
// the words above the threshold, then those that tie with it. A part precedes the next one, and so do
// ties within a list, but for those of one warp's share: the first ones are all that may be wanted.
#pragma once

#include "topk_collect.cuh"

// The lists of rows: room for 2k words each, and a head.
struct RowLists {
  u64* words;
  u64* heads;
  i64 parts;  // of a row, at most a warp's lanes
  int k;

  __device__ __forceinline__ u32 room() const { return 2 * static_cast<u32>(k); }
  __device__ __forceinline__ u64* of(i64 row, i64 part) const {
    return words + (row * parts + part) * room();
  }
  __device__ __forceinline__ u64* head(i64 row, i64 part) const {
    return heads + row * parts + part;
  }
};

// The row's first threshold, and how many words of a list are above it and tie with it.
struct Head {
  float threshold;
  u32 above, ties;

  __device__ __forceinline__ static Head of(u64 head) {
    const u32 counts = static_cast<u32>(head);
    return {__uint_as_float(static_cast<u32>(head >> 32)), counts & 0xFFFF, counts >> 16};
  }
  __device__ __forceinline__ u64 packed() const {
    return static_cast<u64>(__float_as_uint(threshold)) << 32 | ties << 16 | above;
  }
};

template <int THREADS, int CAPACITY>
struct Listed {
  using Collect = Collector<THREADS, CAPACITY>;
  static constexpr u32 WARPS = Collect::WARPS;
  static constexpr u32 EACH = CAPACITY / THREADS;
  static constexpr u32 UNORDERED = 4 * Collect::SHARE;  // ties of a warp's share, at most
  static_assert(CAPACITY / 2 + UNORDERED <= CAPACITY, "k words and a share of ties always fit");

  // Writes what was collected to a list of the block's row; a warp has neighbours of the buffer.
  __device__ __forceinline__ static void write(const RowLists& lists, i64 part, Collect& collect,
                                               float threshold) {
    if (collect.count > lists.room()) collect.sort();
    __syncthreads();
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tied = ordered_bits(__float_as_int(threshold));
    const u32 share = (collect.count + THREADS - 1) / THREADS;  // words of a lane
    u64 own[EACH];
    u32 above = 0, ties = 0;
#pragma unroll
    for (u32 item = 0; item < EACH; ++item) {
      if (item >= share) break;
      const u32 at = (warp * share + item) * 32 + lane;
      own[item] = at < collect.count ? collect.word(at) : 0;
      above += __popc(__ballot_sync(~0u, ordered_score(own[item]) > tied));
      ties += __popc(__ballot_sync(~0u, ordered_score(own[item]) == tied));
    }
    if (lane == 0) {
      collect.shared.sums[warp] = above;
      collect.shared.best[warp] = ties;
    }
    __syncthreads();
    above = lane < WARPS ? collect.shared.sums[lane] : 0;
    ties = lane < WARPS ? collect.shared.best[lane] : 0;
    const Head head{threshold, __reduce_add_sync(~0u, above), __reduce_add_sync(~0u, ties)};
    u32 front = __reduce_add_sync(~0u, lane < warp ? above : 0);
    u32 back = head.above + __reduce_add_sync(~0u, lane < warp ? ties : 0);
    u64* words = lists.of(blockIdx.y, part);
#pragma unroll
    for (u32 item = 0; item < EACH; ++item) {
      if (item >= share) break;
      append(own[item], ordered_score(own[item]) > tied, words, &front);
      append(own[item], ordered_score(own[item]) == tied, words, &back);
    }
    if (threadIdx.x == 0) *lists.head(blockIdx.y, part) = head.packed();
  }

  // What lists tell of a row: how many words may win, and whether nothing else may; if it does, where
  // the search begins.
  struct Told {
    u32 count;
    bool all;
    float threshold;
  };

  // Takes over what may win of a row, if it fits and is enough: own[item] is word Sort::place_of(item).
  __device__ __forceinline__ static Told take(const RowLists& lists, i64 row, float lowest,
                                              u64 (&own)[EACH]) {
    const u32 lane = threadIdx.x % 32, k = static_cast<u32>(lists.k);
    const float first = Head::of(*lists.head(row, 0)).threshold;
    const Head head = lane < lists.parts ? Head::of(*lists.head(row, lane)) : Head{0, 0, 0};
    const u32 above = __reduce_add_sync(~0u, head.above);
    const u32 wanted = above < k ? k - above : 0;  // ties
    const u32 before = sum_through(head.ties) - head.ties;
    const u32 ties = before < wanted ? min(head.ties, wanted - before + UNORDERED) : 0;
    const u32 front = sum_through(head.above) - head.above;
    const u32 back = above + sum_through(ties) - ties;
    const u32 count = above + __reduce_add_sync(~0u, ties);
    const bool enough = count >= k || first == lowest;
    if (count > CAPACITY || !enough) return {0, false, enough ? first : lowest};
    const u32 list = lane * lists.room();
    if (threadIdx.x < 32) tell_places(front, list, back, list + head.above);
    __syncthreads();
    fetch(lists.of(row, 0), count, own);
    return {count, true, first};
  }

 private:
  // Where words go, and by how much farther they come from. Words themselves are put there only behind
  // the barriers of the sort.
  struct Places {
    u32 first[64], offsets[64];
  };
  __device__ __forceinline__ static Places& places() {
    return *reinterpret_cast<Places*>(Collect::memory().sort.words);
  }

  // Where lane i's words above the threshold go and where they come from, and its ties.
  __device__ __forceinline__ static void tell_places(u32 front, u32 above, u32 back, u32 ties) {
    places().first[threadIdx.x] = front;
    places().first[32 + threadIdx.x] = back;
    places().offsets[threadIdx.x] = above - front;
    places().offsets[32 + threadIdx.x] = ties - back;
  }

  // Each thread looks its words up, so that all have as many.
  __device__ __forceinline__ static void fetch(const u64* words, u32 count, u64 (&own)[EACH]) {
    const Places& from = places();
#pragma unroll
    for (u32 item = 0; item < EACH; ++item) {
      const u32 at = static_cast<u32>(Collect::Sort::place_of(item));
      own[item] = 0;
      if (at >= count) continue;
      u32 which = 0;
#pragma unroll
      for (u32 step = 32; step > 0; step /= 2)
        if (from.first[which + step] <= at) which += step;
      own[item] = words[at + from.offsets[which]];
    }
  }

  // Writes the words of a warp's lanes that are to be, in their order, from *place on.
  __device__ __forceinline__ static void append(u64 word, bool is_to_be, u64* words, u32* place) {
    const u32 all = __ballot_sync(~0u, is_to_be);
    if (is_to_be) words[*place + __popc(all & ((1u << threadIdx.x % 32) - 1))] = word;
    *place += __popc(all);
  }
};
