// The first threshold, from a sample of the row.
#pragma once

#include "topk_collect.cuh"

constexpr u32 SAMPLED = 16;      // one column in so many
constexpr u32 MOST_ROUNDS = 16;  // vectors that a thread reads of the sample
constexpr u32 BATCH = 8;         // of them at a time

template <int THREADS, int CAPACITY>
struct Sample {
  using Collect = Collector<THREADS, CAPACITY>;
  static constexpr u32 BINS = 2048;
  static constexpr int BITS = 11;
  static constexpr u32 EACH = BINS / THREADS;
  static_assert(BINS <= Collect::Sort::BINS, "they lie where the sort has its own");

  typename Collect::Shared& shared;
  const Row& row;
  const float lowest;
  u32 rounds, step;  // vectors a thread has; vectors between two pairs that are read

  // Where the threshold for k winners begins. Apart, so that it costs the code around it no registers.
  __device__ __noinline__ static float estimate(Row row, float lowest, int k) {
    return Sample(row, lowest).threshold(k);
  }

 private:
  __device__ __forceinline__ Sample(const Row& row, float lowest)
      : shared(Collect::memory()), row(row), lowest(lowest) {
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
    u32 most, base = reached(rank, &most);
    u32 span = most - base + 1;
    for (int shift = max(32 - __clz(static_cast<int>(most - base)) - BITS, 0);;
         shift = max(shift - BITS, 0)) {
      count(base, span, shift);
      if (!find(rank)) return lowest;
      base += shared.found[0] << shift;
      rank -= shared.found[1];
      span = 1u << shift;
      if (shift == 0 || shared.found[2] <= few) return score_of(base);
    }
  }

  // A word that the best of so many threads reach, and therefore as many of the sample: all else of it
  // need not be counted. The best word of all, too.
  __device__ __forceinline__ u32 reached(u32 threads, u32* most) {
    u32 best = 0;
    visit([&](u32 word) { best = max(best, word); });
    clear();
    if (best != 0) atomicAdd(&shared.sort.bins[best >> (32 - BITS)], 1u);
    const u32 of_warp = __reduce_max_sync(~0u, best);
    if (threadIdx.x % 32 == 0) shared.best[threadIdx.x / 32] = of_warp;
    __syncthreads();
    *most = __reduce_max_sync(~0u, shared.best[threadIdx.x % 32 % Collect::WARPS]);
    const u32 least = word_of(__float_as_uint(lowest));
    return find(threads) ? max(shared.found[0] << (32 - BITS), least) : least;
  }

  // Counts the words from `base` on that are less than `span` above it, by the bits above `shift`.
  __device__ __forceinline__ void count(u32 base, u32 span, int shift) {
    clear();
    visit([&](u32 word) {
      if (word - base < span) atomicAdd(&shared.sort.bins[(word - base) >> shift], 1u);
    });
    __syncthreads();
  }

  __device__ __forceinline__ void clear() {
    for (u32 bin = threadIdx.x; bin < BINS; bin += THREADS) shared.sort.bins[bin] = 0;
    __syncthreads();
  }

  // Calls tell(word) for each score of the sample that may win.
  template <typename Tell>
  __device__ __forceinline__ void visit(const Tell& tell) const {
    for (u32 round = 0; round < rounds; round += BATCH) {
      Four batch[BATCH] = {};
#pragma unroll
      for (u32 each = 0; each < BATCH; ++each) {
        Four one[1] = {};
        row.load(vector_of(round + each), 0, round + each < rounds ? row.vectors : 0, one);
        batch[each] = one[0];
      }
#pragma unroll
      for (u32 each = 0; each < BATCH; ++each) {
        if (round + each >= rounds) break;
        const Four wide = row.widen(batch[each]);
#pragma unroll
        for (int at = 0; at < 4; ++at)
          if (__uint_as_float(wide.bits[at]) >= lowest) tell(word_of(wide.bits[at]));
      }
    }
  }

  // Pairs of vectors, each at another place of its part of the row: rows have periods.
  __device__ __forceinline__ u32 vector_of(u32 round) const {
    const u32 pair = (round * THREADS + threadIdx.x) / 2;
    const u32 jitter = __umulhi(pair * 0x9E3779B9u, step - 1);
    return pair * step + jitter + threadIdx.x % 2;
  }

  // The bin of the rank-th largest, what is above it, and what is in it; false if there are fewer.
  __device__ __forceinline__ bool find(u32 rank) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 counts[EACH], sum = 0;
#pragma unroll
    for (u32 each = 0; each < EACH; ++each) {
      counts[each] = shared.sort.bins[bin_of(each)];
      sum += counts[each];
    }
    u32 before = sum_through(sum);
    if (lane == 31) shared.sums[warp] = before;
    if (threadIdx.x == 0) shared.found[2] = 0;
    __syncthreads();
    before += __reduce_add_sync(~0u, lane < warp ? shared.sums[lane] : 0) - sum;
#pragma unroll
    for (u32 each = 0; each < EACH; ++each) {
      if (before < rank && rank <= before + counts[each]) {
        shared.found[0] = bin_of(each);
        shared.found[1] = before;
        shared.found[2] = counts[each];
      }
      before += counts[each];
    }
    __syncthreads();
    return shared.found[2] > 0;
  }

  __device__ __forceinline__ static u32 bin_of(u32 each) {
    return BINS - 1 - (threadIdx.x * EACH + each);
  }

  __device__ __forceinline__ static u32 word_of(u32 bits) {
    return static_cast<u32>(ordered_bits(static_cast<int>(bits))) ^ 0x80000000u;
  }
  __device__ __forceinline__ float score_of(u32 word) const {
    const float score = score_of_ordered(static_cast<int>(word ^ 0x80000000u));
    return score >= lowest ? score : lowest;
  }
};
