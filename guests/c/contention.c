// Measures contention: atomic additions by one thread and by several, stores to separate lines and to one
// line, and a word that two threads pass back and forth.
// Tests the memory models: each figure follows from the time of a line transfer.
// Arguments: THREADS (default 4), OPERATIONS of each thread (default 2000). Times go to stderr.
#include "guest.h"
#include <pthread.h>
#include <stdatomic.h>

enum { MOST_THREADS = 16 };

struct line {
    _Alignas(64) _Atomic uint64_t word[8];
};

static struct line own[MOST_THREADS], shared, mixed[MOST_THREADS / 8], ball;
static double spent[4][MOST_THREADS];
static uint64_t threads, operations;
static pthread_barrier_t barrier;

static double together(void) {
    pthread_barrier_wait(&barrier);
    return seconds();
}

static void add(_Atomic uint64_t *word) {
    for (uint64_t i = 0; i < operations; i++) atomic_fetch_add_explicit(word, 1, memory_order_relaxed);
}

static void store(_Atomic uint64_t *word) {
    for (uint64_t i = 1; i <= operations; i++) atomic_store_explicit(word, i, memory_order_relaxed);
}

static void *work(void *number) {
    uint64_t me = (uint64_t)(uintptr_t)number;
    // Move each line to its thread before the measurement.
    store(&own[me].word[0]);
    double start = together();
    add(&own[me].word[1]);
    spent[0][me] = seconds() - start;
    start = together();
    add(&shared.word[0]);
    spent[1][me] = seconds() - start;
    start = together();
    store(&own[me].word[2]);
    spent[2][me] = seconds() - start;
    start = together();
    store(&mixed[me / 8].word[me % 8]);
    spent[3][me] = seconds() - start;
    return NULL;
}

// Even numbers are for thread 0, odd ones for thread 1.
static void *play(void *number) {
    uint64_t me = (uint64_t)(uintptr_t)number;
    pthread_barrier_wait(&barrier);
    for (uint64_t turn = me; turn < 2 * operations; turn += 2) {
        while (atomic_load_explicit(&ball.word[0], memory_order_acquire) != turn) {}
        atomic_store_explicit(&ball.word[0], turn + 1, memory_order_release);
    }
    return NULL;
}

static void run(void *(*what)(void *), uint64_t players) {
    pthread_t thread[MOST_THREADS];
    pthread_barrier_init(&barrier, NULL, (unsigned)players);
    for (uint64_t i = 0; i < players; i++)
        if (pthread_create(&thread[i], NULL, what, (void *)(uintptr_t)i) != 0) {
            fputs("contention: cannot start a thread: give fewer\n", stderr);
            exit(1);
        }
    for (uint64_t i = 0; i < players; i++) pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&barrier);
}

static void tell(const char *what, double time, uint64_t times) {
    fprintf(stderr, "%s: %.2f ns\n", what, time * 1e9 / (double)times);
}

int main(int argc, char **argv) {
    static const char *names[] = {"add alone", "add together", "store apart", "store together"};
    threads = argument(argc, argv, 1, 4, 1, MOST_THREADS);
    operations = argument(argc, argv, 2, 2000, 1, 1ull << 32);
    run(work, threads);
    for (size_t what = 0; what < 4; what++) {
        double longest = 0;
        for (uint64_t i = 0; i < threads; i++) longest = spent[what][i] > longest ? spent[what][i] : longest;
        tell(names[what], longest, operations);
    }
    double start = seconds();
    run(play, 2);
    tell("there and back", seconds() - start, operations);
    uint64_t sum = checksum(CHECKSUM_START, shared.word[0]);
    for (uint64_t i = 0; i < threads; i++) {
        sum = checksum(sum, own[i].word[0] + own[i].word[1] + own[i].word[2]);
        sum = checksum(sum, mixed[i / 8].word[i % 8]);
    }
    print_checksum("contention", checksum(sum, ball.word[0]));
    return 0;
}
