// Up to 2048 candidates a row.

#include "pack.cuh"

extern "C" __global__ void __launch_bounds__(512, 3) pack_2048(PACK_PARAMETERS) {
  PACK(2048, 4);
}

extern "C" __global__ void __launch_bounds__(512, 3) pack_logits_2048(PACK_LOGITS_PARAMETERS) {
  PACK_LOGITS(2048, 4);
}
