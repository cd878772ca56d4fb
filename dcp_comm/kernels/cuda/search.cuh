// Finds how long a prefix of each of p runs wins: the lemma of dcp_comm/topk/splitter.py, evaluated.
//
// A block searches a few rows. Its threads fetch their keys together; then the lanes of a row search
// it, of which as many speak for each run as there are.
#pragma once

#include "keys.cuh"

constexpr int LANES = 32;
constexpr u32 ALL_LANES = ~0u;
constexpr int SEARCHERS = 128;  // threads of a block
constexpr int SEARCHER_WARPS = SEARCHERS / LANES;

// Sizes of the block-splitter lemma.
struct Lemma {
  int runs, k, block, splitters, settled, window;
};

// What the splitters tell a lane.
struct Opened {
  int settled;  // splitters of its run that are among the t largest
  i64 x, last;  // the t-th largest of all; the last of its run
};

// What the windows tell a lane.
struct Closed {
  int length;  // keys of its run's window that win
  bool sure;
};

// The rows that a block searches: 1 << shift of them from `first` on. A row has 1 << lanes_shift
// lanes, and each of its runs 1 << tries_shift of them, rounded up to a power of two runs.
struct Search {
  Lemma lemma;
  i64 rows, first;
  int shift, lanes_shift, tries_shift;
  i64* keys;   // shared: list `run << shift | row` begins at so many strides, with a place for no key
  int stride;  // odd, so that the lists' keys at one place lie in different banks

  __device__ __forceinline__ int row() const {
    return static_cast<int>(threadIdx.x) >> lanes_shift;
  }
  __device__ __forceinline__ int run() const {
    return (static_cast<int>(threadIdx.x) & ((1 << lanes_shift) - 1)) >> tries_shift;
  }
  __device__ __forceinline__ int list() const { return run() << shift | row(); }
  __device__ __forceinline__ bool searches() const { return row() < 1 << shift; }
  __device__ __forceinline__ bool speaks() const { return searches() && run() < lemma.runs; }

  // Calls tell(row, run) once for each run of a row that there is.
  template <typename Tell>
  __device__ __forceinline__ void answer(const Tell& tell) const {
    if (speaks() && first + row() < rows && tried() == 0) tell(first + row(), run());
  }

  // Fetches n keys of each list, key(list, row, run, at); all threads may read them when it returns.
  // For rows beyond the last one, it is fetched again.
  //
  // A key of each list of a warp is on its way before the first is stored: a store waits for its load.
  template <typename Key>
  __device__ __forceinline__ void fetch(int n, const Key& key) const {
    constexpr int LISTS = LANES / SEARCHER_WARPS;  // a block has at most LANES
    const int warp = static_cast<int>(threadIdx.x) / LANES, lists = lemma.runs << shift;
    for (int at = static_cast<int>(threadIdx.x) % LANES; at < n; at += LANES) {
      i64 fetched[LISTS];
#pragma unroll
      for (int item = 0; item < LISTS; ++item) {
        const int list = item * SEARCHER_WARPS + warp;
        const i64 row = min(first + (list & ((1 << shift) - 1)), rows - 1);
        if (list < lists) fetched[item] = key(list, row, list >> shift, at);
      }
#pragma unroll
      for (int item = 0; item < LISTS; ++item) {
        const int list = item * SEARCHER_WARPS + warp;
        if (list < lists) keys[list * stride + 1 + at] = fetched[item];
      }
    }
    __syncthreads();
  }

  // By all threads, when splitters were fetched.
  __device__ __forceinline__ Opened open() const {
    const int settled = prefix(lemma.splitters, lemma.settled);
    const i64 last = speaks() ? own()[lemma.splitters] : PAD;
    return Opened{settled, last_of(settled, lemma.settled), last};
  }

  // By all threads, when windows were fetched.
  __device__ __forceinline__ Closed close(const Opened& opened, int wanted) const {
    const int length = prefix(lemma.window, wanted);
    const i64 threshold = min(last_of(length, wanted), opened.x);
    // No key that a run was cut short of may tie with the threshold.
    const bool sure = opened.last == PAD || opened.last >> 32 < threshold >> 32;
    return Closed{length, over_runs(sure, [](bool one, bool other) { return one && other; })};
  }

 private:
  // The keys of its list, counted from 1.
  __device__ __forceinline__ const i64* own() const { return keys + list() * stride; }
  __device__ __forceinline__ int tried() const {
    return static_cast<int>(threadIdx.x) & ((1 << tries_shift) - 1);
  }

