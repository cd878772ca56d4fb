// Up to 1024 candidates a row.

#include "pack.cuh"

extern "C" __global__ void __launch_bounds__(256, 6) pack_1024(PACK_PARAMETERS) {
  PACK(1024, 4);
}

extern "C" __global__ void __launch_bounds__(256, 6) pack_logits_1024(PACK_LOGITS_PARAMETERS) {
  PACK_LOGITS(1024, 4);
}
