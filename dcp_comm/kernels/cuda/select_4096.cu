// Up to 4096 keys a list.

#include "select.cuh"

extern "C" __global__ void __launch_bounds__(1024) select_4096_2(SELECT_PARAMETERS) {
  SELECT(4096, 4, 2);
}

extern "C" __global__ void __launch_bounds__(1024) select_4096_4(SELECT_PARAMETERS) {
  SELECT(4096, 4, 4);
}

extern "C" __global__ void __launch_bounds__(1024) select_4096_8(SELECT_PARAMETERS) {
  SELECT(4096, 4, 8);
}
