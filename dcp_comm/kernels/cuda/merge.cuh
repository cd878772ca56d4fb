// The winners of sorted runs, written by those who want them: one block a row.
#pragma once

#include "emit.cuh"
#include "sort.cuh"
#include "whole.cuh"

// Writes `count` winners by position, and none behind; own[item] is word place_of(item) of them.
template <int CAPACITY>
__device__ __forceinline__ void write_by_position(u64 (&own)[ITEMS], int count,
                                          int k, i64 row, const Emission& to) {
  using Sort = Sorter<CAPACITY>;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int at = Sort::place_of(item);
    if (at >= count && at < k) to.write(row, at, 0);
    own[item] &= 0xFFFFFFFFull;
  }
  Sort::sort(own, count, false, [&](int rank, u64 word) { to.write(row, rank, word); });
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

// Writes the winners of several runs by score: run r's stand in words[begins[r], begins[r + 1]),
// descending. A word's rank is its place in its own run and how many are larger in each other one;
// neighbours of one thread search on from where the one before them ended.
__device__ __forceinline__ void write_ranked(const u64* words, const int* begins, int runs, i64 row,
                                             const Emission& to) {
  constexpr int NEIGHBOURS = 4;
  const int count = begins[runs];
  for (int first = threadIdx.x * NEIGHBOURS; first < count; first += blockDim.x * NEIGHBOURS) {
    u64 own[NEIGHBOURS];
    int rank[NEIGHBOURS];
    int run = 0;
    while (first >= begins[run + 1]) ++run;
    const int end = begins[run + 1];
#pragma unroll
    for (int item = 0; item < NEIGHBOURS; ++item) {
      own[item] = first + item < end ? words[first + item] : 0;
      rank[item] = first + item - begins[run];
    }
    for (int other = 0; other < runs; ++other) {
      if (other == run) continue;
      const u64* rivals = words + begins[other];
      const int length = begins[other + 1] - begins[other];
      int larger = larger_in(rivals, length, own[0]);
      rank[0] += larger;
#pragma unroll
      for (int item = 1; item < NEIGHBOURS; ++item) {
        if (own[item] == 0) break;
        while (larger < length && rivals[larger] > own[item]) ++larger;
        rank[item] += larger;
      }
    }
#pragma unroll
    for (int item = 0; item < NEIGHBOURS; ++item)
      if (own[item] != 0) to.write(row, rank[item], own[item]);
  }
}

template <int CAPACITY>
__device__ __forceinline__ void merge_runs(const Sorted& sorted, int own_run, bool seal,
                                           const Emission& to) {
  using Sort = Sorter<CAPACITY>;
  u64* words = Sort::shared().words;
  __shared__ int begins[MAX_RUNS + 1];
  __shared__ bool certified;
  const i64 row = blockIdx.x;
  const int runs = sorted.lemma.runs, k = sorted.lemma.k;
  const int thread = static_cast<int>(threadIdx.x);

  const Found found = search<2>(sorted, row, words, begins, thread, Sort::THREADS,
                                [] { __syncthreads(); });
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
    const int at = Sort::place_of(item);
    int run = 0;
    while (run + 1 < runs && at >= begins[run + 1]) ++run;
    own[item] = at < count ? sorted.word(row, run, at - begins[run]) : 0;
  }
  if (to.by_position) {
    write_by_position<CAPACITY>(own, count, k, row, to);
  } else {
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int at = Sort::place_of(item);
      if (at < count) words[at] = own[item];
      if (at >= count && at < k) to.write(row, at, 0);
    }
    __syncthreads();
    write_ranked(words, begins, runs, row, to);
  }
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

// The prefix of one run, by position.
template <int CAPACITY>
__device__ __forceinline__ void emit_sorted(const i64* run, int k, const i64* verdicts,
                                            const Emission& to) {
  using Sort = Sorter<CAPACITY>;
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
  write_by_position<CAPACITY>(own, valid, k, row, to);
  if (threadIdx.x == 0) to.conclude(row, valid, verdict.sure);
}

#define MERGE_PARAMETERS SORTED_PARAMETERS, i64 own, i64 seal, EMISSION_PARAMETERS

#define MERGE(CAPACITY)                                                                          \
  merge_runs<CAPACITY>(Sorted{keys, rows, LEMMA}, static_cast<int>(own), seal != 0, EMISSION)

#define EMIT_SORTED_PARAMETERS const i64 *run, i64 k, const i64 *verdicts, EMISSION_PARAMETERS

#define EMIT_SORTED(CAPACITY)                                                              \
  emit_sorted<CAPACITY>(run, static_cast<int>(k), verdicts, EMISSION)
