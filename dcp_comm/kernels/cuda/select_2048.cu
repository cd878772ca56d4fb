// Up to 2048 keys a list.

#include "select.cuh"

extern "C" __global__ void __launch_bounds__(512, 2) select_2048_2(SELECT_PARAMETERS) {
  SELECT(2048, 4, 2);
}

extern "C" __global__ void __launch_bounds__(512, 2) select_2048_4(SELECT_PARAMETERS) {
  SELECT(2048, 4, 4);
}

extern "C" __global__ void __launch_bounds__(1024) select_2048_8(SELECT_PARAMETERS) {
  SELECT(2048, 2, 8);
}
