// Floating point as the processor does it: signs of NaNs, exception flags, signal handlers, long double.
#define _GNU_SOURCE
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <emmintrin.h>

static void show(const char *name, long double value) {
    unsigned char bytes[16] = {0};
    memcpy(bytes, &value, 10);
    printf("%s %.21Lg %La ", name, value, value);
    for (int at = 9; at >= 0; at--) printf("%02x", bytes[at]);
    puts("");
}

static void handler(int signal) {
    unsigned short control;
    __asm__ volatile("fnstcw %0" : "=m"(control));
    printf("handler %x %x\n", _mm_getcsr() & 0xffff, control);
}

#define RAISED(name, action) \
    feclearexcept(FE_ALL_EXCEPT); \
    action; \
    printf("%s: %x\n", name, fetestexcept(FE_ALL_EXCEPT))

int main(void) {
    volatile double zero = 0, infinity = 1 / zero, big = 3e9, nan = zero / zero;
    volatile float single = 0;
    printf("%f %f %f %f\n", zero / zero, single / single, sqrt(-1 - zero), nan * -1.0);
    printf("%f %f %f\n", infinity - infinity, infinity * zero, fmod(zero + 1, zero));

    for (int n = 1; n < 30; n++) {
        long double x = n * 0.37L;
        show("expl", expl(x));
        show("powl", powl(x, x / 3));
        show("expm1l", expm1l(x / 9));
        show("sqrtl", sqrtl(x));
        show("fmodl", fmodl(x * 1e30L, 0.7L));
        show("remainderl", remainderl(x * 1e10L, 0.7L));
        show("ldexpl", ldexpl(x, -16400));
    }
    int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    for (int n = 0; n < 4; n++) {
        fesetround(modes[n]);
        volatile long double one = 1, three = 3, two = 2;
        volatile double d = 1;
        show("quotient", one / three);
        show("root", sqrtl(two));
        printf("%.20g %ld %ld %.20g\n", d / 3, lrint(d * 2.5), lrintl(one * 2.5L), nearbyint(d * -2.5));
        printf("%.3Lf %.0f %.1f\n", one / 8, d * 2.5, d * 0.25);
    }
    fesetround(FE_TONEAREST);

    volatile int integer;
    volatile long wide;
    volatile long double extended = 1;
    RAISED("(int)3e9", integer = (int)big);
    printf("%d\n", integer);
    RAISED("(long)3e21", wide = (long)(big * 1e12));
    RAISED("NaN < 1", integer = nan < 1);
    RAISED("NaN == 1", integer = nan == 1);
    RAISED("isless", integer = isless(nan, 1));
    RAISED("1 / 0", extended /= zero);
    RAISED("1 / 3", extended = 1; extended /= 3);
    RAISED("overflow", extended = LDBL_MAX; extended *= 2);
    RAISED("underflow", extended = LDBL_MIN; extended /= 3);

    // Invalid operations in hot code.
    long sum = 0;
    for (int n = 0; n < 2000; n++) {
        sum += (int)big + (nan < n) + (n < big) + (int)(float)(big / (n + 1));
        sum += lrint(nan * n) & 1;
    }
    printf("sum %ld\n", sum);
    int flags[16] = {0};
    volatile float small = nanf("");
    for (int n = 0; n < 3000; n++) {
        _mm_setcsr(0x1f80);
        volatile int ignored = (int)big;
        flags[0] += _mm_getcsr() & 1;
        _mm_setcsr(0x1f80);
        ignored = nan < n;
        flags[1] += _mm_getcsr() & 1;
        _mm_setcsr(0x1f80);
        ignored = _mm_cvtsi128_si32(_mm_cvttps_epi32(_mm_set1_ps(small)));
        flags[2] += _mm_getcsr() & 1;
        _mm_setcsr(0x1f80);
        ignored = _mm_cvtsi128_si32(_mm_cvtpd_epi32(_mm_set1_pd(big)));
        flags[3] += _mm_getcsr() & 1;
        _mm_setcsr(0x1f80);
        ignored = _mm_movemask_ps(_mm_max_ps(_mm_set1_ps(small), _mm_set1_ps(n)));
        flags[4] += _mm_getcsr() & 1;
        _mm_setcsr(0x1f80);
        ignored = _mm_movemask_pd(_mm_cmple_pd(_mm_set1_pd(n), _mm_set1_pd(nan)));
        flags[5] += _mm_getcsr() & 1;
        _mm_setcsr(0x1f80);
        ignored = nan == n;
        flags[6] += _mm_getcsr() & 1;
        _mm_setcsr(0x1f80);
        ignored = (int)lrint(infinity);
        flags[7] += _mm_getcsr() & 1;
        _mm_setcsr(0x1f80);
        volatile double difference = infinity - infinity;
        flags[8] += _mm_getcsr() & 1;
        flags[9] += signbit(difference) != 0;
    }
    for (int at = 0; at < 10; at++) printf("invalid %d: %d\n", at, flags[at]);

    signal(SIGUSR1, handler);
    _mm_setcsr(0x1f80 | 0x6000);
    unsigned short control = 0x27f;
    __asm__ volatile("fldcw %0" : : "m"(control));
    raise(SIGUSR1);
    __asm__ volatile("fnstcw %0" : "=m"(control));
    printf("after it %x %x\n", _mm_getcsr() & 0xffc0, control);
}
