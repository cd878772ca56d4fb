// Up to 2048 winners a row.

#include "topk.cuh"
#include "topk_short.cuh"

extern "C" __global__ void __launch_bounds__(512, 2) topk_2048(LOGITS_PARAMETERS, WINNERS_PARAMETERS) {
  TopK<512, 4096>::find(LOGITS, static_cast<int>(k), mask_neg_inf != 0, WINNERS);
}

extern "C" __global__ void __launch_bounds__(512, 2)
    topk_list_2048(LOGITS_PARAMETERS, LISTED_PARAMETERS) {
  TopK<512, 4096>::list(LOGITS, mask_neg_inf != 0, LISTED);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    topk_join_2048(LOGITS_PARAMETERS, LISTED_PARAMETERS, WINNERS_PARAMETERS) {
  TopK<1024, 4096>::join(LOGITS, mask_neg_inf != 0, LISTED, WINNERS);
}

extern "C" __global__ void __launch_bounds__(512, 2)
    topk_short_2048_2(LOGITS_PARAMETERS, WINNERS_PARAMETERS) {
  SHORT_TOPK(2048, 4, 2);
}

extern "C" __global__ void __launch_bounds__(512, 2)
    topk_short_2048_4(LOGITS_PARAMETERS, WINNERS_PARAMETERS) {
  SHORT_TOPK(2048, 4, 4);
}

extern "C" __global__ void __launch_bounds__(1024)
    topk_short_2048_8(LOGITS_PARAMETERS, WINNERS_PARAMETERS) {
  SHORT_TOPK(2048, 2, 8);
}
