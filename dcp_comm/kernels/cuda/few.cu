// The winners of few rows, by score, with one block for each row and run, so that all of a GPU helps.
//
// A word's rank is its place in its own run and how many are larger in each other one. That reads
// all runs and searches for every word, but in no more time than it takes to fetch them.

#include "emit.cuh"
#include "search.cuh"

// How many words of the descending run [0, count) are larger than `word`.
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

extern "C" __global__ void __launch_bounds__(1024)
    merge_few(const i64* keys, i64 rows, i64 runs, i64 k, i64 own_run, EMISSION_PARAMETERS) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ int won;
  u64* words = reinterpret_cast<u64*>(memory);
  const Emission to = EMISSION;
  const i64 row = blockIdx.x;
  const Emission::Row ids_of_row = to.of_row(row);
  const int run = static_cast<int>(blockIdx.y), n = static_cast<int>(k);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) won = 0;
  fetch(words, static_cast<int>(runs), n, n, thread, 1024, [&](int other, int at) {
    return word_of_key(__ldg(keys + (other * rows + row) * k + at));
  });
  __syncthreads();

  const bool writes = own_run < 0 || own_run == run;
  for (int at = thread; at < n; at += 1024) {
    const u64 word = words[run * n + at];
    if (word == 0) break;
    const int rank = at + larger_elsewhere<false>(words, static_cast<int>(runs), n, n, run, word);
    if (rank >= n) break;
    if (writes) ids_of_row.write(own_run < 0 ? rank : at, word);
    atomicMax(&won, at + 1);
    if (rank < n - 1) continue;
    bool sure = true;
    for (int other = 0; other < runs; ++other) {
      const u64 last = words[other * n + n - 1];
      sure = sure && (last == 0 || last >> 32 < word >> 32);
    }
    to.certify(row, sure);
  }
  __syncthreads();

  // One block tells how many there are, and what is missing.
  if (own_run < 0 ? run != 0 : run != own_run) return;
  int valid = 0;
  for (int other = 0; other < runs; ++other) valid += larger_in(words + other * n, n, 0);
  if (thread == 0 && valid < n) to.certify(row, true);
  const int count = own_run < 0 ? min(valid, n) : won;
  if (thread == 0) to.counts[row] = count;
  for (int at = count + thread; at < n; at += 1024) ids_of_row.write(at, 0);
}
