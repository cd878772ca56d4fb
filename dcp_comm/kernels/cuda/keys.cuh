// The one total order of candidates, as dcp_comm/topk/keys.py defines it.
//
// Memory holds signed keys. Inside a kernel a key is a *word*: the same bits with the sign bit
// flipped, so that unsigned comparison is the order, larger is better, and padding is 0.
#pragma once

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;

constexpr u64 SIGN = 1ull << 63;
constexpr int INF_BITS = 0x7F800000;
constexpr i64 MAX_ID = 0x7FFFFFFF;

__device__ __forceinline__ u64 word_of_key(i64 key) { return static_cast<u64>(key) ^ SIGN; }
__device__ __forceinline__ i64 key_of_word(u64 word) { return static_cast<i64>(word ^ SIGN); }

// Only bits are looked at: arithmetic would depend on how subnormals are treated.
__device__ __forceinline__ u64 encode(int bits, i64 id, bool mask_neg_inf) {
  int ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF);
  if (ordered == -1) ordered = 0;  // -0.0 equals 0.0
  const bool valid = ordered >= ~INF_BITS + static_cast<int>(mask_neg_inf) &&
                     ordered <= INF_BITS && id >= 0 && id <= MAX_ID;
  if (!valid) return 0;
  const u64 key = (static_cast<u64>(static_cast<u32>(ordered)) << 32) | static_cast<u32>(~id);
  return key ^ SIGN;
}

__device__ __forceinline__ int ordered_score(u64 word) {
  return static_cast<int>(static_cast<u32>(word >> 32) ^ 0x80000000u);
}

__device__ __forceinline__ float score_of_ordered(int ordered) {
  return __int_as_float(ordered ^ ((ordered >> 31) & 0x7FFFFFFF));
}

// Of a word or of its low half alone; -1 for padding. No valid id has a low half of 0.
__device__ __forceinline__ int id_of(u64 word) {
  const u32 low = static_cast<u32>(word);
  return low == 0 ? -1 : static_cast<int>(~low);
}

enum Dtype { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

__device__ __forceinline__ int half_bits(u32 half) {
  const u32 sign = (half & 0x8000u) << 16, rest = half & 0x7FFFu;
  if (rest >= 0x7C00u) return static_cast<int>(sign | INF_BITS | (rest & 0x3FFu) << 13);
  if (rest >= 0x400u) return static_cast<int>(sign | ((rest << 13) + (112u << 23)));
  return static_cast<int>(sign | __float_as_uint(static_cast<float>(rest) * 5.9604644775390625e-8f));
}

// The float32 bits of element `at`.
__device__ __forceinline__ int load_bits(const void* data, i64 at, i64 dtype) {
  if (dtype == FLOAT32) return __ldg(static_cast<const int*>(data) + at);
  const u32 half = __ldg(static_cast<const unsigned short*>(data) + at);
  return dtype == BFLOAT16 ? static_cast<int>(half << 16) : half_bits(half);
}

// Integers of 32 or 64 bits; `wide` says which. A null pointer means `otherwise`.
__device__ __forceinline__ i64 load_integer(const void* data, i64 at, i64 wide, i64 otherwise) {
  if (data == nullptr) return otherwise;
  return wide ? __ldg(static_cast<const i64*>(data) + at)
              : static_cast<i64>(__ldg(static_cast<const int*>(data) + at));
}

// Divides positions; most divisors are powers of two.
struct Divisor {
  u32 value;

  __device__ __forceinline__ u32 quotient(u32 at) const {
    return (value & (value - 1)) == 0 ? at >> (31 - __clz(static_cast<int>(value))) : at / value;
  }
};

// A rank's place in the interleave, as dcp_comm/sharding.py defines it.
struct Shard {
  i64 rank, size, interleave;

  __device__ __forceinline__ i64 global_of(int local) const {
    const Divisor run{static_cast<u32>(interleave)};
    const u32 at = static_cast<u32>(local), stripe = run.quotient(at);
    return (static_cast<i64>(stripe) * size + rank) * interleave + (at - stripe * run.value);
  }
  __device__ __forceinline__ int local_of(int global) const {
    const Divisor run{static_cast<u32>(interleave)}, ranks{static_cast<u32>(size)};
    const u32 at = static_cast<u32>(global), stripe = run.quotient(at);
    return static_cast<int>(ranks.quotient(stripe) * run.value + (at - stripe * run.value));
  }
};
