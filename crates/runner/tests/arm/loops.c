// Loops that compilers turn into Advanced SIMD: rounding, conversions, comparisons, half precision, saturation.
#include <arm_neon.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { COUNT = 203 };

static float singles[COUNT], others[COUNT], results[COUNT];
static double doubles[COUNT], wide[COUNT];
static __fp16 halves[COUNT], half_results[COUNT];
static int32_t words[COUNT];
static int64_t longs[COUNT];
static uint32_t unsigned_words[COUNT];
static int16_t shorts[COUNT], short_results[COUNT];
static uint8_t bytes[COUNT];
static int8_t signed_bytes[COUNT];

static uint64_t state = 88172645463325252u;

static uint32_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 20;
}

static void print(const char *name, const void *data, size_t size) {
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    printf("%s %016llx\n", name, (unsigned long long)hash);
}

#define LOOP(name, to, value)                                                                                          \
    __attribute__((noinline)) static void loop_##name(void) {                                                          \
        for (int i = 0; i < COUNT; i++)                                                                                \
            to[i] = value;                                                                                             \
    }
#define FLOAT_LOOPS(function)                                                                                          \
    LOOP(function##f, results, function##f(singles[i]))                                                                \
    LOOP(function, wide, function(doubles[i]))
FLOAT_LOOPS(round)
FLOAT_LOOPS(rint)
FLOAT_LOOPS(nearbyint)
FLOAT_LOOPS(floor)
FLOAT_LOOPS(ceil)
FLOAT_LOOPS(trunc)
FLOAT_LOOPS(fabs)
LOOP(lrint, longs, lrint(doubles[i]))
LOOP(lround, longs, lround(doubles[i]))
LOOP(lrintf, words, lrintf(singles[i]))
LOOP(floor_to_int, words, (int)floorf(singles[i]))
LOOP(ceil_to_int, words, (int)ceilf(singles[i]))
LOOP(round_to_int, words, (int)roundf(singles[i]))
LOOP(to_fixed, words, (int)(singles[i] * 65536.0f))
LOOP(from_fixed, results, words[i] / 65536.0f)
LOOP(from_fixed_double, wide, longs[i] / 4096.0)
LOOP(to_unsigned, unsigned_words, (uint32_t)fabsf(singles[i]))
LOOP(absolute_greater, words, fabsf(singles[i]) > fabsf(others[i]))
LOOP(absolute_greater_equal, words, fabs(doubles[i]) >= fabs(wide[i]))
LOOP(half_to_single, results, halves[i])
LOOP(single_to_half, half_results, singles[i])
LOOP(half_sum, half_results, halves[i] + half_results[i])
LOOP(half_product, half_results, halves[i] * (__fp16)1.5f - halves[i])
LOOP(half_compare, words, halves[i] > half_results[i] ? 1 : -1)
LOOP(half_to_int, words, (int)halves[i])
LOOP(half_round, half_results, (__fp16)rintf(halves[i]))
LOOP(average, signed_bytes, (signed_bytes[i] - (int8_t)bytes[i]) >> 1)
LOOP(high_product, short_results, (shorts[i] * short_results[i] + (1 << 14)) >> 15)
LOOP(narrow, short_results, (words[i] + 0x80) >> 8)
LOOP(root, results, 1.0f / sqrtf(fabsf(singles[i]) + 1.0f))
LOOP(difference, results, fabsf(singles[i] - others[i]))

static int32_t clamp(int64_t value, int64_t least, int64_t greatest) {
    return value < least ? least : value > greatest ? greatest : value;
}

LOOP(saturated_short, short_results, clamp(shorts[i] + short_results[i], INT16_MIN, INT16_MAX))
LOOP(saturated_byte, bytes, clamp(words[i] >> 4, 0, 255))

__attribute__((noinline)) static int32_t dot(void) {
    int32_t sum = 0;
    for (int i = 0; i < COUNT; i++)
        sum += signed_bytes[i] * (int8_t)bytes[i];
    return sum;
}

__attribute__((noinline)) static void intrinsics(void) {
    for (int i = 0; i + 8 <= COUNT; i += 8) {
        int16x8_t a = vld1q_s16(shorts + i), b = vld1q_s16(short_results + i);
        int16x8_t high = vqrdmulhq_s16(a, b);
        int8x8_t narrow = vqrshrn_n_s16(vqaddq_s16(high, b), 3);
        uint8x8_t positive = vqshrun_n_s16(vqsubq_s16(a, b), 4);
        vst1_s8(signed_bytes + i, vrsubhn_s16(vmovl_s8(narrow), a));
        vst1_u8(bytes + i, vraddhn_u16(vmovl_u8(positive), vreinterpretq_u16_s16(b)));
        vst1q_s16(short_results + i, vqshlq_s16(vrsraq_n_s16(a, high, 2), vshrq_n_s16(b, 12)));
    }
}

#define RUN(name, to)                                                                                                  \
    loop_##name();                                                                                                     \
    print(#name, to, sizeof(to));

static void reset(void) {
    for (int i = 0; i < COUNT; i++) {
        int exponent = (int)(next() % 20) - 6;
        singles[i] = ldexpf((int32_t)next() % 4096 / 8.0f, exponent / 2);
        others[i] = (int32_t)next() / 65536.0f / 512;
        doubles[i] = ldexp((int32_t)next() / 16.0, exponent - 18);
        halves[i] = (__fp16)((int32_t)next() % 512 / 4.0f);
        words[i] = next();
        longs[i] = (int64_t)next() * (int32_t)next();
        shorts[i] = next();
        short_results[i] = next();
        bytes[i] = next();
        signed_bytes[i] = next();
    }
    // Ties, and numbers near the limits.
    float some[] = {0.5f, -0.5f, 1.5f, 2.5f, -2.5f, 0.49999997f, 8388607.5f, -8388607.5f, 1e9f, -0.0f};
    for (int i = 0; i < 10; i++)
        singles[3 * i] = some[i], doubles[3 * i] = some[i], halves[3 * i] = some[i] > 60000 ? 60000 : some[i];
}

int main(void) {
    for (int round = 0; round < 40; round++) {
        reset();
        RUN(roundf, results) RUN(round, wide) RUN(rintf, results) RUN(rint, wide)
        RUN(nearbyintf, results) RUN(nearbyint, wide) RUN(floorf, results) RUN(floor, wide)
        RUN(ceilf, results) RUN(ceil, wide) RUN(truncf, results) RUN(trunc, wide) RUN(fabsf, results) RUN(fabs, wide)
        RUN(lrint, longs) RUN(lround, longs) RUN(lrintf, words) RUN(floor_to_int, words) RUN(ceil_to_int, words)
        RUN(round_to_int, words) RUN(to_fixed, words) RUN(from_fixed, results) RUN(from_fixed_double, wide)
        RUN(to_unsigned, unsigned_words) RUN(absolute_greater, words) RUN(absolute_greater_equal, words)
        RUN(half_to_single, results) RUN(single_to_half, half_results) RUN(half_sum, half_results)
        RUN(half_product, half_results) RUN(half_compare, words) RUN(half_to_int, words) RUN(half_round, half_results)
        RUN(average, signed_bytes) RUN(high_product, short_results) RUN(narrow, short_results)
        RUN(root, results) RUN(difference, results) RUN(saturated_short, short_results) RUN(saturated_byte, bytes)
        intrinsics();
        print("intrinsics", short_results, sizeof(short_results));
        print("narrowed", signed_bytes, sizeof(signed_bytes));
        printf("dot %d\n", dot());
    }
    return 0;
}
