// The exact top-K of rows of logits: one block a row, or, where rows are few, several blocks that
// list what may win, and one that joins their lists.
#pragma once

#include "topk_estimate.cuh"

// What the blocks of a row found: `k` words of room for each, and a head: the row's first
// threshold in its upper half, how many words there are in its lower.
struct Lists {
  u64* words;
  u64* heads;
  i64 parts;  // at most a warp's lanes; 0: there are none
};

// Where winners go.
struct Winners {
  float* scores;
  int* ids;

  __device__ __forceinline__ void write(i64 at, u64 word) const {
    scores[at] = word == 0 ? __int_as_float(~0x7FFFFF) : score_of_ordered(ordered_score(word));
    ids[at] = id_of(word);
  }
};

template <int THREADS, int CAPACITY>
struct TopK {
  using Collect = Collector<THREADS, CAPACITY>;
  using Estimate = Sample<THREADS, CAPACITY>;

  // One block lists what may win of its part of a row.
  __device__ __forceinline__ static void list(const Logits& logits, int k, bool mask_neg_inf,
                                              const Lists& lists) {
    const Row row(logits, blockIdx.y);
    Collect collect(k, mask_neg_inf);
    const u32 tiles = Collect::tiles(row), parts = static_cast<u32>(lists.parts);
    const u32 each = (tiles + parts - 1) / parts, tile = blockIdx.x * each;
    const i64 part = blockIdx.y * lists.parts + blockIdx.x;
    float threshold = collect.lowest;
    if (tile < tiles || blockIdx.x == 0) {
      threshold = collect.threshold = Estimate::estimate(row, collect.lowest, k);
      collect.collect(row, tile, tile + each < tiles ? tile + each : tiles, blockIdx.x == 0,
                      false);
      __syncthreads();
      for (u32 at = threadIdx.x; at < collect.count; at += THREADS)
        lists.words[part * k + at] = collect.word(at);
    }
    if (threadIdx.x == 0)
      lists.heads[part] = static_cast<u64>(__float_as_uint(threshold)) << 32 | collect.count;
  }

  // One block finds a row's winners, among the lists if there are any.
  __device__ __forceinline__ static void find(const Logits& logits, int k, bool mask_neg_inf,
                                              const Lists& lists, const Winners& to) {
    const i64 at_row = blockIdx.x;
    const Row row(logits, at_row);
    Collect collect(k, mask_neg_inf);
    const u32 tiles = Collect::tiles(row);
    float threshold;
    bool joined = false;
    if (lists.parts == 0) {
      threshold = Estimate::estimate(row, collect.lowest, k);
    } else {
      const u32 total = join(lists, at_row, collect, &threshold);
      const bool enough = total >= static_cast<u32>(k);
      joined = total <= CAPACITY && (enough || threshold == collect.lowest);
      if (!enough) threshold = collect.lowest;
    }
    for (;;) {
      collect.threshold = threshold;
      collect.risen = false;
      if (!joined) collect.count = collect.sorted = 0;
      collect.collect(row, joined ? tiles : 0, tiles, !joined, true);
      if (threshold == collect.lowest || collect.holds(threshold)) break;
      threshold = collect.lowest;  // it was too high
      joined = false;
    }
    for (u32 at = threadIdx.x; at < static_cast<u32>(k); at += THREADS)
      to.write(at_row * k + at, at < collect.count ? collect.word(at) : 0);
  }

 private:
  // Takes over the lists of a row if they fit; returns how many words there are.
  //
  // The k-th word of a full list, which is sorted, bounds all others: where words are many, as where
  // scores tie, those below the best such bound are left out.
  __device__ __forceinline__ static u32 join(const Lists& lists, i64 row, Collect& collect,
                                             float* threshold) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 parts = static_cast<u32>(lists.parts);
    const u64* heads = lists.heads + row * lists.parts;
    const u32 size = lane < parts ? static_cast<u32>(heads[lane]) : 0;
    const u32 total = __reduce_add_sync(~0u, size);
    *threshold = __uint_as_float(static_cast<u32>(heads[0] >> 32));
    const u64* all = lists.words + row * lists.parts * collect.k;
    if (total > CAPACITY) return join_best(all, size, collect);
    for (u32 part = warp; part < parts; part += Collect::WARPS) {
      const u32 before = __reduce_add_sync(~0u, lane < part ? size : 0);
      const u32 own = __shfl_sync(~0u, size, static_cast<int>(part));
      const u64* words = all + part * collect.k;
#pragma unroll 4
      for (u32 at = lane; at < own; at += 32) collect.shared.sort.words[before + at] = words[at];
    }
    collect.count = collect.sorted = total;
    return total;
  }

  // The same for more words; lane i has the size of list i.
  __device__ __forceinline__ static u32 join_best(const u64* all, u32 size, Collect& collect) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = static_cast<u32>(collect.k);
    u64 bound = size == k ? all[lane * k + k - 1] : 0;
    for (int step = 16; step > 0; step /= 2) {
      const u64 other = __shfl_xor_sync(~0u, bound, step);
      bound = other > bound ? other : bound;
    }
    u32* joined = &collect.shared.found[0];
    u32* ends = collect.shared.sums;
    if (threadIdx.x == 0) *joined = 0;
    for (u32 part = warp; part < 32; part += Collect::WARPS) {
      const u32 own = __shfl_sync(~0u, size, static_cast<int>(part));
      const u32 end = own == k ? reached(all + part * k, k, bound) : own;
      if (lane == 0) ends[part] = end;
    }
    __syncthreads();
    for (u32 part = 0; part < 32; ++part) {
      const u64* words = all + part * k;
      const u32 end = ends[part];
      // Each list begins with another warp: most have few words that reach the bound.
      for (u32 first = (warp + part) % Collect::WARPS * 32; first < end; first += THREADS) {
        const u64 word = first + lane < end ? words[first + lane] : 0;
        const u32 kept = __ballot_sync(~0u, word >= bound && word != 0);
        u32 place = lane == 0 ? atomicAdd(joined, static_cast<u32>(__popc(kept))) : 0;
        place = __shfl_sync(~0u, place, 0) + __popc(kept & ((1u << lane) - 1));
        if ((kept >> lane & 1) != 0 && place < CAPACITY) collect.shared.sort.words[place] = word;
      }
    }
    __syncthreads();
    collect.count = collect.sorted = *joined;
    return *joined;
  }

  // How many words of a sorted list are not below a bound, by one warp.
  __device__ __forceinline__ static u32 reached(const u64* words, u32 count, u64 bound) {
    const u32 lane = threadIdx.x % 32, each = (count + 31) / 32;
    const u32 last = (lane + 1) * each;  // behind the lane's share
    const u32 whole = __popc(__ballot_sync(~0u, last <= count && words[last - 1] >= bound)) * each;
    u32 more = 0;
    for (u32 at = whole + lane; at - lane < whole + each; at += 32)
      more += __popc(__ballot_sync(~0u, at < count && words[at] >= bound));
    return whole + more;
  }
};

#define LOGITS_PARAMETERS                                                                        \
  const void *data, i64 stride, i64 width, i64 dtype, const void *starts, i64 starts_form,        \
      const void *lengths, i64 lengths_form, i64 k, i64 mask_neg_inf, u64 *words, u64 *heads,     \
      i64 parts

#define LOGITS                                                                                   \
  Logits{data, stride, width, dtype, starts, starts_form, lengths, lengths_form},                 \
      static_cast<int>(k), mask_neg_inf != 0, Lists{words, heads, parts}

#define WINNERS_PARAMETERS float *scores, int *ids

#define WINNERS \
  Winners { scores, ids }
