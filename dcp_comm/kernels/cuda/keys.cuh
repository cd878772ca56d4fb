// The one total order of candidates, as dcp_comm/topk/keys.py defines it.
//
// Memory holds signed keys. Inside a kernel a key is a *word*: the same bits with the sign bit
// flipped, so that unsigned comparison is the order, larger is better, and padding is 0.
#pragma once

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;

constexpr u64 SIGN = 1ull << 63;
constexpr i64 PAD = static_cast<i64>(SIGN);
constexpr int INF_BITS = 0x7F800000;
constexpr i64 MAX_ID = 0x7FFFFFFF;
constexpr int MAX_RUNS = 8;

__device__ __forceinline__ u64 word_of_key(i64 key) { return static_cast<u64>(key) ^ SIGN; }
__device__ __forceinline__ i64 key_of_word(u64 word) { return static_cast<i64>(word ^ SIGN); }

// A score's bits as an integer of the same order; NaN are beyond both infinities. Only bits are
// looked at: arithmetic would depend on how subnormals are treated.
__device__ __forceinline__ int ordered_bits(int bits) {
  const int ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF);
  return ordered == -1 ? 0 : ordered;  // -0.0 equals 0.0
}

// Of a score's bits and an id.
__device__ __forceinline__ u64 encode(int bits, u32 id, bool mask_neg_inf) {
  const int ordered = ordered_bits(bits);
  if (ordered < ~INF_BITS + static_cast<int>(mask_neg_inf) || ordered > INF_BITS) return 0;
  return static_cast<u64>(static_cast<u32>(ordered) ^ 0x80000000u) << 32 | ~id;
}

__device__ __forceinline__ int ordered_score(u64 word) {
  return static_cast<int>(static_cast<u32>(word >> 32) ^ 0x80000000u);
}

__device__ __forceinline__ float score_of_ordered(int ordered) {
  return __int_as_float(ordered ^ ((ordered >> 31) & 0x7FFFFFFF));
}

// Of a word or of its low half alone; -1 for padding, and for any word that encode() never makes.
__device__ __forceinline__ int id_of(u64 word) {
  return max(static_cast<int>(~static_cast<u32>(word)), -1);
}

enum Dtype { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

// A half's exponent and mantissa, moved to those of a float, make it times 2^-112, exactly.
__device__ __forceinline__ int half_bits(u32 half) {
  const u32 rest = half & 0x7FFFu;
  const u32 bits = __float_as_uint(__fmul_rn(__uint_as_float(rest << 13), 5.192296858534828e33f));
  const u32 beyond = rest >= 0x7C00u ? INF_BITS : 0;
  return static_cast<int>((half & 0x8000u) << 16 | bits | beyond);
}

// The float32 bits of element `at`.
__device__ __forceinline__ int load_bits(const void* data, i64 at, i64 dtype) {
  if (dtype == FLOAT32) return __ldg(static_cast<const int*>(data) + at);
  const u32 half = __ldg(static_cast<const unsigned short*>(data) + at);
  return dtype == BFLOAT16 ? static_cast<int>(half << 16) : half_bits(half);
}

// Rows whose blocks a GPU runs at once, about: what a block asks for that many rows ahead is in L2
// when its row is due.
constexpr i64 AHEAD = 400;
constexpr int LINE = 128;  // bytes

__device__ __forceinline__ void prefetch(const void* address) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

// One of integers whose form is twice their stride, and one more if they have 64 bits instead of 32.
// A null pointer means `otherwise`.
__device__ __forceinline__ i64 load_integer(const void* data, i64 at, i64 form, i64 otherwise) {
  if (data == nullptr) return otherwise;
  at *= form >> 1;
  return form & 1 ? __ldg(static_cast<const i64*>(data) + at)
              : static_cast<i64>(__ldg(static_cast<const int*>(data) + at));
}

// Divides positions below 2^31 by a number d: magic = floor(2^(31 + b) / d) + 1 for d <= 2^b.
struct Divisor {
  u32 value, magic, shift;  // b

  __device__ __forceinline__ u32 quotient(u32 at) const { return __umulhi(2 * at, magic) >> shift; }
};

// A rank's place in the interleave, as dcp_comm/sharding.py defines it.
struct Shard {
  u32 rank, size;
  Divisor stripe, ranks;  // tokens of a stripe; ranks

  // Of a position whose global id is below 2^31.
  __device__ __forceinline__ u32 global_of(u32 local) const {
    const u32 which = stripe.quotient(local);
    return (which * size + rank) * stripe.value + (local - which * stripe.value);
  }
  __device__ __forceinline__ bool owns(u32 global) const {
    const u32 which = stripe.quotient(global);
    return which - ranks.quotient(which) * size == rank;
  }
  __device__ __forceinline__ u32 local_of(u32 global) const {
    const u32 which = stripe.quotient(global);
    return ranks.quotient(which) * stripe.value + (global - which * stripe.value);
  }
};

#define SHARD_PARAMETERS                                                                         \
  i64 rank, i64 size, i64 interleave, i64 interleave_magic, i64 interleave_shift, i64 size_magic, \
      i64 size_shift

#define SHARD                                                                                    \
  Shard {                                                                                        \
    static_cast<u32>(rank), static_cast<u32>(size),                                              \
        Divisor{static_cast<u32>(interleave), static_cast<u32>(interleave_magic),                \
                static_cast<u32>(interleave_shift)},                                             \
        Divisor {                                                                                \
      static_cast<u32>(size), static_cast<u32>(size_magic), static_cast<u32>(size_shift)         \
    }                                                                                            \
  }
