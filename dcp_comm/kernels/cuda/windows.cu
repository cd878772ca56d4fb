// The two searches of the splitter strategy, one warp a row, and what travels before each.

#include "search.cuh"

// What travels of a run (rows, k) first: `count` splitters of each row.
extern "C" __global__ void __launch_bounds__(256)
    copy_splitters(i64* splitters, const i64* run, i64 rows, i64 k, i64 block, i64 count) {
  const i64 at = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
  if (at >= rows * count) return;
  const i64 row = at / count;
  const i64 end = (at - row * count + 1) * block;
  splitters[at] = __ldg(run + row * k + (end < k ? end : k) - 1);
}

// What travels then: `width` keys of each row from where its window starts, which stays in its run.
extern "C" __global__ void __launch_bounds__(256)
    copy_windows(i64* windows, const i64* run, i64 rows, i64 k, i64 width, const i64* starts) {
  const i64 at = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
  if (at >= rows * width) return;
  const i64 row = at / width;
  i64 start = __ldg(starts + row);
  start = start < 0 ? 0 : start > k - width ? k - width : start;
  windows[at] = __ldg(run + row * k + start + (at - row * width));
}

// One row of a search.
struct Row {
  i64 row, rows;
  int lane;
  u64* words;
  Lemma lemma;

  // The n words that each run (p, rows, n) has of this row.
  __device__ __forceinline__ Runs runs(const i64* keys, int n) const {
    __syncwarp();
    const int stride = padded(n);
    fetch(words, lemma.runs, n, stride, lane, LANES, [&](int run, int at) {
      return word_of_key(__ldg(keys + (run * rows + row) * n + at));
    });
    __syncwarp();
    return Runs{words, lemma.runs, n, stride};
  }

  // Answers are (p, rows), or (1, rows) of run `own`; lane r answers for run r.
  __device__ __forceinline__ void answer(i64* answers, i64 own, i64 value) const {
    if (lane < lemma.runs && (own < 0 || lane == own))
      answers[(own < 0 ? lane : 0) * rows + row] = value;
  }
};

// What the splitters tell; lane r knows of run r.
struct Opened {
  i64 start;
  u64 x, last_of_run;
};

__device__ __forceinline__ Opened open(const Row& row, const i64* keys) {
  const Lemma& lemma = row.lemma;
  const Runs splitters = row.runs(keys, lemma.splitters);
  const int settled = splitters.prefix(row.lane, lemma.settled);
  const u64 x = splitters.last_of(row.lane, settled, lemma.settled);
  const int last_at = row.lane * splitters.stride + lemma.splitters - 1;
  const u64 last = row.lane < lemma.runs ? row.words[last_at] : 0;
  return Opened{x == 0 ? lemma.k : static_cast<i64>(settled) * lemma.block, x, last};
}

#define ROW_PARAMETERS                                                                           \
  i64 width, i64 rows, i64 runs, i64 k, i64 block, i64 splitter_count, i64 settled, i64 window

// `width` places for words of a row and run.
#define ROW                                                                                      \
  Row {                                                                                          \
    static_cast<i64>(blockIdx.x) * (blockDim.x / LANES) + threadIdx.x / LANES, rows,                             \
        static_cast<int>(threadIdx.x % LANES),                                                   \
        reinterpret_cast<u64*>(memory) + threadIdx.x / LANES * runs * width, Lemma {             \
      static_cast<int>(runs), static_cast<int>(k), static_cast<int>(block),                      \
          static_cast<int>(splitter_count), static_cast<int>(settled), static_cast<int>(window)  \
    }                                                                                            \
  }

extern "C" __global__ void __launch_bounds__(MOST_ROWS* LANES)
    open_windows(const i64* splitters, i64* starts, i64 own, ROW_PARAMETERS) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Row row = ROW;
  if (row.row < rows) row.answer(starts, own, open(row, splitters).start);
}

extern "C" __global__ void __launch_bounds__(MOST_ROWS* LANES) close_windows(
    const i64* splitters, const i64* windows, i64* verdicts, i64 own, ROW_PARAMETERS) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Row row = ROW;
  if (row.row >= rows) return;
  const Opened opened = open(row, splitters);
  const Runs all = row.runs(windows, row.lemma.window);
  const int length = all.prefix(row.lane, window);
  const u64 last = min(opened.x, all.last_of(row.lane, length, window));
  const bool sure = certifies(row.lane, row.lemma.runs, opened.last_of_run, last);
  row.answer(verdicts, own, sure ? opened.start + length : ~(opened.start + length));
}
