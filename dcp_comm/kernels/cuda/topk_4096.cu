// Up to 4096 winners a row.

#include "topk.cuh"

extern "C" __global__ void __launch_bounds__(1024) topk_list_4096(LOGITS_PARAMETERS) {
  TopK<1024, 8192>::list(LOGITS);
}

extern "C" __global__ void __launch_bounds__(1024) topk_4096(LOGITS_PARAMETERS, WINNERS_PARAMETERS) {
  TopK<1024, 8192>::find(LOGITS, WINNERS);
}
