// Searches whole runs in device memory by the lemma: splitters, then windows.
#pragma once

#include "search.cuh"

// Whole runs (p, rows, k) in device memory, of which each row is searched by the lemma, twice.
struct Sorted {
  const i64* keys;
  i64 rows;
  Lemma lemma;

  __device__ __forceinline__ const i64* run(i64 row, int which) const {
    return keys + (which * rows + row) * lemma.k;
  }
  __device__ __forceinline__ u64 word(i64 row, int which, int at) const {
    return word_of_key(__ldg(run(row, which) + at));
  }
};

// What one warp finds of a row; lane r holds the prefix length of run r.
struct Found {
  int length;
  bool sure;
};

// Fetches each `step`-th word of every run, from `from[run]` on, to shared memory.
template <typename Fetch>
__device__ __forceinline__ void gather(u64* words, int runs, int n, Fetch fetch) {
  const int threads = static_cast<int>(blockDim.x);
  for (int run = 0; run < runs; ++run)
    for (int at = threadIdx.x; at < n; at += threads) words[run * n + at] = fetch(run, at);
}

// All threads of the block call it; the first warp knows the answer. `words` holds
// runs * max(splitters, window) of them, `starts` MAX_RUNS.
__device__ __forceinline__ Found search(const Sorted& sorted, i64 row, u64* words, int* starts) {
  const Lemma& lemma = sorted.lemma;
  const int lane = static_cast<int>(threadIdx.x), runs = lemma.runs, k = lemma.k;
  const auto at_splitter = [&](int at) { return min((at + 1) * lemma.block, k) - 1; };
  gather(words, runs, lemma.splitters,
         [&](int run, int at) { return sorted.word(row, run, at_splitter(at)); });
  __syncthreads();
  u64 last_of_run = 0, x = 0;
  if (lane < LANES) {
    const Runs splitters{words, runs, lemma.splitters};
    const int settled = splitters.prefix(lane, lemma.settled);
    x = splitters.last_of(lane, settled, lemma.settled);
    if (lane < runs) {
      last_of_run = words[lane * lemma.splitters + lemma.splitters - 1];
      starts[lane] = min(settled * lemma.block, k);
    }
  }
  __syncthreads();
  gather(words, runs, lemma.window, [&](int run, int at) {
    const int within = starts[run] + at;
    return within < k ? sorted.word(row, run, within) : 0;
  });
  __syncthreads();
  Found found{0, false};
  if (lane < LANES) {
    const Runs windows{words, runs, lemma.window};
    // If x is padding every valid word wins, and the windows hold all that is not settled.
    const i64 wanted = x == 0 ? static_cast<i64>(runs) * lemma.window : lemma.window;
    const int opened = windows.prefix(lane, wanted);
    const u64 last = windows.last_of(lane, opened, wanted);
    found.sure = certifies(lane, runs, last_of_run, x == 0 ? 0 : (last < x ? last : x));
    if (lane < runs) found.length = starts[lane] + opened;
  }
  __syncthreads();
  return found;
}

#define SORTED_PARAMETERS                                                                        \
  const i64 *keys, i64 rows, i64 runs, i64 k, i64 block, i64 splitters, i64 settled, i64 window

#define LEMMA                                                                                    \
  Lemma {                                                                                        \
    static_cast<int>(runs), static_cast<int>(k), static_cast<int>(block),                        \
        static_cast<int>(splitters), static_cast<int>(settled), static_cast<int>(window)         \
  }
