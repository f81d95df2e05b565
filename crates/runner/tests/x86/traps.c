// The trap flag: SIGTRAP after each instruction, with the address of the next one.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

static long addresses[64];
static int codes[64], count, at_itself, in_frame, in_handler, trap;

static void handler(int signal, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    addresses[count] = registers[REG_RIP];
    codes[count++] = info->si_code;
    at_itself += (long)info->si_addr == registers[REG_RIP];
    in_frame += registers[REG_EFL] >> 8 & 1;
    trap = registers[REG_TRAPNO];
    unsigned long flags;
    __asm__ volatile("pushfq\n\tpop %0" : "=r"(flags));
    in_handler += flags >> 8 & 1;
}

static void set_in_frame(int signal, siginfo_t *info, void *context) {
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= 0x100;
}

static void tell(const char *what, long begin) {
    printf("%s:", what);
    for (int at = 0; at < count; at++) printf(" +%ld/%d", addresses[at] - begin, codes[at]);
    printf("; %d at themselves, TF in %d frames and %d handlers, trap %d\n", at_itself, in_frame, in_handler, trap);
    count = at_itself = in_frame = in_handler = 0;
}

// Executes code between setting and clearing the trap flag.
#define STEP(what, code)                                                                                         \
    do {                                                                                                         \
        long begin;                                                                                              \
        char from[64] = "text", to[64];                                                                          \
        __asm__ volatile("lea 1f(%%rip), %%rbx\n\tmov $3, %%ecx\n\tmov %1, %%rsi\n\tmov %2, %%rdi\n\tmov $39, %%eax\n\t" \
                         "pushfq\n\torq $0x100, (%%rsp)\n\tpopfq\n"                                              \
                         "1: " code "\n\tpushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq\n\tnop\n\tmov %%rbx, %0"       \
                         : "=r"(begin)                                                                          \
                         : "r"(from), "r"(to)                                                                   \
                         : "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r11", "cc", "memory");                     \
        tell(what, begin);                                                                                       \
    } while (0)

static void handle(int signal, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(signal, &action, NULL);
}

int main(void) {
    handle(SIGTRAP, handler);
    handle(SIGUSR1, set_in_frame);
    for (int round = 0; round < 3; round++) {
        STEP("loop", "2: dec %%ecx\n\tjnz 2b");
        STEP("comparison and branch", "cmp $3, %%ecx\n\tje 2f\n\tud2\n2: cmove %%ecx, %%eax");
        STEP("repeated", "rep movsb\n\tnop");
        STEP("system call", "nop\n\tsyscall\n\tnop\n\tnop");
        STEP("cpuid", "push %%rbx\n\tcpuid\n\tpop %%rbx");
        STEP("call", "call 3f\n\tjmp 4f\n3: ret\n4:");
        STEP("int3", "int3\n\tnop");
        STEP("pushf", "pushfq\n\tpop %%rax\n\tbt $8, %%eax\n\tjc 2f\n\tud2\n2:");
    }
    long begin;
    // A handler sets the flag in its frame.
    __asm__ volatile("lea 1f(%%rip), %%rbx\n\tmov $39, %%eax\n\tsyscall\n\tmov %%eax, %%edi\n\tmov $10, %%esi\n\tmov $62, %%eax\n\tsyscall\n"
                     "1: nop\n\tnop\n\tpushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq\n\tnop\n\tmov %%rbx, %0"
                     : "=r"(begin)
                     :
                     : "rax", "rbx", "rdi", "rsi", "rcx", "r11", "cc", "memory");
    tell("set by a handler", begin);
}
