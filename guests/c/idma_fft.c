// FFT of complex doubles in 256-bit vectors: with loads and stores alone, or with IDMA and the in-core store.
// Shows how much of a tuned transform's time is data movement. Stockham's order, radix 4 and 8 through the caches,
// radix 32 and 16 in the store (Stockham in Cochran et al. 1967; Van Loan, Computational Frameworks for the FFT, 1992).
// Arguments: plain | idma (default plain), LOG2_POINTS 10 | 13 (default 10), REPEATS up to 100 (default 40; the values grow), BATCH: number of arrays
// transformed in turn, to exceed a cache (default 1).
#include "../include/idma.h"
#include "../include/longma.h"
#include "guest.h"
#include <math.h>
#pragma STDC FP_CONTRACT ON

typedef double vec __attribute__((vector_size(32)));
// Four points: their real parts, their imaginary parts.
typedef struct { vec re, im; } quad;
typedef struct { double re, im; } point;

enum { MOST = 1 << 13, SLOT_POINTS = 32, INLINE_RADIX = 8 };
#define INLINE static inline __attribute__((always_inline))

// cos and sin by halving angles, as in fft.c: the same table on every machine.
static void roots(point *w, int levels) {
    double c[32] = {1, -1, 0}, s[32] = {0, 0, 1};
    for (int k = 3; k <= levels; k++) {
        c[k] = sqrt((1 + c[k - 1]) / 2);
        s[k] = s[k - 1] / (2 * c[k]);
    }
    for (size_t k = 0; k < (size_t)1 << levels; k++) {
        w[k] = (point){1, 0};
        for (int level = levels; level > 0; level--)
            if (k >> (levels - level) & 1)
                w[k] = (point){w[k].re * c[level] + w[k].im * s[level], w[k].im * c[level] - w[k].re * s[level]};
    }
}

INLINE quad add(quad a, quad b) { return (quad){a.re + b.re, a.im + b.im}; }
INLINE quad sub(quad a, quad b) { return (quad){a.re - b.re, a.im - b.im}; }
INLINE quad mul(quad a, quad w) { return (quad){a.re * w.re - a.im * w.im, a.re * w.im + a.im * w.re}; }
INLINE vec all(double x) { return (vec){x, x, x, x}; }
INLINE quad spread(point w) { return (quad){all(w.re), all(w.im)}; }
INLINE quad turn(quad a) { return (quad){a.im, -a.re}; } // times -i

INLINE void dft4(quad *a) {
    quad t0 = add(a[0], a[2]), t1 = sub(a[0], a[2]), t2 = add(a[1], a[3]), t3 = turn(sub(a[1], a[3]));
    a[0] = add(t0, t2), a[1] = add(t1, t3), a[2] = sub(t0, t2), a[3] = sub(t1, t3);
}

INLINE void dft8(quad *a) {
    vec h = all(0.70710678118654752440);
    quad e[4] = {a[0], a[2], a[4], a[6]}, o[4] = {a[1], a[3], a[5], a[7]};
    dft4(e), dft4(o);
    o[1] = (quad){h * (o[1].re + o[1].im), h * (o[1].im - o[1].re)};
    o[2] = turn(o[2]);
    o[3] = (quad){h * (o[3].im - o[3].re), -h * (o[3].re + o[3].im)};
    for (int j = 0; j < 4; j++) a[j] = add(e[j], o[j]), a[j + 4] = sub(e[j], o[j]);
}

INLINE void dft(quad *a, size_t radix) {
    if (radix == 8) dft8(a);
    else dft4(a);
}

INLINE void transpose(vec *a) {
    vec t0 = __builtin_shufflevector(a[0], a[1], 0, 4, 2, 6), t1 = __builtin_shufflevector(a[0], a[1], 1, 5, 3, 7);
    vec t2 = __builtin_shufflevector(a[2], a[3], 0, 4, 2, 6), t3 = __builtin_shufflevector(a[2], a[3], 1, 5, 3, 7);
    a[0] = __builtin_shufflevector(t0, t2, 0, 1, 4, 5), a[1] = __builtin_shufflevector(t1, t3, 0, 1, 4, 5);
    a[2] = __builtin_shufflevector(t0, t2, 2, 3, 6, 7), a[3] = __builtin_shufflevector(t1, t3, 2, 3, 6, 7);
}

