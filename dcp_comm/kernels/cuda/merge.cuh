// The winners of sorted runs, written by those who want them: one block a row.
#pragma once

#include "emit.cuh"
#include "sort.cuh"
#include "whole.cuh"

// Writes words[0, count) in order, and none behind.
template <int THREADS>
__device__ __forceinline__ void write_row(const Emission& to, i64 row, const u64* words, int count,
                                          int k) {
  for (int at = threadIdx.x; at < k; at += THREADS) to.write(row, at, at < count ? words[at] : 0);
}

template <int THREADS, int ITEMS>
__device__ __forceinline__ void sort_row(typename Sorter<THREADS, ITEMS>::Shared& shared, int count,
                         bool by_position) {
  if (by_position) {
    for (int at = threadIdx.x; at < count; at += THREADS) shared.words[at] &= 0xFFFFFFFFull;
    __syncthreads();
  }
  Sorter<THREADS, ITEMS>(shared).sort(count, !by_position);
}

// Lengths of prefixes become where each begins among the winners, cut at k; returns their sum.
__device__ __forceinline__ int lay_out(int* begins, int runs, int k) {
  int sum = 0;
  for (int run = 0; run < runs; ++run) {
    const int length = begins[run];
    begins[run] = sum;
    sum = min(sum + length, k);
  }
  begins[runs] = sum;
  return sum;
}

template <int THREADS, int ITEMS>
__device__ __forceinline__ void merge_runs(const Sorted& sorted, int own, bool seal,
                                           const Emission& to) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Sort = Sorter<THREADS, ITEMS>;
  auto& shared = *reinterpret_cast<typename Sort::Shared*>(memory);
  __shared__ int begins[MAX_RUNS + 1];
  __shared__ bool certified;
  const i64 row = blockIdx.x;
  const int runs = sorted.lemma.runs, k = sorted.lemma.k;
  const int thread = static_cast<int>(threadIdx.x);

  const Found found = search(sorted, row, reinterpret_cast<u64*>(memory), begins);
  if (thread < runs) begins[thread] = own < 0 || own == thread ? found.length : 0;
  if (thread == 0) certified = found.sure;
  __syncthreads();
  if (thread == 0) lay_out(begins, runs, k);
  __syncthreads();
  for (int run = 0; run < runs; ++run) {
    const int begin = begins[run], length = begins[run + 1] - begin;
    for (int at = thread; at < length; at += THREADS)
      shared.words[begin + at] = sorted.word(row, run, at);
  }
  __syncthreads();
  const int count = begins[runs];
  const bool one_run = own >= 0 || runs == 1;
  if (to.by_position || !one_run) sort_row<THREADS, ITEMS>(shared, count, to.by_position);
  write_row<THREADS>(to, row, shared.words, count, k);
  if (!seal) {
    if (thread == 0) to.conclude(row, count, certified);
    return;
  }
  if (thread == (k - 1) % THREADS && certified && count == k) {
    const int last = id_of(shared.words[k - 1]);
    if (last < MAX_ID) to.ids[row * to.stride + k - 1] = -2 - last;
  }
}

template <int THREADS, int ITEMS>
__device__ __forceinline__ void emit_own(const i64* run, int k, const i64* verdicts,
                                         const Emission& to) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Sort = Sorter<THREADS, ITEMS>;
  auto& shared = *reinterpret_cast<typename Sort::Shared*>(memory);
  const i64 row = blockIdx.x;
  const i64 verdict = verdicts == nullptr ? k : __ldg(verdicts + row);
  const i64 length = verdict < 0 ? ~verdict : verdict;
  int valid = 0;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int at = item * THREADS + static_cast<int>(threadIdx.x);
    const u64 word = at < k && at < length ? word_of_key(__ldg(run + row * k + at)) : 0;
    if (to.by_position)
      shared.words[at] = word;
    else if (at < k)
      to.write(row, at, word);
    valid += __syncthreads_count(word != 0);
  }
  if (to.by_position) {
    sort_row<THREADS, ITEMS>(shared, valid, true);
    write_row<THREADS>(to, row, shared.words, valid, k);
  }
  if (threadIdx.x == 0) to.conclude(row, valid, verdict >= 0);
}

#define MERGE_PARAMETERS SORTED_PARAMETERS, i64 own, i64 seal, EMISSION_PARAMETERS

#define MERGE(CAPACITY, THREADS)                                                                 \
  merge_runs<THREADS, CAPACITY / THREADS>(Sorted{keys, rows, LEMMA}, static_cast<int>(own),      \
                                          seal != 0, EMISSION)

#define EMIT_OWN_PARAMETERS const i64 *run, i64 k, const i64 *verdicts, EMISSION_PARAMETERS

#define EMIT_OWN(CAPACITY, THREADS)                                                              \
  emit_own<THREADS, CAPACITY / THREADS>(run, static_cast<int>(k), verdicts, EMISSION)
