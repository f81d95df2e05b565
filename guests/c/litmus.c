// Litmus tests: tiny programs of two to four threads whose outcomes a memory model allows or forbids, each with and without
// full barriers between its accesses (dbar 0 on LoongArch).
// Tests coherence and ordering between cores. Without barriers C11's relaxed order holds, which the LoongArch memory model implements
// with plain loads and stores: all tests may then show the weak outcome, except CoRR, which coherence forbids. With barriers
// none may show it.
// Arguments: ROUNDS (default 20000). The number of outcomes and of weak outcomes goes to stderr, because it depends on the hardware.
// Source: the tests' names and outcomes are those of Alglave, Maranget, Tautschnig, Herding Cats (TOPLAS 2014).
#include "guest.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { MOST_THREADS = 4, READS = 4, BATCH = 16 };

// A round's variables, each on a line of its own, and what its threads read.
struct round {
    _Alignas(64) atomic_long x;
    _Alignas(64) atomic_long y;
    _Alignas(64) long read[READS];
};

// In some rounds a thread yields between its accesses, so that others run in between even if threads take turns.
static void between(uint64_t *seed, int fenced) {
    if (random_next(seed) >> 62 == 0) sched_yield();
    if (fenced) atomic_thread_fence(memory_order_seq_cst);
}

#define PUT(v, n) atomic_store_explicit(&round->v, n, memory_order_relaxed)
#define GET(v) atomic_load_explicit(&round->v, memory_order_relaxed)
#define THREAD(name, first, second) \
    static void name(struct round *round, uint64_t *seed, int fenced) { \
        first; \
        between(seed, fenced); \
        second; \
    }

THREAD(sb_0, PUT(x, 1), round->read[0] = GET(y))
THREAD(sb_1, PUT(y, 1), round->read[1] = GET(x))
THREAD(mp_0, PUT(x, 1), PUT(y, 1))
THREAD(mp_1, round->read[0] = GET(y), round->read[1] = GET(x))
THREAD(lb_0, round->read[0] = GET(x), PUT(y, 1))
THREAD(lb_1, round->read[1] = GET(y), PUT(x, 1))
THREAD(put_x, (void)fenced, PUT(x, 1))
THREAD(put_y, (void)fenced, PUT(y, 1))
THREAD(iriw_2, round->read[0] = GET(x), round->read[1] = GET(y))
THREAD(iriw_3, round->read[2] = GET(y), round->read[3] = GET(x))
THREAD(corr_1, round->read[0] = GET(x), round->read[1] = GET(x))
THREAD(two_0, PUT(x, 1), PUT(y, 2))
THREAD(two_1, PUT(y, 1), PUT(x, 2))

typedef void part(struct round *round, uint64_t *seed, int fenced);

// The weak outcome of each test.
static int sb(const struct round *r) { return r->read[0] == 0 && r->read[1] == 0; }
static int mp(const struct round *r) { return r->read[0] == 1 && r->read[1] == 0; }
static int lb(const struct round *r) { return r->read[0] == 1 && r->read[1] == 1; }
static int iriw(const struct round *r) {
    return r->read[0] == 1 && r->read[1] == 0 && r->read[2] == 1 && r->read[3] == 0;
}
static int two_plus_two(const struct round *r) { return r->x == 1 && r->y == 1; }

static const struct test {
    const char *name;
    int threads, largest, weak_without_barriers;
    part *part[MOST_THREADS];
    int (*weak)(const struct round *);
} tests[] = {
    {"SB", 2, 1, 1, {sb_0, sb_1}, sb},
    {"MP", 2, 1, 1, {mp_0, mp_1}, mp},
    {"LB", 2, 1, 1, {lb_0, lb_1}, lb},
    {"IRIW", 4, 1, 1, {put_x, put_y, iriw_2, iriw_3}, iriw},
    {"CoRR", 2, 1, 0, {put_x, corr_1}, mp},
    {"2+2W", 2, 2, 1, {two_0, two_1}, two_plus_two},
};

static const struct test *test;
static struct round *rounds;
static uint64_t count;
static int fenced;
static atomic_ulong arrived;

// Waits until all threads have reached batch `number`.
static void meet(uint64_t number) {
    atomic_fetch_add(&arrived, 1);
    while (atomic_load(&arrived) < (number + 1) * (uint64_t)test->threads) sched_yield();
}

static void *work(void *number) {
    int own = (int)(uintptr_t)number;
    uint64_t seed = 0x117 + (uint64_t)own;
    for (uint64_t i = 0; i < count; i++) {
        if (i % BATCH == 0) meet(i / BATCH);
        test->part[own](&rounds[i], &seed, fenced);
    }
    return NULL;
}

// No memory model allows values that were never written.
static int is_nonsense(const struct round *r) {
    for (int i = 0; i < READS; i++)
        if (r->read[i] < 0 || r->read[i] > test->largest) return 1;
    return r->x < 0 || r->x > test->largest || r->y < 0 || r->y > test->largest;
}

// An outcome as a number below 64: what was read, and which variables ended with the value 1.
static unsigned outcome(const struct round *r) {
    unsigned id = (unsigned)(r->x == 1) << 4 | (unsigned)(r->y == 1) << 5;
    for (int i = 0; i < READS; i++) id |= (unsigned)(r->read[i] & 1) << i;
    return id;
}

static uint64_t run(void) {
    pthread_t thread[MOST_THREADS];
    memset(rounds, 0, count * sizeof *rounds);
    atomic_store(&arrived, 0);
    for (int i = 0; i < test->threads; i++)
        if (pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)i) != 0) {
            fputs("litmus: cannot start a thread\n", stderr);
            exit(1);
        }
    for (int i = 0; i < test->threads; i++) pthread_join(thread[i], NULL);
    uint64_t weak = 0, forbidden = 0, seen = 0;
    for (uint64_t i = 0; i < count; i++) {
        int is_weak = test->weak(&rounds[i]);
        weak += (uint64_t)is_weak;
        seen |= 1ull << outcome(&rounds[i]);
        forbidden += (uint64_t)(is_nonsense(&rounds[i]) || (is_weak && (fenced || !test->weak_without_barriers)));
    }
    const char *with = fenced ? "with" : "without";
    fprintf(stderr, "%s %s barriers: %d outcomes, %llu weak\n", test->name, with, __builtin_popcountll(seen),
            (unsigned long long)weak);
    printf("%s %s barriers: %llu forbidden\n", test->name, with, (unsigned long long)forbidden);
    return forbidden;
}

int main(int argc, char **argv) {
    count = argument(argc, argv, 1, 20000, 1, 1u << 24);
    rounds = aligned_alloc(64, count * sizeof *rounds);
    if (!rounds) {
        fputs("litmus: no memory: give fewer rounds\n", stderr);
        return 1;
    }
    uint64_t forbidden = 0;
    for (test = tests; test < tests + sizeof tests / sizeof *tests; test++)
        for (fenced = 0; fenced < 2; fenced++) forbidden += run();
    return forbidden ? 1 : 0;
}
