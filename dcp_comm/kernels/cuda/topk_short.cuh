// The exact top-K of rows of logits that a block's registers hold: one block a row.
#pragma once

#include "logits.cuh"
#include "selector.cuh"

// A row's columns as words, of which k are wanted.
struct Candidates {
  Columns columns;
  int k;
  bool mask_neg_inf;

  __device__ __forceinline__ u64 word(u32 column, u32 bits) const {
    return encode(static_cast<int>(bits), columns.first + column, mask_neg_inf);
  }

  template <int THREADS, typename See>
  __device__ __forceinline__ void visit(const See& see) const {
    for (u32 at = threadIdx.x; at < columns.count; at += THREADS)
      see(word(at, static_cast<u32>(load_bits(columns.base, at, columns.dtype))));
  }
};

template <int CAPACITY, int ITEMS, int LISTS>
struct ShortTopK {
  using Core = Selector<CAPACITY, ITEMS, LISTS>;
  static constexpr int THREADS = Core::THREADS, EACH = Core::EACH;

  static __device__ __forceinline__ void find(const Logits& logits, int k, bool mask_neg_inf,
                                              const Winners& to) {
    const Candidates all{Columns(logits, blockIdx.x), k, mask_neg_inf};
    u64 own[EACH];
    const Bounds scores = load(all, own);
    prefetch_some(all.columns, logits.stride);
    Core::spread(all, own, scores, to);
    __syncthreads();
    to.template fill<THREADS>(static_cast<int>(Core::memory().end), k);
  }

 private:
  // Fetches the row's words, and tells how far their scores reach.
  static __device__ __forceinline__ Bounds load(const Candidates& all, u64 (&own)[EACH]) {
    u32 bits[EACH];
    fetch(all.columns, bits);
    Core::begin();
    u32 largest = 0;
#pragma unroll
    for (int item = 0; item < EACH; ++item) {
      const u32 column = static_cast<u32>(Core::place_of(item));
      own[item] = column < all.columns.count ? all.word(column, bits[item]) : 0;
      largest = max(largest, score_half(own[item]));
    }
    const u32 least = Core::least_valid(own);
    return Core::memory().sort.warps.joined(least, __reduce_max_sync(~0u, largest));
  }

  // The bits of float32, whatever is loaded.
  static __device__ __forceinline__ void fetch(const Columns& columns, u32 (&bits)[EACH]) {
    if (columns.dtype == FLOAT32)
      fetch_as<u32>(columns, bits, [](u32 word) { return word; });
    else if (columns.dtype == BFLOAT16)
      fetch_as<unsigned short>(columns, bits, [](u32 half) { return half << 16; });
    else
      fetch_as<unsigned short>(columns, bits,
                               [](u32 half) { return static_cast<u32>(half_bits(half)); });
  }

  // All loads are on their way before one is waited for.
  template <typename Element, typename Widen>
  static __device__ __forceinline__ void fetch_as(const Columns& columns, u32 (&bits)[EACH],
                                                  const Widen& widen) {
    const Element* from = reinterpret_cast<const Element*>(columns.base);
#pragma unroll
    for (int item = 0; item < EACH; ++item) {
      const u32 column = static_cast<u32>(Core::place_of(item));
      bits[item] = column < columns.count ? __ldg(from + column) : 0;
    }
#pragma unroll
    for (int item = 0; item < EACH; ++item) bits[item] = widen(bits[item]);
  }

  // Where this row's columns would be in one that another block will have when this one is done.
  static __device__ __forceinline__ void prefetch_some(const Columns& columns, i64 stride) {
    const u32 bytes = columns.count * columns.size();
    const char* ahead = columns.base + Core::AT_ONCE * stride * columns.size();
    if (blockIdx.x + Core::AT_ONCE >= gridDim.x) return;
    for (u32 at = threadIdx.x * LINE; at < bytes; at += THREADS * LINE) prefetch(ahead + at);
  }
};

#define SHORT_TOPK(CAPACITY, ITEMS, LISTS)                                              \
  ShortTopK<CAPACITY, ITEMS, LISTS>::find(LOGITS, static_cast<int>(k), mask_neg_inf != 0, \
                                          WINNERS)
