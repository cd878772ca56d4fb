// Up to 512 keys a list.

#include "select.cuh"

extern "C" __global__ void __launch_bounds__(128, 8) select_512_2(SELECT_PARAMETERS) {
  SELECT(512, 4, 2);
}

extern "C" __global__ void __launch_bounds__(128, 8) select_512_4(SELECT_PARAMETERS) {
  SELECT(512, 4, 4);
}

extern "C" __global__ void __launch_bounds__(256) select_512_8(SELECT_PARAMETERS) {
  SELECT(512, 2, 8);
}
