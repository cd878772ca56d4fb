// Up to 2048 winners a row.

#include "merge.cuh"

extern "C" __global__ void __launch_bounds__(512, 3) merge_runs_2048(MERGE_PARAMETERS) {
  MERGE(2048);
}

extern "C" __global__ void __launch_bounds__(512, 3) emit_own_2048(EMIT_OWN_PARAMETERS) {
  EMIT_OWN(2048);
}
