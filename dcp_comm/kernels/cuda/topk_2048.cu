// Up to 2048 winners a row.

#include "topk.cuh"

extern "C" __global__ void __launch_bounds__(512, 2) topk_list_2048(LOGITS_PARAMETERS) {
  TopK<512, 4096>::list(LOGITS);
}

extern "C" __global__ void __launch_bounds__(512, 2)
    topk_2048(LOGITS_PARAMETERS, WINNERS_PARAMETERS) {
  TopK<512, 4096>::find(LOGITS, WINNERS);
}
