// Up to 1024 keys a list.

#include "select.cuh"

extern "C" __global__ void __launch_bounds__(256, 4) select_1024_2(SELECT_PARAMETERS) {
  SELECT(1024, 4, 2);
}

extern "C" __global__ void __launch_bounds__(256, 4) select_1024_4(SELECT_PARAMETERS) {
  SELECT(1024, 4, 4);
}

extern "C" __global__ void __launch_bounds__(512) select_1024_8(SELECT_PARAMETERS) {
  SELECT(1024, 2, 8);
}
