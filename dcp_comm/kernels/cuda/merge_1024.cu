// Up to 1024 winners a row.

#include "merge.cuh"

extern "C" __global__ void __launch_bounds__(256, 6) merge_runs_1024(MERGE_PARAMETERS) {
  MERGE(1024, 4);
}

extern "C" __global__ void __launch_bounds__(256, 6) emit_sorted_1024(EMIT_SORTED_PARAMETERS) {
  EMIT_SORTED(1024, 4);
}
