// Executes each instruction word from standard input once, and writes 1 for those that raise SIGILL, otherwise 0.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static sigjmp_buf back;
static volatile int caught;
static char data[65536] __attribute__((aligned(4096)));

static void catch(int signal, siginfo_t *info, void *context) {
    (void)info, (void)context;
    caught = signal;
    siglongjmp(back, 1);
}

int main(void) {
    uint32_t *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_sigaction = catch, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&stack, NULL);
    int signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGTRAP};
    for (int i = 0; i < 4; i++)
        sigaction(signals[i], &action, NULL);
    uint32_t word;
    while (fread(&word, 4, 1, stdin) == 1) {
        code[0] = word;
        code[1] = 0xd65f03c0; // ret
        __builtin___clear_cache((char *)code, (char *)(code + 2));
        caught = 0;
        if (!sigsetjmp(back, 1))
            __asm__ volatile("mov x5, %1\nmov x3, #16\nblr %0"
                             :
                             : "r"(code), "r"(data + 32768)
                             : "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13",
                               "x14", "x15", "x16", "x17", "x18", "x30", "memory", "cc", "v0", "v1", "v2", "v3", "v4",
                               "v5", "v6", "v7");
        putchar(caught == SIGILL);
    }
    return 0;
}
