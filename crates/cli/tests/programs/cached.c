// Prints results computed with VALUE: by its own functions, by generated code, with a signal handler active, and in a child.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int signals;

static void handle(int signal) {
    signals += signal == SIGALRM;
}

__attribute__((noinline)) static long mix(long sum, long n) {
    if (n % 3 == 0)
        return sum * 31 + VALUE;
    return n % 5 == 0 ? sum ^ n << 7 : sum + n;
}

// Writes a function that returns a number over the previous one.
static long made(long number) {
#ifdef __x86_64__
    static unsigned char *code;
    if (!code)
        code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char bytes[] = {0xb8, number, number >> 8, 0, 0, 0xc3};
    memcpy(code, bytes, sizeof bytes);
    return ((long (*)(void))code)();
#else
    return number;
#endif
}

int main(void) {
    signal(SIGALRM, handle);
    long sum = 1;
    for (long n = 0; n < 100000; n++) {
        sum = mix(sum, n);
        if (n % 1000 == 0)
            sum += made(VALUE + n % 7);
        if (n == 50000)
            raise(SIGALRM);
    }
    fflush(stdout);
    int status = 0;
    if (fork() == 0)
        _exit(mix(VALUE, 2));
    wait(&status);
    printf("value %d, sum %ld, signals %d, child %d\n", VALUE, sum, signals, WEXITSTATUS(status));
    return 0;
}
