// Up to 2048 winners a row.

#include "merge.cuh"

extern "C" __global__ void __launch_bounds__(256) merge_runs_2048(MERGE_PARAMETERS) {
  MERGE(2048, 256);
}

extern "C" __global__ void __launch_bounds__(256) emit_own_2048(EMIT_OWN_PARAMETERS) {
  EMIT_OWN(2048, 256);
}
