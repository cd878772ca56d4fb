// The winners of sorted runs, written by those who want them: one block a row.
#pragma once

#include "emit.cuh"
#include "sort.cuh"
#include "whole.cuh"

// Hands `count` winners to a row, in the order that it wants them, and none behind; own[item] is
// word place_of(item) of them.
template <int CAPACITY>
__device__ __forceinline__ void write_row(Sorter<CAPACITY>& sorter, u64 (&own)[ITEMS], int count,
                                          int k, i64 row, const Emission& to) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int at = sorter.place_of(item);
    if (at >= count && at < k) to.write(row, at, 0);
    if (to.by_position) own[item] &= 0xFFFFFFFFull;
  }
  sorter.sort(own, count, !to.by_position,
              [&](int rank, u64 word) { to.write(row, rank, word); });
}

// Lengths of prefixes become where each begins among the winners, cut at k.
__device__ __forceinline__ void lay_out(int* begins, int runs, int k) {
  int sum = 0;
  for (int run = 0; run < runs; ++run) {
    const int length = begins[run];
    begins[run] = sum;
    sum = min(sum + length, k);
  }
  begins[runs] = sum;
}

template <int CAPACITY>
__device__ __forceinline__ void merge_runs(const Sorted& sorted, int own_run, bool seal,
                                           const Emission& to) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Sort = Sorter<CAPACITY>;
  Sort sorter(*reinterpret_cast<typename Sort::Shared*>(memory));
  __shared__ int begins[MAX_RUNS + 1];
  __shared__ bool certified;
  const i64 row = blockIdx.x;
  const int runs = sorted.lemma.runs, k = sorted.lemma.k;
  const int thread = static_cast<int>(threadIdx.x);

  const Found found = search(sorted, row, reinterpret_cast<u64*>(memory), begins, thread,
                             Sort::THREADS, [] { __syncthreads(); });
  if (thread < LANES) {
    if (thread < runs) begins[thread] = own_run < 0 || own_run == thread ? found.length : 0;
    __syncwarp();
    if (thread == 0) {
      certified = found.sure;
      lay_out(begins, runs, k);
    }
  }
  __syncthreads();
  const int count = begins[runs];
  u64 own[ITEMS];
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int at = sorter.place_of(item);
    int run = 0;
    while (run + 1 < runs && at >= begins[run + 1]) ++run;
    own[item] = at < count ? sorted.word(row, run, at - begins[run]) : 0;
  }
  write_row(sorter, own, count, k, row, to);
  if (!seal) {
    if (thread == 0) to.conclude(row, count, certified);
    return;
  }
  __syncthreads();
  if (thread == 0 && certified && count == k) {
    int& last = to.ids[row * to.stride + k - 1];
    if (last < MAX_ID) last = -2 - last;
  }
}

template <int CAPACITY>
__device__ __forceinline__ void emit_own(const i64* run, int k, const i64* verdicts,
                                         const Emission& to) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Sort = Sorter<CAPACITY>;
  Sort sorter(*reinterpret_cast<typename Sort::Shared*>(memory));
  __shared__ int valid;
  const i64 row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const i64 verdict = verdicts == nullptr ? k : __ldg(verdicts + row);
  const i64 length = verdict < 0 ? ~verdict : verdict;
  u64 own[ITEMS];
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int at = sorter.place_of(item);
    own[item] = at < k && at < length ? word_of_key(__ldg(run + row * k + at)) : 0;
  }
  if (thread == 0) valid = 0;
  __syncthreads();
  // Valid words come first, so that one thread sees the last of them.
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const u32 there = __ballot_sync(~0u, own[item] != 0);
    if (thread % 32 == 0 && there != 0) atomicMax(&valid, sorter.place_of(item) + __popc(there));
  }
  __syncthreads();
  if (to.by_position) {
    write_row(sorter, own, valid, k, row, to);
  } else {
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (sorter.place_of(item) < k) to.write(row, sorter.place_of(item), own[item]);
  }
  if (thread == 0) to.conclude(row, valid, verdict >= 0);
}

#define MERGE_PARAMETERS SORTED_PARAMETERS, i64 own, i64 seal, EMISSION_PARAMETERS

#define MERGE(CAPACITY)                                                                          \
  merge_runs<CAPACITY>(Sorted{keys, rows, LEMMA}, static_cast<int>(own), seal != 0, EMISSION)

#define EMIT_OWN_PARAMETERS const i64 *run, i64 k, const i64 *verdicts, EMISSION_PARAMETERS

#define EMIT_OWN(CAPACITY)                                                              \
  emit_own<CAPACITY>(run, static_cast<int>(k), verdicts, EMISSION)