INLINE void transpose_quads(quad *a) {
    vec re[4] = {a[0].re, a[1].re, a[2].re, a[3].re}, im[4] = {a[0].im, a[1].im, a[2].im, a[3].im};
    transpose(re), transpose(im);
    for (int i = 0; i < 4; i++) a[i] = (quad){re[i], im[i]};
}

// A stage: radix, points of the products of earlier radices (s), sub-transforms (m), and its twiddle factors: quads [p / 4][j]
// of the first stage, points [p][j] of others, and the same in all four lanes.
typedef struct {
    size_t radix, s, m;
    quad *lanes, *spread;
    point *factors;
} stage;

// The stages of a transform of n points by the given radices.
static size_t plan(stage *stages, const size_t *radices, const point *w, size_t n) {
    size_t s = 1, count = 0;
    for (; s < n; s *= radices[count++]) {
        size_t radix = radices[count], m = n / s / radix;
        stage *at = &stages[count];
        *at = (stage){.radix = radix, .s = s, .m = m};
        if (s == 1) at->lanes = aligned_alloc(64, m / 4 * radix * sizeof(quad));
        else at->factors = aligned_alloc(64, m * radix * sizeof(point)), at->spread = aligned_alloc(64, m * radix * sizeof(quad));
        for (size_t p = 0; p < m; p++)
            for (size_t j = 0; j < radix; j++) {
                point factor = w[p * j * s % n];
                if (s > 1) at->factors[p * radix + j] = factor, at->spread[p * radix + j] = spread(factor);
                else at->lanes[p / 4 * radix + j].re[p % 4] = factor.re, at->lanes[p / 4 * radix + j].im[p % 4] = factor.im;
            }
    }
    return count;
}

// The first stage through the caches: lanes are neighbouring sub-transforms, so results are transposed.
INLINE void first(quad *restrict y, const quad *restrict x, const stage *st, size_t radix) {
    for (size_t p = 0; p < st->m / 4; p++) {
        quad a[INLINE_RADIX];
        for (size_t k = 0; k < radix; k++) a[k] = x[p + st->m / 4 * k];
        dft(a, radix);
        for (size_t j = 1; j < radix; j++) a[j] = mul(a[j], st->lanes[p * radix + j]);
        for (size_t j = 0; j < radix; j += 4) {
            transpose_quads(a + j);
            for (size_t lane = 0; lane < 4; lane++) y[(4 * p + lane) * radix / 4 + j / 4] = a[j + lane];
        }
    }
}

// Another stage through the caches.
INLINE void later(quad *restrict y, const quad *restrict x, const stage *st, size_t radix) {
    size_t s = st->s / 4;
    for (size_t p = 0; p < st->m; p++) {
        quad w[INLINE_RADIX];
        for (size_t j = 1; j < radix; j++) w[j] = spread(st->factors[p * radix + j]);
        for (size_t q = 0; q < s; q++) {
            quad a[INLINE_RADIX];
            for (size_t k = 0; k < radix; k++) a[k] = x[q + s * (p + st->m * k)];
            dft(a, radix);
            y[q + s * radix * p] = a[0];
            for (size_t j = 1; j < radix; j++) y[q + s * (radix * p + j)] = mul(a[j], w[j]);
        }
    }
}

// The last stage has no twiddle factors.
INLINE void last(quad *restrict y, const quad *restrict x, const stage *st, size_t radix) {
    size_t s = st->s / 4;
    for (size_t q = 0; q < s; q++) {
        quad a[INLINE_RADIX];
        for (size_t k = 0; k < radix; k++) a[k] = x[q + s * k];
        dft(a, radix);
        for (size_t j = 0; j < radix; j++) y[q + s * j] = a[j];
    }
}

static void transform_plain(quad *x, quad *y, const stage *stages, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const stage *st = &stages[i];
        if (i == 0 && st->radix == 8) first(y, x, st, 8);
        else if (i == 0) first(y, x, st, 4);
        else if (st->m == 1 && st->radix == 8) last(y, x, st, 8);
        else if (st->m == 1) last(y, x, st, 4);
        else if (st->radix == 8) later(y, x, st, 8);
        else later(y, x, st, 4);
        quad *t = x;
        x = y, y = t;
    }
}

