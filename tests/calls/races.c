// No signal is lost that arrives when a call begins to wait for it, when a thread ends, or during execve.
// Levels: translated interpreted (the other levels send signals in the same way)
// Source: sigsuspend(2), ppoll(2), pselect(2), epoll_pwait(2), signal(7) (queued signals, restarted calls), execve(2), pthread_exit(3).
#include "say.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>

enum { ROUNDS = 1500, TIMEOUT_MS = 10000 };

static int here[2], there[2];
static volatile sig_atomic_t calls;
static sigset_t nothing;
static void note(int signal) { calls++; }
static void echo(int signal) { write(there[1], "x", 1); }

static void handle(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(signal, &action, NULL);
}

static void block(int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

static void suspended(void) { sigsuspend(&nothing); }
static void polled(void) { ppoll(NULL, 0, NULL, &nothing); }
static void selected(void) { pselect(0, NULL, NULL, NULL, NULL, &nothing); }
static void awaited(void) {
    static int set = -1;
    struct epoll_event event;
    if (set < 0) set = epoll_create1(0);
    epoll_pwait(set, &event, 1, -1, &nothing);
}

// A child that blocks the signal except while it waits, and answers each signal with a byte.
static void (*wait_for_one)(void);
static void waits(void) {
    for (;;) {
        wait_for_one();
        while (calls > 0) calls--, write(there[1], "x", 1);
    }
}

// A child that reads what its handler writes. The read restarts after the handler.
static void reads(void) {
    char byte;
    handle(SIGUSR1, echo, SA_RESTART);
    sigprocmask(SIG_SETMASK, &nothing, NULL);
    for (;;) read(here[0], &byte, 1);
}

// A child that sleeps briefly and then answers the signals counted by its handler.
static void sleeps(void) {
    sigprocmask(SIG_SETMASK, &nothing, NULL);
    for (;;) {
        struct timespec little = {0, 50000};
        nanosleep(&little, NULL);
        while (calls > 0) calls--, write(there[1], "x", 1);
    }
}

// A child whose call with a temporary mask ends because the child is stopped and continued. The mask must be restored.
static int stopped_in_between(void) {
    int missing = 0;
    for (int i = 0; i < 10; i++) {
        int status;
        char byte = 0;
        pipe(there);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            struct epoll_event event;
            struct timespec timeout = {3, 0};
            sigset_t without;
            handle(SIGUSR1, note, 0);
            sigemptyset(&without);
            sigaddset(&without, SIGUSR1);
            sigprocmask(SIG_SETMASK, &nothing, NULL);
            calls = 0;
            epoll_pwait(epoll_create1(0), &event, 1, 5000, &without);
            write(there[1], "x", 1);
            while (calls == 0 && nanosleep(&timeout, &timeout) == 0) break;
            _exit(calls == 0);
        }
        usleep(20000);
        kill(child, SIGSTOP);
        waitpid(child, &status, WUNTRACED);
        kill(child, SIGCONT);
        read(there[0], &byte, 1);
        kill(child, SIGUSR1);
        waitpid(child, &status, 0);
        missing += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        close(there[0]), close(there[1]);
    }
    return missing;
}

// The number of signals that a child did not answer.
static int lost(void (*child)(void)) {
    int missing = 0;
    pipe(here);
    pipe(there);
    block(SIGUSR1);
    handle(SIGUSR1, note, 0);
    calls = 0;
    fflush(stdout);
    pid_t other = fork();
    if (other == 0) child();
    for (int i = 0; i < ROUNDS && missing == 0; i++) {
        struct pollfd answer = {.fd = there[0], .events = POLLIN};
        char byte;
        kill(other, SIGUSR1);
        missing += poll(&answer, 1, TIMEOUT_MS) != 1 || read(there[0], &byte, 1) != 1;
    }
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    for (int i = 0; i < 2; i++) close(here[i]), close(there[i]);
    return missing;
}

// Three queued signals, whose handlers interrupt each other.
enum { QUEUED = 3000 };
static volatile int counts[3], disorder;
static void count(int signal, siginfo_t *info, void *context) {
    int kind = signal - SIGRTMIN;
    disorder += info->si_value.sival_int != counts[kind];
    counts[kind]++;
}

