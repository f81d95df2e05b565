// Follows one random cycle through memory, a cache line a step: pure load latency.
// Here for the memory models; for the emulator it is one dependent load after another.
// Arguments: LINES of 64 bytes (default 4096), STEPS (default 80000000). Latency goes to stderr.
#include "guest.h"

struct line {
    struct line *next;
    uint64_t number, rest[6];
};

int main(int argc, char **argv) {
    size_t lines = argument(argc, argv, 1, 4096, 2, 1u << 26);
    uint64_t steps = argument(argc, argv, 2, 80000000, 1, 1ull << 40);
    struct line *memory = allocate(lines * sizeof *memory);
    uint32_t *order = allocate(lines * sizeof *order);
    uint64_t seed = 0xc4a5e;
    for (size_t i = 0; i < lines; i++) order[i] = (uint32_t)i;
    // Sattolo's shuffle: one cycle through all lines.
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
    double start = seconds();
    struct line *at = memory;
    uint64_t visited = 0;
    for (uint64_t s = 0; s < steps; s++) {
        visited += at->number;
        at = at->next;
    }
    fprintf(stderr, "%.2f ns a step\n", (seconds() - start) * 1e9 / (double)steps);
    print_checksum("pointer_chase", checksum(checksum(CHECKSUM_START, visited), at->number));
    return 0;
}
