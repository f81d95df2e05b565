// Threads make random accesses to shared memory; then every byte is compared with a flat memory after the same operations.
// Tests coherence: lost updates, stale lines, torn words. Each word has one kind of commutative update,
// so that the flat memory can be updated thread by thread; words of all threads and kinds share lines.
// Arguments: SEED (default 1), THREADS (default 4), OPERATIONS of each thread (default 200000).
#include "guest.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { MOST_THREADS = 16, WORDS = 192, RING = 8 };

// Kinds of words. Additions of 32, 16 and 8 bits do not change neighbours in the same 64 bits.
enum kind { ADD, XOR, OR, LARGEST, COUNT_BY_EXCHANGE, ADD_WORD, ADD_HALF, ADD_BYTE, UNDER_LOCK, OWN, KINDS };

union word {
    _Atomic uint64_t whole;
    _Atomic uint32_t part[2];
    _Atomic uint16_t half[4];
    _Atomic uint8_t byte[8];
    uint64_t plain;
};

static _Alignas(64) union word memory[WORDS], flat[WORDS];
static uint64_t threads, operations, first_seed;
static _Alignas(64) atomic_int lock;
// Each thread passes numbers to the next one, in a ring.
static struct ring {
    _Alignas(64) _Atomic uint64_t put, taken;
    uint64_t number[RING];
} ring[MOST_THREADS];

static enum kind kind_of(size_t word) { return (enum kind)(word * 7 % KINDS); }

static uint64_t seed_of(uint64_t thread) { return (first_seed * 0x9e3779b97f4a7c15u + thread * 0x2545f4914f6cdd1du) | 1; }

static void hold(void) {
    int free = 0;
    while (!atomic_compare_exchange_weak_explicit(&lock, &free, 1, memory_order_acquire, memory_order_relaxed)) {
        free = 0;
        sched_yield();
    }
}

// One operation on one word; `shared` is false for private words.
static void update(union word *m, size_t at, uint64_t value, uint64_t me, int shared) {
    union word *w = &m[at];
    switch (kind_of(at)) {
    case ADD: atomic_fetch_add_explicit(&w->whole, value, memory_order_relaxed); break;
    case XOR: atomic_fetch_xor(&w->whole, value); break;
    case OR: atomic_fetch_or(&w->whole, value & value << 1 & value << 2 & value << 3); break;
    case LARGEST: {
        uint64_t seen = atomic_load(&w->whole);
        while (seen < value && !atomic_compare_exchange_weak(&w->whole, &seen, value)) {}
        break;
    }
    case COUNT_BY_EXCHANGE: {
        uint64_t seen = atomic_load_explicit(&w->whole, memory_order_relaxed);
        while (!atomic_compare_exchange_strong(&w->whole, &seen, seen + 3)) {}
        break;
    }
    case ADD_WORD: atomic_fetch_add(&w->part[value & 1], (uint32_t)value); break;
    case ADD_HALF: atomic_fetch_add(&w->half[value & 3], (uint16_t)(value >> 8)); break;
    case ADD_BYTE: atomic_fetch_add(&w->byte[value & 7], (uint8_t)(value >> 8)); break;
    case UNDER_LOCK:
        if (shared) hold();
        // A plain read and a plain write, with time between them for other threads.
        w->plain = w->plain * 1 + (value | 1);
        if (shared) atomic_store_explicit(&lock, 0, memory_order_release);
        break;
    case OWN: ((uint8_t *)w)[me % 8] = (uint8_t)(((uint8_t *)w)[me % 8] * 5 + value); break;
    default: break;
    }
}

// Local work of varying kind and length, to vary the interleaving.
static uint64_t compute(uint64_t value) {
    double x = (double)(value >> 40) + 1.5;
    switch (value >> 60) {
    case 0: return value / ((value & 0xff) + 1);
    case 1: return (uint64_t)(1e6 / x);
    case 2:
        for (int i = 0; i < (int)(value & 31); i++) value = value * 3 + (value >> 7);
        return value;
    default: return value ^ value >> 9;
    }
}

static void *work(void *number) {
    uint64_t me = (uint64_t)(uintptr_t)number, seed = seed_of(me), kept = 0, wrong = 0, taken = 0, passed = 0;
    struct ring *in = &ring[me], *out = &ring[(me + 1) % threads];
    for (uint64_t i = 0; i < operations; i++) {
        uint64_t value = random_next(&seed);
        size_t at = value % WORDS;
        // A word with one byte for each of up to eight threads.
        if (kind_of(at) != OWN || me < 8) update(memory, at, value, me, 1);
        kept += compute(value);
        if (value >> 61 == 0) {
            uint64_t full = atomic_load_explicit(&out->taken, memory_order_acquire);
            if (passed - full < RING) {
                out->number[passed % RING] = passed * 31 + me;
                atomic_store_explicit(&out->put, ++passed, memory_order_release);
            }
            uint64_t there = atomic_load_explicit(&in->put, memory_order_acquire), from = (me + threads - 1) % threads;
            for (; taken < there; taken++) wrong += in->number[taken % RING] != taken * 31 + from;
            atomic_store_explicit(&in->taken, taken, memory_order_release);
        }
        if (value >> 52 == 0) sched_yield();
    }
    // The compiler must not remove the work.
    __asm__ volatile("" : : "r"(kept));
    return (void *)(uintptr_t)wrong;
}

int main(int argc, char **argv) {
    first_seed = argument(argc, argv, 1, 1, 0, UINT64_MAX);
    threads = argument(argc, argv, 2, 4, 1, MOST_THREADS);
    operations = argument(argc, argv, 3, 200000, 1, 1ull << 40);
    pthread_t thread[MOST_THREADS];
    for (uint64_t i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)i) != 0) {
            fputs("sharing: cannot start a thread: give fewer\n", stderr);
            return 1;
        }
    uint64_t wrong = 0, sum = CHECKSUM_START;
    for (uint64_t i = 0; i < threads; i++) {
        void *result;
        pthread_join(thread[i], &result);
        wrong += (uint64_t)(uintptr_t)result;
    }
    printf("messages torn or stale: %llu\n", (unsigned long long)wrong);
    for (uint64_t me = 0; me < threads; me++) {
        uint64_t seed = seed_of(me);
        for (uint64_t i = 0; i < operations; i++) {
            uint64_t value = random_next(&seed);
            size_t at = value % WORDS;
            if (kind_of(at) != OWN || me < 8) update(flat, at, value, me, 0);
        }
    }
    uint64_t different = 0;
    for (size_t at = 0; at < WORDS; at++) {
        different += memory[at].plain != flat[at].plain;
        sum = checksum(sum, memory[at].plain);
    }
    printf("words unlike flat memory's: %llu\n", (unsigned long long)different);
    print_checksum("sharing", sum);
    return wrong || different ? 1 : 0;
}
