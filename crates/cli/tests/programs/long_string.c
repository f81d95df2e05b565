// Long repeated string instructions are interrupted by signals and resume where they stopped.
// Source: Intel SDM, volume 2 (REP: "an interrupt can be serviced").
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

enum { BYTES = 1 << 23 };
static volatile int in_middle;

static void on_alarm(int signal, siginfo_t *info, void *context) {
    const mcontext_t *was = &((ucontext_t *)context)->uc_mcontext;
    const unsigned char *code = (const unsigned char *)was->gregs[REG_RIP];
    // At the instruction, with fewer bytes left than at its start.
    if (code[0] == 0xf3 && code[1] == 0xa4 && was->gregs[REG_RCX] > 0 && was->gregs[REG_RCX] < BYTES)
        in_middle = 1;
}

int main(void) {
    size_t bytes = BYTES;
    unsigned char *from = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *to = from + bytes;
    for (size_t i = 0; i < bytes; i++)
        from[i] = i * 7 + (i >> 11);
    sigaction(SIGALRM, &(struct sigaction){.sa_sigaction = on_alarm, .sa_flags = SA_SIGINFO | SA_RESTART}, NULL);
    // Backwards, which processors do not optimize.
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 1000}, {0, 1000}}, NULL);
    unsigned char *source = from + bytes - 1, *target = to + bytes - 1;
    size_t left = bytes;
    asm volatile("std; rep movsb; cld" : "+S"(source), "+D"(target), "+c"(left)::"memory", "cc");
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    printf("left %zu, in its middle %d, moved %td %td\n", left, in_middle, source - from, target - to);
    // Both are equal except for a byte near the end.
    to[bytes - 9] ^= 1;
    source = from, target = to, left = bytes;
    unsigned char differs;
    asm volatile("repe cmpsb; setne %0" : "=q"(differs), "+S"(source), "+D"(target), "+c"(left)::"memory", "cc");
    printf("left %zu, differs %d, at %td %td\n", left, differs, source - from, target - to);
    return 0;
}
