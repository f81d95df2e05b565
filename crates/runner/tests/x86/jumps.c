// Jumps that programs rarely make: to addresses that no processor can execute, returns to pushed addresses with flags, and traps after
// instructions without an effect.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <ucontext.h>

static sigjmp_buf back;
static volatile greg_t registers[NGREG];
static void *volatile where;
static volatile int caught, code;

static void leave(int signal, siginfo_t *info, void *context) {
    for (int i = 0; i < NGREG; i++) registers[i] = ((ucontext_t *)context)->uc_mcontext.gregs[i];
    caught = signal, code = info->si_code, where = info->si_addr;
    siglongjmp(back, 1);
}

// Executes code at the local label 1, often enough to be translated, with `value` in RAX. Then with `last`.
#define JUMP(what, text, value, last)                                                                                                     \
    do {                                                                                                                                  \
        static volatile long at, stack;                                                                                                   \
        caught = 0;                                                                                                                       \
        for (volatile int i = 0; i <= times; i++) {                                                                                       \
            unsigned long to = i == times ? (last) : (unsigned long)(value);                                                              \
            if (!sigsetjmp(back, 1))                                                                                                      \
                __asm__ volatile("lea 1f(%%rip), %%rbx\n\tmov %%rbx, %0\n\tmov %%rsp, %1\n\ttest %2, %2\n\tjnz 8f\n\tlea 9f(%%rip), %2\n" \
                                 "8: " text "\n9:\n\tmov %1, %%rsp"                                                                       \
                                 : "=m"(at), "=m"(stack), "+a"(to)                                                                        \
                                 :                                                                                                        \
                                 : "rbx", "rcx", "memory", "cc");                                                                         \
        }                                                                                                                                 \
        printf("%s: signal %d, code %d, at +%ld, stack %+ld, trap %ld, error %lx, address %p\n", what, caught, code,                      \
               (long)registers[REG_RIP] - at, (long)registers[REG_RSP] - stack, (long)registers[REG_TRAPNO],                              \
               (long)registers[REG_ERR], code == ILL_ILLOPN ? NULL : where);                                                              \
    } while (0)

static void jumps(int times) {
    const unsigned long far = 1ul << 61;
    JUMP("jmp", "1: jmp *%%rax", 0, far);
    JUMP("jmp to memory", "push %%rax\n1: jmp *(%%rsp)", 0, 1ul << 47);
    JUMP("call", "1: call *%%rax", 0, far | 5);
    JUMP("ret", "push %%rax\n1: ret", 0, 0xffff000000000000);
    JUMP("ret 24", "push %%rax\n1: ret $24", 0, 0x7fff800000000000);
    JUMP("ud2", "cmp %%rax, %%rbx\n1: pause\n\tnop\n\tnopl 5(%%rax)\n\tud2", far, far);
    JUMP("hlt", "1: nop\n\tlea (%%rax), %%rcx\n\thlt", far, far);
}

// A return as a jump, to code that reads flags.
long compared(long a, long b);
long compared_across(long a, long b);
__asm__(".text; compared: lea 1f(%rip), %rax; push %rax; cmp %rsi, %rdi; mov $0, %eax; ret\n"
        "1: setb %al; mov $0, %ecx; setl %cl; lea (%rax, %rcx, 2), %rax; ret\n"
        "compared_across: cmp %rsi, %rdi; lea 1b(%rip), %rax; jbe 2f; jmp 2f\n"
        "2: push $0; mov %rax, (%rsp); mov $0, %eax; ret\n");

int main(void) {
    struct sigaction action = {.sa_sigaction = leave, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGILL, &action, NULL);
    setvbuf(stdout, NULL, _IONBF, 0);
    jumps(0);
    jumps(300);
    long sums[2] = {0, 0};
    for (long i = -5000; i < 5000; i++) sums[0] += compared(i, 100) * i, sums[1] += compared_across(i, -100) * i;
    printf("flags after returns: %ld %ld\n", sums[0], sums[1]);
    return 0;
}
