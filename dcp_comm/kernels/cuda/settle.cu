// What strategy "owner" tells others: lengths of prefixes, or ids with a certificate inside.

#include "emit.cuh"
#include "whole.cuh"

// What merge_runs left with its seal, of rows `stride` apart.
extern "C" __global__ void __launch_bounds__(256)
    unseal(const int* sealed, i64 sealed_stride, i64 k, EMISSION_PARAMETERS) {
  const Emission to = EMISSION;
  const i64 row = blockIdx.x;
  int valid = 0;
  bool sure = false;
  for (int first = 0; first < k; first += 256) {
    const int at = first + static_cast<int>(threadIdx.x);
    int id = at < k ? __ldg(sealed + row * sealed_stride + at) : -1;
    if (at == k - 1) {
      sure = id < 0;
      if (id < -1) id = -2 - id;
    }
    if (at < k) to.ids[row * to.stride + at] = id;
    valid += __syncthreads_count(id >= 0);
  }
  sure = __syncthreads_or(sure);
  if (threadIdx.x == 0) to.conclude(row, valid, sure);
}

// Verdicts (runs, rows) of whole runs.
extern "C" __global__ void __launch_bounds__(ROWS* LANES) settle(SORTED_PARAMETERS, i64* verdicts) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ int starts[ROWS][MAX_RUNS];
  const int lane = static_cast<int>(threadIdx.x) % LANES, warp = static_cast<int>(threadIdx.x) / LANES;
  const i64 row = static_cast<i64>(blockIdx.x) * ROWS + warp;
  if (row >= rows) return;
  u64* words = reinterpret_cast<u64*>(memory) + warp * runs * max(splitters, window);
  const Found found = search(Sorted{keys, rows, LEMMA}, row, words, starts[warp], lane, LANES,
                             [] { __syncwarp(); });
  if (lane < runs) verdicts[lane * rows + row] = found.sure ? found.length : ~found.length;
}
