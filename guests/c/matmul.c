// Multiplies square matrices of doubles, unblocked and blocked, and compares the results.
// Exercises multiply-add with regular memory access. Entries are small whole numbers, so the sums
// are exact whether or not the compiler fuses multiply and add.
// Arguments: SIDE (default 160), REPEATS (default 4).
#include "../include/longma.h"
#include "guest.h"
#pragma STDC FP_CONTRACT ON

enum { BLOCK = 32 };

static void plain(double *restrict c, const double *restrict a, const double *restrict b, size_t n) {
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j];
            c[i * n + j] = sum;
        }
}

static size_t lesser(size_t a, size_t b) { return a < b ? a : b; }

static void blocked(double *restrict c, const double *restrict a, const double *restrict b, size_t n) {
    memset(c, 0, n * n * sizeof *c);
    for (size_t kk = 0; kk < n; kk += BLOCK)
        for (size_t i = 0; i < n; i++)
            for (size_t k = kk; k < lesser(kk + BLOCK, n); k++) {
                double x = a[i * n + k];
                for (size_t j = 0; j < n; j++) c[i * n + j] += x * b[k * n + j];
            }
}

int main(int argc, char **argv) {
    size_t n = argument(argc, argv, 1, 160, 1, 8192);
    uint64_t repeats = argument(argc, argv, 2, 4, 1, 1000000);
    size_t bytes = n * n * sizeof(double);
    double *a = allocate(bytes), *b = allocate(bytes), *c = allocate(bytes), *d = allocate(bytes);
    uint64_t seed = 0x3a7, sum = CHECKSUM_START;
    for (size_t i = 0; i < n * n; i++) b[i] = (double)(int)(random_next(&seed) % 33) - 16;
    longma_roi_begin();
    for (uint64_t r = 0; r < repeats; r++) {
        for (size_t i = 0; i < n * n; i++) a[i] = (double)(int)(random_next(&seed) % 33) - 16;
        plain(c, a, b, n);
        blocked(d, a, b, n);
        if (memcmp(c, d, bytes) != 0) {
            puts("matmul: the two products differ");
            return 1;
        }
        for (size_t i = 0; i < n * n; i++) sum = (sum ^ bits_of(c[i])) * 0x100000001b3u;
    }
    longma_roi_end();
    print_checksum("matmul", sum);
    return 0;
}
