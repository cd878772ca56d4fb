// Up to 512 winners a row.

#include "merge.cuh"

extern "C" __global__ void __launch_bounds__(128, 12) merge_runs_512(MERGE_PARAMETERS) {
  MERGE(512, 4);
}

extern "C" __global__ void __launch_bounds__(128, 12) emit_sorted_512(EMIT_SORTED_PARAMETERS) {
  EMIT_SORTED(512, 4);
}
