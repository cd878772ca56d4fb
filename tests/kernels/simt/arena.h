// Shared memory: all of it holds 0xA5 when a block starts, and what lies behind it is guarded.
#pragma once

#include "block.h"

#include <link.h>
#include <string.h>

namespace simt {

constexpr unsigned char poison = 0xA5;
constexpr size_t most_shared = 227 << 10, guard_bytes = 4096;

// The thread-local segment of this library: nothing but shared memory is thread-local in it.
struct Segment {
    unsigned char* start = nullptr;
    size_t bytes = 0;
};

inline int find_segment(dl_phdr_info* library, size_t, void* found) {
    auto here = reinterpret_cast<uintptr_t>(&find_segment);
    bool ours = false;
    size_t bytes = 0;
    for (int i = 0; i < library->dlpi_phnum; i++) {
        const auto& header = library->dlpi_phdr[i];
        uintptr_t start = library->dlpi_addr + header.p_vaddr;
        if (header.p_type == PT_LOAD && here >= start && here < start + header.p_memsz) ours = true;
        if (header.p_type == PT_TLS) bytes = header.p_memsz;
    }
    if (!ours) return 0;
    auto* segment = static_cast<Segment*>(found);
    segment->start = static_cast<unsigned char*>(library->dlpi_tls_data);
    segment->bytes = bytes;
    return 1;
}

// The dynamic part is most of the segment: only what the launch asked for and a guard are filled.
struct Arena {
    Segment all;
    unsigned char* dynamic;

    void find(unsigned char* dynamic_start) {
        dynamic = dynamic_start;  // named first: the loader makes the segment when it is touched
        dynamic[0] = poison;
        dl_iterate_phdr(find_segment, &all);
    }
    void fill() const {
        unsigned char* dynamic_end = dynamic + most_shared + guard_bytes;
        memset(all.start, poison, static_cast<size_t>(dynamic - all.start));
        memset(dynamic, poison, grid.shared + guard_bytes);
        memset(dynamic_end, poison, static_cast<size_t>(all.start + all.bytes - dynamic_end));
    }
    bool guard_holds() const {
        const unsigned char* guard = dynamic + grid.shared;
        return guard[0] == poison && memcmp(guard, guard + 1, guard_bytes - 1) == 0;
    }
};

inline Arena arena;

}  // namespace simt
