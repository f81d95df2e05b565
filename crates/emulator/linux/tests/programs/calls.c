// Asks the kernel for many things and prints what it answered, one test a name: `calls NAME`.
// Everything printed is the same on every Linux with the same system calls, so that a native build is the reference.
// Built with zig 0.17.1: zig cc -target loongarch64-linux-musl -mcpu=generic_la64+d -Os -static -s -fno-sanitize=all -w -o calls calls.c
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static char *self;
static volatile int handled, last_value, last_code, last_signal;
static volatile sigset_t mask_in_handler;

static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)context;
    handled++;
    last_signal = signal;
    last_code = info->si_code;
    last_value = info->si_value.sival_int;
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    memcpy((void *)&mask_in_handler, &mask, sizeof mask);
}

static void handle(int signal, int flags) {
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | flags};
    sigaction(signal, &action, NULL);
}

static const char *name_of(int error) {
    switch (error) {
    case 0: return "ok";
    case EINTR: return "EINTR";
    case EAGAIN: return "EAGAIN";
    case ENOENT: return "ENOENT";
    case EACCES: return "EACCES";
    case ENOEXEC: return "ENOEXEC";
    case EINVAL: return "EINVAL";
    case ECHILD: return "ECHILD";
    case ESRCH: return "ESRCH";
    case EFAULT: return "EFAULT";
    case EPIPE: return "EPIPE";
    case EOWNERDEAD: return "EOWNERDEAD";
    case ETIMEDOUT: return "ETIMEDOUT";
    case EPERM: return "EPERM";
    case ENOMEM: return "ENOMEM";
    case E2BIG: return "E2BIG";
    case ELOOP: return "ELOOP";
    case ECONNREFUSED: return "ECONNREFUSED";
    case EADDRINUSE: return "EADDRINUSE";
    default: return strerror(error);
    }
}
static const char *result(long returned) { return returned < 0 ? name_of(errno) : "ok"; }
static void pause_ms(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&time, &time) < 0 && errno == EINTR) {}
}

static void print_status(const char *what, int status) {
    if (WIFEXITED(status)) printf("%s: exited %d\n", what, WEXITSTATUS(status));
    else if (WIFSIGNALED(status)) printf("%s: killed by %d\n", what, WTERMSIG(status));
    else if (WIFSTOPPED(status)) printf("%s: stopped by %d\n", what, WSTOPSIG(status));
    else if (WIFCONTINUED(status)) printf("%s: continued\n", what);
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int child(void (*body)(void)) {
    fflush(stdout);
    int pid = fork();
    if (pid == 0) { body(); fflush(stdout); _exit(0); }
    return pid;
}

static void run_child(const char *what, void (*body)(void)) {
    int status, pid = child(body);
    int got = waitpid(pid, &status, 0);
    if (got != pid) printf("%s: waitpid gave %s\n", what, result(got));
    else print_status(what, status);
}

#include "parts/processes.h"
#include "parts/threads.h"
#include "parts/signals.h"
#include "parts/events.h"
#include "parts/nonsense.h"

int main(int count, char **arguments) {
    static const struct { const char *name; void (*test)(void); } tests[] = {
        {"fork", test_fork}, {"stop", test_stop}, {"vfork", test_vfork}, {"borrow", test_borrow}, {"spawn", test_spawn}, {"exec", test_exec}, {"exec-self", exec_self},
        {"threads", test_threads}, {"thread-exits", test_thread_exits}, {"interrupt", test_interrupt}, {"masks", test_masks},
        {"storm", test_storm}, {"direction", test_direction}, {"timers", test_timers}, {"sockets", test_sockets},
        {"pidfd", test_pidfd}, {"nonsense", test_nonsense}};
    static char own[4096];
    readlink("/proc/self/exe", own, sizeof own - 1);
    self = own;
    if (count > 1 && strcmp(arguments[1], "show") == 0) { show(count, arguments); return 0; }
    if (count > 1 && strncmp(arguments[1], "show ", 5) == 0) { arguments[2] = "(the script)"; show(count, arguments); return 0; }
    for (unsigned i = 0; i < sizeof tests / sizeof *tests; i++)
        if (count > 1 && strcmp(arguments[1], tests[i].name) == 0) { tests[i].test(); return 0; }
    fprintf(stderr, "calls: name a test\n");
    return 2;
}