  // Returns how many of its run's first n keys are among the `wanted` largest valid ones of its row.
  //
  // The lanes of a run try as many lengths at once, evenly spread over what is open. What is decided
  // need not be searched again: a key that wins has no more keys before it in another run than may
  // win there; one that loses has in each at least as many as win there, whose sum is enough. Keys
  // of different runs differ: what a spoiled peer sends may win too often, within its run.
  __device__ __forceinline__ int prefix(int n, int wanted) const {
    const int tries = 1 << tries_shift;
    int low = 0, high = speaks() ? n : 0;
    for (int open = n, step; open > 0; open = step - 1) {
      step = (open + 1 + tries) / (tries + 1);
      const int length = low + step * (tried() + 1);
      const i64 last = length <= high ? own()[length] : PAD;
      // In its own run keys are counted by position: repeated ones do not win beyond `wanted`.
      const int before = length - 1 + larger_elsewhere(low, high, open, last);
      const u32 won = __ballot_sync(ALL_LANES, last != PAD && before < wanted);
      const int base = static_cast<int>(threadIdx.x) % LANES & ~(tries - 1);
      low += step * __popc(won >> base & (ALL_LANES >> (LANES - tries)));
      high = min(high, low + step - 1);
    }
    return low;
  }

  // How many keys of the row's other runs are larger, from [low, high] of their lanes: a number in
  // this interval, which is at most `width` wide.
  //
  // All runs are searched at once, and without a branch: what a search waits for is the load before.
  __device__ __forceinline__ int larger_elsewhere(int low, int high, int width, i64 key) const {
    const int runs = 1 << (lanes_shift - tries_shift);
    int found[MAX_RUNS], most[MAX_RUNS], larger = 0;  // places, not numbers, of the other runs' keys
#pragma unroll
    for (int other = 1; other < MAX_RUNS; ++other) {
      if (other >= runs) break;
      const int list_there = (run() ^ other) << shift | row();
      const int begin = searches() && (run() ^ other) < lemma.runs ? list_there * stride : 0;
      larger -= begin;
      found[other] = begin + __shfl_xor_sync(ALL_LANES, low, other << tries_shift);
      most[other] = begin + __shfl_xor_sync(ALL_LANES, high, other << tries_shift);
    }
    for (int step = 1 << (31 - __clz(width)); step > 0; step >>= 1) {
#pragma unroll
      for (int other = 1; other < MAX_RUNS; ++other) {
        if (other >= runs) break;
        const int more = found[other] + step;
        const i64 there = keys[min(more, most[other])];
        found[other] = (more <= most[other]) & (there > key) ? more : found[other];
      }
    }
#pragma unroll
    for (int other = 1; other < MAX_RUNS; ++other) {
      if (other >= runs) break;
      larger += found[other];
    }
    return larger;
  }

  // Returns the `wanted`-th largest key of its row: PAD if there are fewer, the largest possible for
  // 0 of them. `length` is what prefix() gave this lane.
  __device__ __forceinline__ i64 last_of(int length, int wanted) const {
    const i64 last = length > 0 ? own()[length] : ~PAD;
    const i64 least = over_runs(last, [](i64 one, i64 other) { return min(one, other); });
    const int found = over_runs(length, [](int one, int other) { return one + other; });
    return wanted == 0 ? ~PAD : found < wanted ? PAD : least;
  }

  // Joins what the runs of a row have.
  template <typename Value, typename Join>
  __device__ __forceinline__ Value over_runs(Value value, const Join& join) const {
    for (int step = 1 << tries_shift; step < 1 << lanes_shift; step <<= 1)
      value = join(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
  }
};

#define SEARCH_PARAMETERS                                                                        \
  i64 rows, i64 shift, i64 lanes_shift, i64 tries_shift, i64 stride, i64 runs, i64 k, i64 block,  \
      i64 splitter_count, i64 settled, i64 window

#define SEARCH                                                                                   \
  Search {                                                                                       \
    Lemma{static_cast<int>(runs),           static_cast<int>(k),       static_cast<int>(block),  \
          static_cast<int>(splitter_count), static_cast<int>(settled), static_cast<int>(window)}, \
        rows, static_cast<i64>(blockIdx.x) << shift, static_cast<int>(shift),                    \
        static_cast<int>(lanes_shift), static_cast<int>(tries_shift),                            \
        reinterpret_cast<i64*>(memory), static_cast<int>(stride)                                 \
  }
