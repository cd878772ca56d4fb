// Finds prefixes of runs by one warp: which of the p runs' words are the t largest.
#pragma once

#include "keys.cuh"

constexpr int MAX_RUNS = 8;
constexpr int LANES = 32;
constexpr int ROWS = 4;  // of a block whose warps search a row each
constexpr u32 ALL_LANES = ~0u;

// How many words of a descending run are larger than `word`.
__device__ __forceinline__ int larger_in(const u64* run, int count, u64 word) {
  int first = 0;
  while (count > 0) {
    const int half = count >> 1;
    const bool larger = run[first + half] > word;
    first = larger ? first + half + 1 : first;
    count = larger ? count - half - 1 : half;
  }
  return first;
}

// Sizes of the block-splitter lemma (dcp_comm/topk/splitter.py).
struct Lemma {
  int runs, k, block, splitters, settled, window;
};

// Fetches n words of each run to shared memory, one run behind the other, by `threads` threads.
template <typename Fetch>
__device__ __forceinline__ void fetch(u64* words, int runs, int n, int thread, int threads,
                                      const Fetch& word) {
  const int count = runs * n;
  int run = 0, first = 0;  // of the run that `at` is in
#pragma unroll 4
  for (int at = thread; at < count; at += threads) {
    while (at - first >= n) first += n, ++run;
    words[at] = word(run, at - first);
  }
}

// p runs of n words each, one behind the other in shared memory; lane r speaks for run r.
struct Runs {
  const u64* words;
  int runs, n;

  // Returns how many of run `lane`'s first words are among the `wanted` largest valid words.
  //
  // A prefix of some length wins if its last word has fewer than `wanted` words before it. In its own
  // run these are counted by position, so that repeated words do not win beyond `wanted`.
  __device__ __forceinline__ int prefix(int lane, i64 wanted) const {
    // Lanes of one run share the searches in the others.
    int lanes = LANES;
    while (lanes > 1 && LANES / lanes < runs) lanes >>= 1;
    const int run = lane / lanes, helper = lane % lanes;
    int length = 0;
    for (int bit = 31 - __clz(n | 1); bit >= 0; --bit) {
      const int longer = length + (1 << bit);
      const bool exists = run < runs && longer <= n;
      const u64 last = exists ? words[run * n + longer - 1] : 0;
      int before = 0;
      if (last != 0) {
        for (int other = helper; other < runs; other += lanes)
          before += other == run ? longer - 1 : larger_in(words + other * n, n, last);
      }
      for (int step = lanes / 2; step > 0; step /= 2)
        before += __shfl_xor_sync(ALL_LANES, before, step);
      if (last != 0 && before < wanted) length = longer;
    }
    return __shfl_sync(ALL_LANES, length, (lane * lanes) % LANES);
  }

  // Returns, in every lane, the `wanted`-th largest word: 0 if there are fewer, the largest possible
  // for 0 of them. `length` is what prefix() gave this lane.
  __device__ __forceinline__ u64 last_of(int lane, int length, i64 wanted) const {
    if (wanted == 0) return ~0ull;
    const bool speaks = lane < runs;
    u64 last = speaks && length > 0 ? words[lane * n + length - 1] : ~0ull;
    int found = speaks ? length : 0;
    for (int step = LANES / 2; step > 0; step /= 2) {
      const u64 other = __shfl_xor_sync(ALL_LANES, last, step);
      last = other < last ? other : last;
      found += __shfl_xor_sync(ALL_LANES, found, step);
    }
    return found < wanted ? 0 : last;
  }
};

// Whether no word that a run was cut short of could tie with `threshold`; the same in every lane.
__device__ __forceinline__ bool certifies(int lane, int runs, u64 last_of_run, u64 threshold) {
  const bool sure = lane >= runs || last_of_run == 0 || last_of_run >> 32 < threshold >> 32;
  return __all_sync(ALL_LANES, sure);
}
