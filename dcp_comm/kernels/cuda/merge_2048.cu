// Up to 2048 winners a row.

#include "merge.cuh"

extern "C" __global__ void __launch_bounds__(512, 3) merge_runs_2048(MERGE_PARAMETERS) {
  MERGE(2048, 4);
}

extern "C" __global__ void __launch_bounds__(512, 3) emit_sorted_2048(EMIT_SORTED_PARAMETERS) {
  EMIT_SORTED(2048, 4);
}
