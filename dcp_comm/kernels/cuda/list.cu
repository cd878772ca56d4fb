// Keys in the order of the candidates.

#include "pack.cuh"

constexpr int THREADS = 256;
constexpr int ITEMS = 4;  // a thread

extern "C" __global__ void __launch_bounds__(THREADS) list(PACK_PARAMETERS) {
  pack_as_listed<THREADS, ITEMS>(PACKED, LISTED, CANDIDATES);
}

extern "C" __global__ void __launch_bounds__(THREADS) list_logits(PACK_LOGITS_PARAMETERS) {
  pack_as_listed<THREADS, ITEMS>(PACKED, LOOKED_UP, CANDIDATES);
}
