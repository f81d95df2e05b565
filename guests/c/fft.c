// Radix-2 fast Fourier transform of complex doubles (Cooley, Tukey 1965), forward and backward.
// Exercises floating-point add, subtract and multiply with strided memory access.
// Arguments: LOG2_POINTS (default 14), REPEATS (default 12).
#include "../include/longma.h"
#include "guest.h"
#include <math.h>

// cos and sin of 2*pi/2^level for each level, by halving the angle: sqrt is exactly rounded
// everywhere, so every machine gets the same table; a library's sin need not agree.
static void half_angles(double *c, double *s, int levels) {
    c[0] = 1, s[0] = 0, c[1] = -1, s[1] = 0;
    if (levels >= 2) c[2] = 0, s[2] = 1;
    for (int k = 3; k <= levels; k++) {
        c[k] = sqrt((1 + c[k - 1]) / 2);
        s[k] = s[k - 1] / (2 * c[k]);
    }
}

static void reorder(double *re, double *im, size_t n) {
    for (size_t i = 1, j = 0; i < n; i++) {
        size_t bit = n >> 1;
        for (; j & bit; bit >>= 1) j ^= bit;
        j |= bit;
        if (i < j) {
            double t = re[i];
            re[i] = re[j], re[j] = t;
            t = im[i], im[i] = im[j], im[j] = t;
        }
    }
}

// `wr`, `wi` hold exp(-2*pi*i*k/n) for k < n/2; `sign` -1 is forward, 1 is backward.
static void transform(double *restrict re, double *restrict im, const double *restrict wr,
                      const double *restrict wi, size_t n, double sign) {
    reorder(re, im, n);
    for (size_t half = 1; half < n; half *= 2)
        for (size_t base = 0; base < n; base += 2 * half)
            for (size_t k = 0; k < half; k++) {
                size_t lo = base + k, hi = lo + half, w = k * (n / (2 * half));
                double c = wr[w], s = sign * wi[w];
                double tr = c * re[hi] - s * im[hi], ti = c * im[hi] + s * re[hi];
                re[hi] = re[lo] - tr, im[hi] = im[lo] - ti;
                re[lo] += tr, im[lo] += ti;
            }
}

int main(int argc, char **argv) {
    int levels = (int)argument(argc, argv, 1, 14, 1, 24);
    uint64_t repeats = argument(argc, argv, 2, 12, 1, 1000000);
    size_t n = (size_t)1 << levels;
    double c[32], s[32], *re = allocate(n * 8), *im = allocate(n * 8), *wr = allocate(n * 8), *wi = allocate(n * 8);
    half_angles(c, s, levels);
    // Angle k is built from the bits of k: few roundings, no drift.
    for (size_t k = 0; k < n / 2 || k == 0; k++) {
        double x = 1, y = 0;
        for (int level = levels; level > 0; level--)
            if (k >> (levels - level) & 1) {
                double t = x * c[level] - y * s[level];
                y = x * s[level] + y * c[level];
                x = t;
            }
        wr[k] = x, wi[k] = y;
    }
    uint64_t seed = 0xff7, sum = CHECKSUM_START;
    for (size_t i = 0; i < n; i++) {
        re[i] = (double)(int64_t)(random_next(&seed) >> 40) / 65536.0;
        im[i] = 0;
    }
    longma_roi_begin();
    for (uint64_t r = 0; r < repeats; r++) {
        transform(re, im, wr, wi, n, -1);
        sum = checksum(checksum(sum, bits_of(re[r % n])), bits_of(im[r % n]));
        transform(re, im, wr, wi, n, 1);
        for (size_t i = 0; i < n; i++) re[i] /= (double)n, im[i] /= (double)n;
    }
    longma_roi_end();
    for (size_t i = 0; i < n; i++) sum = checksum(sum, bits_of(re[i]));
    print_checksum("fft", sum);
    return 0;
}
