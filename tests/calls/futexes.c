// Futexes: errors, wakes, requeues, robust lists, and the pthread locks built on them.
// Source: futex(2), get_robust_list(2), futex_waitv(2), pthread_mutexattr_setrobust(3).
#include "say.h"
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

static _Atomic uint32_t word, other;
#define FUTEX(address, operation, value, limit, second, third) syscall(SYS_futex, address, operation, value, limit, second, third)

static void errors(void) {
    struct timespec soon = {0, 1000000}, wrong = {0, 1000000000}, negative = {-1, 0};
    word = 1;
    SAY(FUTEX(&word, FUTEX_WAIT, 2, NULL, NULL, 0));
    SAY(FUTEX(&word, FUTEX_WAIT, 1, &soon, NULL, 0));
    SAY(FUTEX(&word, FUTEX_WAIT_PRIVATE, 1, &soon, NULL, 0));
    SAY(FUTEX(&word, FUTEX_WAIT, 1, &wrong, NULL, 0));
    SAY(FUTEX(&word, FUTEX_WAIT, 1, &negative, NULL, 0));
    SAY(FUTEX(&word, FUTEX_WAIT, 1, (void *)8, NULL, 0));
    SAY(FUTEX((char *)&word + 1, FUTEX_WAIT, 1, &soon, NULL, 0));
    SAY(FUTEX((void *)8, FUTEX_WAIT, 1, &soon, NULL, 0));
    SAY(FUTEX((void *)8, FUTEX_WAKE, 1, NULL, NULL, 0));
    SAY(FUTEX((void *)8, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0));
    SAY(FUTEX((char *)&word + 2, FUTEX_WAKE, 1, NULL, NULL, 0));
    SAY(FUTEX(&word, FUTEX_WAKE, 1, NULL, NULL, 0));
    SAY(FUTEX(&word, 99, 1, NULL, NULL, 0));
    SAY(FUTEX(&word, FUTEX_WAIT_BITSET, 1, &soon, NULL, 0));
    SAY(FUTEX(&word, FUTEX_WAIT_BITSET, 1, &soon, NULL, 4));
    SAY(FUTEX(&word, FUTEX_WAKE_BITSET, 1, NULL, NULL, 0));
    SAY(FUTEX(&word, FUTEX_WAIT | FUTEX_CLOCK_REALTIME, 2, NULL, NULL, 0));
    SAY(FUTEX(&word, FUTEX_WAKE | FUTEX_CLOCK_REALTIME, 1, NULL, NULL, 0));
    SAY(FUTEX(&word, FUTEX_REQUEUE, 1, (void *)1, &other, 0));
    SAY(FUTEX(&word, FUTEX_REQUEUE, -1, (void *)1, &other, 0));
    SAY(FUTEX(&word, FUTEX_CMP_REQUEUE, 1, (void *)1, &other, 2));
    SAY(FUTEX(&word, FUTEX_CMP_REQUEUE, 1, (void *)1, &other, 1));
    SAY(FUTEX(&word, FUTEX_WAKE_OP, 1, (void *)1, &other, FUTEX_OP(FUTEX_OP_ADD, 5, FUTEX_OP_CMP_EQ, 0)));
    SAY(other);
    SAY(FUTEX(&word, FUTEX_WAKE_OP, 1, (void *)1, &other, FUTEX_OP(FUTEX_OP_OR | FUTEX_OP_OPARG_SHIFT, 4, FUTEX_OP_CMP_LT, 0)));
    SAY(other);
    SAY(FUTEX(&word, FUTEX_WAKE_OP, 1, (void *)1, &other, FUTEX_OP(7, 4, FUTEX_OP_CMP_LT, 0)));
    void *page = mmap(NULL, 65536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SAY(FUTEX(page, FUTEX_WAIT, 1, &soon, NULL, 0));
    SAY(FUTEX(page, FUTEX_WAKE, 1, NULL, NULL, 0));
    SAY(syscall(SYS_set_robust_list, page, 23));
    SAY(syscall(SYS_get_robust_list, -1, page, page));
    SAY(syscall(SYS_get_robust_list, 1 << 30, &word, &word));
    size_t bytes = 0;
    void *head = NULL;
    SAY(syscall(SYS_get_robust_list, 0, &head, &bytes));
    SAY(bytes);
    SAY(syscall(449, NULL, 1, 0, NULL, CLOCK_MONOTONIC));
    SAY(syscall(449, page, 0, 0, NULL, CLOCK_MONOTONIC));
    struct { uint64_t value, address; uint32_t flags, reserved; } waits[2] = {{1, (uintptr_t)&word, 2, 0}, {9, (uintptr_t)&other, 2, 0}};
    SAY(syscall(449, waits, 2, 0, NULL, CLOCK_MONOTONIC));
    waits[1].reserved = 1;
    SAY(syscall(449, waits, 2, 0, NULL, CLOCK_MONOTONIC));
}

static void *waits(void *value) {
    while (word == (uintptr_t)value) FUTEX(&word, FUTEX_WAIT, (uintptr_t)value, NULL, NULL, 0);
    return NULL;
}

static void *waits_bits(void *bits) {
    return (void *)FUTEX(&word, FUTEX_WAIT_BITSET, 1, NULL, NULL, (uintptr_t)bits);
}

static void *waits_vector(void *unused) {
    (void)unused;
    struct { uint64_t value, address; uint32_t flags, reserved; } both[2] = {{1, (uintptr_t)&word, 2, 0}, {2, (uintptr_t)&other, 2, 0}};
    return (void *)syscall(449, both, 2, 0, NULL, CLOCK_MONOTONIC);
}

/// Wakes until `count` waiters are woken.
static long wake_all(_Atomic uint32_t *address, long count, uint32_t bits) {
    long woken = 0;
    while (woken < count) {
        woken += FUTEX(address, FUTEX_WAKE_BITSET, 100, NULL, NULL, bits);
        usleep(100);
    }
    return woken;
}

static void wakes(void) {
    pthread_t threads[8];
    void *result;
    word = 1;
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, waits_bits, (void *)(i < 4 ? 1l : 2l));
    SAY(wake_all(&word, 4, 1));
    SAY(wake_all(&word, 4, 2));
    for (int i = 0; i < 8; i++) pthread_join(threads[i], &result), SAY((long)result);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, waits_bits, (void *)1);
    long moved = 0;
    while (moved < 4) moved += FUTEX(&word, FUTEX_CMP_REQUEUE, 0, (void *)10, &other, 1), usleep(100);
    SAY(moved);
    SAY(FUTEX(&word, FUTEX_WAKE, 100, NULL, NULL, 0));
    SAY(FUTEX(&other, FUTEX_WAKE, 3, NULL, NULL, 0));
    SAY(FUTEX(&other, FUTEX_WAKE, 3, NULL, NULL, 0));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    other = 2;
    pthread_create(&threads[0], NULL, waits_vector, NULL);
    SAY(wake_all(&other, 1, ~0u));
    pthread_join(threads[0], &result), SAY((long)result);
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, waits, (void *)1);
    word = 2;
    FUTEX(&word, FUTEX_WAKE, 100, NULL, NULL, 0);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
}

