// Interface of prefetcher plug-ins, for C and C++. The book's page on plug-ins describes it.
// Compile without a C library: `zig cc -target wasm32-freestanding -O2 -nostdlib -Wl,--no-entry -Wl,--strip-all`,
// or clang with the same options.
#ifndef LONGMA_PREFETCHER_H
#define LONGMA_PREFETCHER_H

#include <stdint.h>

#ifdef __cplusplus
#define LONGMA_C extern "C"
#else
#define LONGMA_C
#endif
#define LONGMA_EXPORT(name) LONGMA_C __attribute__((export_name(name)))

// Why a prefetcher observes an access.
enum longma_event {
    LONGMA_MISS = 0,      // the line is not in the cache
    LONGMA_FIRST_USE = 1, // the first use of a line that was prefetched
    LONGMA_HIT = 2,       // another use of a line in the cache; not reported by first-level caches
};

// Requests a line. At most 16 lines a call are fetched, on the page of the observed line unless `crosses_pages` is set.
LONGMA_C __attribute__((import_module("longma"), import_name("prefetch"))) void longma_prefetch(uint64_t line);

#endif
