// Up to 4096 winners a row.

#include "topk.cuh"
#include "topk_short.cuh"

extern "C" __global__ void __launch_bounds__(1024, 1) topk_4096(LOGITS_PARAMETERS, WINNERS_PARAMETERS) {
  TopK<1024, 8192>::find(LOGITS, static_cast<int>(k), mask_neg_inf != 0, WINNERS);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    topk_list_4096(LOGITS_PARAMETERS, LISTED_PARAMETERS) {
  TopK<1024, 8192>::list(LOGITS, mask_neg_inf != 0, LISTED);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    topk_join_4096(LOGITS_PARAMETERS, LISTED_PARAMETERS, WINNERS_PARAMETERS) {
  TopK<1024, 8192>::join(LOGITS, mask_neg_inf != 0, LISTED, WINNERS);
}

extern "C" __global__ void __launch_bounds__(1024)
    topk_short_4096_2(LOGITS_PARAMETERS, WINNERS_PARAMETERS) {
  SHORT_TOPK(4096, 4, 2);
}

extern "C" __global__ void __launch_bounds__(1024)
    topk_short_4096_4(LOGITS_PARAMETERS, WINNERS_PARAMETERS) {
  SHORT_TOPK(4096, 4, 4);
}
