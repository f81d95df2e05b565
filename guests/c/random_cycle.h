// Builds the random cycle through lines of memory that pointer_chase and load_latency follow.
// The two programs follow it in different ways.
// Source: Sattolo's shuffle (Information Processing Letters 22, 1986).
#ifndef RANDOM_CYCLE_H
#define RANDOM_CYCLE_H

#include "guest.h"

struct line {
    struct line *next;
    uint64_t number, rest[6];
};

// `lines` lines of 64 bytes, each pointing at the next one of a cycle through all of them; the same cycle every time.
static inline struct line *random_cycle(size_t lines) {
    struct line *memory = allocate(lines * sizeof *memory);
    uint32_t *order = allocate(lines * sizeof *order);
    uint64_t seed = 0xc4a5e;
    for (size_t i = 0; i < lines; i++) order[i] = (uint32_t)i;
    for (size_t i = lines - 1; i > 0; i--) {
        size_t j = random_next(&seed) % i;
        uint32_t t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    for (size_t i = 0; i < lines; i++) {
        memory[i].next = &memory[order[i]];
        memory[i].number = i;
    }
    return memory;
}

#endif
