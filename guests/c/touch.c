// Writes one word in every STEP bytes of an area and reads them back.
// Measures the cost of a memory model: much memory, few instructions.
// Arguments: MEBIBYTES (default 64), STEP (default 64 bytes).
#include "guest.h"

int main(int argc, char **argv) {
    size_t bytes = argument(argc, argv, 1, 64, 1, 1u << 20) << 20;
    size_t step = argument(argc, argv, 2, 64, 8, 1u << 20);
    unsigned char *area = allocate(bytes);
    for (size_t at = 0; at + 8 <= bytes; at += step) *(uint64_t *)(area + at / 8 * 8) = at;
    uint64_t sum = 0;
    for (size_t at = 0; at + 8 <= bytes; at += step) sum += *(uint64_t *)(area + at / 8 * 8);
    print_checksum("touch", sum);
    return 0;
}