static pthread_mutex_t *robust;

static void *takes(void *mutex) { return (void *)(long)pthread_mutex_lock(mutex); }
static void takes_and_exits(void) { pthread_mutex_lock(robust); }
static void takes_and_dies(void) { pthread_mutex_lock(robust); raise(SIGKILL); }

static void robustness(void) {
    pthread_mutexattr_t kind;
    pthread_t thread;
    robust = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    ERROR(pthread_mutex_init(robust, &kind));
    pthread_create(&thread, NULL, takes, robust);
    pthread_join(thread, NULL);
    ERROR(pthread_mutex_trylock(robust));
    ERROR(pthread_mutex_consistent(robust));
    ERROR(pthread_mutex_consistent(robust));
    ERROR(pthread_mutex_unlock(robust));
    ERROR(pthread_mutex_lock(robust));
    ERROR(pthread_mutex_unlock(robust));
    in_child("takes the lock and exits", takes_and_exits);
    ERROR(pthread_mutex_lock(robust));
    ERROR(pthread_mutex_consistent(robust));
    ERROR(pthread_mutex_unlock(robust));
    in_child("takes the lock and dies", takes_and_dies);
    ERROR(pthread_mutex_lock(robust));
    ERROR(pthread_mutex_unlock(robust));
    ERROR(pthread_mutex_lock(robust));
    ERROR(pthread_mutex_trylock(robust));
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_t checked;
    pthread_mutex_init(&checked, &kind);
    ERROR(pthread_mutex_lock(&checked));
    ERROR(pthread_mutex_lock(&checked));
    ERROR(pthread_mutex_unlock(&checked));
    ERROR(pthread_mutex_unlock(&checked));
    struct timespec past = {1, 0}, wrong = {1, -1};
    pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    ERROR(pthread_mutex_lock(&plain));
    ERROR(pthread_mutex_timedlock(&plain, &past));
    ERROR(pthread_mutex_timedlock(&plain, &wrong));
    ERROR(pthread_cond_timedwait(&condition, &plain, &past));
    ERROR(pthread_cond_timedwait(&condition, &plain, &wrong));
    sem_t semaphore;
    sem_init(&semaphore, 0, 1);
    SAY(sem_timedwait(&semaphore, &past));
    SAY(sem_timedwait(&semaphore, &past));
    SAY(sem_trywait(&semaphore));
    SAY(sem_init(&semaphore, 0, -1));
}

int main(void) {
    errors();
    wakes();
    robustness();
    return 0;
}
