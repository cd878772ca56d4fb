// A launch: every block of a grid, and what is said of one that does not end.
#pragma once

#include "arena.h"
#include "warp.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

#include <numeric>
#include <utility>

namespace simt {

struct Kernel {
    const char* name;
    void (*run)(const uint64_t*);
    size_t parameters;
    long long most_threads;
};

template <auto kernel>
struct Call;

template <class... P, void (*kernel)(P...)>
struct Call<kernel> {
    static constexpr size_t parameters = sizeof...(P);
    static_assert(((sizeof(P) == 8) && ...), "every parameter of a kernel is 64 bits wide");
    template <size_t... I>
    static void with(const uint64_t* arguments, std::index_sequence<I...>) {
        kernel(from_bits<P>(arguments[I])...);
    }
    static void run(const uint64_t* arguments) {
        with(arguments, std::index_sequence_for<P...>{});
    }
};

inline const Kernel* kernel;
inline const uint64_t* arguments;

inline void enter() {
    kernel->run(arguments);
    current->state = State::exited;
    exited++;
    suspend();
    __builtin_unreachable();
}

inline void explain_wait(const Fiber& thread) {
    if (thread.state == State::exited) {
        explain("exited");
    } else if (thread.state == State::barrier) {
        explain("waits at the barrier of line %d", thread.line);
    } else {
        explain("waits at line %d for the lanes %08x", thread.line, thread.mask);
    }
}

inline bool waits_alike(const Fiber& a, const Fiber& b) {
    return a.state == b.state && (a.state == State::exited || a.line == b.line);
}

// Of threads that wait alike, the first is named and the others are counted.
inline void explain_deadlock() {
    explain_place(nullptr);
    explain("deadlock");
    for (unsigned i = 0; i < grid.threads.x; i++) {
        unsigned before = 0, alike = 0;
        for (unsigned j = 0; j < grid.threads.x; j++) {
            bool same = waits_alike(fibers[i], fibers[j]);
            before += same && j < i, alike += same;
        }
        if (before) continue;
        explain("; thread %u ", i);
        if (alike > 1) explain("(and %u more) ", alike - 1);
        explain_wait(fibers[i]);
    }
}

inline void run_block() {
    arena.fill();
    exited = 0;
    barrier = Barrier{};
    for (unsigned i = 0; i < grid.threads.x; i++) {
        fibers[i].index = {i, 0, 0};
        prepare(fibers[i], i, enter);
        warps[i / warp_lanes].count = 0;
    }
    ready.put_all(fibers, grid.threads.x);
    current = ready.take();
    transfer(home, current->context);
    if (error[0]) return;
    if (exited < grid.threads.x) return explain_deadlock();
    if (arena.guard_holds()) return;
    explain_place(nullptr);
    explain("wrote behind its %zu bytes of dynamic shared memory", grid.shared);
}

// Blocks may run in any order too: forwards, backwards, or in steps of a random length.
inline void run_grid() {
    uint64_t blocks = uint64_t{grid.blocks.x} * grid.blocks.y, start = 0, step = 1;
    if (ready.order == Queue::Order::lifo) start = step = blocks - 1;
    if (ready.order == Queue::Order::random) {
        start = ready.random.below(unsigned(blocks));
        do step = 1 + ready.random.below(unsigned(blocks));
        while (std::gcd(step, blocks) != 1);
    }
    for (uint64_t i = 0; i < blocks && !error[0]; i++) {
        uint64_t at = (start + i * step) % blocks;
        grid.block = {unsigned(at % grid.blocks.x), unsigned(at / grid.blocks.x), 0};
        run_block();
    }
}

// A signal that the hardware raises in a kernel becomes an error of the launch.
struct Signals {
    static constexpr int caught[] = {SIGSEGV, SIGBUS, SIGFPE};
    static inline sigjmp_buf escape;
    static inline pthread_t owner;
    struct sigaction former[3];
    stack_t former_stack;
    unsigned char* stack;

    static void handle(int number, siginfo_t* info, void*) {
        if (!pthread_equal(owner, pthread_self())) {
            signal(number, SIG_DFL);  // not ours: the instruction is tried again and ends it
            return;
        }
        explain_place(current);
        explain("%s at %p", number == SIGFPE ? "division by zero" : "no such memory",
                info->si_addr);
        siglongjmp(escape, 1);
    }
    explicit Signals(unsigned char* signal_stack) : stack(signal_stack) {
        owner = pthread_self();
        stack_t ours{};
        ours.ss_sp = stack, ours.ss_size = stack_bytes;
        sigaltstack(&ours, &former_stack);
        struct sigaction action {};
        action.sa_sigaction = handle;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (int i = 0; i < 3; i++) sigaction(caught[i], &action, &former[i]);
    }
    ~Signals() {
        for (int i = 0; i < 3; i++) sigaction(caught[i], &former[i], nullptr);
        sigaltstack(&former_stack, nullptr);
    }
};

inline const char* launch(const Kernel& chosen, const unsigned* sizes, const uint64_t* given,
                          uint64_t seed, unsigned char* dynamic) {
    static unsigned char signal_stack[stack_bytes];
    kernel = &chosen, arguments = given, error[0] = 0;
    grid = Grid{{}, {sizes[0], sizes[1], 1}, {sizes[2], 1, 1}, chosen.name, sizes[3]};
    ready.start(seed);
    arena.find(dynamic);
    Signals signals(signal_stack);
    if (sigsetjmp(Signals::escape, 0) == 0) run_grid();
    return error;
}

}  // namespace simt
