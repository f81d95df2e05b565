// Integer and floating-point arithmetic: libraries, products of all widths, rounding, flags, longjmp.
#include <complex.h>
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static jmp_buf back;

static int deeper(int levels) {
    if (levels == 0) longjmp(back, 42);
    return deeper(levels - 1) + 1;
}

static int compare(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

int main(void) {
    double sum = 0;
    for (int i = 1; i < 2000; i++) {
        sum += sin(i) * cos(i / 3.0) + log(i) * pow(i, 0.3) / sqrt(i) + atan2(i, 3) - tanh(i / 100.0);
    }
    printf("%.12g %f %g %.10e\n", sum, sqrt(2), 1.0 / 3, exp(1.5));
    printf("%d %d %d %ld\n", (int)3.99, (int)-3.99, (int)lrint(2.5), lround(-2.5));
    volatile double one = 1, zero = 0;
    feclearexcept(FE_ALL_EXCEPT);
    volatile double infinite = one / zero;
    printf("%g %d\n", infinite, !!fetestexcept(FE_DIVBYZERO));
    printf("%d %d %d\n", !!isnan(zero / zero), zero / zero < 1, !(zero / zero >= 1));
    printf("%Lg %.20Lg\n", 1.0L / 3, sqrtl(2));
    double complex turned = cexp(I * 2);
    printf("%.12g %.12g\n", creal(turned), cimag(turned));
    if (setjmp(back) == 0) deeper(50);
    printf("%d %g %g\n", strtod("0x1.8p3", NULL) == 12, DBL_MIN / 2, nextafter(1, 2) - 1);
    unsigned long long u = 0x123456789abcdef0;
    for (int i = 0; i < 50; i++) u = u * 6364136223846793005 + 1442695040888963407;
    printf("%llu %lld %llu %u\n", u, (long long)u / 12345, u % 777, (unsigned)u / 7);
    printf("%llx\n", (unsigned long long)((unsigned __int128)u * u >> 64));
    int numbers[1000];
    unsigned seed = 1;
    for (int i = 0; i < 1000; i++) numbers[i] = (seed = seed * 1103515245 + 12345) >> 8 & 0xffff;
    qsort(numbers, 1000, sizeof *numbers, compare);
    printf("%d %d %d\n", numbers[0], numbers[500], numbers[999]);
    long kept = 0;
    for (int i = 0; i < 100000; i++) {
        char *memory = malloc(i % 5000 + 1);
        memory[0] = i;
        kept += memory[0];
        if (i % 3) free(memory);
    }
    printf("%ld\n", kept);
    return 0;
}
