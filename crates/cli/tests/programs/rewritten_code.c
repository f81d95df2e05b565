// Several threads rewrite code in a loop, while others wait in system calls, loop without calls, start and end, and receive signals;
// so does a forked child. Prints the results of the code, which the program can predict.
// tests/code_changes tests how code changes are detected.
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ADDITIONS = 1500, BYTES = 1 << 15 };
static int rounds, ends[2];
static volatile sig_atomic_t is_over, signals;
static volatile uint64_t loops;

static void on_alarm(int signal) { signals++; }

// Writes a function that adds numbers to its argument; returns their sum.
static uint64_t write_function(unsigned char *at, unsigned seed) {
    unsigned char *begin = at;
    uint64_t sum = 0;
#if defined(__x86_64__)
    memcpy(at, "\x48\x89\xf8", 3), at += 3; // mov rax, rdi
#endif
    for (unsigned i = 0; i < ADDITIONS; i++) {
        uint32_t number = (seed * 2654435761u + i * 40503u) >> 21;
        sum += number;
#if defined(__x86_64__)
        memcpy(at, "\x48\x05", 2), memcpy(at + 2, &number, 4), at += 6; // add rax, number
#elif defined(__aarch64__)
        uint32_t word = 0x91000000 | number << 10; // add x0, x0, number
        memcpy(at, &word, 4), at += 4;
#else
        uint32_t word = 0x64840000 | number; // daddiu a0, a0, number
        memcpy(at, &word, 4), at += 4;
#endif
    }
#if defined(__x86_64__)
    *at++ = 0xc3;
#elif defined(__aarch64__)
    memcpy(at, "\xc0\x03\x5f\xd6", 4), at += 4; // ret
#else
    memcpy(at, "\x08\x00\xe0\x03\x25\x10\x80\x00", 8), at += 8; // jr ra; move v0, a0
#endif
    __builtin___clear_cache((char *)begin, (char *)at);
    return sum;
}

static void *rewrite(void *argument) {
    unsigned seed = (uintptr_t)argument;
    unsigned char *code =
        mmap(NULL, BYTES, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t sum = 0, expected = 0;
    for (int round = 0; round < rounds; round++) {
        expected += write_function(code, seed + round);
        sum = ((uint64_t(*)(uint64_t))code)(sum);
        if (sum != expected) {
            printf("round %d of %u: %llu, not %llu\n", round, seed, (unsigned long long)sum, (unsigned long long)expected);
            exit(1);
        }
    }
    munmap(code, BYTES);
    return (void *)(uintptr_t)sum;
}

static void *wait_for_end(void *argument) {
    char byte = 0;
    while (read(ends[0], &byte, 1) < 0)
        ;
    return (void *)(uintptr_t)byte;
}

static void *loop(void *argument) {
    while (!is_over)
        loops++;
    return NULL;
}

static void *nothing(void *argument) { return argument; }

static uint64_t joined(pthread_t thread) {
    void *result;
    pthread_join(thread, &result);
    return (uintptr_t)result;
}

int main(int count, char **arguments) {
    rounds = atoi(arguments[1]);
    pipe(ends);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval each = {{0, 2000}, {0, 2000}};
    setitimer(ITIMER_REAL, &each, NULL);
    pthread_t waiting, looping, first, second, brief;
    pthread_create(&waiting, NULL, wait_for_end, NULL);
    pthread_create(&looping, NULL, loop, NULL);
    pthread_create(&first, NULL, rewrite, (void *)1);
    pthread_create(&second, NULL, rewrite, (void *)100000);
    uint64_t others = 0;
    for (uintptr_t i = 0; i < 40; i++) {
        pthread_create(&brief, NULL, nothing, (void *)i);
        others += joined(brief);
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        printf("child %llu\n", (unsigned long long)(uintptr_t)rewrite((void *)7));
        fflush(stdout);
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        ;
    printf("%llu %llu %llu, child %d\n", (unsigned long long)joined(first), (unsigned long long)joined(second),
           (unsigned long long)others, status);
    is_over = 1;
    joined(looping);
    write(ends[1], "!", 1);
    printf("%c, looped %d, signals %d\n", (int)joined(waiting), loops > 0, signals > 0);
    return 0;
}
