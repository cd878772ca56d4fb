// The first threshold, from a sample of the row.
#pragma once

#include "topk_bins.cuh"

constexpr u32 SAMPLED = 16;      // one column in so many
constexpr u32 MOST_ROUNDS = 16;  // vectors that a thread reads of the sample
constexpr u32 BATCH = 8;         // of them at a time

template <int THREADS, int CAPACITY>
struct Sample {
  using Collect = Collector<THREADS, CAPACITY>;
  using Tally = Bins<THREADS, CAPACITY>;

  const Row& row;
  const float lowest;
  u32 rounds, step;      // vectors a thread has; vectors between two pairs that are read
  u32 words[4 * BATCH];  // 0 for what cannot win
  u32 held = ~0u;        // the round that they begin with

  // Where the threshold for k winners begins. Apart, so that it costs the code around it no registers.
  __device__ __noinline__ static float estimate(Row row, float lowest, int k) {
    return Sample(row, lowest).threshold(k);
  }

 private:
  __device__ __forceinline__ Sample(const Row& row, float lowest) : row(row), lowest(lowest) {
    rounds = row.vectors / (SAMPLED * THREADS);
    rounds = rounds < 1 ? 1 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    step = row.vectors / (rounds * THREADS / 2);
  }

  // A score that likely k scores of the row reach, and not many more; `lowest` if there is none.
  // About r of the k best are in the sample: r plus four times its deviation are counted off.
  __device__ __forceinline__ float threshold(int k) {
    if (row.columns() <= CAPACITY) return lowest;
    const float share = static_cast<float>(rounds * THREADS) / static_cast<float>(row.vectors);
    const float expected = share * static_cast<float>(k);
    u32 rank = static_cast<u32>(expected + 4.0f * sqrtf(expected)) + 4;
    const u32 few = rank / 8;
    u32 most;
    const u32 reached = reached_by(rank, &most);
    if (most <= reached) return score_of(reached);
    u32 base = reached + 1, span = most - reached;
    for (int shift = Tally::shift_of(span);; shift = max(shift - Tally::BITS, 0)) {
      count(base, span, shift);
      const typename Tally::Found found = Tally::find(rank);
      if (found.count == 0) return score_of(reached);  // in the first turn: that many tie there
      base += found.bin << shift;
      rank -= found.before;
      span = 1u << shift;
      if (shift == 0 || found.count <= few) return score_of(base);
    }
  }

  // A word that the best of so many threads reach, and therefore as many of the sample, or the least
  // that may win: only what is above it need be counted. The best word of all, too.
  __device__ __forceinline__ u32 reached_by(u32 threads, u32* most) {
    typename Collect::Shared& shared = Collect::memory();
    u32 best = 0;
    visit([&](u32 word) { best = max(best, word); });
    Tally::clear();
    const u32 bin = best >> (32 - Tally::BITS);
    if (best != 0) Tally::add(bin);
    const u32 of_warp = __reduce_max_sync(~0u, best);
    if (threadIdx.x % 32 == 0) shared.best[threadIdx.x / 32] = of_warp;
    __syncthreads();
    const typename Tally::Found found = Tally::find(threads);
    *most = __reduce_max_sync(~0u, shared.best[threadIdx.x % 32 % Collect::WARPS]);
    if (found.count == 0) return word_of(__float_as_uint(lowest));
    const u32 least = __reduce_min_sync(~0u, bin == found.bin ? best : ~0u);
    if (threadIdx.x % 32 == 0) shared.least[threadIdx.x / 32] = least;
    __syncthreads();
    return __reduce_min_sync(~0u, shared.least[threadIdx.x % 32 % Collect::WARPS]);
  }

  // Counts the words from `base` on that are less than `span` above it, by the bits above `shift`.
  __device__ __forceinline__ void count(u32 base, u32 span, int shift) {
    Tally::clear();
    visit([&](u32 word) {
      if (word - base < span) Tally::add((word - base) >> shift);
    });
    __syncthreads();
  }

  // Calls tell(word) for each word of the sample, and for 0 as well.
  template <typename Tell>
  __device__ __forceinline__ void visit(const Tell& tell) {
    for (u32 round = 0; round < rounds; round += BATCH) {
      if (round != held) load(round);
#pragma unroll
      for (u32 each = 0; each < 4 * BATCH; ++each) tell(words[each]);
    }
  }

  __device__ __forceinline__ void load(u32 round) {
    Four batch[BATCH] = {};
#pragma unroll
    for (u32 each = 0; each < BATCH; ++each) {
      Four one[1] = {};
      row.load(vector_of(round + each), 0, round + each < rounds ? row.vectors : 0, one);
      batch[each] = one[0];
    }
#pragma unroll
    for (u32 each = 0; each < BATCH; ++each) {
      const Four wide = row.widen(batch[each]);
#pragma unroll
      for (u32 at = 0; at < 4; ++at)
        words[4 * each + at] = round + each < rounds ? word_of(wide.bits[at]) : 0;
    }
    held = round;
  }

  // Pairs of vectors, each at another place of its part of the row: rows have periods.
  __device__ __forceinline__ u32 vector_of(u32 round) const {
    const u32 pair = (round * THREADS + threadIdx.x) / 2;
    const u32 jitter = __umulhi(pair * 0x9E3779B9u, step - 1);
    return pair * step + jitter + threadIdx.x % 2;
  }

  // Of a score, if it may win.
  __device__ __forceinline__ u32 word_of(u32 bits) const {
    const u32 word = static_cast<u32>(ordered_bits(static_cast<int>(bits))) ^ 0x80000000u;
    return __uint_as_float(bits) >= lowest ? word : 0;
  }
  __device__ __forceinline__ float score_of(u32 word) const {
    const float score = score_of_ordered(static_cast<int>(word ^ 0x80000000u));
    return score >= lowest ? score : lowest;
  }
};
