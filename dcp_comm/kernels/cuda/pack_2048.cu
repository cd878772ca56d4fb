// Up to 2048 candidates a row.

#include "pack.cuh"

extern "C" __global__ void __launch_bounds__(256) pack_2048(PACK_PARAMETERS) {
  PACK(2048, 256);
}

extern "C" __global__ void __launch_bounds__(256) pack_logits_2048(PACK_LOGITS_PARAMETERS) {
  PACK_LOGITS(2048, 256);
}
