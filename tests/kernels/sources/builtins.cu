// Every builtin against what it is made of.

#define CHECK(condition) \
    if (!(condition)) out[threadIdx.x] = __LINE__

// Collectives, in a warp of 32 lanes; 0 where all is well, else the line of what is not.
extern "C" __global__ void warp_builtins(long long* out) {
    int lane = threadIdx.x % 32;
    unsigned all = 0xFFFFFFFFu, half = lane < 16 ? 0x0000FFFFu : 0xFFFF0000u;
    unsigned long long wide = (1ull << 40) + lane;
    out[threadIdx.x] = 0;

    CHECK(__shfl_sync(all, lane, 5) == 5);
    CHECK(__shfl_sync(all, wide, lane + 1) == (1ull << 40) + (lane + 1) % 32);
    CHECK(__shfl_sync(all, lane, 3, 8) == (lane / 8) * 8 + 3);
    CHECK(__shfl_up_sync(all, lane, 1) == (lane ? lane - 1 : 0));
    CHECK(__shfl_up_sync(all, lane, 4, 8) == (lane % 8 < 4 ? lane : lane - 4));
    CHECK(__shfl_down_sync(all, lane, 2) == (lane < 30 ? lane + 2 : lane));
    CHECK(__shfl_down_sync(all, lane, 2, 16) == (lane % 16 < 14 ? lane + 2 : lane));
    CHECK(__shfl_xor_sync(all, wide, 3) == (1ull << 40) + (lane ^ 3));
    CHECK(__shfl_sync(all, 0.5f * lane, 7) == 3.5f);
    CHECK(__shfl_sync(half, lane, lane / 16 * 16) == lane / 16 * 16);
    CHECK(__ballot_sync(all, lane % 3 == 0) == 0x49249249u);
    CHECK(__ballot_sync(half, 1) == half);
    CHECK(__any_sync(all, lane == 9) == 1 && __any_sync(all, 0) == 0);
    CHECK(__all_sync(all, lane >= 0) == 1 && __all_sync(all, lane > 0) == 0);
    CHECK(__match_any_sync(all, lane % 2) == (lane % 2 ? 0xAAAAAAAAu : 0x55555555u));
    CHECK(__match_any_sync(half, wide) == 1u << lane);
    CHECK(__reduce_add_sync(all, lane) == 496 && __reduce_add_sync(half, 2u) == 32);
    CHECK(__reduce_min_sync(all, lane - 5) == -5 && __reduce_max_sync(all, lane - 40) == -9);
    CHECK(__reduce_max_sync(all, 0x80000000u + lane) == 0x8000001Fu);
    CHECK(__reduce_min_sync(all, 0xFFFFFFFFu - lane) == 0xFFFFFFE0u);
    CHECK(__reduce_and_sync(all, 0xF0u | lane) == 0xE0u + 0x10u);
    CHECK(__reduce_or_sync(all, 1u << lane) == all && __reduce_xor_sync(all, 1u << lane) == all);
    CHECK(__activemask() >> lane & 1);
    __syncwarp();
    __syncwarp(half);
    CHECK(__syncthreads_count(threadIdx.x < 7) == 7);
    CHECK(__syncthreads_or(threadIdx.x == 40) == 1 && __syncthreads_or(0) == 0);
    CHECK(__syncthreads_and(1) == 1 && __syncthreads_and(threadIdx.x != 40) == 0);
}

