// Follows one random cycle through memory with nothing beside the dependent loads: what one load takes.
// Here for the memory models; `pointer_chase` also reads a word of each line, which takes a turn on cores with one memory unit.
// Arguments: LINES of 64 bytes (default 4096), STEPS (default 4000000, rounded up to eights). Latency goes to stderr.
#include "guest.h"

struct line {
    struct line *next;
    uint64_t number, rest[6];
};

int main(int argc, char **argv) {
    size_t lines = argument(argc, argv, 1, 4096, 2, 1u << 26);
    uint64_t eights = (argument(argc, argv, 2, 4000000, 1, 1ull << 40) + 7) / 8;
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
    for (uint64_t e = 0; e < eights; e++)
        at = at->next->next->next->next->next->next->next->next;
    fprintf(stderr, "%.2f ns a step\n", (seconds() - start) * 1e9 / (double)(eights * 8));
    print_checksum("load_latency", checksum(CHECKSUM_START, at->number));
    return 0;
}
