// Finds prefixes of runs by one warp: which of the p runs' words are the t largest.
#pragma once

#include "keys.cuh"

constexpr int MAX_RUNS = 8;
constexpr int LANES = 32;
constexpr int MOST_ROWS = 4;  // of a block whose warps search a row each
constexpr u32 ALL_LANES = ~0u;

// Sizes of the block-splitter lemma (dcp_comm/topk/splitter.py).
struct Lemma {
  int runs, k, block, splitters, settled, window;
};

// How many words of all runs but `run` are larger than `word`. Each run is descending and has n words,
// the first of `stride` places; padded ones have zeros behind them, and stride is a power of two.
//
// All runs are searched at once: what a search waits for is the load before.
template <bool PADDED>
__device__ __forceinline__ int larger_elsewhere(const u64* words, int runs, int n, int stride,
                                                int run, u64 word) {
  int found[MAX_RUNS] = {};
  for (int step = PADDED ? stride >> 1 : 1 << (31 - __clz(n)); step > 0; step >>= 1) {
#pragma unroll
    for (int other = 0; other < MAX_RUNS; ++other) {
      if (other >= runs) break;
      const int more = found[other] + step;
      if ((PADDED || more <= n) && words[other * stride + more - 1] > word) found[other] = more;
    }
  }
  int larger = 0;
#pragma unroll
  for (int other = 0; other < MAX_RUNS; ++other) larger += other == run ? 0 : found[other];
  return larger;
}

// Fetches word(run, at) of each run to the first n of `stride` places in shared memory, and zeros.
//
// A word of every run is on its way before the first is stored: a store waits for its load.
template <typename Fetch>
__device__ __forceinline__ void fetch(u64* words, int runs, int n, int stride, int thread,
                                      int threads, const Fetch& word) {
  for (int at = thread; at < stride; at += threads) {
    u64 fetched[MAX_RUNS];
#pragma unroll
    for (int run = 0; run < MAX_RUNS; ++run) {
      if (run >= runs) break;
      fetched[run] = at < n ? word(run, at) : 0;
    }
#pragma unroll
    for (int run = 0; run < MAX_RUNS; ++run) {
      if (run >= runs) break;
      words[run * stride + at] = fetched[run];
    }
  }
}

// The smallest power of two above n.
__device__ __forceinline__ int padded(int n) { return 1 << (32 - __clz(n)); }

// p runs of n words each in shared memory, padded to `stride` places; lane r speaks for run r.
struct Runs {
  const u64* words;
  int runs, n, stride;

  // Returns how many of run `lane`'s first words are among the `wanted` largest valid words.
  //
  // The lanes of a run try as many lengths at once, evenly spread over what is open.
  __device__ __forceinline__ int prefix(int lane, int wanted) const {
    const int tried = LANES >> (runs > 4 ? 3 : runs > 2 ? 2 : runs - 1);
    const int run = lane / tried, which = lane % tried;
    int length = 0, most = n;
    for (int open = n, step; open > 0; open = step - 1) {
      step = (open + tried - 1) / tried;
      const int longer = length + step * (which + 1);
      const u32 won = __ballot_sync(ALL_LANES, run < runs && longer <= most && wins(run, longer, wanted));
      length += step * __popc(won >> (run * tried) & (ALL_LANES >> (LANES - tried)));
      most = min(most, length + step - 1);
    }
    return __shfl_sync(ALL_LANES, length, (lane * tried) % LANES);
  }

  // Whether a prefix's last word has fewer than `wanted` words before it. In its own run these are
  // counted by position, so that repeated words do not win beyond `wanted`.
  __device__ __forceinline__ bool wins(int run, int length, int wanted) const {
    const u64 last = words[run * stride + length - 1];
    const int larger = larger_elsewhere<true>(words, runs, n, stride, run, last);
    return last != 0 && length - 1 + larger < wanted;
  }

  // Returns, in every lane, the `wanted`-th largest word: 0 if there are fewer, the largest possible
  // for 0 of them. `length` is what prefix() gave this lane.
  __device__ __forceinline__ u64 last_of(int lane, int length, int wanted) const {
    if (wanted == 0) return ~0ull;
    const bool speaks = lane < runs;
    u64 last = speaks && length > 0 ? words[lane * stride + length - 1] : ~0ull;
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
