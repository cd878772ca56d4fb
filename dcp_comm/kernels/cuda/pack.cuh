// A rank's candidates become keys: sorted runs, one block a row, or lists as they come.
#pragma once

#include "sort.cuh"

// Where a row's candidates come from: local ids, of which those below `lengths` exist, and those
// below `most`, where global ids end.
struct Candidates {
  const int* ids;
  i64 ids_stride;
  const void* lengths;
  i64 lengths_form;
  Shard shard;
  i64 most, mask_neg_inf;
};

// Where a row's sorted keys go, and where each block-th of them and the last: nowhere if null.
struct Packed {
  i64* run;
  int k;
  i64* splitters;
  int block, splitter_count;

  // By all threads of the block that wrote the row's run.
  template <int THREADS>
  __device__ __forceinline__ void split() const {
    if (splitters == nullptr) return;
    __syncthreads();
    const i64 row = blockIdx.x;
    const i64* keys = run + row * k;
    for (int at = static_cast<int>(threadIdx.x); at < splitter_count; at += THREADS)
      splitters[row * splitter_count + at] = keys[min((at + 1) * block, k) - 1];
  }
};

// Score `at` of the row stands beside its id.
struct Listed {
  const int* scores;
  i64 stride;

  struct Row {
    const int* scores;
    i64 first, behind;  // ids that may have a score

    __device__ __forceinline__ int bits(int at, int) const { return __ldg(scores + at); }
  };
  __device__ __forceinline__ Row of_row(i64 row) const {
    return {scores + row * stride, 0, MAX_ID + 1};
  }
  __device__ __forceinline__ void prefetch_some(i64 row, int at) const {
    prefetch(scores + row * stride + at);
  }
};

// The score of an id stands in the row's logits, in column id + start.
struct LookedUp {
  const void* logits;
  i64 stride, width, dtype;
  const void* starts;
  i64 starts_form;

  struct Row {
    const void* logits;
    i64 dtype, origin;  // where id 0 stands
    i64 first, behind;  // ids that have a column

    __device__ __forceinline__ int bits(int, int id) const {
      return load_bits(logits, origin + id, dtype);
    }
  };
  __device__ __forceinline__ Row of_row(i64 row) const {
    const i64 start = load_integer(starts, row, starts_form, 0);
    return {logits, dtype, row * stride + start, -start, width - start};
  }
  __device__ __forceinline__ void prefetch_some(i64, int) const {}  // which ones, ids will tell
};

// The ids of a row, -1 behind its last place.
template <int ITEMS, typename Place>
__device__ __forceinline__ void read_ids(int (&ids)[ITEMS], const Candidates& from, i64 row, int k,
                                         const Place& place_of) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int at = place_of(item);
    ids[item] = at < k ? __ldg(from.ids + row * from.ids_stride + at) : -1;
  }
}

// The words of a row's ids.
template <int ITEMS, typename Scores, typename Place>
__device__ __forceinline__ void encode_row(u64 (&words)[ITEMS], const int (&ids)[ITEMS],
                                           const Scores& scores, const Candidates& from, i64 row,
                                           const Place& place_of) {
  const auto scores_of_row = scores.of_row(row);
  const i64 length = min(load_integer(from.lengths, row, from.lengths_form, from.most), from.most);
  const i64 first = max(scores_of_row.first, 0ll), behind = min(scores_of_row.behind, length);
  // As unsigned numbers, ids below `first` are beyond any length, negative ones included.
  const u32 exist = behind > first ? static_cast<u32>(behind - first) : 0;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int id = ids[item];
    words[item] = 0;
    if (static_cast<u32>(id) - static_cast<u32>(first) >= exist) continue;
    const int bits = scores_of_row.bits(place_of(item), id);
    words[item] = encode(bits, from.shard.global_of(id), from.mask_neg_inf);
  }
}

template <int CAPACITY, int ITEMS, typename Scores>
__device__ __forceinline__ void pack(const Packed& to, const Scores& scores,
                                     const Candidates& from) {
  using Sort = Sorter<CAPACITY, ITEMS>;
  const i64 row = blockIdx.x;
  const int k = to.k;
  int ids[ITEMS];
  read_ids(ids, from, row, k, Sort::place_of);
  const int line = static_cast<int>(threadIdx.x) * (LINE / sizeof(int));
  if (row + AHEAD < gridDim.x && line < k) {
    prefetch(from.ids + (row + AHEAD) * from.ids_stride + line);
    scores.prefetch_some(row + AHEAD, line);
  }
  u64 words[ITEMS];
  encode_row(words, ids, scores, from, row, Sort::place_of);
  i64* keys = to.run + row * k;
  Sort::template sort</*MAY_FALL=*/true>(
      words, k, [&](int rank, u64 word) { keys[rank] = key_of_word(word); });
  to.template split<Sort::THREADS>();
}

// By blocks of `THREADS` threads, ITEMS candidates each, blockIdx.y of them a row.
template <int THREADS, int ITEMS, typename Scores>
__device__ __forceinline__ void pack_as_listed(const Packed& to, const Scores& scores,
                                     const Candidates& from) {
  const i64 row = blockIdx.x;
  const auto place_of = [](int item) {
    return static_cast<int>((blockIdx.y * ITEMS + item) * THREADS + threadIdx.x);
  };
  int ids[ITEMS];
  read_ids(ids, from, row, to.k, place_of);
  u64 words[ITEMS];
  encode_row(words, ids, scores, from, row, place_of);
#pragma unroll
  for (int item = 0; item < ITEMS; ++item)
    if (place_of(item) < to.k) to.run[row * to.k + place_of(item)] = key_of_word(words[item]);
}

#define PACKED_PARAMETERS i64 *run, i64 k, i64 *splitters, i64 block, i64 splitter_count

#define PACKED                                                                                   \
  Packed {                                                                                       \
    run, static_cast<int>(k), splitters, static_cast<int>(block), static_cast<int>(splitter_count) \
  }

#define CANDIDATE_PARAMETERS                                                                     \
  const int *ids, i64 ids_stride, const void *lengths, i64 lengths_form, SHARD_PARAMETERS,        \
      i64 most, i64 mask_neg_inf

#define CANDIDATES \
  Candidates { ids, ids_stride, lengths, lengths_form, SHARD, most, mask_neg_inf }

#define PACK_PARAMETERS PACKED_PARAMETERS, CANDIDATE_PARAMETERS, const int *scores, i64 stride

#define PACK_LOGITS_PARAMETERS                                                                   \
  PACKED_PARAMETERS, CANDIDATE_PARAMETERS, const void *logits, i64 stride, i64 width, i64 dtype,  \
      const void *starts, i64 starts_form

#define LISTED \
  Listed { scores, stride }

#define LOOKED_UP \
  LookedUp { logits, stride, width, dtype, starts, starts_form }

#define PACK(CAPACITY, ITEMS) pack<CAPACITY, ITEMS>(PACKED, LISTED, CANDIDATES)

#define PACK_LOGITS(CAPACITY, ITEMS) pack<CAPACITY, ITEMS>(PACKED, LOOKED_UP, CANDIDATES)