// The same pointer, opaque to the compiler, so that it uses small offsets and does not compute addresses.
INLINE quad *opaque(quad *p) {
    __asm__("" : "+r"(p));
    return p;
}

// A transform of `radix` points in each lane of `a`, in two steps of radices radix / 4 and 4, through `t`. The first step, and the
// factors between the two.
INLINE void dft_of_slot(quad *a, quad *t, size_t radix, const quad *inner) {
    size_t step = radix / 4;
#pragma clang loop unroll(disable)
    for (size_t p = 0; p < 4; p++) {
        const quad *from = opaque(a + p), *factors = opaque((quad *)inner + p * step);
        quad b[INLINE_RADIX], *to = opaque(t + p * step);
        for (size_t k = 0; k < step; k++) b[k] = from[4 * k];
        dft(b, step);
        to[0] = b[0];
        for (size_t j = 1; j < step; j++) to[j] = p ? mul(b[j], factors[j]) : b[j];
    }
}

// The second step of one `q`.
INLINE void second_step(quad *b, const quad *t, size_t step) {
    for (size_t k = 0; k < 4; k++) b[k] = t[step * k];
    dft4(b);
}

// The second step of a stage without factors or with one per point; stores the results.
INLINE void finish_slot(quad *a, quad *t, size_t radix, const quad *factors) {
    size_t step = radix / 4;
#pragma clang loop unroll(disable)
    for (size_t q = 0; q < step; q++) {
        quad b[4], *to = opaque(a + q);
        second_step(b, opaque(t + q), step);
        if (factors) {
            const quad *w = opaque((quad *)factors + q);
            for (size_t k = 0; k < 4; k++) b[k] = mul(b[k], w[step * k]);
        }
        for (size_t k = 0; k < 4; k++) to[step * k] = b[k];
    }
}

// The second step of the first stage, whose lanes are neighbouring sub-transforms: results are transposed, four at a time.
INLINE void finish_first_slot(quad *a, quad *t, size_t radix, const quad *lanes) {
    size_t step = radix / 4;
#pragma clang loop unroll(disable)
    for (size_t q = 0; q < step; q++) {
        quad b[4], *to = opaque(t + q);
        const quad *w = opaque((quad *)lanes + q);
        second_step(b, to, step);
        for (size_t k = 0; k < 4; k++) to[step * k] = mul(b[k], w[step * k]);
    }
#pragma clang loop unroll(disable)
    for (size_t j = 0; j < step; j++) {
        quad b[4], *from = opaque(t + 4 * j), *to = opaque(a + j);
        for (size_t k = 0; k < 4; k++) b[k] = from[k];
        transpose_quads(b);
        for (size_t lane = 0; lane < 4; lane++) to[lane * step] = b[lane];
    }
}

INLINE void work_on_slot(quad *a, const stage *st, const quad *inner, size_t p, size_t radix) {
    static _Alignas(64) quad between[SLOT_POINTS];
    quad *t = opaque(between);
    dft_of_slot(a, t, radix, inner);
    if (st->s == 1) finish_first_slot(a, t, radix, st->lanes + p * radix);
    else if (st->m == 1) finish_slot(a, t, radix, NULL);
    else finish_slot(a, t, radix, st->spread + p * radix);
}

// Bits `from` to `from + count - 1` of 128 tags, in the given word.
INLINE uint64_t tag_bits(size_t from, size_t count, int word) {
    size_t low = (size_t)word * 64;
    if (from >= low + 64 || from + count <= low) return 0;
    uint64_t bits = count >= 64 ? ~0ull : (1ull << count) - 1;
    return bits << (from - low);
}

