// Copies and fills memory at many sizes and alignments, with the C library and with plain loops.
// Exercises loads and stores of every width, aligned and unaligned, and both directions of memmove.
// Arguments: REPEATS (default 1800).
#include "../include/longma.h"
#include "guest.h"

enum { BYTES = 1 << 17 };

static void copy_bytes(unsigned char *restrict to, const unsigned char *restrict from, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = from[i];
}
static void copy_words(uint32_t *restrict to, const uint32_t *restrict from, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = from[i];
}
static void copy_backwards(uint16_t *restrict to, const uint16_t *restrict from, size_t n) {
    for (size_t i = n; i-- > 0;) to[i] = from[n - 1 - i];
}
static void invert(uint64_t *words, size_t n) {
    for (size_t i = 0; i < n; i++) words[i] = ~words[i];
}

int main(int argc, char **argv) {
    uint64_t repeats = argument(argc, argv, 1, 1800, 1, 1000000);
    static _Alignas(64) unsigned char a[BYTES + 64], b[BYTES + 64];
    uint64_t seed = 0xc0b1, sum = CHECKSUM_START;
    for (size_t i = 0; i < BYTES; i++) a[i] = (unsigned char)(random_next(&seed) >> 32);
    longma_roi_begin();
    for (uint64_t r = 0; r < repeats; r++) {
        size_t skew = r % 17, turn = r % 31;
        memcpy(b, a + skew, BYTES);
        copy_bytes(a + turn, b, BYTES);
        copy_words((uint32_t *)b, (const uint32_t *)a, BYTES / 4);
        copy_backwards((uint16_t *)a, (const uint16_t *)b, BYTES / 2);
        memmove(a + 1, a, BYTES - 1);
        memmove(a, a + 3, BYTES - 3);
        invert((uint64_t *)a, BYTES / 8);
        for (size_t size = 1; size < 512; size = size * 3 / 2 + 1) {
            memset(b + skew, (int)(size ^ r), size);
            memcpy(a + size * 7, b + turn, size);
        }
        sum = checksum(sum, a[r * 977 % BYTES]);
    }
    longma_roi_end();
    print_checksum("memcpy", checksum_bytes(sum, a, BYTES));
    return 0;
}
