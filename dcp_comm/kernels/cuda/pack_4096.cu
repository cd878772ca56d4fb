// Up to 4096 candidates a row.

#include "pack.cuh"

extern "C" __global__ void __launch_bounds__(1024, 1) pack_4096(PACK_PARAMETERS) {
  PACK(4096, 4);
}

extern "C" __global__ void __launch_bounds__(1024, 1) pack_logits_4096(PACK_LOGITS_PARAMETERS) {
  PACK_LOGITS(4096, 4);
}
