// Small kernels: what compiles, launches and emulates the real ones is tested with these.
#include "simple.cuh"

// out[i] = a[i] + b
extern "C" __global__ void __launch_bounds__(256)
add_scalar(const long long* a, long long b, long long* out, long long count) {
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) out[i] = __ldg(a + i) + b;
}

// out[row] = the sum of a row; one block a row
extern "C" __global__ void row_sum(const long long* in, long long* out, long long length) {
    __shared__ long long partial[32];
    const long long* row = in + static_cast<long long>(blockIdx.x) * length;
    long long sum = 0;
    for (long long i = threadIdx.x; i < length; i += blockDim.x) sum += row[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
    sum = warp_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// Inclusive prefix sums of one block's elements, in dynamic shared memory of 8 bytes a thread.
extern "C" __global__ void prefix_sum(const long long* in, long long* out) {
    extern __shared__ unsigned char memory[];
    long long* sums = reinterpret_cast<long long*>(memory);
    unsigned i = threadIdx.x;
    sums[i] = in[i];
    __syncthreads();
    for (unsigned step = 1; step < blockDim.x; step <<= 1) {
        long long before = i >= step ? sums[i - step] : 0;
        __syncthreads();
        sums[i] += before;
        __syncthreads();
    }
    out[i] = sums[i];
}
