// Monotone maps of a segment's words to 1 << ORDER bins; larger words come first.
#pragma once

#include "keys.cuh"

// The two halves of a word, and the value of the upper one: score_of_ordered(), in fewer steps.
__device__ __forceinline__ u32 score_half(u64 word) { return static_cast<u32>(word >> 32); }
__device__ __forceinline__ u32 id_half(u64 word) { return static_cast<u32>(word); }
__device__ __forceinline__ float value_of(u32 half) {
  const u32 sign = static_cast<u32>(static_cast<int>(half) >> 31);
  return __int_as_float(static_cast<int>(half ^ (~sign | 0x80000000u)));
}

// By the bits of one half, from the least to the largest that there is.
template <int ORDER>
struct ByHalf {
  u32 high;
  int shift;
  bool by_score, divisible;  // not all halves are equal

  __device__ __forceinline__ ByHalf(u32 low, u32 high, bool by_score)
      : high(high),
        shift(__clz(static_cast<int>(high - low)) & 31),
        by_score(by_score),
        divisible(low != high) {}

  __device__ __forceinline__ u32 bin(u64 word) const {
    return ((high - (by_score ? score_half(word) : id_half(word))) << shift) >> (32 - ORDER);
  }
};

// By the scores' values. Bins are the finer the nearer to the least one, as the best of a long row
// lie: the bits of (base - value) without their sign, for a base so far below all values that they
// span four octaves. Where positive values span many more of themselves the base is 0.
template <int ORDER>
struct ByValue {
  static constexpr u32 LAST = (1u << ORDER) - 1;
  static constexpr bool divisible = true;
  u32 high;  // twice the bits of (base - the largest value)
  int shift;
  float base;

  // Of the halves of the least and the largest score.
  __device__ __forceinline__ ByValue(u32 low, u32 high_half) {
    const float least = value_of(low), largest = value_of(high_half);
    const float width = __fsub_rn(largest, least), below = __fmul_rn(width, 0.06666667f);
    base = least > 0 && least < __fmul_rn(below, 0.25f) ? 0 : __fsub_rn(least, below);
    // Infinite scores leave all in one bin.
    if (!(width < 3.0e38f)) base = __int_as_float(0x7FC00000);
    high = twice_below(high_half);
    const u32 span = high - twice_below(low);
    shift = max(32 - __clz(static_cast<int>(span - (span >> 6))) - ORDER, 0);
  }

  // Padding is no number, whose difference exceeds all others'.
  __device__ __forceinline__ u32 bin(u64 word) const {
    return min((high - twice_below(score_half(word))) >> shift, LAST);
  }

  // The same for scores that may be larger than the largest, but no padding.
  __device__ __forceinline__ u32 bin_of_any(u32 score) const {
    return (high - min(twice_below(score), high)) >> shift;
  }

 private:
  // Twice the bits have no sign.
  __device__ __forceinline__ u32 twice_below(u32 score) const {
    return 2 * __float_as_uint(__fsub_rn(base, value_of(score)));
  }
};

// By the scores' values, but the largest of them share the first bin; and where many tie at the least
// value, as on a plateau that K cuts, those have half of the bins, by their ids.
template <int ORDER>
struct Uneven {
  static constexpr bool divisible = true;
  ByValue<ORDER> values;
  u32 tied;      // the half of the least score
  u32 ids_high;  // the largest half of the ids of those that tie
  int ids_shift;
  u32 last_value, last_id;  // bins

  // Of the halves of the least score and of a large one.
  __device__ __forceinline__ Uneven(u32 low, u32 large)
      : values(low, large),
        tied(low),
        ids_high(0),
        ids_shift(0),
        last_value(ByValue<ORDER>::LAST - 1),
        last_id(0) {}

  // Of the halves of the ids that tie, if many do.
  __device__ __forceinline__ void divide(u32 ids_low, u32 ids_largest) {
    ids_high = ids_largest;
    ids_shift = max(32 - __clz(static_cast<int>(ids_largest - ids_low)) - (ORDER - 1), 0);
    values.shift += 1;
    last_value = last_id = ByValue<ORDER>::LAST / 2;
  }

  __device__ __forceinline__ u32 bin(u64 word) const {
    const u32 of_value = min(values.bin_of_any(score_half(word)), last_value);
    // Padding, whose halves are 0, comes last.
    const u32 of_id = last_value + 1 + min((ids_high - id_half(word)) >> ids_shift, last_id);
    return score_half(word) > tied ? of_value : of_id;
  }
};
