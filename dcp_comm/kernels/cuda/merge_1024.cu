// Up to 1024 winners a row.

#include "merge.cuh"

extern "C" __global__ void __launch_bounds__(128) merge_runs_1024(MERGE_PARAMETERS) {
  MERGE(1024, 128);
}

extern "C" __global__ void __launch_bounds__(128) emit_own_1024(EMIT_OWN_PARAMETERS) {
  EMIT_OWN(1024, 128);
}
