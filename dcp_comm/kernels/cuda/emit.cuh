// Writes winners where a caller wants them.
#pragma once

#include "keys.cuh"

// dcp_comm/kernels/primitives.py says what they mean.
struct Table {
  const int* pages;
  i64 stride, step, requests, width;
  const void* request_of_row;
  i64 requests_form, page_size;

  // The slot of a local position of a row, -1 where the table has none.
  __device__ __forceinline__ int slot(i64 row, int local) const {
    const i64 request = load_integer(request_of_row, row, requests_form, row);
    const u32 size = static_cast<u32>(page_size), at = static_cast<u32>(local);
    const i64 page = at / size;
    if (request < 0 || request >= requests || page >= width) return -1;
    const int block = __ldg(pages + request * stride + page * step);
    const i64 slot = block * page_size + at % size;
    return block < 0 || slot > MAX_ID ? -1 : static_cast<int>(slot);
  }
};

struct Emission {
  int* ids;
  i64 stride;
  int* counts;
  unsigned char* certified;
  u64* uncertified;
  i64 by_position, is_local;
  Shard shard;  // of local ids
  Table table;  // page size 0: none

  // One row's ids; `word` may be its low half alone.
  struct Row {
    const Emission& to;
    i64 row;
    int* ids;

    __device__ __forceinline__ void write(int at, u64 word) const {
      int id = id_of(word);
      if (id >= 0 && to.is_local) {
        id = static_cast<int>(to.shard.local_of(id));
        if (to.table.page_size != 0) id = to.table.slot(row, id);
      }
      ids[at] = id;
    }
  };
  __device__ __forceinline__ Row of_row(i64 row) const { return {*this, row, ids + row * stride}; }

  // By one thread a row.
  __device__ __forceinline__ void conclude(i64 row, int count, bool sure) const {
    counts[row] = count;
    certified[row] = sure;
    if (!sure) atomicAdd(uncertified, 1ull);
  }

  // Or instead, by a row's block: a full row that is certified is marked in the last of its ids.
  __device__ __forceinline__ void seal(i64 row, int k, bool full_and_sure) const {
    int* last = ids + row * stride + k - 1;
    __syncthreads();
    if (threadIdx.x == 0 && full_and_sure && *last < MAX_ID) *last = -2 - *last;
  }
};

// How much of this rank's run wins: `verdicts` (rows,), or all that is valid.
struct Verdict {
  int length;
  bool sure;

  __device__ __forceinline__ Verdict(const i64* verdicts, i64 row, int k) {
    const i64 told = verdicts == nullptr ? k : __ldg(verdicts + row);
    sure = told >= 0;
    length = static_cast<int>(min(sure ? told : ~told, static_cast<i64>(k)));
  }
};

#define EMISSION_PARAMETERS                                                                      \
  int *ids, i64 ids_stride, int *counts, unsigned char *certified, u64 *uncertified,              \
      i64 by_position, i64 is_local, SHARD_PARAMETERS, const int *pages,                          \
      i64 pages_stride, i64 pages_step, i64 requests, i64 pages_width,                            \
      const void *request_of_row, i64 requests_form, i64 page_size

#define EMISSION                                                                                 \
  Emission {                                                                                     \
    ids, ids_stride, counts, certified, uncertified, by_position, is_local, SHARD, Table {       \
      pages, pages_stride, pages_step, requests, pages_width, request_of_row, requests_form,     \
          page_size                                                                              \
    }                                                                                            \
  }
