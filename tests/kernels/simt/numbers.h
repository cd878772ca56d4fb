// Integers, floats, vectors, loads, stores and atomic operations, as CUDA has them.
#pragma once

#include "block.h"

#include <math.h>
#include <string.h>

#include <type_traits>

#define SIMT_VECTOR2(name, type, bytes)                      \
    struct alignas(bytes) name {                             \
        type x, y;                                           \
    };                                                       \
    inline name make_##name(type x, type y) { return {x, y}; }
#define SIMT_VECTOR4(name, type, bytes)                                          \
    struct alignas(bytes) name {                                                 \
        type x, y, z, w;                                                         \
    };                                                                           \
    inline name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }

SIMT_VECTOR2(short2, short, 4)
SIMT_VECTOR2(ushort2, unsigned short, 4)
SIMT_VECTOR2(int2, int, 8)
SIMT_VECTOR2(uint2, unsigned, 8)
SIMT_VECTOR2(float2, float, 8)
SIMT_VECTOR2(longlong2, long long, 16)
SIMT_VECTOR2(ulonglong2, unsigned long long, 16)
SIMT_VECTOR4(uchar4, unsigned char, 4)
SIMT_VECTOR4(short4, short, 8)
SIMT_VECTOR4(ushort4, unsigned short, 8)
SIMT_VECTOR4(int4, int, 16)
SIMT_VECTOR4(uint4, unsigned, 16)
SIMT_VECTOR4(float4, float, 16)

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    std::common_type_t<A, B> x = a, y = b;
    return y < x ? y : x;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    std::common_type_t<A, B> x = a, y = b;
    return x < y ? y : x;
}
// A NaN loses against a number.
constexpr float min(float a, float b) { return b < a || a != a ? b : a; }
constexpr float max(float a, float b) { return a < b || a != a ? b : a; }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) {
    return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; bit++) reversed |= (x >> bit & 1) << (31 - bit);
    return reversed;
}
inline unsigned long long __brevll(unsigned long long x) {
    unsigned long long low = __brev(static_cast<unsigned>(x));
    return low << 32 | __brev(static_cast<unsigned>(x >> 32));
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline int __mulhi(int a, int b) {
    return static_cast<int>(static_cast<long long>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned choice = selector >> 4 * i & 15;
        auto byte = static_cast<unsigned>(bytes >> 8 * (choice & 7) & 0xFF);
        if (choice & 8) byte = byte & 0x80 ? 0xFF : 0;  // the sign of the byte, repeated
        result |= byte << 8 * i;
    }
    return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    return static_cast<unsigned>(both << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    return static_cast<unsigned>(both >> (shift & 31));
}

namespace simt {

template <class To, class From>
To cast_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

// CUDA saturates and makes zero (for 64 bits: the top bit) of a NaN; C++ leaves both undefined.
template <class To>
To saturate(float rounded) {
    constexpr int bits = sizeof(To) * 8;
    constexpr bool is_signed = std::is_signed_v<To>;
    constexpr To highest = static_cast<To>(~uint64_t{0} >> (64 - bits + is_signed));
    constexpr To lowest = is_signed ? static_cast<To>(-highest - 1) : To{0};
    if (rounded != rounded) return bits == 32 ? To{0} : static_cast<To>(uint64_t{1} << 63);
    if (rounded >= ldexpf(1.0f, bits - is_signed)) return highest;
    if (rounded <= static_cast<float>(lowest)) return lowest;
    return static_cast<To>(rounded);
}

// An integer's nearest float, moved towards zero if it lies beyond.
template <class From>
float towards_zero(From value) {
    auto nearest = static_cast<float>(value);
    bool beyond = fabs(static_cast<double>(nearest)) > fabs(static_cast<double>(value));
    return beyond ? nextafterf(nearest, 0.0f) : nearest;
}

}  // namespace simt

#define SIMT_FROM_FLOAT(name, type)                                                            \
    inline type __float2##name##_rz(float x) { return simt::saturate<type>(truncf(x)); }       \
    inline type __float2##name##_rn(float x) { return simt::saturate<type>(nearbyintf(x)); }   \
    inline type __float2##name##_rd(float x) { return simt::saturate<type>(floorf(x)); }       \
    inline type __float2##name##_ru(float x) { return simt::saturate<type>(ceilf(x)); }
SIMT_FROM_FLOAT(int, int)
SIMT_FROM_FLOAT(uint, unsigned)
SIMT_FROM_FLOAT(ll, long long)
SIMT_FROM_FLOAT(ull, unsigned long long)

inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline float __int2float_rz(int x) { return simt::towards_zero(x); }
inline float __uint2float_rz(unsigned x) { return simt::towards_zero(x); }

inline int __float_as_int(float x) { return simt::cast_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return simt::cast_bits<unsigned>(x); }
inline float __int_as_float(int x) { return simt::cast_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return simt::cast_bits<float>(x); }
inline long long __double_as_longlong(double x) { return simt::cast_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return simt::cast_bits<double>(x); }

// What is no number has one form on a GPU, where a CPU keeps that of an operand.
inline float canonical(float result) {
    return result == result ? result : __builtin_bit_cast(float, 0x7FFFFFFF);
}
inline float __fadd_rn(float a, float b) { return canonical(a + b); }
inline float __fsub_rn(float a, float b) { return canonical(a - b); }
inline float __fmul_rn(float a, float b) { return canonical(a * b); }
inline float __fdiv_rn(float a, float b) { return canonical(a / b); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __saturatef(float x) { return x > 0.0f ? min(x, 1.0f) : 0.0f; }

#define SIMT_LOAD(name) \
    template <class T>  \
    T name(const T* p) { return *p; }
SIMT_LOAD(__ldg)
SIMT_LOAD(__ldca)
SIMT_LOAD(__ldcg)
SIMT_LOAD(__ldcs)
SIMT_LOAD(__ldcv)
SIMT_LOAD(__ldlu)

#define SIMT_STORE(name) \
    template <class T>   \
    void name(T* p, std::common_type_t<T> value) { *p = value; }
SIMT_STORE(__stcg)
SIMT_STORE(__stcs)
SIMT_STORE(__stwb)
SIMT_STORE(__stwt)

namespace simt {

// As every integer of CUDA, these wrap around.
template <class T>
T add(T a, T b) {
    if constexpr (!std::is_integral_v<T>) return a + b;
    else return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
template <class T>
T subtract(T a, T b) {
    return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}

}  // namespace simt

// One thread runs at a time: an operation is atomic if nothing inside it lets others run.
#define SIMT_ATOMIC_AT(name, ...)                        \
    template <class T>                                   \
    T name(T* p, std::common_type_t<T> value) {          \
        simt::let_others_run();                          \
        T old = *p;                                      \
        *p = (__VA_ARGS__);                              \
        return old;                                      \
    }
#define SIMT_ATOMIC(name, ...)                 \
    SIMT_ATOMIC_AT(name, __VA_ARGS__)          \
    SIMT_ATOMIC_AT(name##_block, __VA_ARGS__)
SIMT_ATOMIC(atomicAdd, simt::add(old, value))
SIMT_ATOMIC(atomicSub, simt::subtract(old, value))
SIMT_ATOMIC(atomicMin, value < old ? value : old)
SIMT_ATOMIC(atomicMax, old < value ? value : old)
SIMT_ATOMIC(atomicAnd, old & value)
SIMT_ATOMIC(atomicOr, old | value)
SIMT_ATOMIC(atomicXor, old ^ value)
SIMT_ATOMIC(atomicExch, value)
SIMT_ATOMIC(atomicInc, old >= value ? T{0} : old + 1)

template <class T>
T atomicCAS(T* p, std::common_type_t<T> expected, std::common_type_t<T> value) {
    simt::let_others_run();
    T old = *p;
    if (old == expected) *p = value;
    return old;
}
