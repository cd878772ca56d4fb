// A rank's candidates become sorted runs: one block a row.
#pragma once

#include "sort.cuh"

// Where a row's candidates come from; local ids are positions, below 0 none.
struct Candidates {
  const int* ids;
  i64 ids_stride;
  const void* lengths;
  i64 wide_lengths;
  Shard shard;
  i64 mask_neg_inf;
};

// Score `at` of the row stands beside its id.
struct Listed {
  const int* scores;
  i64 stride;

  __device__ __forceinline__ bool find(i64 row, int at, int, int* bits) const {
    *bits = __ldg(scores + row * stride + at);
    return true;
  }
};

// The score of an id stands in the row's logits, in column id + start.
struct LookedUp {
  const void* logits;
  i64 stride, width, dtype;
  const void* starts;
  i64 wide_starts;

  __device__ __forceinline__ bool find(i64 row, int, int id, int* bits) const {
    const i64 column = id + load_integer(starts, row, wide_starts, 0);
    if (column < 0 || column >= width) return false;
    *bits = load_bits(logits, row * stride + column, dtype);
    return true;
  }
};

template <int CAPACITY, typename Scores>
__device__ __forceinline__ void pack(i64* run, int k, const Scores& scores, const Candidates& from) {
  using Sort = Sorter<CAPACITY>;
  const i64 row = blockIdx.x;
  const i64 length = load_integer(from.lengths, row, from.wide_lengths, MAX_ID + 1);
  int ids[ITEMS];
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int at = Sort::place_of(item);
    ids[item] = at < k ? __ldg(from.ids + row * from.ids_stride + at) : -1;
  }
  u64 words[ITEMS];
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    int bits;
    const bool exists = ids[item] >= 0 && ids[item] < length &&
                        scores.find(row, Sort::place_of(item), ids[item], &bits);
    words[item] = exists ? encode(bits, from.shard.global_of(ids[item]), from.mask_neg_inf) : 0;
  }
  i64* mine = run + row * k;
  Sort::sort(words, k, true, [&](int rank, u64 word) { mine[rank] = key_of_word(word); });
}

#define CANDIDATE_PARAMETERS                                                                     \
  const int *ids, i64 ids_stride, const void *lengths, i64 wide_lengths, i64 rank, i64 size,      \
      i64 interleave, i64 mask_neg_inf

#define CANDIDATES \
  Candidates { ids, ids_stride, lengths, wide_lengths, Shard{rank, size, interleave}, mask_neg_inf }

#define PACK_PARAMETERS i64 *run, i64 k, CANDIDATE_PARAMETERS, const int *scores, i64 stride

#define PACK_LOGITS_PARAMETERS                                                                   \
  i64 *run, i64 k, CANDIDATE_PARAMETERS, const void *logits, i64 stride, i64 width, i64 dtype,    \
      const void *starts, i64 wide_starts

#define PACK(CAPACITY)                                                                           \
  pack<CAPACITY>(run, static_cast<int>(k), Listed{scores, stride}, CANDIDATES)

#define PACK_LOGITS(CAPACITY)                                                                    \
  pack<CAPACITY>(run, static_cast<int>(k),                                                       \
                 LookedUp{logits, stride, width, dtype, starts, wide_starts}, CANDIDATES)
