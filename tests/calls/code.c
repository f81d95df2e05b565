// Maps, moves and unmaps code: second views of it, and addresses where other threads had code before.
// Levels: translated interpreted (many threads for a long time; the other levels translate in the same way)
// Source: mremap(2) (old size 0, MREMAP_FIXED), munmap(2), mmap(2), mprotect(2).
#include "say.h"
#include "write_code.h"
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

enum { ROUNDS = 4000, THREADS = 4, CALLS = 40, BYTES = 1 << 16 };

static int run(volatile uint32_t *code) { return ((int (*)(void))code)(); }

static void *fresh(int flags) { return mmap(NULL, BYTES, PROT_READ | PROT_WRITE | PROT_EXEC, flags | MAP_ANONYMOUS, -1, 0); }

static void second_view(void) {
    volatile uint32_t *first = fresh(MAP_SHARED);
    write_code(first, 1);
    for (int i = 0; i < 3; i++) SAY(run(first));
    volatile uint32_t *second = mremap((void *)first, 0, BYTES, MREMAP_MAYMOVE);
    SAY(second != MAP_FAILED);
    second[2000] = 5;
    SAY(first[2000]);
    write_code(second, 2);
    SAY(run(first));
    write_code(first, 3);
    SAY(run(second));
    write_code(second, 4);
    SAY(run(first));
    SAY(run(second));
}

static long wrong;
// Gives up the addresses of a thread's code. Returns new addresses of the same code, or null.
static volatile uint32_t *(*leave)(volatile uint32_t *code);

static void call(volatile uint32_t *code, int wanted) {
    for (int i = 0; i < CALLS; i++)
        if (run(code) != wanted) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
}

static void *come_and_go(void *argument) {
    unsigned value = (unsigned)(uintptr_t)argument;
    for (int round = 0; round < ROUNDS; round++) {
        volatile uint32_t *code = fresh(MAP_PRIVATE);
        value = value * 1103515245 + 12345;
        int wanted = value >> 8 & 0x7ff;
        write_code(code, wanted);
        call(code, wanted);
        code = leave(code);
        if (!code) continue;
        call(code, wanted);
        munmap((void *)code, BYTES);
    }
    return NULL;
}

static volatile uint32_t *unmap(volatile uint32_t *code) {
    munmap((void *)code, BYTES);
    return NULL;
}

// Moves the code over other code of the same thread. Other threads may reuse the old addresses.
static volatile uint32_t *move(volatile uint32_t *code) {
    volatile uint32_t *target = fresh(MAP_PRIVATE);
    write_code(target, 2047);
    call(target, 2047);
    return mremap((void *)code, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)target);
}

static volatile uint32_t *map_over(volatile uint32_t *code) {
    mmap((void *)code, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    munmap((void *)code, BYTES);
    return NULL;
}

static volatile uint32_t *forbid(volatile uint32_t *code) {
    mprotect((void *)code, BYTES, PROT_READ | PROT_WRITE);
    munmap((void *)code, BYTES);
    return NULL;
}

static volatile uint32_t *shrink(volatile uint32_t *code) {
    mremap((void *)code, BYTES, BYTES / 4, 0);
    munmap((void *)code, BYTES / 4);
    return NULL;
}

static void among_threads(const char *what, volatile uint32_t *(*how)(volatile uint32_t *)) {
    leave = how;
    wrong = 0;
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, come_and_go, (void *)(i * 777 + 5));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    printf("%s: %ld wrong\n", what, wrong);
}

int main(void) {
    second_view();
    among_threads("unmapped", unmap);
    among_threads("moved", move);
    among_threads("mapped over", map_over);
    among_threads("forbidden", forbid);
    among_threads("shrunk", shrink);
    return 0;
}
