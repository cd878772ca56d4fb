// The undefined-behaviour sanitizer's reports, as errors of the launch.
#pragma once

#include "block.h"

namespace simt {

// How the compiler says where: the first thing that any report points to.
struct Where {
    const char* file;
    unsigned line, column;
};

[[noreturn]] inline void undefined(const char* what, const void* report) {
    const auto* where = static_cast<const Where*>(report);
    fail("%s at %s:%u:%u", what, where->file, where->line, where->column);
}

}  // namespace simt

#define SIMT_REPORT(name, what)                                             \
    extern "C" __attribute__((used)) void __ubsan_handle_##name(void* at) { \
        simt::undefined(what, at);                                          \
    }
SIMT_REPORT(add_overflow, "signed overflow")
SIMT_REPORT(sub_overflow, "signed overflow")
SIMT_REPORT(mul_overflow, "signed overflow")
SIMT_REPORT(negate_overflow, "signed overflow")
SIMT_REPORT(divrem_overflow, "division by zero or overflow")
SIMT_REPORT(shift_out_of_bounds, "shift out of bounds")
SIMT_REPORT(out_of_bounds, "array index out of bounds")
SIMT_REPORT(type_mismatch_v1, "null, misaligned or too small an object")
SIMT_REPORT(pointer_overflow, "pointer overflow")
SIMT_REPORT(load_invalid_value, "a value that its type has not")
SIMT_REPORT(vla_bound_not_positive, "array of no positive size")
SIMT_REPORT(missing_return, "end of a function without a return")
SIMT_REPORT(builtin_unreachable, "unreachable code")
SIMT_REPORT(invalid_builtin, "builtin called with zero")
SIMT_REPORT(float_cast_overflow, "float beyond the integer type")
SIMT_REPORT(nonnull_arg, "null argument")
SIMT_REPORT(nonnull_return_v1, "null returned")
