// Follows a random cycle through memory with dependent loads only: the latency of a load.
// Tests the memory models; `pointer_chase` also reads a word of each line, which takes an extra cycle on cores with one memory unit.
// Arguments: LINES of 64 bytes (default 4096), STEPS (default 4000000, rounded up to eights). Latency goes to stderr.
#include "../include/longma.h"
#include "random_cycle.h"

int main(int argc, char **argv) {
    size_t lines = argument(argc, argv, 1, 4096, 2, 1u << 26);
    uint64_t eights = (argument(argc, argv, 2, 4000000, 1, 1ull << 40) + 7) / 8;
    struct line *at = random_cycle(lines);
    longma_roi_begin();
    double start = seconds();
    for (uint64_t e = 0; e < eights; e++)
        at = at->next->next->next->next->next->next->next->next;
    double spent = seconds() - start;
    longma_roi_end();
    fprintf(stderr, "%.2f ns a step\n", spent * 1e9 / (double)(eights * 8));
    print_checksum("load_latency", checksum(CHECKSUM_START, at->number));
    return 0;
}
