// Synchronous signals: handlers read and change registers. The last signal kills the program.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static sigjmp_buf back;
static volatile int caught, code;
static void *volatile where;

static void leave(int signal, siginfo_t *info, void *context) {
    (void)context;
    caught = signal;
    code = info->si_code;
    where = info->si_addr;
    siglongjmp(back, 1);
}

static void go_on(int signal, siginfo_t *info, void *context) {
    (void)info;
    ucontext_t *registers = context;
    caught = signal;
    registers->uc_mcontext.pc += 4;
    registers->uc_mcontext.gregs[2] = 4711;
}

static void handle(int signal, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(signal, &action, NULL);
}

// MIPS has 128 signals; programs that handle all of them query each one.
static void beyond(void) {
    unsigned char action[32] = {0}, old[32];
    memset(old, 7, sizeof old);
    long asked = syscall(SYS_rt_sigaction, 128, NULL, old, 16), set = syscall(SYS_rt_sigaction, 65, action, NULL, 16);
    // QEMU does not write the structure's padding.
    int is_zero = old[0] == 0 && old[8] == 0 && old[16] == 0;
    printf("signals beyond 64: %ld %ld %d %ld\n", asked, set, is_zero, syscall(SYS_rt_sigaction, 129, NULL, old, 16));
}

// Additions that trap on overflow must leave their destination unchanged.
static void sums(void) {
#define SUM(from, constant)                                                                                              \
    do {                                                                                                                 \
        volatile long to = 5;                                                                                            \
        if (!sigsetjmp(back, 1)) {                                                                                       \
            long sum;                                                                                                    \
            __asm__ volatile(".set noat\n\tdaddi %0, %1, " #constant "\n\t.set at" : "=&r"(sum) : "r"((long)(from)));    \
            to = sum;                                                                                                    \
        }                                                                                                                \
        long same = (long)(from);                                                                                        \
        if (!sigsetjmp(back, 1)) __asm__ volatile("daddi %0, %0, " #constant : "+r"(same));                              \
        printf(" %ld %ld %d", to, same, caught == SIGFPE && code == FPE_INTOVF);                                         \
        caught = 0;                                                                                                      \
    } while (0)
    printf("sums:");
    SUM(40, 2);
    SUM(40, -41);
    SUM(0x7fffffffffffffff, 1);
    SUM(0x7ffffffffffffffe, 1);
    SUM(0x8000000000000000, -1);
    SUM(0x8000000000000000, 2047);
    SUM(0x7fffffffffffffff, 30000);
    puts("");
}

int main(void) {
    beyond();
    setvbuf(stdout, NULL, _IONBF, 0);
    handle(SIGSEGV, leave);
    handle(SIGFPE, leave);
    sums();
    if (!sigsetjmp(back, 1)) *(volatile int *)0x123450 = 1;
    printf("a store: %d at %p\n", caught == SIGSEGV && code == SEGV_MAPERR, where);
    caught = 0;
    if (!sigsetjmp(back, 1)) ((void (*volatile)(void))0x7654320)();
    printf("a call: %d at %p\n", caught == SIGSEGV, where);
    caught = 0;
    void (*volatile nowhere)(void) = NULL;
    if (!sigsetjmp(back, 1)) nowhere();
    printf("a call of null: %d at %p\n", caught == SIGSEGV, where);
    caught = 0;
    volatile int zero = 0, five = 5;
    if (!sigsetjmp(back, 1)) five /= zero;
    printf("a division by zero: %d\n", caught == SIGFPE && code == FPE_INTDIV);
    caught = 0;
    if (!sigsetjmp(back, 1)) __asm__ volatile("li $8, 0x7fffffff\n\taddi $8, $8, 1" : : : "$8");
    printf("an overflow: %d\n", caught == SIGFPE && code == FPE_INTOVF);
    handle(SIGILL, go_on);
    handle(SIGTRAP, go_on);
    register long result __asm__("$2") = 1;
    __asm__ volatile(".word 0x0000000e\n\tnop" : "+r"(result));
    long seen = result;
    printf("no instruction: %d, then %ld\n", caught == SIGILL, seen);
    __asm__ volatile("break 12\n\tnop" : "+r"(result));
    seen = result;
    printf("a breakpoint: %d, then %ld\n", caught == SIGTRAP, seen);
    signal(SIGSEGV, SIG_DFL);
    *(volatile int *)8 = 1;
    return 0;
}
