// Searches whole runs in device memory by the lemma: splitters, then windows; one warp a row.
#pragma once

#include "search.cuh"

// Whole runs (p, rows, k).
struct Sorted {
  const i64* keys;
  i64 rows;
  Lemma lemma;

  __device__ __forceinline__ const i64* run(i64 row, int which) const {
    return keys + (which * rows + row) * lemma.k;
  }
};

// What is found of a row; lane r holds the prefix length of run r.
struct Found {
  int length;
  bool sure;
};

// `words` holds runs * padded(max(splitters, window)) of them, `starts` MAX_RUNS.
__device__ __forceinline__ Found search(const Sorted& sorted, i64 row, u64* words, int* starts,
                                        int lane) {
  const Lemma& lemma = sorted.lemma;
  const int runs = lemma.runs, k = lemma.k, stride = padded(max(lemma.splitters, lemma.window));
  const Runs splitters{words, runs, lemma.splitters, stride};
  fetch(words, runs, lemma.splitters, stride, lane, LANES, [&](int run, int at) {
    return word_of_key(__ldg(sorted.run(row, run) + min((at + 1) * lemma.block, k) - 1));
  });
  __syncwarp();
  const int settled = splitters.prefix(lane, lemma.settled);
  const u64 x = splitters.last_of(lane, settled, lemma.settled);
  const int start = min(settled * lemma.block, k);
  const u64 last_of_run = lane < runs ? words[lane * stride + lemma.splitters - 1] : 0;
  if (lane < runs) starts[lane] = start;
  __syncwarp();
  const Runs windows{words, runs, lemma.window, stride};
  fetch(words, runs, lemma.window, stride, lane, LANES, [&](int run, int at) {
    const int within = starts[run] + at;
    return within < k ? word_of_key(__ldg(sorted.run(row, run) + within)) : 0;
  });
  __syncwarp();
  // If x is padding every valid word wins, and the windows hold all that is not settled.
  const int wanted = x == 0 ? runs * lemma.window : lemma.window;
  const int opened = windows.prefix(lane, wanted);
  const u64 last = windows.last_of(lane, opened, wanted);
  return Found{start + opened, certifies(lane, runs, last_of_run, min(last, x))};
}

#define SORTED_PARAMETERS                                                                        \
  const i64 *keys, i64 rows, i64 runs, i64 k, i64 block, i64 splitters, i64 settled, i64 window

#define LEMMA                                                                                    \
  Lemma {                                                                                        \
    static_cast<int>(runs), static_cast<int>(k), static_cast<int>(block),                        \
        static_cast<int>(splitters), static_cast<int>(settled), static_cast<int>(window)         \
  }
