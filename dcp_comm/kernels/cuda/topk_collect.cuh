// One block finds the best of a row, in one pass over its logits.
//
// Scores at or above a threshold are appended to a buffer in shared memory. When k are in it, the
// threshold rises above itself: rows are read in the order of positions, so that a later equal score
// loses. When the buffer is full it is sorted, all but the k best are dropped, and the threshold
// rises above the last of them. How good the first threshold is decides how long this takes, never
// what comes out.
#pragma once

#include "sort.cuh"
#include "topk_row.cuh"

// The sum of this lane's value and those of the lanes before it.
__device__ __forceinline__ u32 sum_through(u32 value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const u32 left = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += left;
  }
  return value;
}

template <int THREADS, int CAPACITY>
struct Collector {
  using Sort = Sorter<CAPACITY, CAPACITY / THREADS>;
  static constexpr int WARPS = THREADS / 32;
  static constexpr int FOURS = 4;                // vectors a thread has of a tile
  static constexpr u32 SHARE = 32 * FOURS;       // vectors a warp has of a tile
  static constexpr u32 TILE = THREADS * FOURS;   // vectors of a tile
  static constexpr u32 ROOM = CAPACITY - EDGES;  // those behind the last vector always get in
  // Warps get in one by one, whole: there must be room for one behind the k best.
  static_assert(4 * SHARE <= ROOM - CAPACITY / 2, "or a full buffer would stay full");

  // What outlasts a sort within a row. In registers it would be on the stack before and after, too.
  struct Kept {
    u32 tile, end, served, turn, count;
  };

  struct Shared {
    typename Sort::Shared sort;
    u32 demands[2][32];  // of warps for room; those of the next turn are 0
    u32 sums[32], best[32], least[32];  // of warps
    u32 found[3];
    u64 edges[2 * EDGES];
    Kept kept;
  };
  static_assert(sizeof(Shared) <= 8 * CAPACITY + 32 * THREADS + 2048, "what local.py asks for");

  Shared& shared;
  const int k;
  const bool mask_neg_inf;
  const float lowest;  // any score that may win is at or above it
  float threshold;
  bool risen;  // the threshold is above the first one
  u32 count;   // of words in the buffer, the same in all threads
  u32 sorted;  // of them; behind are scores and positions as they were read

  // All dynamic shared memory of a block begins with it.
  __device__ __forceinline__ static Shared& memory() {
    extern __shared__ __align__(16) unsigned char memory[];
    return *reinterpret_cast<Shared*>(memory);
  }

  __device__ __forceinline__ Collector(int k, bool mask_neg_inf)
      : shared(memory()),
        k(k),
        mask_neg_inf(mask_neg_inf),
        lowest(score_of_ordered(~INF_BITS + static_cast<int>(mask_neg_inf))) {
    if (threadIdx.x < 32) shared.demands[0][threadIdx.x] = 0;
    __syncthreads();
  }

  __device__ __forceinline__ static u32 tiles(const Row& row) {
    return (row.vectors + TILE - 1) / TILE;
  }

  // Before anything of a row is collected.
  __device__ __forceinline__ void load_edges(const Row& row) {
    if (threadIdx.x < 2 * EDGES) shared.edges[threadIdx.x] = row.edge(threadIdx.x);
    __syncthreads();
  }

  // Begins, with nothing, at a threshold.
  __device__ __forceinline__ void begin(float first) {
    threshold = first;
    risen = false;
    count = sorted = 0;
  }

  // Appends what may win of some tiles.
  __device__ __forceinline__ void collect(const Row& row, u32 tile, u32 end) {
    u32 served = 0;  // warps whose share of the tile is in
    while (tile < end)
      if (stream(row, end, &tile, &served)) make_room(&tile, &end, &served);
  }

  // Appends what may win of the edges before the first vector, or of those behind the last; there is
  // room. All warps count, and the first one writes.
  __device__ __forceinline__ void collect_edges(bool behind) {
    const u32 lane = threadIdx.x % 32;
    const u64 own = shared.edges[lane % EDGES + (behind ? EDGES : 0)];
    const bool is_chosen = lane < EDGES && __uint_as_float(static_cast<u32>(own >> 32)) >= threshold;
    const u32 chosen = __ballot_sync(~0u, is_chosen);
    if (threadIdx.x < EDGES && is_chosen)
      shared.sort.words[count + __popc(chosen & ((1u << lane) - 1))] = own;
    count += __popc(chosen);
  }

