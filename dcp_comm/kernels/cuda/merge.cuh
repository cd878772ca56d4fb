// The winners of sorted runs, sorted once more and written: one block a row.
#pragma once

#include "emit.cuh"
#include "sort.cuh"

// Writes `count` winners of a row, in the order that it wants them, and none behind; own[item] is
// word place_of(item) of them.
template <typename Sort, int ITEMS>
__device__ __forceinline__ void write_row(u64 (&own)[ITEMS], int count, int k, i64 row,
                                          const Emission& to) {
  const Emission::Row ids = to.of_row(row);
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int at = Sort::place_of(item);
    if (at >= count && at < k) ids.write(at, 0);
    if (to.by_position) own[item] &= 0xFFFFFFFFull;  // all that is compared
  }
  const auto write = [&](int rank, u64 word) { ids.write(rank, word); };
  if (to.by_position)
    Sort::sort_by_id(own, count, write);
  else
    Sort::template sort</*MAY_FALL=*/false>(own, count, write);
}

// Writes the winners of runs (p, rows, k), or of run `own` alone. Where each row's ids belong stands,
// up to now, how long a prefix of each run wins, as settle_ids told.
template <int CAPACITY, int ITEMS>
__device__ __forceinline__ void merge_runs(const i64* keys, i64 rows, int runs, int k, int own_run,
                                           bool seal, const Emission& to) {
  using Sort = Sorter<CAPACITY, ITEMS>;
  __shared__ int lengths[MAX_RUNS];
  __shared__ bool sure;
  const i64 row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  int* ids = to.ids + row * to.stride;
  if (thread < runs) {
    const int verdict = ids[thread], length = verdict < 0 ? ~verdict : verdict;
    lengths[thread] = own_run < 0 || own_run == thread ? length : 0;
    if (thread == 0) sure = verdict >= 0;
  }
  // Of a row further on, the share of each run that wins if all win alike.
  const int line = thread / runs * (LINE / sizeof(i64));
  const bool wanted = own_run < 0 || own_run == thread % runs;
  if (row + AHEAD < rows && line * runs < k && wanted) {
    prefetch(keys + (thread % runs * rows + row + AHEAD) * k + line);
    if (line == 0) prefetch(ids + AHEAD * to.stride);
  }
  __syncthreads();
  int count = 0;
  for (int run = 0; run < runs; ++run) count = min(count + lengths[run], k);
  u64 own[ITEMS];
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int at = Sort::place_of(item);
    int run = 0, begin = 0;
    for (int end = lengths[0]; at >= end && run < runs - 1; end += lengths[++run]) begin = end;
    const i64* words = keys + (run * rows + row) * k;
    own[item] = at < count ? word_of_key(__ldg(words + (at - begin))) : 0;
    if (id_of(own[item]) < 0) own[item] = 0;  // a peer may send what encode() never makes
  }
  if (own_run >= 0 && !to.by_position) {
    const Emission::Row in_order = to.of_row(row);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (Sort::place_of(item) < k) in_order.write(Sort::place_of(item), own[item]);
  } else {
    write_row<Sort>(own, count, k, row, to);
  }
  if (seal)
    to.seal(row, k, sure && count == k);
  else if (thread == 0)
    to.conclude(row, count, sure);
}

// The prefix of one run, by position.
template <int CAPACITY, int ITEMS>
__device__ __forceinline__ void emit_sorted(const i64* run, int k, const i64* verdicts,
                                            const Emission& to) {
  using Sort = Sorter<CAPACITY, ITEMS>;
  __shared__ int valid;
  const i64 row = blockIdx.x;
  const Verdict verdict(verdicts, row, k);
  u64 own[ITEMS];
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int at = Sort::place_of(item);
    own[item] = at < verdict.length ? word_of_key(__ldg(run + row * k + at)) : 0;
  }
  if (threadIdx.x == 0) valid = 0;
  __syncthreads();
  // Valid words come first, so that one thread sees the last of them.
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const u32 there = __ballot_sync(~0u, own[item] != 0);
    if (threadIdx.x % 32 == 0 && there != 0)
      atomicMax(&valid, Sort::place_of(item) + __popc(there));
  }
  __syncthreads();
  write_row<Sort>(own, valid, k, row, to);
  if (threadIdx.x == 0) to.conclude(row, valid, verdict.sure);
}

#define MERGE_PARAMETERS \
  const i64 *keys, i64 rows, i64 runs, i64 k, i64 own, i64 seal, EMISSION_PARAMETERS

#define MERGE(CAPACITY, ITEMS)                                                                   \
  merge_runs<CAPACITY, ITEMS>(keys, rows, static_cast<int>(runs), static_cast<int>(k),            \
                              static_cast<int>(own), seal != 0, EMISSION)

#define EMIT_SORTED_PARAMETERS const i64 *run, i64 k, const i64 *verdicts, EMISSION_PARAMETERS

#define EMIT_SORTED(CAPACITY, ITEMS)                                                       \
  emit_sorted<CAPACITY, ITEMS>(run, static_cast<int>(k), verdicts, EMISSION)
