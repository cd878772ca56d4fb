// The two searches of the splitter strategy, and what travels before each; one warp a row.

#include "search.cuh"

// What travels of a run is written to `splitters` (rows, m).
extern "C" __global__ void __launch_bounds__(LANES)
    copy_splitters(i64* splitters, const i64* run, i64 k, i64 block, i64 count) {
  const i64 row = blockIdx.x;
  for (i64 at = threadIdx.x; at < count; at += LANES) {
    const i64 end = (at + 1) * block;
    splitters[row * count + at] = __ldg(run + row * k + (end < k ? end : k) - 1);
  }
}

// A window stays within its run.
extern "C" __global__ void __launch_bounds__(LANES)
    copy_windows(i64* windows, const i64* run, i64 k, i64 width, const i64* starts) {
  const i64 row = blockIdx.x;
  i64 start = __ldg(starts + row);
  start = start < 0 ? 0 : start > k - width ? k - width : start;
  for (i64 at = threadIdx.x; at < width; at += LANES)
    windows[row * width + at] = __ldg(run + row * k + start + at);
}

__device__ __forceinline__ void fetch(u64* words, const i64* keys, i64 row, i64 rows, int runs,
                                      int n) {
  for (int run = 0; run < runs; ++run)
    for (int at = threadIdx.x; at < n; at += LANES)
      words[run * n + at] = word_of_key(__ldg(keys + (run * rows + row) * n + at));
  __syncwarp();
}

// What the splitters tell; lane r speaks for run r.
struct Opened {
  i64 start;
  u64 x, last_of_run;
};

__device__ __forceinline__ Opened open(u64* words, const i64* splitters, i64 row, i64 rows,
                                       const Lemma& lemma) {
  const int lane = static_cast<int>(threadIdx.x);
  fetch(words, splitters, row, rows, lemma.runs, lemma.splitters);
  const Runs all{words, lemma.runs, lemma.splitters};
  const int settled = all.prefix(lane, lemma.settled);
  const u64 x = all.last_of(lane, settled, lemma.settled);
  const u64 last = lane < lemma.runs ? words[(lane + 1) * lemma.splitters - 1] : 0;
  __syncwarp();
  return Opened{x == 0 ? lemma.k : static_cast<i64>(settled) * lemma.block, x, last};
}

// Answers (runs, rows), or (1, rows) of run `own`.
__device__ __forceinline__ void answer(i64* answers, i64 row, i64 rows, int runs, i64 own,
                                       i64 value) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane >= runs || (own >= 0 && lane != own)) return;
  answers[(own < 0 ? lane : 0) * rows + row] = value;
}

#define LEMMA_PARAMETERS \
  i64 rows, i64 runs, i64 k, i64 block, i64 splitter_count, i64 settled, i64 window

#define LEMMA                                                                                    \
  Lemma {                                                                                        \
    static_cast<int>(runs), static_cast<int>(k), static_cast<int>(block),                        \
        static_cast<int>(splitter_count), static_cast<int>(settled), static_cast<int>(window)    \
  }

extern "C" __global__ void __launch_bounds__(LANES)
    open_windows(const i64* splitters, i64* starts, i64 own, LEMMA_PARAMETERS) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Opened opened = open(reinterpret_cast<u64*>(memory), splitters, blockIdx.x, rows, LEMMA);
  answer(starts, blockIdx.x, rows, static_cast<int>(runs), own, opened.start);
}

extern "C" __global__ void __launch_bounds__(LANES)
    close_windows(const i64* splitters, const i64* windows, i64* verdicts, i64 own,
                  LEMMA_PARAMETERS) {
  extern __shared__ __align__(16) unsigned char memory[];
  u64* words = reinterpret_cast<u64*>(memory);
  const Lemma lemma = LEMMA;
  const i64 row = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  const Opened opened = open(words, splitters, row, rows, lemma);
  fetch(words, windows, row, rows, lemma.runs, lemma.window);
  const Runs all{words, lemma.runs, lemma.window};
  const int length = all.prefix(lane, lemma.window);
  const u64 last = all.last_of(lane, length, lemma.window);
  const bool sure = certifies(lane, lemma.runs, opened.last_of_run, last < opened.x ? last : opened.x);
  const i64 verdict = opened.start + length;
  answer(verdicts, row, rows, lemma.runs, own, sure ? verdict : ~verdict);
}