// Starts the write channel on the groups of one `p`: for the first stage all are one sequence.
static void start_writer(const struct idma *engine, const stage *st, quad *y, size_t p, size_t groups) {
    size_t bytes = st->radix * sizeof(quad);
    struct idma_transfer out = {.destination = y + st->radix * st->s / 4 * p, .length = groups * bytes};
    if (st->s > 1) {
        out.block_bytes = sizeof(quad), out.block_count = (uint32_t)st->radix;
        out.destination_stride = (int32_t)(st->s / 4 * sizeof(quad)), out.destination_row_stride = sizeof(quad);
    }
    idma_describe(engine, IDMA_WRITER, &out);
    // All pieces belong to the core until they are computed.
    idma_set(engine, IDMA_WRITER, IDMA_CHANNEL_TAGS0, ~0ull);
    idma_set(engine, IDMA_WRITER, IDMA_CHANNEL_TAGS1, ~0ull);
    // It returns a slot to the read channel as soon as it has written the results.
    idma_start(engine, IDMA_WRITER, 1ull << IDMA_CHANNEL_CONTROL_FEED_SHIFT);
}

// One stage: the read channel brings groups of 4 * radix points into the store's slots, the core transforms them there, the
// write channel writes them back; a slot's tags pass from one to the other.
static void stage_idma(const struct idma *engine, quad *x, quad *y, const stage *st, const quad *inner) {
    size_t bytes = st->radix * sizeof(quad), slots = IDMA_STORE_BYTES / bytes, pieces = bytes / IDMA_BEAT;
    size_t groups = st->m * st->s / 4, in_run = st->s == 1 ? groups : st->s / 4;
    struct idma_transfer in = {
        .source = x, .destination = engine->store, .length = groups * bytes,
        .block_bytes = sizeof(quad), .block_count = (uint32_t)st->radix,
        .source_stride = (int32_t)(groups * sizeof(quad)), .destination_stride = sizeof(quad),
        .source_row_stride = sizeof(quad), .destination_row_stride = (int32_t)bytes,
    };
    idma_describe(engine, 0, &in);
    idma_start(engine, 0, IDMA_CHANNEL_CONTROL_GIVE);
    for (size_t group = 0; group < groups; group++) {
        size_t slot = group % slots, tag = slot * pieces;
        int word = tag >= 64;
        uint64_t bits = tag_bits(tag, pieces, word);
        if (group % in_run == 0) {
            if (group) idma_finish(engine, IDMA_WRITER);
            // Each run starts at slot 0, because its length is a multiple of the slots.
            start_writer(engine, st, y, group / in_run, in_run);
        }
        // The read channel's tags refer to this data only once the previous results have been written back.
        while ((idma_tags(engine, IDMA_WRITER, word) & bits) != bits) {}
        while ((idma_tags(engine, 0, word) & bits) != bits) {}
        quad *a = (quad *)(engine->store + slot * bytes);
        size_t p = st->s == 1 ? group : group / in_run;
        if (st->radix == 32) work_on_slot(a, st, inner, p, 32);
        else work_on_slot(a, st, inner, p, 16);
        idma_give(engine, IDMA_WRITER, word, bits);
    }
    idma_finish(engine, IDMA_WRITER);
}

static void transform_idma(const struct idma *engine, quad *x, quad *y, const stage *stages, size_t count,
                           const quad *inner32, const quad *inner16) {
    for (size_t i = 0; i < count; i++) {
        stage_idma(engine, x, y, &stages[i], stages[i].radix == 32 ? inner32 : inner16);
        quad *t = x;
        x = y, y = t;
    }
}

// Factors between the two steps in a slot.
static quad *inner_factors(const point *w, size_t n, size_t radix) {
    quad *inner = aligned_alloc(64, radix * sizeof(quad));
    for (size_t p = 0; p < 4; p++)
        for (size_t j = 0; j < radix / 4; j++) inner[p * radix / 4 + j] = spread(w[p * j * (n / radix) % n]);
    return inner;
}

// A textbook recursive transform, as a reference.
static void reference(point *out, const point *in, size_t n, size_t step, const point *w, size_t whole) {
    if (n == 1) {
        out[0] = in[0];
        return;
    }
    reference(out, in, n / 2, 2 * step, w, whole);
    reference(out + n / 2, in + step, n / 2, 2 * step, w, whole);
    for (size_t k = 0; k < n / 2; k++) {
        point f = w[k * (whole / n)], o = out[k + n / 2], e = out[k];
        point t = {o.re * f.re - o.im * f.im, o.re * f.im + o.im * f.re};
        out[k] = (point){e.re + t.re, e.im + t.im}, out[k + n / 2] = (point){e.re - t.re, e.im - t.im};
    }
}

