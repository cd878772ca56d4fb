// Up to 2048 winners a row.

#include "topk.cuh"

extern "C" __global__ void __launch_bounds__(512, 2) topk_2048(LOGITS_PARAMETERS, WINNERS_PARAMETERS) {
  TopK<512, 4096>::find(LOGITS, static_cast<int>(k), mask_neg_inf != 0, WINNERS);
}

extern "C" __global__ void __launch_bounds__(512, 2)
    topk_list_2048(LOGITS_PARAMETERS, LISTS_PARAMETERS) {
  TopK<512, 4096>::list(LOGITS, mask_neg_inf != 0, LISTS);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    topk_join_2048(LOGITS_PARAMETERS, LISTS_PARAMETERS, WINNERS_PARAMETERS) {
  TopK<1024, 4096>::join(LOGITS, mask_neg_inf != 0, LISTS, WINNERS);
}