extern "C" __global__ void number_builtins(long long* out, long long nan_bits) {
    float nan = __int_as_float(static_cast<int>(nan_bits));
    out[threadIdx.x] = 0;

    CHECK(__popc(0xF0F0u) == 8 && __popcll(~0ull) == 64);
    CHECK(__clz(0) == 32 && __clz(1) == 31 && __clzll(0) == 64 && __clzll(1) == 63);
    CHECK(__ffs(0) == 0 && __ffs(8) == 4 && __ffsll(1ll << 40) == 41);
    CHECK(__brev(1u) == 0x80000000u && __brevll(2ull) == 1ull << 62);
    CHECK(__umulhi(0x80000000u, 6u) == 3 && __umul64hi(1ull << 63, 6) == 3);
    CHECK(__mulhi(-2, 3) == -1);
    CHECK(__byte_perm(0x33221100u, 0x77665544u, 0x7410u) == 0x77441100u);
    CHECK(__funnelshift_l(0x80000000u, 1u, 1) == 3 && __funnelshift_r(2u, 1u, 1) == 0x80000001u);
    CHECK(__float_as_uint(-0.0f) == 0x80000000u && __uint_as_float(0x3F800000u) == 1.0f);
    CHECK(__float_as_int(1.0f) == 0x3F800000);
    CHECK(__fadd_rn(1.0f, 2.0f) == 3.0f && __fsub_rn(1.0f, 2.0f) == -1.0f);
    CHECK(__fmul_rn(3.0f, 2.0f) == 6.0f && __fdiv_rn(1.0f, 2.0f) == 0.5f);
    CHECK(__fmaf_rn(2.0f, 3.0f, 1.0f) == 7.0f);
    CHECK(__float2uint_rz(-1.0f) == 0 && __float2uint_rz(5e9f) == 0xFFFFFFFFu);
    CHECK(__float2uint_rz(2.9f) == 2 && __float2uint_rz(nan) == 0);
    CHECK(__float2int_rz(-2.9f) == -2 && __float2int_rd(-2.1f) == -3);
    CHECK(__float2int_rn(2.5f) == 2 && __float2int_ru(2.1f) == 3);
    CHECK(__float2int_rz(3e9f) == 0x7FFFFFFF && __float2int_rz(-3e9f) == -0x7FFFFFFF - 1);
    CHECK(__float2ull_rz(1e30f) == ~0ull && __float2ll_rz(-4.5f) == -4);
    CHECK(__uint2float_rz(0xFFFFFFFFu) == 4294967040.0f);
    CHECK(__uint2float_rn(0xFFFFFFFFu) == 4294967296.0f);
    CHECK(min(1, 2u) == 1u && max(-1ll, 2ll) == 2 && min(3ull, 4ull) == 3);
    CHECK(min(nan, 1.0f) == 1.0f && fmaxf(nan, 1.0f) == 1.0f && max(2.0f, 1.0f) == 2.0f);
}

// One element of each kind of load, store and vector.
extern "C" __global__ void memory_builtins(const uint4* in, uint4* out) {
    uint4 first = __ldg(in), second = __ldcs(in + 1);
    ulonglong2 third = __ldcg(reinterpret_cast<const ulonglong2*>(in + 2));
    __stcs(out, make_uint4(first.w, first.z, first.y, first.x));
    __stcg(out + 1, second);
    *reinterpret_cast<ulonglong2*>(out + 2) = make_ulonglong2(third.y, third.x);
}

// Each thread takes a ticket, votes for a bin, and takes part in every atomic operation.
extern "C" __global__ void atomic_builtins(long long* tickets, long long* totals) {
    __shared__ unsigned count;
    __shared__ int lowest, highest;
    __shared__ unsigned long long bits, sum;
    if (threadIdx.x == 0) count = 0, lowest = 100000, highest = -1, bits = sum = 0;
    __syncthreads();
    int i = threadIdx.x;
    tickets[atomicAdd(&count, 1u)] = i;
    atomicMin(&lowest, i + 5);
    atomicMax(&highest, i);
    atomicOr(&bits, 1ull << (i % 64));
    unsigned long long seen = sum, expected;
    do {
        expected = seen;
        seen = atomicCAS(&sum, expected, expected + i);
    } while (seen != expected);
    __syncthreads();
    if (i != 0) return;
    totals[0] = count, totals[1] = lowest, totals[2] = highest;
    totals[3] = static_cast<long long>(bits), totals[4] = static_cast<long long>(sum);
    totals[5] = atomicExch(&count, 7u) + atomicSub(&count, 3u) + atomicAnd(&count, 6u) + count;
}