static int right(const quad *got, const point *in, const point *w, size_t n) {
    point *wanted = allocate(n * sizeof(point));
    reference(wanted, in, n, 1, w, n);
    double worst = 0;
    for (size_t i = 0; i < n; i++)
        worst = fmax(worst, fmax(fabs(got[i / 4].re[i % 4] - wanted[i].re), fabs(got[i / 4].im[i % 4] - wanted[i].im)));
    free(wanted);
    // Values are below 1; errors grow at most as sqrt(n) log n.
    return worst < 1e-15 * sqrt((double)n) * 8 * log2((double)n);
}

static void fill(quad *x, const point *in, size_t n, size_t batch) {
    for (size_t b = 0; b < batch; b++)
        for (size_t i = 0; i < n; i++)
            x[(b * n + i) / 4].re[i % 4] = in[i].re, x[(b * n + i) / 4].im[i % 4] = in[i].im;
}

int main(int argc, char **argv) {
    int idma = argc > 1 && strcmp(argv[1], "idma") == 0;
    if (argc > 1 && !idma && strcmp(argv[1], "plain") != 0) {
        fprintf(stderr, "%s: the first argument is '%s': say plain or idma\n", argv[0], argv[1]);
        return 2;
    }
    int levels = (int)argument(argc, argv, 2, 10, 10, 13);
    uint64_t repeats = argument(argc, argv, 3, 40, 1, 100), batch = argument(argc, argv, 4, 1, 1, 4096);
    if (levels != 10 && levels != 13) {
        fprintf(stderr, "%s: argument 2 is %d: give 10 or 13\n", argv[0], levels);
        return 2;
    }
    size_t n = (size_t)1 << levels;
    struct idma engine;
    if (idma && idma_open(&engine, 0)) {
        perror("idma_fft: no IDMA engine with an in-core store, name a machine that has one (/dev/longma/idma0)");
        return 1;
    }
    point *w = allocate(n * sizeof(point)), *in = allocate(n * sizeof(point));
    roots(w, levels);
    const size_t plain1k[] = {4, 4, 8, 8}, plain8k[] = {4, 4, 8, 8, 8}, store1k[] = {32, 32}, store8k[] = {32, 16, 16};
    const size_t *radices = idma ? levels == 10 ? store1k : store8k : levels == 10 ? plain1k : plain8k;
    stage stages[8];
    size_t count = plan(stages, radices, w, n);
    quad *inner32 = inner_factors(w, n, 32), *inner16 = inner_factors(w, n, 16);
    quad *x = aligned_alloc(64, batch * n / 4 * sizeof(quad)), *y = aligned_alloc(64, batch * n / 4 * sizeof(quad));
    uint64_t seed = 0xff7;
    for (size_t i = 0; i < n; i++) {
        in[i].re = (double)(int64_t)(random_next(&seed) >> 40) / 16777216.0;
        in[i].im = (double)(int64_t)(random_next(&seed) >> 40) / 16777216.0;
    }
    memset(y, 0, batch * n / 4 * sizeof(quad));
    // The first round warms up the caches with code, tables and, if it fits, data; the last one, on fresh data, is checked too.
    double begin = 0, took = 1;
    for (uint64_t round = 0; round < repeats + 2; round++) {
        int checked = round == 0 || round == repeats + 1;
        if (round == repeats + 1) {
            took = seconds() - begin;
            longma_roi_end();
        }
        if (checked) fill(x, in, n, batch);
        if (round == 1) {
            longma_roi_begin();
            begin = seconds();
        }
        for (size_t b = 0; b < batch; b++) {
            quad *from = x + b * n / 4, *to = y + b * n / 4;
            if (idma) transform_idma(&engine, from, to, stages, count, inner32, inner16);
            else transform_plain(from, to, stages, count);
        }
        // With an odd number of stages the result is in y, otherwise in x.
        for (size_t b = 0; b < batch && checked; b++)
            if (!right((count % 2 ? y : x) + b * n / 4, in, w, n)) {
                puts("idma_fft: wrong");
                return 1;
            }
    }
    double each = took / (double)(repeats * batch);
    fprintf(stderr, "%.2f us a transform, %.1f Mflop/s\n", each * 1e6, 5e-6 * (double)n * levels / each);
    printf("idma_fft %zu points: right\n", n);
    return 0;
}
