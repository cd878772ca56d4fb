// Up to 1024 winners a row.

#include "merge.cuh"

extern "C" __global__ void __launch_bounds__(256, 6) merge_runs_1024(MERGE_PARAMETERS) {
  MERGE(1024);
}

extern "C" __global__ void __launch_bounds__(256, 6) emit_own_1024(EMIT_OWN_PARAMETERS) {
  EMIT_OWN(1024);
}
