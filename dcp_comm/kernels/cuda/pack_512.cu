// Up to 512 candidates a row.

#include "pack.cuh"

extern "C" __global__ void __launch_bounds__(128, 12) pack_512(PACK_PARAMETERS) {
  PACK(512, 4);
}

extern "C" __global__ void __launch_bounds__(128, 12) pack_logits_512(PACK_LOGITS_PARAMETERS) {
  PACK_LOGITS(512, 4);
}
