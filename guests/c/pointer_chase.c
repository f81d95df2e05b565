// Follows one random cycle through memory, a cache line a step: pure load latency.
// Tests the memory models; for the emulator it is a chain of dependent loads.
// Arguments: LINES of 64 bytes (default 4096), STEPS (default 80000000). Latency goes to stderr.
#include "../include/longma.h"
#include "random_cycle.h"

int main(int argc, char **argv) {
    size_t lines = argument(argc, argv, 1, 4096, 2, 1u << 26);
    uint64_t steps = argument(argc, argv, 2, 80000000, 1, 1ull << 40);
    struct line *at = random_cycle(lines);
    longma_roi_begin();
    double start = seconds();
    uint64_t visited = 0;
    for (uint64_t s = 0; s < steps; s++) {
        visited += at->number;
        at = at->next;
    }
    double spent = seconds() - start;
    longma_roi_end();
    fprintf(stderr, "%.2f ns a step\n", spent * 1e9 / (double)steps);
    print_checksum("pointer_chase", checksum(checksum(CHECKSUM_START, visited), at->number));
    return 0;
}
