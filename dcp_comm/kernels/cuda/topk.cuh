// The exact top-K of rows of logits: one block a row, or, where rows are few, several blocks that
// list what may win, and one that joins their lists.
#pragma once

#include "topk_estimate.cuh"
#include "topk_lists.cuh"

template <int THREADS, int CAPACITY>
struct TopK {
  using Collect = Collector<THREADS, CAPACITY>;
  using Estimate = Sample<THREADS, CAPACITY>;
  using List = Listed<THREADS, CAPACITY>;

  // One block finds a row's winners.
  __device__ __forceinline__ static void find(const Logits& logits, int k, bool mask_neg_inf,
                                              const Winners& to) {
    const Row row(logits, blockIdx.x);
    Collect collect(k, mask_neg_inf);
    search(row, Estimate::estimate(row, collect.lowest, k), collect);
    write(collect, to);
  }

  // One block lists what may win of its part of a row.
  __device__ __forceinline__ static void list(const Logits& logits, bool mask_neg_inf,
                                              const RowLists& lists) {
    const Row row(logits, blockIdx.y);
    Collect collect(lists.k, mask_neg_inf);
    const u32 tiles = Collect::tiles(row), parts = static_cast<u32>(lists.parts);
    const u32 each = (tiles + parts - 1) / parts, tile = min(blockIdx.x * each, tiles);
    const float threshold = Estimate::estimate(row, collect.lowest, lists.k);
    collect.load_edges(row);
    collect.begin(threshold);
    if (blockIdx.x == 0) collect.collect_edges(false);
    collect.collect(row, tile, min(tile + each, tiles));
    if (blockIdx.x == parts - 1) collect.collect_edges(true);
    List::write(lists, blockIdx.x, collect, threshold);
  }

  // One block finds a row's winners in its lists, or, where those do not tell, in its logits.
  __device__ __forceinline__ static void join(const Logits& logits, bool mask_neg_inf,
                                              const RowLists& lists, const Winners& to) {
    Collect collect(lists.k, mask_neg_inf);
    u64 own[List::EACH];
    const typename List::Told told = List::take(lists, blockIdx.x, collect.lowest, own);
    const int count = static_cast<int>(told.count);
    if (told.all) {
      Collect::Sort::sort_in_registers(own, count, [&](int rank, u64 word) {
        if (rank < lists.k) to(rank, word);
      });
      to.fill<THREADS>(count, lists.k);
      return;
    }
    search(Row(logits, blockIdx.x), told.threshold, collect);
    write(collect, to);
  }

 private:
  // Begins at a threshold that may be too high.
  __device__ __forceinline__ static void search(const Row& row, float threshold,
                                                Collect& collect) {
    collect.load_edges(row);
    for (;; threshold = collect.lowest) {
      collect.begin(threshold);
      collect.collect_edges(false);
      collect.collect(row, 0, Collect::tiles(row));
      collect.collect_edges(true);
      if (threshold == collect.lowest || collect.count >= static_cast<u32>(collect.k)) break;
      __syncthreads();  // all have written what they found before it is overwritten
    }
    collect.sort();
  }

  __device__ __forceinline__ static void write(const Collect& collect, const Winners& to) {
    const int count = static_cast<int>(collect.count);
    for (int rank = static_cast<int>(threadIdx.x); rank < collect.k; rank += THREADS)
      to(rank, rank < count ? collect.word(static_cast<u32>(rank)) : 0);
  }
};

#define LISTED_PARAMETERS u64 *words, u64 *heads, i64 parts

#define LISTED \
  RowLists { words, heads, parts, static_cast<int>(k) }
