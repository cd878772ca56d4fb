// How long a prefix of each whole run wins: their splitters tell where windows begin, these the rest.

#include "search.cuh"

// Calls tell(row, run, verdict) for the block's rows of the runs (p, rows, k).
template <typename Tell>
__device__ __forceinline__ void settle_rows(const Search& search, const i64* runs, const Tell& tell) {
  __shared__ int starts[LANES];
  const Lemma& lemma = search.lemma;
  const int k = lemma.k;
  const auto keys = [&](i64 row, int run) { return runs + (run * search.rows + row) * k; };
  search.fetch(lemma.splitters, [&](int, i64 row, int run, int at) {
    return __ldg(keys(row, run) + min((at + 1) * lemma.block, k) - 1);
  });
  const Opened opened = search.open();
  const int start = min(opened.settled * lemma.block, k);
  if (search.speaks()) starts[search.list()] = start;
  __syncthreads();
  search.fetch(lemma.window, [&](int list, i64 row, int run, int at) {
    const int within = starts[list] + at;
    return within < k ? __ldg(keys(row, run) + within) : PAD;
  });
  // If x is padding every valid key wins, and the windows hold all that is not settled.
  const int wanted = opened.x == PAD ? lemma.runs * lemma.window : lemma.window;
  const Closed closed = search.close(opened, wanted);
  const int length = start + closed.length;
  search.answer([&](i64 row, int run) { tell(row, run, closed.sure ? length : ~length); });
}

// For others: verdicts (runs, rows).
extern "C" __global__ void __launch_bounds__(SEARCHERS, 7)
    settle(SEARCH_PARAMETERS, const i64* keys, i64* verdicts) {
  extern __shared__ __align__(16) unsigned char memory[];
  settle_rows(SEARCH, keys,
              [&](i64 row, int run, int verdict) { verdicts[run * rows + row] = verdict; });
}

// For merge_runs, which writes each row's ids over them.
extern "C" __global__ void __launch_bounds__(SEARCHERS, 7)
    settle_ids(SEARCH_PARAMETERS, const i64* keys, int* ids, i64 ids_stride) {
  extern __shared__ __align__(16) unsigned char memory[];
  settle_rows(SEARCH, keys,
              [&](i64 row, int run, int verdict) { ids[row * ids_stride + run] = verdict; });
}
