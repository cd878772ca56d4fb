// How long a prefix of each whole run wins.

#include "whole.cuh"

// Tells `told(run, length or ~length)` of a warp's row.
template <typename Told>
__device__ __forceinline__ void settle_row(const Sorted& sorted, const Told& told) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ int starts[MOST_ROWS][MAX_RUNS];
  const Lemma& lemma = sorted.lemma;
  const int lane = static_cast<int>(threadIdx.x) % LANES, warp = static_cast<int>(threadIdx.x) / LANES;
  const i64 row = static_cast<i64>(blockIdx.x) * (blockDim.x / LANES) + warp;
  if (row >= sorted.rows) return;
  u64* words = reinterpret_cast<u64*>(memory) +
               warp * lemma.runs * padded(max(lemma.splitters, lemma.window));
  const Found found = search(sorted, row, words, starts[warp], lane);
  if (lane < lemma.runs) told(row, lane, found.sure ? found.length : ~found.length);
}

// For others: verdicts (runs, rows).
extern "C" __global__ void __launch_bounds__(MOST_ROWS* LANES) settle(SORTED_PARAMETERS, i64* verdicts) {
  settle_row(Sorted{keys, rows, LEMMA},
             [&](i64 row, int run, int verdict) { verdicts[run * rows + row] = verdict; });
}

// For merge_runs, which writes each row's ids over them.
extern "C" __global__ void __launch_bounds__(MOST_ROWS* LANES)
    settle_ids(SORTED_PARAMETERS, int* ids, i64 stride) {
  settle_row(Sorted{keys, rows, LEMMA},
             [&](i64 row, int run, int verdict) { ids[row * stride + run] = verdict; });
}
