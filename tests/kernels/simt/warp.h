// What the lanes of a warp do together.
#pragma once

#include "block.h"

#include <string.h>

namespace simt {

enum class Op { sync, shuffle, ballot, any, all, match_any, add, min, max, land, lor, lxor };

// Lanes that wait for each other: they named the same mask and operation.
struct Group {
    unsigned mask, arrived;
    Op op;
};

struct Warp {
    unsigned count;
    Group groups[warp_lanes];
};

inline Warp warps[max_threads / warp_lanes];

inline Fiber* first_lane() {
    return &fibers[(current - fibers) / warp_lanes * warp_lanes];
}

inline unsigned lane() {
    return static_cast<unsigned>(current - fibers) % warp_lanes;
}

inline Group& arrive(Warp& warp, unsigned mask, Op op) {
    for (unsigned i = 0; i < warp.count; i++)
        if (warp.groups[i].mask == mask && warp.groups[i].op == op) return warp.groups[i];
    warp.groups[warp.count] = Group{mask, 0, op};
    return warp.groups[warp.count++];
}

inline uint64_t fold(Op op, uint64_t a, uint64_t b) {
    auto x = static_cast<int64_t>(a), y = static_cast<int64_t>(b);
    switch (op) {
        case Op::add: return a + b;
        case Op::min: return x < y ? a : b;
        case Op::max: return x > y ? a : b;
        case Op::land: return a & b;
        case Op::lor: return a | b;
        default: return a ^ b;
    }
}

template <class Visit>
void each_lane(unsigned mask, Visit visit) {
    for (; mask; mask &= mask - 1) visit(static_cast<unsigned>(__builtin_ctz(mask)));
}

// Every lane's result, all of them before any lane goes on and brings its next value.
inline void finish(Op op, Fiber* lanes, unsigned mask) {
    constexpr uint64_t undefined = 0xA5A5A5A5A5A5A5A5u;
    unsigned yes = 0;
    each_lane(mask, [&](unsigned i) { yes |= static_cast<unsigned>(lanes[i].value != 0) << i; });
    uint64_t folded = lanes[__builtin_ctz(mask)].value;
    each_lane(mask & (mask - 1), [&](unsigned i) { folded = fold(op, folded, lanes[i].value); });
    each_lane(mask, [&](unsigned i) {
        Fiber& at = lanes[i];
        switch (op) {
            case Op::sync: break;
            case Op::shuffle:
                at.result = mask >> at.source & 1 ? lanes[at.source].value : undefined;
                break;
            case Op::ballot: at.result = yes; break;
            case Op::any: at.result = yes != 0; break;
            case Op::all: at.result = yes == mask; break;
            case Op::match_any:
                at.result = 0;
                each_lane(mask, [&](unsigned j) {
                    at.result |= uint64_t{lanes[j].value == at.value} << j;
                });
                break;
            default: at.result = folded;
        }
    });
}

inline uint64_t collective(Op op, unsigned mask, uint64_t value, unsigned source, int line) {
    if (!(mask >> lane() & 1)) fail("line %d: mask %08x lacks this lane", line, mask);
    Fiber* lanes = first_lane();
    Warp& warp = warps[(lanes - fibers) / warp_lanes];
    current->value = value, current->source = source;
    current->mask = mask, current->line = line;
    Group& group = arrive(warp, mask, op);
    group.arrived |= 1u << lane();
    if (group.arrived == mask) {
        finish(op, lanes, mask);
        group = warp.groups[--warp.count];
        each_lane(mask, [&](unsigned i) { ready.put(&lanes[i]); });
    } else {
        current->state = State::collective;
    }
    suspend();
    return current->result;
}

template <class T>
uint64_t to_bits(T value) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "warp collectives move 32 or 64 bits");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T>
T from_bits(uint64_t bits) {
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T>
T shuffle(unsigned mask, T value, unsigned source, int line) {
    return from_bits<T>(collective(Op::shuffle, mask, to_bits(value), source, line));
}

}  // namespace simt

// As in CUDA, smaller integers become int.
#define SIMT_PROMOTED decltype(+value)
#define SIMT_SEGMENT (simt::lane() & ~(static_cast<unsigned>(width) - 1))
#define SIMT_LAST (SIMT_SEGMENT + static_cast<unsigned>(width) - 1)

template <class T>
auto __shfl_sync(unsigned mask, T value, int source, int width = 32, int line = __builtin_LINE()) {
    unsigned from = SIMT_SEGMENT | (static_cast<unsigned>(source) & (unsigned(width) - 1));
    return simt::shuffle<SIMT_PROMOTED>(mask, value, from, line);
}
template <class T>
auto __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                    int line = __builtin_LINE()) {
    unsigned from = simt::lane() >= SIMT_SEGMENT + delta ? simt::lane() - delta : simt::lane();
    return simt::shuffle<SIMT_PROMOTED>(mask, value, from, line);
}
template <class T>
auto __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                      int line = __builtin_LINE()) {
    unsigned from = simt::lane() + delta <= SIMT_LAST ? simt::lane() + delta : simt::lane();
    return simt::shuffle<SIMT_PROMOTED>(mask, value, from, line);
}
template <class T>
auto __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                     int line = __builtin_LINE()) {
    unsigned other = simt::lane() ^ static_cast<unsigned>(bits);
    unsigned from = other <= SIMT_LAST ? other : simt::lane();
    return simt::shuffle<SIMT_PROMOTED>(mask, value, from, line);
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, int line = __builtin_LINE()) {
    return static_cast<unsigned>(simt::collective(
        simt::Op::match_any, mask, simt::to_bits<SIMT_PROMOTED>(value), 0, line));
}

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, int line = __builtin_LINE()) {
    simt::collective(simt::Op::sync, mask, 0, 0, line);
}
inline unsigned __ballot_sync(unsigned mask, int yes, int line = __builtin_LINE()) {
    return static_cast<unsigned>(simt::collective(simt::Op::ballot, mask, yes != 0, 0, line));
}
inline int __any_sync(unsigned mask, int yes, int line = __builtin_LINE()) {
    return static_cast<int>(simt::collective(simt::Op::any, mask, yes != 0, 0, line));
}
inline int __all_sync(unsigned mask, int yes, int line = __builtin_LINE()) {
    return static_cast<int>(simt::collective(simt::Op::all, mask, yes != 0, 0, line));
}
// No more is ever promised than that the caller is among them.
inline unsigned __activemask() {
    return 1u << simt::lane();
}

#define SIMT_REDUCE(name, op, type, wide)                                                        \
    inline type __reduce_##name##_sync(unsigned mask, type value, int line = __builtin_LINE()) { \
        auto bits = static_cast<uint64_t>(static_cast<wide>(value));                             \
        return static_cast<type>(simt::collective(simt::Op::op, mask, bits, 0, line));           \
    }
SIMT_REDUCE(add, add, unsigned, uint64_t)
SIMT_REDUCE(min, min, unsigned, uint64_t)
SIMT_REDUCE(max, max, unsigned, uint64_t)
SIMT_REDUCE(add, add, int, int64_t)
SIMT_REDUCE(min, min, int, int64_t)
SIMT_REDUCE(max, max, int, int64_t)
SIMT_REDUCE(and, land, unsigned, uint64_t)
SIMT_REDUCE(or, lor, unsigned, uint64_t)
SIMT_REDUCE(xor, lxor, unsigned, uint64_t)
