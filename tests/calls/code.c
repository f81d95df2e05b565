// Code that comes and goes: second views of it, and addresses that other threads have had code at.
// Levels: translated interpreted (many threads for long; the models' levels translate as the first does)
// Source: mremap(2) (old size 0), munmap(2).
#include "say.h"
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

enum { ROUNDS = 4000, THREADS = 4, CALLS = 40, BYTES = 1 << 16 };

// Writes a function that returns `value`, below 2048.
static void write_code(volatile uint32_t *at, int value) {
#ifdef __loongarch__
    at[0] = 0x02800004u | (uint32_t)value << 10; // addi.w a0, zero, value
    at[1] = 0x4c000020;                          // ret
    __asm__ volatile("dbar 0\nibar 0" ::: "memory");
#else
    at[0] = 0xb8u | (uint32_t)value << 8; // mov eax, value
    at[1] = 0xc300u | (uint32_t)value >> 24;
#endif
}

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

static void *come_and_go(void *argument) {
    unsigned value = (unsigned)(uintptr_t)argument;
    for (int round = 0; round < ROUNDS; round++) {
        volatile uint32_t *code = fresh(MAP_PRIVATE);
        value = value * 1103515245 + 12345;
        int wanted = value >> 8 & 0x7ff;
        write_code(code, wanted);
        for (int i = 0; i < CALLS; i++)
            if (run(code) != wanted) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
        munmap((void *)code, BYTES);
    }
    return NULL;
}

int main(void) {
    second_view();
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, come_and_go, (void *)(i * 777 + 5));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    SAY(wrong);
    return 0;
}
