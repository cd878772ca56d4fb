// The two searches of the splitter strategy, and what travels between them.

#include "search.cuh"

// What travels of a run (rows, k): `width` keys of each row from where its window starts, which
// stays in its run; a warp copies a row's.
extern "C" __global__ void __launch_bounds__(256)
    copy_windows(i64* windows, const i64* run, i64 rows, i64 k, i64 width, const i64* starts) {
  const i64 row = static_cast<i64>(blockIdx.x) * (256 / LANES) + threadIdx.x / LANES;
  if (row >= rows) return;
  const i64 start = max(min(__ldg(starts + row), k - width), 0ll);
  const i64* from = run + row * k + start;
  i64* to = windows + row * width;
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x) % LANES; at < width; at += LANES)
    to[at] = __ldg(from + at);
}

// Fetches what each rank sent, (p, rows, n).
__device__ __forceinline__ void fetch_sent(const Search& search, const i64* keys, int n) {
  search.fetch(n, [&](int, i64 row, int run, int at) {
    return keys[(run * search.rows + row) * n + at];  // some of which the kernel writes
  });
}

// Calls tell(answer) with each of the answers (p, rows), or (1, rows) of run `own`.
template <typename Tell>
__device__ __forceinline__ void answer(const Search& search, i64* answers, i64 own, const Tell& tell) {
  search.answer([&](i64 row, int run) {
    if (own < 0 || run == own) tell(answers + (own < 0 ? run : 0) * search.rows + row);
  });
}

extern "C" __global__ void __launch_bounds__(SEARCHERS, 7)
    open_windows(SEARCH_PARAMETERS, i64* splitters, i64* starts, i64 own) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Search search = SEARCH;
  fetch_sent(search, splitters, search.lemma.splitters);
  const Opened opened = search.open();
  const i64 start = opened.x == PAD ? k : opened.settled * block;
  answer(search, starts, own, [&](i64* to) { *to = start; });
  // No search looks at it again, and all keys of the block's rows are fetched.
  search.answer([&](i64 row, int run) {
    if (run == 0 && settled > 0) splitters[row * splitter_count] = opened.x;
  });
}

extern "C" __global__ void __launch_bounds__(SEARCHERS, 7)
    close_windows(SEARCH_PARAMETERS, const i64* splitters, const i64* windows, i64* answers, i64 own) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Search search = SEARCH;
  Opened opened{0, ~PAD, PAD};
  if (search.speaks()) {
    const i64 row = min(search.first + search.row(), rows - 1);
    if (settled > 0) opened.x = __ldg(splitters + row * splitter_count);
    opened.last = __ldg(splitters + (search.run() * rows + row + 1) * splitter_count - 1);
  }
  fetch_sent(search, windows, search.lemma.window);
  const Closed closed = search.close(opened, search.lemma.window);
  answer(search, answers, own, [&](i64* to) {
    const i64 length = *to + closed.length;
    *to = closed.sure ? length : ~length;
  });
}
