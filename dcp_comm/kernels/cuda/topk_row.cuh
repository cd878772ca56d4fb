// A row of logits, read four columns at a time.
#pragma once

#include "logits.cuh"

constexpr u32 EDGES = 3;  // of a row at either end, at most
constexpr u64 NAN_ENTRY = 0x7FC00000ull << 32;

// Four neighbouring columns as they lie in memory: halves are two to a word.
struct Four {
  u32 bits[4];
};

// The columns of a row that exist and are its own: aligned vectors, and up to three columns before
// them and three behind, its edges. Nothing beside these is read.
struct Row {
  const char* base;  // of vector 0
  u32 vectors;
  u32 first;         // position of column 0 of vector 0
  u32 before, edges; // edges before vector 0, and in all
  i64 dtype;

  __device__ __forceinline__ Row(const Logits& logits, i64 row) : dtype(logits.dtype) {
    const Columns columns(logits, row);
    const u32 size = columns.size();
    const u64 address = reinterpret_cast<u64>(columns.base);
    const u32 odd = static_cast<u32>(address / size) % 4;
    before = (4 - odd) % 4;
    before = before < columns.count ? before : columns.count;
    vectors = (columns.count - before) / 4;
    edges = columns.count - 4 * vectors;
    base = reinterpret_cast<const char*>(address + before * size);
    first = columns.first + before;
  }

  __device__ __forceinline__ u32 columns() const { return 4 * vectors + edges; }

  // Vectors `vector`, `vector + step`, and so on, as far as they are before `behind`.
  template <int COUNT>
  __device__ __forceinline__ void load(u32 vector, u32 step, u32 behind, Four (&to)[COUNT]) const {
    if (dtype == FLOAT32) {
      const uint4* from = reinterpret_cast<const uint4*>(base) + vector;
#pragma unroll
      for (int each = 0; each < COUNT; ++each) {
        if (vector + each * step >= behind) continue;
        const uint4 four = __ldg(from + each * step);
        to[each] = {{four.x, four.y, four.z, four.w}};
      }
    } else {
      const uint2* from = reinterpret_cast<const uint2*>(base) + vector;
#pragma unroll
      for (int each = 0; each < COUNT; ++each) {
        if (vector + each * step >= behind) continue;
        const uint2 four = __ldg(from + each * step);
        to[each].bits[0] = four.x;
        to[each].bits[1] = four.y;
      }
    }
  }

  // The bits of float32, whatever was loaded.
  __device__ __forceinline__ Four widen(const Four& four) const {
    if (dtype == FLOAT32) return four;
    const u32 low = four.bits[0], high = four.bits[1];
    if (dtype == BFLOAT16) return {{low << 16, low & ~0xFFFFu, high << 16, high & ~0xFFFFu}};
    return {{static_cast<u32>(half_bits(low & 0xFFFF)), static_cast<u32>(half_bits(low >> 16)),
             static_cast<u32>(half_bits(high & 0xFFFF)), static_cast<u32>(half_bits(high >> 16))}};
  }

  // The bits of a score above its position; columns count from vector 0.
  __device__ __forceinline__ u64 entry(i64 column) const {
    const u32 bits = static_cast<u32>(load_bits(base, column, dtype));
    return static_cast<u64>(bits) << 32 | (first + static_cast<u32>(column));
  }

  // One of the edges, first those before vector 0; NaN if there is none.
  __device__ __forceinline__ u64 edge(u32 which) const {
    const bool behind = which >= EDGES;
    const u32 at = behind ? before + which - EDGES : which;
    if (at >= (behind ? edges : before)) return NAN_ENTRY;
    const i64 shift = behind ? 4 * static_cast<i64>(vectors) : 0;
    return entry(static_cast<i64>(at) - before + shift);
  }
};
