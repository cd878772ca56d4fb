// A block: who runs next, the barrier, and how a launch fails.
#pragma once

#include "fiber.h"

#include <stdarg.h>
#include <stdio.h>

namespace simt {

struct Grid {
    Index block, blocks, threads;
    const char* kernel;
    size_t shared;
};

inline Grid grid;
inline char error[2048];  // of this launch; empty if none
inline unsigned exited;

struct Random {
    uint64_t state;
    unsigned below(unsigned bound) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return static_cast<unsigned>(((state >> 32) * bound) >> 32);
    }
};

// Seed 0 takes the threads in turn, seed 1 runs the latest as far as it can, seed 2 the first, others
// draw lots.
struct Queue {
    enum class Order { fifo, lifo, first, random } order;
    Random random;
    unsigned head, count;
    Fiber* ring[max_threads];

    void start(uint64_t seed) {
        order = seed < 3 ? static_cast<Order>(seed) : Order::random;
        random.state = (seed + 1) * 0x9E3779B97F4A7C15u;
        head = count = 0;
    }
    Fiber*& at(unsigned place) { return ring[(head + place) % max_threads]; }
    void put(Fiber* fiber) {
        fiber->state = State::ready;
        at(count++) = fiber;
    }
    // Several that can run from now on.
    void put_all(Fiber* fibers, unsigned size) {
        for (unsigned i = 0; i < size; i++) put(&fibers[order == Order::first ? size - 1 - i : i]);
    }
    Fiber* take() {
        if (count == 0) return nullptr;
        if (order == Order::lifo || order == Order::first) return at(--count);
        unsigned place = order == Order::random ? random.below(count) : 0;
        Fiber* taken = at(place);
        at(place) = at(0);
        head++, count--;
        return taken;
    }
};

inline Queue ready;

// Leave the running thread for the next that can run; without one, for the launch itself.
inline void suspend() {
    Fiber* from = current;
    current = ready.take();
    if (current != from) transfer(from->context, current ? current->context : home);
}

[[gnu::format(printf, 1, 2)]] inline void explain(const char* format, ...) {
    size_t used = 0;
    while (error[used]) used++;
    va_list list;
    va_start(list, format);
    vsnprintf(error + used, sizeof error - used, format, list);
    va_end(list);
}

inline void explain_place(const Fiber* thread) {
    explain("kernel %s, block (%u, %u)", grid.kernel, grid.block.x, grid.block.y);
    if (thread) explain(", thread %u", thread->index.x);
    explain(": ");
}

// End the launch; the threads of the block are left where they are.
template <class... Parts>
[[noreturn]] void fail(const char* format, Parts... parts) {
    explain_place(current);
    explain(format, parts...);
    Fiber* from = current;
    current = nullptr;
    transfer(from->context, home);
    __builtin_unreachable();
}

// Threads may be overtaken at an atomic operation, which other threads can see.
inline void let_others_run() {
    if (ready.order != Queue::Order::random || ready.random.below(16) != 0) return;
    ready.put(current);
    suspend();
}

struct Barrier {
    unsigned arrived, yes, counted;
    int line;
};

inline Barrier barrier;

// Wait for every thread of the block; how many said yes. Strict: a thread that exited is missed.
inline unsigned wait_for_block(bool yes, int line) {
    if (barrier.arrived == 0) barrier.line = line;
    if (barrier.line != line)
        fail("at the barrier of line %d while others wait at that of line %d", line, barrier.line);
    barrier.yes += yes;
    current->line = line;
    if (++barrier.arrived == grid.threads.x) {
        barrier.counted = barrier.yes;
        barrier.arrived = barrier.yes = 0;
        ready.put_all(fibers, grid.threads.x);
    } else {
        current->state = State::barrier;
    }
    suspend();
    return barrier.counted;
}

}  // namespace simt

inline void __syncthreads(int line = __builtin_LINE()) {
    simt::wait_for_block(false, line);
}
inline int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
    return static_cast<int>(simt::wait_for_block(predicate != 0, line));
}
inline int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
    return simt::wait_for_block(predicate != 0, line) != 0;
}
inline int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
    return simt::wait_for_block(predicate != 0, line) == simt::grid.threads.x;
}
inline void __trap(int line = __builtin_LINE()) {
    simt::fail("__trap at line %d", line);
}
inline void __threadfence() {
    simt::let_others_run();
}
inline void __threadfence_block() {
    simt::let_others_run();
}
inline void __nanosleep(unsigned) {
    simt::let_others_run();
}
