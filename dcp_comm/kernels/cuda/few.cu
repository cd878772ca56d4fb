// The winners of few rows, by score, with one block for each row and run, so that all of a GPU helps.
//
// A word's rank is its place in its own run and how many are larger in each other one. That reads
// all runs and searches for every word, but in no more time than it takes to fetch them.

#include "emit.cuh"

constexpr int THREADS = 1024;
constexpr u64 MOST = ~1ull;  // to which one can be added; encode() makes none as large

// Runs of n words each in shared memory, those before run `own` with one added, so that of equal words
// those come first. Words of different runs differ, but for those of a spoiled peer.
struct Runs {
  u64* words;
  int runs, n, own;

  // Returns how many words this thread fetched that are no padding.
  //
  // A word of every run is on its way before the first is stored: a store waits for its load.
  template <typename Fetch>
  __device__ __forceinline__ int fetch(const Fetch& word) const {
    int valid = 0;
    for (int at = static_cast<int>(threadIdx.x); at < n; at += THREADS) {
      u64 fetched[MAX_RUNS];
#pragma unroll
      for (int run = 0; run < MAX_RUNS; ++run) {
        if (run >= runs) break;
        fetched[run] = word(run, at);
      }
#pragma unroll
      for (int run = 0; run < MAX_RUNS; ++run) {
        if (run >= runs) break;
        words[run * n + at] = run == own ? fetched[run] : min(fetched[run], MOST) + (run < own);
        valid += fetched[run] != 0;
      }
    }
    return valid;
  }

  // How many words of the other runs come before a valid word of this one.
  //
  // All runs are searched at once, and without a branch: what a search waits for is the load before.
  __device__ __forceinline__ int before(u64 word) const {
    int found[MAX_RUNS] = {};
    for (int step = 1 << (31 - __clz(n)); step > 0; step >>= 1) {
#pragma unroll
      for (int other = 1; other < MAX_RUNS; ++other) {
        if (other >= runs) break;
        const int more = found[other] + step;
        const u64 there = words[elsewhere(other) * n + min(more, n) - 1];
        found[other] = (more <= n) & (there > word) ? more : found[other];
      }
    }
    int before = 0;
#pragma unroll
    for (int other = 1; other < MAX_RUNS; ++other) before += found[other];
    return before;
  }

  // Whether no word that a run was cut short of could tie with the last winner.
  __device__ __forceinline__ bool certifies(u64 word) const {
    bool sure = true;
    for (int run = 0; run < runs; ++run) {
      const u64 last = words[run * n + n - 1] - (run < own);
      sure = sure && (last == 0 || last >> 32 < word >> 32);
    }
    return sure;
  }

 private:
  // The runs but its own, from the next one on.
  __device__ __forceinline__ int elsewhere(int other) const {
    return own + other < runs ? own + other : own + other - runs;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    merge_few(const i64* keys, i64 rows, i64 runs, i64 k, i64 own_run, EMISSION_PARAMETERS) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ int valid;
  const Emission to = EMISSION;
  const i64 row = blockIdx.x;
  const Emission::Row ids_of_row = to.of_row(row);
  const int run = static_cast<int>(blockIdx.y), n = static_cast<int>(k);
  const int thread = static_cast<int>(threadIdx.x);
  const Runs all{reinterpret_cast<u64*>(memory), static_cast<int>(runs), n, run};
  if (thread == 0) valid = 0;
  __syncthreads();
  const int fetched = all.fetch([&](int other, int at) {
    return word_of_key(__ldg(keys + (other * rows + row) * k + at));
  });
  const int of_warp = static_cast<int>(__reduce_add_sync(~0u, static_cast<u32>(fetched)));
  if (thread % 32 == 0) atomicAdd(&valid, of_warp);
  __syncthreads();

  const bool writes = own_run < 0 || own_run == run;
  int won = 0;  // words of its run that win, which come first
  for (int first = 0; won == first && first < n; first += THREADS) {
    const int at = first + thread;
    const u64 word = at < n ? all.words[run * n + at] : 0;
    const int rank = word != 0 ? at + all.before(min(word, MOST)) : n;
    if (rank < n && writes) ids_of_row.write(own_run < 0 ? rank : at, word);
    if (rank == n - 1) to.certify(row, all.certifies(word));
    won += __syncthreads_count(rank < n);
  }

  // One block tells how many there are, and what is missing.
  if (own_run < 0 ? run != 0 : run != own_run) return;
  if (thread == 0 && valid < n) to.certify(row, true);
  const int count = own_run < 0 ? min(valid, n) : won;
  if (thread == 0) to.counts[row] = count;
  for (int at = count + thread; at < n; at += THREADS) ids_of_row.write(at, 0);
}