static void queues(void) {
    pid_t target = getppid();
    for (int i = 0; i < QUEUED; i++)
        for (int kind = 0; kind < 3; kind++)
            while (sigqueue(target, SIGRTMIN + kind, (union sigval){.sival_int = i}) != 0 && errno == EAGAIN) usleep(100);
    _exit(0);
}

static void queued(void) {
    struct sigaction action = {.sa_sigaction = count, .sa_flags = SA_SIGINFO | SA_RESTART};
    for (int kind = 0; kind < 3; kind++) sigaction(SIGRTMIN + kind, &action, NULL);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) queues();
    int status;
    // Calls that change the mask, and calls without effect.
    while (waitpid(child, &status, WNOHANG) == 0) sigprocmask(SIG_SETMASK, &nothing, NULL), raise(0), getppid();
    usleep(50000);
    for (int kind = 0; kind < 3; kind++) SAY(counts[kind]);
    SAY(disorder);
}

// A signal to the process is handled by a thread that is about to end, or by the thread that waits for it.
static void *ends(void *unused) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    return NULL;
}

static void ending(void) {
    char byte;
    int missing = 0;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    block(SIGUSR1);
    handle(SIGUSR1, note, 0);
    pipe(here);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        while (read(here[0], &byte, 1) == 1) kill(getppid(), SIGUSR1);
        _exit(0);
    }
    for (int i = 0; i < ROUNDS && missing == 0; i++) {
        pthread_t thread;
        struct timespec timeout = {TIMEOUT_MS / 1000, 0};
        int before = calls;
        write(here[1], "x", 1);
        for (int n = 0; n < 3; n++) pthread_create(&thread, NULL, ends, NULL), pthread_join(thread, NULL);
        if (calls == before) missing += sigtimedwait(&set, NULL, &timeout) != SIGUSR1;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    SAY(missing);
}

// A signal sent during execve: the old program handles it, or it kills the new one.
static void leave(int signal) { _exit(7); }

static void executing(char *path) {
    int wrong = 0, handled = 0, killed = 0;
    for (int i = 0; i < 150 && wrong == 0; i++) {
        handle(SIGTERM, leave, 0);
        pipe(there);
        pid_t child = fork();
        if (child == 0) {
            write(there[1], "x", 1);
            execl(path, path, "new", NULL);
            _exit(1);
        }
        char byte;
        read(there[0], &byte, 1);
        for (struct timespec delay = {0, i * 40000L % 6000000}; nanosleep(&delay, &delay) != 0;) {}
        kill(child, SIGTERM);
        int status, ended = 0;
        for (int n = 0; n < TIMEOUT_MS && ended == 0; n++) ended = waitpid(child, &status, WNOHANG), ended == 0 && usleep(1000);
        if (ended == 0) kill(child, SIGKILL), waitpid(child, &status, 0), wrong = 1000;
        else if (WIFEXITED(status) && WEXITSTATUS(status) == 7) handled++;
        else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) killed++;
        else wrong = status;
        close(there[0]), close(there[1]);
    }
    SAY(wrong);
    SAY(handled + killed);
}

int main(int count, char **arguments) {
    sigemptyset(&nothing);
    if (count > 1) {
        sigset_t mask;
        sigprocmask(SIG_SETMASK, NULL, &mask);
        if (sigismember(&mask, SIGTERM) || sigismember(&mask, SIGUSR2)) _exit(9);
        for (;;) pause();
    }
    wait_for_one = suspended;
    SAY(lost(waits));
    wait_for_one = polled;
    SAY(lost(waits));
    wait_for_one = selected;
    SAY(lost(waits));
    wait_for_one = awaited;
    SAY(lost(waits));
    SAY(lost(reads));
    SAY(lost(sleeps));
    SAY(stopped_in_between());
    sigprocmask(SIG_SETMASK, &nothing, NULL);
    queued();
    in_child("threads that end", ending);
    executing(arguments[0]);
    return 0;
}
