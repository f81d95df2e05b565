// Interface of replacement policy plug-ins, for C and C++. The book's page on plug-ins describes it.
// Compile without a C library: `zig cc -target wasm32-freestanding -O2 -nostdlib -Wl,--no-entry -Wl,--strip-all`,
// or clang with the same options.
#ifndef LONGMA_REPLACEMENT_H
#define LONGMA_REPLACEMENT_H

#include <stdint.h>

#ifdef __cplusplus
#define LONGMA_C extern "C"
#else
#define LONGMA_C
#endif
#define LONGMA_EXPORT(name) LONGMA_C __attribute__((export_name(name)))

// Why a line is used or filled.
enum longma_access {
    LONGMA_LOAD = 0,
    LONGMA_STORE = 1, // also atomic operations
    LONGMA_FETCH = 2, // of instructions
    LONGMA_PREFETCH = 3,
    LONGMA_DEVICE = 4,
    LONGMA_WRITE_BACK = 5, // the line moves here from a cache above
};

#endif
