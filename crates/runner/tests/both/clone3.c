// Processes and threads made by clone3: identifiers, exit status, thread pointer, stack and handlers. Source: clone(2).
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct arguments { uint64_t flags, pidfd, child_tid, parent_tid, signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup; };

static uint64_t area[64];
static __thread int own = 3;

static void *thread(void *unused) {
    own += 4;
    return (void *)(intptr_t)own;
}

__attribute__((noinline, optimize("no-stack-protector"))) static int with_thread_pointer(struct arguments *arguments) {
    long pid = syscall(435, arguments, sizeof *arguments);
    if (pid == 0) {
        uint64_t pointer;
#if defined(__x86_64__)
        __asm__("movq %%fs:0, %0" : "=r"(pointer));
        __asm__ volatile("syscall" ::"a"(231L), "D"(pointer == area[0] ? 5L : 6L) : "rcx", "r11");
#else
        __asm__("mrs %0, tpidr_el0" : "=r"(pointer));
        register long number __asm__("x8") = 94, status __asm__("x0") = pointer == area[0] ? 5 : 6;
        __asm__ volatile("svc 0" ::"r"(number), "r"(status));
#endif
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

static void ignored(int signal) {}

int main(void) {
    int descriptor = -1, parent_tid = 0, status = -1;
    struct arguments arguments = {.flags = CLONE_PIDFD | CLONE_PARENT_SETTID, .pidfd = (uintptr_t)&descriptor,
                                  .parent_tid = (uintptr_t)&parent_tid, .signal = SIGCHLD};
    long pid = syscall(435, &arguments, sizeof arguments);
    if (pid == 0) _exit(9);
    struct pollfd poller = {descriptor, POLLIN, 0};
    printf("ended: %d\n", poll(&poller, 1, 10000));
    printf("the same: %d\n", waitpid(pid, &status, 0) == pid && pid == parent_tid);
    printf("status %d\n", WEXITSTATUS(status));

    area[0] = (uintptr_t)area;
    struct arguments with_pointer = {.flags = CLONE_SETTLS, .signal = SIGCHLD, .tls = (uintptr_t)area};
    printf("thread pointer: %d\n", WEXITSTATUS(with_thread_pointer(&with_pointer)));

    signal(SIGUSR1, ignored);
    struct arguments clears = {.flags = 0x100000000 /* CLONE_CLEAR_SIGHAND */, .signal = SIGCHLD};
    pid = syscall(435, &clears, sizeof clears);
    if (pid == 0) {
        struct sigaction action;
        sigaction(SIGUSR1, NULL, &action);
        _exit(action.sa_handler == SIG_DFL);
    }
    waitpid(pid, &status, 0);
    printf("handlers cleared: %d\n", WEXITSTATUS(status));

    pthread_t one;
    void *result;
    pthread_create(&one, NULL, thread, NULL);
    pthread_join(one, &result);
    printf("thread: %d, here %d\n", (int)(intptr_t)result, own);

    pid_t spawned;
    char *words[] = {"sh", "-c", "exit 8", NULL}, *environment[] = {NULL};
    printf("spawn: %d", posix_spawn(&spawned, "/bin/sh", NULL, NULL, words, environment));
    waitpid(spawned, &status, 0);
    printf(", status %d\n", WEXITSTATUS(status));

    long result_of_short = syscall(435, &arguments, 8);
    printf("too short: %ld %s\n", result_of_short, strerror(errno));
    long result_of_none = syscall(435, 16, sizeof arguments);
    printf("no structure: %ld %s\n", result_of_none, strerror(errno));
    return 0;
}
