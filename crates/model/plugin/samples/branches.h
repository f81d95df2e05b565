// Interface of branch predictor plug-ins, for C and C++. The book's page on plug-ins describes it.
// Compile without a C library: `zig cc -target wasm32-freestanding -O2 -nostdlib -Wl,--no-entry -Wl,--strip-all`,
// or clang with the same options.
#ifndef LONGMA_BRANCHES_H
#define LONGMA_BRANCHES_H

#include <stdint.h>

#ifdef __cplusplus
#define LONGMA_C extern "C"
#else
#define LONGMA_C
#endif
#define LONGMA_EXPORT(name) LONGMA_C __attribute__((export_name(name)))

#endif
