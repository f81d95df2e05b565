// Atomic instructions on operands that are not aligned, and on pages that cannot be written. Accesses across cache lines
// are left out: some hosts delay each by a second.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/ucontext.h>

enum { ROUNDS = 400, PAGE = 4096 };

static char *memory;
static volatile uint64_t *shared;
static volatile int torn;

// Adds the same number to both halves with locked instructions.
static void *add(void *unused) {
    for (int round = 0; round < ROUNDS; round++)
        __asm__ volatile("lock addq %1, (%0)" : : "r"(shared), "r"(0x100000001) : "memory");
    return 0;
}

// Every observed value has equal halves, because all are sums of such numbers.
static void *look(void *unused) {
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t old = 1, zero = 0;
        __asm__ volatile("lock cmpxchgq %2, (%1)" : "+a"(old) : "r"(shared), "r"(zero) : "memory");
        torn += (uint32_t)old != old >> 32;
        old = 0;
        __asm__ volatile("lock xaddq %0, (%1)" : "+r"(old) : "r"(shared) : "memory");
        torn += (uint32_t)old != old >> 32;
    }
    return 0;
}

static void race(int at) {
    pthread_t threads[4];
    shared = (uint64_t *)(memory + at);
    *shared = 0;
    torn = 0;
    for (int n = 0; n < 4; n++) pthread_create(&threads[n], 0, n & 1 ? look : add, 0);
    for (int n = 0; n < 4; n++) pthread_join(threads[n], 0);
    printf("at %d: %lx, torn %d\n", at, *shared, torn);
}

static void single(int at) {
    uint64_t *q = (uint64_t *)(memory + at), a = 0x1111111111111111;
    uint32_t *d = (uint32_t *)q, b = 0x22222222;
    uint16_t *w = (uint16_t *)q, c = 0x3333;
    *q = 0x0102030405060708;
    __asm__ volatile("xaddq %0, (%1)" : "+r"(a) : "r"(q) : "memory");
    __asm__ volatile("xchgl %0, (%1)" : "+r"(b) : "r"(d) : "memory");
    __asm__ volatile("xaddw %0, (%1)" : "+r"(c) : "r"(w) : "memory");
    printf("%d: %lx %lx %x %x", at, *q, a, b, c);
    uint64_t expected = *q, flags;
    __asm__ volatile("cmpxchgq %3, (%2); pushfq; pop %1"
                     : "+a"(expected), "=r"(flags) : "r"(q), "r"(7L) : "memory", "cc");
    printf(" %lx", flags & 0x8d5);
    uint32_t low = 7, high = 0;
    __asm__ volatile("lock cmpxchg8b (%2)"
                     : "+a"(low), "+d"(high) : "r"(q), "b"(5), "c"(6) : "memory", "cc");
    printf(" %lx", *q);
    __asm__ volatile("lock btsl %1, (%0)" : : "r"(d), "r"(45) : "memory", "cc");
    __asm__ volatile("lock negl (%0)" : : "r"(d) : "memory", "cc");
    __asm__ volatile("lock sbbw $5, (%0)" : : "r"(w) : "memory", "cc");
    __asm__ volatile("lock incq (%1); pushfq; pop %0" : "=r"(flags) : "r"(q) : "memory", "cc");
    printf(" %lx %lx\n", *q, flags & 0x8d5);
}

static sigjmp_buf back;

static void fault(int signal, siginfo_t *info, void *context) {
    ucontext_t *now = context;
    printf("signal %d, code %d, error %llx, at %ld\n", signal, info->si_code,
           now->uc_mcontext.gregs[REG_ERR] & 6, info->si_addr ? (char *)info->si_addr - memory : 0);
    siglongjmp(back, 1);
}

int main(void) {
    memory = mmap(0, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int at = 1; at < 8; at += 3) {
        single(at);
        race(at);
    }
    struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, 0);
    mprotect(memory + 2 * PAGE, PAGE, PROT_READ);
    char *protected = memory + 2 * PAGE + 64;
    if (!sigsetjmp(back, 1))
        __asm__ volatile("lock cmpxchgq %0, (%1)" : : "r"(1L), "r"(protected), "a"(9L) : "memory");
    if (!sigsetjmp(back, 1))
        __asm__ volatile("cmpxchgl %0, (%1)" : : "r"(1), "r"(protected), "a"(9) : "memory");
    if (!sigsetjmp(back, 1))
        __asm__ volatile("lock cmpxchgb %b0, (%1)" : : "r"(1), "r"(protected), "a"(9) : "memory");
    if (!sigsetjmp(back, 1))
        __asm__ volatile("lock cmpxchg16b (%0)" : : "r"(protected), "a"(9L), "d"(9L) : "memory");
    if (!sigsetjmp(back, 1))
        __asm__ volatile("lock cmpxchgq %0, (%1)" : : "r"(1L), "r"(protected + 1), "a"(9L) : "memory");
    if (!sigsetjmp(back, 1))
        __asm__ volatile("lock cmpxchg16b (%0)" : : "r"(memory + 8), "a"(9L), "d"(9L) : "memory");
    puts("end");
}
