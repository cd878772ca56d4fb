// Up to 4096 winners a row.

#include "merge.cuh"

extern "C" __global__ void __launch_bounds__(1024, 1) merge_runs_4096(MERGE_PARAMETERS) {
  MERGE(4096, 4);
}

extern "C" __global__ void __launch_bounds__(1024, 1) emit_sorted_4096(EMIT_SORTED_PARAMETERS) {
  EMIT_SORTED(4096, 4);
}
