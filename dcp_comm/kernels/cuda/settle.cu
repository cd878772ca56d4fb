// What a row's owner tells others: how long a prefix of each run wins.

#include "whole.cuh"

// Verdicts (runs, rows) of whole runs.
extern "C" __global__ void __launch_bounds__(ROWS* LANES) settle(SORTED_PARAMETERS, i64* verdicts) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ int starts[ROWS][MAX_RUNS];
  const int lane = static_cast<int>(threadIdx.x) % LANES, warp = static_cast<int>(threadIdx.x) / LANES;
  const i64 row = static_cast<i64>(blockIdx.x) * ROWS + warp;
  if (row >= rows) return;
  u64* words = reinterpret_cast<u64*>(memory) + warp * runs * max(splitters, window);
  const Found found = search<8>(Sorted{keys, rows, LEMMA}, row, words, starts[warp], lane, LANES,
                             [] { __syncwarp(); });
  if (lane < runs) verdicts[lane * rows + row] = found.sure ? found.length : ~found.length;
}
