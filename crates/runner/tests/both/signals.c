// Asynchronous signals: interrupted system calls, alternate stacks, SIGCHLD, and many signals at arbitrary instructions.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int alarms, first, second, order, code, status;
static char stack[65536];

static void on_alarm(int signal) {
    (void)signal;
    alarms++;
}
static void on_first(int signal) {
    (void)signal;
    first = ++order;
}
static void on_second(int signal) {
    (void)signal;
    second = ++order;
}
static void on_child(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    code = info->si_code;
    status = info->si_status;
}
static void on_stack(int signal, siginfo_t *info, void *context) {
    (void)context;
    char *here = (char *)&signal;
    volatile double sum = order * 1.5;
    code = info->si_code == SI_TKILL && here >= stack && here < stack + sizeof stack;
    order += sum > 1e9;
}

static void handle(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(signal, &action, NULL);
}
static void handle_with(int signal, void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = flags | SA_SIGINFO};
    sigaction(signal, &action, NULL);
}
static void ring(long microseconds, long again) {
    struct itimerval timer = {{0, again}, {0, microseconds}};
    setitimer(ITIMER_REAL, &timer, NULL);
}
static int child(void (*act)(void)) {
    int id = fork();
    if (id == 0) {
        act();
        _exit(9);
    }
    return id;
}
static int pipes[2];
static void write_later(void) {
    usleep(300000);
    if (write(pipes[1], "abc", 3) != 3) _exit(1);
}
static void wait_for_ever(void) {
    for (;;) pause();
}
static void nothing(void) {}
static void signal_parent(void) {
    usleep(50000);
    kill(getppid(), SIGUSR2);
}

static void interrupted_calls(void) {
    char bytes[8];
    if (pipe(pipes)) exit(1);
    handle(SIGALRM, on_alarm, 0);
    ring(100000, 0);
    long got = read(pipes[0], bytes, 8);
    printf("a read ends: %ld, EINTR %d, alarms %d\n", got, errno == EINTR, alarms);
    handle(SIGALRM, on_alarm, SA_RESTART);
    ring(100000, 0);
    int id = child(write_later);
    got = read(pipes[0], bytes, 8);
    printf("a read goes on: %ld %.3s, alarms %d\n", got, bytes, alarms);
    waitpid(id, NULL, 0);
    handle(SIGUSR2, on_second, 0);
    id = child(signal_parent);
    got = poll(NULL, 0, 5000);
    printf("a poll ends: %ld, EINTR %d\n", got, errno == EINTR);
    waitpid(id, NULL, 0);
    id = child(signal_parent);
    struct timespec time = {5, 0}, rest;
    got = nanosleep(&time, &rest);
    printf("a sleep ends: %ld, EINTR %d, %d\n", got, errno == EINTR, rest.tv_sec >= 4);
    waitpid(id, NULL, 0);
}

static void masks(void) {
    sigset_t both, former, pending;
    sigemptyset(&both);
    sigaddset(&both, SIGUSR1);
    sigaddset(&both, SIGUSR2);
    handle(SIGUSR1, on_first, 0);
    order = first = second = 0;
    sigprocmask(SIG_BLOCK, &both, &former);
    kill(getpid(), SIGUSR1);
    kill(getpid(), SIGUSR2);
    sigpending(&pending);
    printf("pending: %d %d\n", sigismember(&pending, SIGUSR1), sigismember(&pending, SIGUSR2));
    sigprocmask(SIG_SETMASK, &former, NULL);
    printf("both: %d, not before: %d\n", first + second, order);
    sigset_t wait, alarm;
    sigfillset(&wait);
    sigdelset(&wait, SIGALRM);
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarm, &former);
    alarms = 0;
    ring(50000, 0);
    int got = sigsuspend(&wait);
    printf("suspended: %d, EINTR %d, alarms %d\n", got, errno == EINTR, alarms);
    sigprocmask(SIG_SETMASK, &former, NULL);
    sigset_t set;
    siginfo_t info;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 3);
    sigprocmask(SIG_BLOCK, &set, NULL);
    sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 77});
    struct timespec second_of_time = {1, 0};
    got = sigtimedwait(&set, &info, &second_of_time);
    printf("queued: %d, %d, SI_QUEUE %d\n", got == SIGRTMIN + 3, info.si_value.sival_int, info.si_code == SI_QUEUE);
}

static void children(void) {
    siginfo_t info;
    handle_with(SIGCHLD, on_child, SA_RESTART);
    int id = child(nothing);
    waitid(P_PID, id, &info, WEXITED);
    printf("exited: %d %d %d\n", info.si_signo == SIGCHLD, info.si_code == CLD_EXITED, info.si_status);
    id = child(wait_for_ever);
    usleep(50000);
    kill(id, SIGUSR1);
    kill(id, SIGTERM);
    waitid(P_PID, id, &info, WEXITED);
    printf("killed: %d %d\n", info.si_code == CLD_KILLED, info.si_status == SIGTERM);
    printf("told: %d %d\n", code == CLD_KILLED, status == SIGTERM);
    id = child(wait_for_ever);
    int state;
    kill(id, SIGSTOP);
    waitpid(id, &state, WUNTRACED);
    printf("stopped: %d\n", WIFSTOPPED(state) && WSTOPSIG(state) == SIGSTOP);
    kill(id, SIGCONT);
    waitpid(id, &state, WCONTINUED);
    printf("continued: %d\n", WIFCONTINUED(state));
    kill(id, SIGKILL);
    waitpid(id, &state, 0);
    printf("ended: %d\n", WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    interrupted_calls();
    masks();
    stack_t own = {.ss_sp = stack, .ss_size = sizeof stack}, found;
    sigaltstack(&own, NULL);
    handle_with(SIGUSR1, on_stack, SA_ONSTACK);
    raise(SIGUSR1);
    sigaltstack(NULL, &found);
    printf("on its stack: %d, %d\n", code, found.ss_sp == stack && found.ss_size == sizeof stack);
    children();
    alarms = 0;
    handle(SIGALRM, on_alarm, SA_RESTART);
    ring(1000, 1000);
    unsigned hash = 0;
    double sum = 0;
    for (long i = 0; i < 3000000 || alarms < 20; i++) {
        if (i >= 3000000) continue;
        hash = hash * 31 + i * 7 / 3;
        sum = sum * 0.5 + i % 7;
    }
    ring(0, 0);
    printf("between: %u %.6f\n", hash, sum);
    return 7;
}
