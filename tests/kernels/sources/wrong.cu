// Kernels that are wrong, each in its own way; the emulator has to say so.

// A sum over the block that lacks its barrier: right only if thread 0 runs last.
extern "C" __global__ void missing_barrier(long long* out) {
    __shared__ long long values[64];
    values[threadIdx.x] = threadIdx.x;
    if (threadIdx.x != 0) return;
    long long sum = 0;
    for (int i = 0; i < 64; i++) sum += values[i];
    *out = sum;
}

// A lane reads what another wrote, with no __syncwarp between.
extern "C" __global__ void missing_syncwarp(long long* out) {
    __shared__ long long values[32];
    values[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = values[threadIdx.x ^ 1];
}

// Reads and writes a counter that an atomic operation changes, as if both were one.
extern "C" __global__ void torn_counter(long long* out) {
    __shared__ unsigned tickets;
    if (threadIdx.x == 0) tickets = 0, *out = 0;
    __syncthreads();
    long long seen = *out;
    atomicAdd(&tickets, 1u);
    *out = seen + 1;
}

// Blocks that add without an atomic operation, or that need the ones before them.
extern "C" __global__ void chained_blocks(long long* out) {
    out[blockIdx.x] = blockIdx.x == 0 ? 1 : out[blockIdx.x - 1] + 1;
}

extern "C" __global__ void early_exit(long long* out) {
    if (threadIdx.x == 3) return;
    __syncthreads();
    *out = 1;
}

extern "C" __global__ void two_barriers(long long* out) {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    *out = 1;
}

extern "C" __global__ void absent_lanes(long long* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xFFFFFFFFu, 1, 0);
}

extern "C" __global__ void foreign_mask(long long* out) {
    out[threadIdx.x] = __shfl_sync(0x0000FFFFu, 1, 0);
}

// Lanes of which half are at one collective and half at another.
extern "C" __global__ void split_collectives(long long* out) {
    if (threadIdx.x < 16)
        *out = __any_sync(0xFFFFFFFFu, 1);
    else
        *out = __all_sync(0xFFFFFFFFu, 1);
}

extern "C" __global__ void index_beyond(long long* out, long long index) {
    __shared__ int values[8];
    values[index] = 1;
    *out = values[0];
}

extern "C" __global__ void dynamic_beyond(long long bytes) {
    extern __shared__ unsigned char memory[];
    memory[bytes] = 1;
}

extern "C" __global__ void overflow(long long* out, long long value) {
    *out = static_cast<int>(value) + 1;
}

extern "C" __global__ void misaligned(const long long* in, long long* out) {
    *out = reinterpret_cast<const ulonglong2*>(in + 1)->x;
}

extern "C" __global__ void bad_address(long long address) {
    *reinterpret_cast<volatile long long*>(address) = 1;
}

extern "C" __global__ void divide(long long* out, long long by) {
    *out = 1 / by;
}

extern "C" __global__ void trap(long long when) {
    if (threadIdx.x == when) __trap();
}

// What shared memory holds that nobody wrote.
extern "C" __global__ void unwritten(long long* out) {
    __shared__ long long values[2];
    extern __shared__ unsigned char memory[];
    out[0] = values[1];
    out[1] = *reinterpret_cast<long long*>(memory);
    __syncthreads();
    values[1] = 0;
}
