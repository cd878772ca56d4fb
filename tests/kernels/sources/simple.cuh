// Included by simple.cu.
#pragma once

constexpr unsigned all_lanes = 0xFFFFFFFFu;

__device__ __forceinline__ long long warp_sum(long long value) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(all_lanes, value, step);
    return value;
}
