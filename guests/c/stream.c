// The four loops of STREAM (McCalpin 1995): copy, scale, add, triad on doubles.
// Measures memory bandwidth; mixes floating point with loads and stores. Values stay whole
// numbers below 2^53, so the result is exact whether or not the compiler fuses multiply and add.
// Arguments: ELEMENTS (default 200000), REPEATS (default 60). Rates go to stderr.
#include "../include/longma.h"
#include "guest.h"
#pragma STDC FP_CONTRACT ON

// Compilers replace this loop with memcpy, which differs between machines.
__attribute__((no_builtin("memcpy"))) static void copy(double *restrict c, const double *restrict a, size_t n) {
    for (size_t i = 0; i < n; i++) c[i] = a[i];
}
static void scale(double *restrict b, const double *restrict c, double s, size_t n) {
    for (size_t i = 0; i < n; i++) b[i] = s * c[i];
}
static void add(double *restrict c, const double *restrict a, const double *restrict b, size_t n) {
    for (size_t i = 0; i < n; i++) c[i] = a[i] + b[i];
}
static void triad(double *restrict a, const double *restrict b, const double *restrict c, double s, size_t n) {
    for (size_t i = 0; i < n; i++) a[i] = b[i] + s * c[i];
}

static void fill(double *a, size_t n) {
    for (size_t i = 0; i < n; i++) a[i] = (double)(i % 1000);
}

int main(int argc, char **argv) {
    size_t n = argument(argc, argv, 1, 200000, 1, 1u << 28);
    uint64_t repeats = argument(argc, argv, 2, 60, 1, 1000000);
    double *a = allocate(n * sizeof *a), *b = allocate(n * sizeof *b), *c = allocate(n * sizeof *c);
    double spent[4] = {0};
    for (size_t i = 0; i < n; i++) b[i] = c[i] = 0;
    fill(a, n);
    longma_roi_begin();
    for (uint64_t r = 0; r < repeats; r++) {
        // The values grow in each round; reset them to keep them exact.
        if (r % 8 == 0 && r > 0) fill(a, n);
        double t0 = seconds();
        copy(c, a, n);
        double t1 = seconds();
        scale(b, c, 3.0, n);
        double t2 = seconds();
        add(c, a, b, n);
        double t3 = seconds();
        triad(a, b, c, 3.0, n);
        double t4 = seconds();
        spent[0] += t1 - t0, spent[1] += t2 - t1, spent[2] += t3 - t2, spent[3] += t4 - t3;
    }
    longma_roi_end();
    uint64_t sum = CHECKSUM_START;
    for (size_t i = 0; i < n; i++) sum = (sum ^ bits_of(a[i]) ^ bits_of(b[i]) ^ bits_of(c[i])) * 0x100000001b3u;
    static const char *const names[4] = {"copy", "scale", "add", "triad"};
    static const int words[4] = {2, 2, 3, 3};
    for (int k = 0; k < 4; k++)
        fprintf(stderr, "%s %.0f MB/s\n", names[k], (double)(n * 8 * repeats) * words[k] / spent[k] / 1e6);
    print_checksum("stream", sum);
    return 0;
}
