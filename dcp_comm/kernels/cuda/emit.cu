// What needs no sorting: ids that come in the order in which they are wanted.

#include "emit.cuh"

constexpr int EACH = 4;          // ids a thread at once
constexpr int SPAN = 32 * EACH;  // ids a warp at once

// The prefix of one run, by score, and -1 behind it if `tail`; a warp writes `spans` times SPAN ids of
// a row.
extern "C" __global__ void __launch_bounds__(256, 8)
    emit_own(const i64* run, i64 rows, i64 k, i64 spans, i64 tail, const i64* verdicts,
             EMISSION_PARAMETERS) {
  const Emission to = EMISSION;
  const u32 most = static_cast<u32>(spans) * SPAN, parts = (static_cast<u32>(k) + most - 1) / most;
  const u32 warp = blockIdx.x * 8 + threadIdx.x / 32;
  const i64 row = warp / parts;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(warp % parts * most);
  const int behind = min(first + static_cast<int>(most), static_cast<int>(k));
  const Verdict verdict(verdicts, row, static_cast<int>(k));
  const i64* mine = run + row * k;
  const Emission::Row ids_of_row = to.of_row(row);
  int valid = first, at = first + lane;
  for (; at - lane < min(behind, verdict.length); at += SPAN) {
    u64 words[EACH];
#pragma unroll
    for (int item = 0; item < EACH; ++item)
      words[item] = at + item * 32 < verdict.length ? word_of_key(__ldg(mine + at + item * 32)) : 0;
#pragma unroll
    for (int item = 0; item < EACH; ++item) {
      if (at + item * 32 < behind) ids_of_row.write(at + item * 32, words[item]);
      valid += __popc(__ballot_sync(~0u, words[item] != 0));
    }
  }
  if (tail != 0)
    for (; at < behind; at += 32) ids_of_row.ids[at] = -1;
  // One warp sees where valid words end.
  const bool more = valid == behind && valid < verdict.length && word_of_key(__ldg(mine + valid)) != 0;
  if (lane == 0 && !more && (valid > first || first == 0)) to.conclude(row, valid, verdict.sure);
}

// What merge_runs left with its seal, of rows `stride` apart.
extern "C" __global__ void __launch_bounds__(256)
    unseal(const int* sealed, i64 sealed_stride, i64 k, EMISSION_PARAMETERS) {
  const Emission to = EMISSION;
  const i64 row = blockIdx.x;
  int valid = 0;
  bool sure = false;
  for (int first = 0; first < k; first += 256) {
    const int at = first + static_cast<int>(threadIdx.x);
    int id = at < k ? __ldg(sealed + row * sealed_stride + at) : -1;
    if (at == k - 1) {
      sure = id < 0;
      if (id < -1) id = -2 - id;
    }
    id = max(id, -1);
    if (at < k) to.ids[row * to.stride + at] = id;
    valid += __syncthreads_count(id >= 0);
  }
  sure = __syncthreads_or(sure);
  if (threadIdx.x == 0) to.conclude(row, valid, sure);
}
