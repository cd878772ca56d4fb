// Rows of logits, and where their winners go.
#pragma once

#include "keys.cuh"

struct Logits {
  const void* data;
  i64 stride, width, dtype;
  const void* starts;
  i64 starts_form;
  const void* lengths;
  i64 lengths_form;

  __device__ __forceinline__ i64 start(i64 row) const {
    const i64 start = load_integer(starts, row, starts_form, 0);
    return start < -MAX_ID - 1 ? -MAX_ID - 1 : start > width ? width : start;
  }
  __device__ __forceinline__ i64 length(i64 row) const {
    const i64 length = load_integer(lengths, row, lengths_form, MAX_ID + 1);
    return length <= MAX_ID ? length : MAX_ID + 1;
  }
};

// The columns of a row that exist and are its own.
struct Columns {
  const char* base;  // of column 0
  u32 count;
  u32 first;  // position of column 0
  i64 dtype;

  __device__ __forceinline__ Columns(const Logits& logits, i64 row) : dtype(logits.dtype) {
    const i64 start = logits.start(row);
    const i64 behind = start + logits.length(row);
    const i64 low = start > 0 ? start : 0;
    const i64 high = behind < logits.width ? behind : logits.width;
    count = high > low ? static_cast<u32>(high - low) : 0;
    base = reinterpret_cast<const char*>(reinterpret_cast<u64>(logits.data) +
                                         (row * logits.stride + low) * size());
    first = static_cast<u32>(low - start);
  }

  // Bytes of an element.
  __device__ __forceinline__ u32 size() const { return dtype == FLOAT32 ? 4 : 2; }
};

// Where the winners of a block's row go.
struct Winners {
  float* scores;
  int* ids;

  // Of all rows' k winners.
  __device__ __forceinline__ Winners(float* scores, int* ids, i64 k)
      : scores(scores + blockIdx.x * k), ids(ids + blockIdx.x * k) {}

  __device__ __forceinline__ bool is_there() const { return true; }
  __device__ __forceinline__ void operator()(int rank, u64 word) const {
    scores[rank] = word == 0 ? __int_as_float(~0x7FFFFF) : score_of_ordered(ordered_score(word));
    ids[rank] = id_of(word);
  }

  // Behind the last one, by all threads of a block.
  template <int THREADS>
  __device__ __forceinline__ void fill(int count, int k) const {
    for (int rank = count + static_cast<int>(threadIdx.x); rank < k; rank += THREADS)
      (*this)(rank, 0);
  }
};

#define LOGITS_PARAMETERS                                                                        \
  const void *data, i64 stride, i64 width, i64 dtype, const void *starts, i64 starts_form,        \
      const void *lengths, i64 lengths_form, i64 k, i64 mask_neg_inf

#define LOGITS \
  Logits { data, stride, width, dtype, starts, starts_form, lengths, lengths_form }

#define WINNERS_PARAMETERS float *scores, int *ids

#define WINNERS \
  Winners { scores, ids, k }
