// Threads: locks, condition variables, thread-local variables; then combined with signals, forks and self-modifying code.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, ROUNDS = 20000 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_there = PTHREAD_COND_INITIALIZER;
static long counter;
static int there;
static atomic_long atomic_counter;
static _Thread_local long own = 5;
static volatile long signals;

static void *count(void *argument) {
    long number = (long)argument;
    own += number;
    pthread_mutex_lock(&lock);
    there++;
    pthread_cond_broadcast(&all_there);
    while (there < THREADS) pthread_cond_wait(&all_there, &lock);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&lock);
        counter++;
        pthread_mutex_unlock(&lock);
        atomic_counter++;
    }
    free(malloc(100 * number + 1));
    return (void *)own;
}

static void on_alarm(int signal) {
    (void)signal;
    signals++;
}

static uint64_t mix(uint64_t x) {
    for (int i = 0; i < 200; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        x ^= x >> ((x >> 59) + 5);
        x += x % 1000003;
    }
    return x;
}

static void *compute(void *argument) {
    uint64_t x = (long)argument;
    for (int i = 0; i < 2000; i++) x = mix(x);
    return (void *)x;
}

// Writes a function that returns `value`, and synchronizes the instruction cache where necessary.
static void write_function(void *code, int value) {
#if defined(__x86_64__)
    unsigned char *bytes = code;
    bytes[0] = 0xb8;
    memcpy(bytes + 1, &value, 4);
    bytes[5] = 0xc3;
#elif defined(__aarch64__)
    uint32_t *words = code;
    words[0] = 0x52800000 | value << 5;
    words[1] = 0xd65f03c0;
    __builtin___clear_cache((char *)words, (char *)(words + 2));
#else
    uint32_t *words = code;
    words[0] = 0x03e00008;
    words[1] = 0x24020000 | value;
    syscall(SYS_cacheflush, words, 8, 3);
#endif
}

static void *generate(void *argument) {
    (void)argument;
    const int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    void *code = mmap(NULL, 65536, all, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long sum = 0;
    for (int i = 0; i < 300; i++) {
        write_function(code, i);
        sum += ((int (*)(void))code)();
        if (i % 50 == 49) {
            munmap(code, 65536);
            code = mmap(code, 65536, all, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            if (code == MAP_FAILED) code = mmap(NULL, 65536, all, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        }
    }
    return (void *)sum;
}

static void *fork_often(void *argument) {
    (void)argument;
    long sum = 0;
    for (int i = 0; i < 10; i++) {
        int state, child = fork();
        if (child == 0) _exit(mix(i) & 63);
        while (waitpid(child, &state, 0) < 0) {}
        sum += WEXITSTATUS(state);
    }
    return (void *)sum;
}

int main(void) {
    pthread_t threads[THREADS];
    for (int round = 0; round < 3; round++) {
        long sum = 0;
        there = 0;
        for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, count, (void *)i);
        for (int i = 0; i < THREADS; i++) {
            void *result;
            pthread_join(threads[i], &result);
            sum += (long)result;
        }
        printf("%ld %ld %ld\n", counter, sum, (long)atomic_counter);
    }
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {{0, 700}, {0, 700}};
    setitimer(ITIMER_REAL, &timer, NULL);
    void *(*act[])(void *) = {compute, compute, generate, generate, fork_often, compute};
    for (long i = 0; i < 6; i++) pthread_create(&threads[i], NULL, act[i], (void *)i);
    for (int i = 0; i < 6; i++) {
        void *result;
        pthread_join(threads[i], &result);
        printf("%d: %lx\n", i, (long)result);
    }
    // A fast machine may finish before the signals arrive.
    while (signals <= 10) usleep(700);
    printf("signals: %d\n", signals > 10);
    return 0;
}