  // Sorts the words; if there are k, all but the k best are dropped.
  __device__ __forceinline__ void sort() {
    __syncthreads();
    for (u32 at = sorted + threadIdx.x; at < count; at += THREADS) shared.sort.words[at] = word(at);
    __syncthreads();
    if (threadIdx.x == 0) shared.kept.count = count;
    Sort::sort_words(static_cast<int>(count));
    count = shared.kept.count;
    if (count >= static_cast<u32>(k)) {
      count = k;
      rise(score_of_ordered(ordered_score(shared.sort.words[k - 1])));
    }
    sorted = count;
  }

  // The word at a place of the buffer.
  __device__ __forceinline__ u64 word(u32 at) const {
    const u64 word = shared.sort.words[at];
    if (at < sorted) return word;
    return encode(static_cast<int>(word >> 32), static_cast<u32>(word), mask_neg_inf);
  }

 private:
  __device__ __forceinline__ void make_room(u32* tile, u32* end, u32* served) {
    if (threadIdx.x == 0) {
      shared.kept.tile = *tile;
      shared.kept.end = *end;
      shared.kept.served = *served;
      shared.kept.turn = turn;
    }
    sort();
    *tile = shared.kept.tile;
    *end = shared.kept.end;
    *served = shared.kept.served;
    turn = shared.kept.turn;
  }

  // Goes on until the end, until the threshold rises within a tile, or until the buffer is full, and
  // returns whether it is. The next tile is on its way while this one is appended, in the same
  // registers: few scores are chosen, and those are loaded again.
  __device__ __forceinline__ bool stream(const Row& row, u32 end, u32* tile, u32* served) {
    const u32 behind = end * TILE < row.vectors ? end * TILE : row.vectors;
    Four own[FOURS] = {};
    row.load(vector_of(*tile), 32, behind, own);
    do {
      const u32 chosen = choose(row, *tile, own);
      row.load(vector_of(*tile + 1), 32, behind, own);
      const bool had_risen = risen;
      *served = append(row, *tile, chosen, *served);
      if (*served < WARPS) return had_risen;
      *served = 0;
    } while (++*tile < end);
    return false;
  }

  __device__ __forceinline__ static u32 vector_of(u32 tile) {
    return tile * TILE + threadIdx.x / 32 * SHARE + threadIdx.x % 32;
  }

  // A bit for each of this thread's columns that exist and reach the threshold.
  __device__ __forceinline__ u32 choose(const Row& row, u32 tile, const Four (&own)[FOURS]) const {
    u32 chosen = 0;
#pragma unroll
    for (int four = 0; four < FOURS; ++four) {
      const Four wide = row.widen(own[four]);
#pragma unroll
      for (int at = 0; at < 4; ++at)
        if (__uint_as_float(wide.bits[at]) >= threshold) chosen |= 1u << (4 * four + at);
    }
    if ((tile + 1) * TILE <= row.vectors) return chosen;
#pragma unroll
    for (int four = 0; four < FOURS; ++four)
      if (vector_of(tile) + four * 32 >= row.vectors) chosen &= ~(15u << 4 * four);
    return chosen;
  }

  // Serves whole warps in their order, from `served` on; returns how many are served now: where not
  // all fit, as many as make k words, or as there is room for if k were in before.
  __device__ __forceinline__ u32 append(const Row& row, u32 tile, u32 chosen, u32 served) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp < served) chosen = 0;
    u32* demands = shared.demands[turn];
    turn ^= 1;
    u32 place = 0;  // the order within a warp is left to chance
    if (chosen != 0) place = atomicAdd(&demands[warp], static_cast<u32>(__popc(chosen)));
    __syncthreads();
    const u32 demand = lane < WARPS ? demands[lane] : 0;
    if (lane == 0) shared.demands[turn][warp] = 0;
    __syncwarp();
    u32 total = __reduce_add_sync(~0u, demand), fit = WARPS;
    const u32 before = __reduce_add_sync(~0u, lane < warp ? demand : 0);
    if (count + total > ROOM) {
      const u32 end = sum_through(demand);
      const bool fits = risen ? count + end <= ROOM : count + end - demand < static_cast<u32>(k);
      fit = __popc(__ballot_sync(~0u, lane < WARPS && fits));
      total = fit == 0 ? 0 : __shfl_sync(~0u, end, static_cast<int>(fit) - 1);
    }
    if (warp >= fit) chosen = 0;
    place += count + before;
    for (; chosen != 0; chosen &= chosen - 1) {
      const u32 at = __ffs(static_cast<int>(chosen)) - 1;
      shared.sort.words[place++] = row.entry(4 * vector_of(tile) + at / 4 * 128 + at % 4);
    }
    count += total;
    if (!risen && count >= static_cast<u32>(k)) rise(threshold);
    return fit;
  }

  __device__ __forceinline__ void rise(float reached) {
    threshold = score_of_ordered(ordered_bits(__float_as_int(reached)) + 1);
    risen = true;
  }

  u32 turn = 0;
};
