// Threads that share counters: under a mutex, a spin lock, atomics, a condition and a barrier.
// Tests clone, futex, thread-local storage, atomics and LL/SC under contention.
// Arguments: THREADS (default 4), ROUNDS (default 400000).
#include "guest.h"
#include <pthread.h>
#include <stdatomic.h>

enum { MOST = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, turn_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_changed = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static uint64_t threads, rounds;
static uint64_t under_mutex, under_spin, turn, turns_taken, phase_errors;
static atomic_int spin;
static atomic_ulong added, exchanged;
static atomic_uchar byte_sum;
static _Atomic uint32_t word_sum, largest;
static atomic_ulong arrived;
static _Thread_local uint64_t own = 1;

static void spin_round(void) {
    int expected = 0;
    while (!atomic_compare_exchange_weak_explicit(&spin, &expected, 1, memory_order_acquire, memory_order_relaxed)) {
        expected = 0;
        sched_yield();
    }
    under_spin++;
    atomic_store_explicit(&spin, 0, memory_order_release);
}

static void atomic_round(uint64_t me, uint64_t r) {
    atomic_fetch_add(&added, r & 7);
    atomic_fetch_add(&byte_sum, 3);
    atomic_fetch_xor(&word_sum, (uint32_t)(me * 2654435761u + r));
    uint32_t seen = atomic_load(&largest), mine = (uint32_t)(me * 1000000 + r);
    while (seen < mine && !atomic_compare_exchange_weak(&largest, &seen, mine)) {}
    unsigned long old = atomic_load(&exchanged);
    while (!atomic_compare_exchange_strong(&exchanged, &old, old * 1 + 5)) {}
}

static void take_turns(uint64_t me, uint64_t count) {
    for (uint64_t r = 0; r < count; r++) {
        pthread_mutex_lock(&turn_lock);
        while (turn != me) pthread_cond_wait(&turn_changed, &turn_lock);
        turns_taken++;
        turn = (turn + 1) % threads;
        pthread_cond_broadcast(&turn_changed);
        pthread_mutex_unlock(&turn_lock);
    }
}

// After each barrier all threads must have arrived in this phase, and none in the next.
static void keep_step(uint64_t count) {
    for (uint64_t r = 1; r <= count; r++) {
        atomic_fetch_add(&arrived, 1);
        pthread_barrier_wait(&barrier);
        if (atomic_load(&arrived) != r * threads) {
            pthread_mutex_lock(&lock);
            phase_errors++;
            pthread_mutex_unlock(&lock);
        }
        pthread_barrier_wait(&barrier);
    }
}

static void *work(void *argument) {
    uint64_t me = (uint64_t)(uintptr_t)argument;
    for (uint64_t r = 0; r < rounds; r++) {
        pthread_mutex_lock(&lock);
        under_mutex++;
        pthread_mutex_unlock(&lock);
        spin_round();
        atomic_round(me, r);
        own += me + r;
    }
    take_turns(me, rounds / 100 + 1);
    keep_step(rounds / 200 + 1);
    return (void *)(uintptr_t)own;
}

int main(int argc, char **argv) {
    threads = argument(argc, argv, 1, 4, 1, MOST);
    rounds = argument(argc, argv, 2, 400000, 1, 1000000);
    pthread_t thread[MOST];
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (uint64_t i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)i) != 0) {
            fputs("threads: cannot start a thread: give fewer\n", stderr);
            return 1;
        }
    uint64_t own_sum = 0;
    for (uint64_t i = 0; i < threads; i++) {
        void *result;
        pthread_join(thread[i], &result);
        own_sum += (uint64_t)(uintptr_t)result;
    }
    printf("mutex %llu\nspin %llu\n", (unsigned long long)under_mutex, (unsigned long long)under_spin);
    printf("atomic add %lu, byte %u, xor %08x, largest %u, exchange %lu\n", atomic_load(&added),
           atomic_load(&byte_sum), atomic_load(&word_sum), atomic_load(&largest), atomic_load(&exchanged));
    printf("turns %llu, out of step %llu\n", (unsigned long long)turns_taken, (unsigned long long)phase_errors);
    printf("thread-local %llu, main's %llu\n", (unsigned long long)own_sum, (unsigned long long)own);
    return 0;
}
