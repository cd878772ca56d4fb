// Searches whole runs in device memory by the lemma: splitters, then windows.
#pragma once

#include "search.cuh"

// Whole runs (p, rows, k).
struct Sorted {
  const i64* keys;
  i64 rows;
  Lemma lemma;

  __device__ __forceinline__ u64 word(i64 row, int run, int at) const {
    return word_of_key(__ldg(keys + (run * rows + row) * lemma.k + at));
  }
};

// What the first warp finds of a row; lane r holds the prefix length of run r.
struct Found {
  int length;
  bool sure;
};

// Finds a row's winners; all threads of a block call it.
//
// `words` holds runs * max(splitters, window) of them, `starts` MAX_RUNS; `barrier` is the block's.
template <int FLIGHT, typename Barrier>
__device__ __forceinline__ Found search(const Sorted& sorted, i64 row, u64* words, int* starts,
                                        int thread, int threads, const Barrier& barrier) {
  const Lemma& lemma = sorted.lemma;
  const int runs = lemma.runs, k = lemma.k;
  fetch<FLIGHT>(words, runs, lemma.splitters, thread, threads, [&](int run, int at) {
    return sorted.word(row, run, min((at + 1) * lemma.block, k) - 1);
  });
  barrier();
  u64 last_of_run = 0, x = 0;
  if (thread < LANES) {
    const Runs splitters{words, runs, lemma.splitters};
    const int settled = splitters.prefix(thread, lemma.settled);
    x = splitters.last_of(thread, settled, lemma.settled);
    if (thread < runs) {
      last_of_run = words[thread * lemma.splitters + lemma.splitters - 1];
      starts[thread] = min(settled * lemma.block, k);
    }
  }
  barrier();
  fetch<FLIGHT>(words, runs, lemma.window, thread, threads, [&](int run, int at) {
    const int within = starts[run] + at;
    return within < k ? sorted.word(row, run, within) : 0;
  });
  barrier();
  Found found{0, false};
  if (thread < LANES) {
    const Runs windows{words, runs, lemma.window};
    // If x is padding every valid word wins, and the windows hold all that is not settled.
    const int wanted = x == 0 ? runs * lemma.window : lemma.window;
    const int opened = windows.prefix(thread, wanted);
    const u64 last = windows.last_of(thread, opened, wanted);
    found.sure = certifies(thread, runs, last_of_run, min(last, x));
    if (thread < runs) found.length = starts[thread] + opened;
  }
  return found;
}

#define SORTED_PARAMETERS                                                                        \
  const i64 *keys, i64 rows, i64 runs, i64 k, i64 block, i64 splitters, i64 settled, i64 window

#define LEMMA                                                                                    \
  Lemma {                                                                                        \
    static_cast<int>(runs), static_cast<int>(k), static_cast<int>(block),                        \
        static_cast<int>(splitters), static_cast<int>(settled), static_cast<int>(window)         \
  }
