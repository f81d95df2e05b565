// Futexes with priority inheritance.
// Levels: translated interpreted (in simulated time, FUTEX_LOCK_PI fails with ENOSYS, and programs do without it)
// Source: futex(2).
#include "say.h"
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>

static _Atomic uint32_t word;
#define FUTEX(address, operation, value, limit, second, third) syscall(SYS_futex, address, operation, value, limit, second, third)

static void *inherits(void *unused) {
    (void)unused;
    struct timespec soon = {time(NULL) + 100, 0};
    long locked = FUTEX(&word, FUTEX_LOCK_PI, 0, &soon, NULL, 0);
    FUTEX(&word, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0);
    return (void *)locked;
}

static void inheritance(void) {
    struct timespec past = {1, 0};
    pthread_t thread;
    void *result;
    word = 0;
    SAY(FUTEX(&word, FUTEX_LOCK_PI, 0, NULL, NULL, 0));
    SAY(word == (uint32_t)syscall(SYS_gettid));
    SAY(FUTEX(&word, FUTEX_LOCK_PI, 0, NULL, NULL, 0));
    SAY(FUTEX(&word, FUTEX_TRYLOCK_PI, 0, NULL, NULL, 0));
    pthread_create(&thread, NULL, inherits, NULL);
    while (!(word & FUTEX_WAITERS)) usleep(100);
    SAY(FUTEX(&word, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0));
    pthread_join(thread, &result), SAY((long)result);
    SAY(word & ~FUTEX_WAITERS);
    word = 1 << 29;
    SAY(FUTEX(&word, FUTEX_LOCK_PI, 0, &past, NULL, 0));
    word = 0;
}

int main(void) {
    SAY(FUTEX(&word, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0));
    inheritance();
    return 0;
}
