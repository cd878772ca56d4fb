// Up to 4096 winners a row.

#include "topk.cuh"

extern "C" __global__ void __launch_bounds__(1024, 1) topk_4096(LOGITS_PARAMETERS, WINNERS_PARAMETERS) {
  TopK<1024, 8192>::find(LOGITS, static_cast<int>(k), mask_neg_inf != 0, WINNERS);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    topk_list_4096(LOGITS_PARAMETERS, LISTS_PARAMETERS) {
  TopK<1024, 8192>::list(LOGITS, mask_neg_inf != 0, LISTS);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    topk_join_4096(LOGITS_PARAMETERS, LISTS_PARAMETERS, WINNERS_PARAMETERS) {
  TopK<1024, 8192>::join(LOGITS, mask_neg_inf != 0, LISTS, WINNERS);
}
