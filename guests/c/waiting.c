// Threads that wait in all ways: sleeping, for files, signals, timers, and each other.
// Tests schedulers in simulated time: waiting times are printed and must be the same on every host.
// Arguments: ROUNDS of the repeated cases (default 20).
#include "guest.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t rounds;

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void start(pthread_t *thread, void *(*work)(void *), uintptr_t argument) {
    if (pthread_create(thread, NULL, work, (void *)argument) != 0) {
        fputs("waiting: cannot start a thread: give it more memory\n", stderr);
        exit(1);
    }
}

static int order[4], ordered;

static void *sleep_and_report(void *argument) {
    static const unsigned ms[] = {400, 100, 300, 200};
    usleep(ms[(uintptr_t)argument] * 1000);
    pthread_mutex_lock(&lock);
    order[ordered++] = (int)(uintptr_t)argument;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void sleepers(void) {
    pthread_t thread[4];
    uint64_t began = now_us();
    for (uintptr_t i = 0; i < 4; i++) start(&thread[i], sleep_and_report, i);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    printf("sleepers woke in order %d %d %d %d, at least 400 ms: %d\n", order[0], order[1], order[2], order[3],
           now_us() - began >= 400000);
}

static int ends[2];
enum { CHUNK = 150000 };

// More than a pipe holds, so that the write blocks halfway.
static void *produce(void *argument) {
    static _Thread_local char bytes[CHUNK];
    memset(bytes, (int)(uintptr_t)argument, CHUNK);
    for (uint64_t r = 0; r < rounds; r++)
        if (write(ends[1], bytes, CHUNK) != CHUNK) perror("write");
    return NULL;
}

static void *consume(void *argument) {
    (void)argument;
    unsigned char bytes[5000];
    uint64_t sum = 0;
    ssize_t got;
    while ((got = read(ends[0], bytes, sizeof bytes)) > 0)
        for (ssize_t i = 0; i < got; i++) sum += bytes[i];
    return (void *)(uintptr_t)sum;
}

static void pipes(void) {
    pthread_t producer[3], consumer[2];
    if (pipe(ends) != 0) perror("pipe"), exit(1);
    for (uintptr_t i = 0; i < 3; i++) start(&producer[i], produce, i + 1);
    for (uintptr_t i = 0; i < 2; i++) start(&consumer[i], consume, 0);
    for (int i = 0; i < 3; i++) pthread_join(producer[i], NULL);
    close(ends[1]);
    uint64_t sum = 0;
    for (int i = 0; i < 2; i++) {
        void *result;
        pthread_join(consumer[i], &result);
        sum += (uintptr_t)result;
    }
    close(ends[0]);
    printf("producers and consumers: %s\n", sum == rounds * CHUNK * 6 ? "every byte once" : "bytes lost");
}

static int pair[2];

static void *answer(void *argument) {
    (void)argument;
    uint32_t number;
    while (recv(pair[1], &number, sizeof number, 0) == sizeof number) {
        number++;
        send(pair[1], &number, sizeof number, 0);
    }
    return NULL;
}

static void sockets(void) {
    pthread_t thread;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) perror("socketpair"), exit(1);
    start(&thread, answer, 0);
    uint32_t number = 0;
    for (uint64_t r = 0; r < rounds * 10; r++) {
        send(pair[0], &number, sizeof number, 0);
        if (recv(pair[0], &number, sizeof number, MSG_WAITALL) != sizeof number) perror("recv");
    }
    shutdown(pair[0], SHUT_WR);
    pthread_join(thread, NULL);
    printf("answers over a socket: %s\n", number == rounds * 10 ? "all" : "some are missing");
    close(pair[0]), close(pair[1]);
}

static int event;

static void *ring(void *argument) {
    (void)argument;
    for (int i = 0; i < 3; i++) {
        usleep(25000);
        eventfd_write(event, 1);
    }
    return NULL;
}

static void events(void) {
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), set = epoll_create1(0);
    event = eventfd(0, 0);
    struct itimerspec each = {{0, 10000000}, {0, 10000000}};
    uint64_t expired = 0, rung = 0, began = now_us();
    timerfd_settime(timer, 0, &each, NULL);
    struct epoll_event wanted = {.events = EPOLLIN, .data.fd = timer};
    epoll_ctl(set, EPOLL_CTL_ADD, timer, &wanted);
    wanted.data.fd = event;
    epoll_ctl(set, EPOLL_CTL_ADD, event, &wanted);
    pthread_t thread;
    start(&thread, ring, 0);
    while (expired < 10 || rung < 3) {
        struct epoll_event found[2];
        int count = epoll_wait(set, found, 2, 1000);
        if (count <= 0) break;
        for (int i = 0; i < count; i++) {
            uint64_t value = 0;
            if (read(found[i].data.fd, &value, sizeof value) < 0) continue;
            if (found[i].data.fd == timer) expired += value;
            else rung += value;
        }
    }
    pthread_join(thread, NULL);
    printf("timer expired %s, event rung %d, at least 100 ms: %d\n", expired >= 10 ? "ten times" : "too seldom",
           (int)rung, now_us() - began >= 100000);
    uint64_t before = now_us();
    int none = epoll_wait(set, &wanted, 0 + 1, 0), least = none >= 0;
    close(timer);
    struct pollfd file = {.fd = event, .events = POLLIN};
    int polled = poll(&file, 1, 30);
    fd_set files;
    FD_ZERO(&files);
    FD_SET(event, &files);
    struct timeval limit = {0, 30000};
    int selected = select(event + 1, &files, NULL, NULL, &limit);
    printf("poll %d, select %d, still set %d, at least 60 ms: %d\n", polled, selected, FD_ISSET(event, &files),
           now_us() - before >= 60000 && least);
    close(event), close(set);
}

static void timed_wait(void) {
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    uint64_t began = now_us();
    pthread_mutex_lock(&lock);
    int result = pthread_cond_timedwait(&never, &lock, &until);
    pthread_mutex_unlock(&lock);
    printf("timed wait: ETIMEDOUT %d, at least 50 ms: %d\n", result == ETIMEDOUT, now_us() - began >= 50000);
}

static volatile sig_atomic_t handled;

static void handle(int signal) {
    (void)signal;
    handled++;
}

static atomic_int read_ended;

static void *read_nothing(void *argument) {
    char byte;
    errno = 0;
    ssize_t got = read((int)(uintptr_t)argument, &byte, 1);
    atomic_store(&read_ended, 1);
    return (void *)(uintptr_t)(got < 0 && errno == EINTR);
}

static void signals(void) {
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    int nothing[2];
    void *interrupted;
    pthread_t thread;
    if (pipe(nothing) != 0) perror("pipe"), exit(1);
    start(&thread, read_nothing, (uintptr_t)nothing[0]);
    // A signal before the thread reads interrupts nothing.
    do {
        usleep(20000);
        pthread_kill(thread, SIGUSR1);
        usleep(20000);
    } while (!atomic_load(&read_ended));
    pthread_join(thread, &interrupted);
    printf("a signal ends a read: %d, handled %d\n", (int)(uintptr_t)interrupted, handled > 0);
    handled = 0;
    struct itimerval each = {{0, 10000}, {0, 10000}}, none = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &each, NULL);
    while (handled < 5) pause();
    setitimer(ITIMER_REAL, &none, NULL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    struct sigevent notice = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 42};
    struct itimerspec once = {{0, 0}, {0, 30000000}};
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &notice, &timer);
    uint64_t began = now_us();
    timer_settime(timer, 0, &once, NULL);
    siginfo_t info;
    int got = sigwaitinfo(&set, &info);
    printf("timer signal: %d, value %d, SI_TIMER %d, at least 30 ms: %d\n", got == SIGRTMIN, info.si_value.sival_int,
           info.si_code == SI_TIMER, now_us() - began >= 30000);
    timer_delete(timer);
    close(nothing[0]), close(nothing[1]);
}

static atomic_int flag;

static void *raise_flag(void *argument) {
    (void)argument;
    usleep(30000);
    atomic_store(&flag, 1);
    return NULL;
}

// Neither yields nor sleeps; the other thread must still run.
static void spinner(void) {
    pthread_t thread;
    start(&thread, raise_flag, 0);
    uint64_t began = now_us();
    while (!atomic_load(&flag)) {}
    pthread_join(thread, NULL);
    printf("a spinning thread sees the flag, at least 30 ms: %d\n", now_us() - began >= 30000);
}

static void cores(void) {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    int last = -1;
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &set)) last = core;
    CPU_ZERO(&set);
    CPU_SET(last, &set);
    int done = sched_setaffinity(0, sizeof set, &set);
    sched_yield();
    printf("pinned to the last core: %d\n", done == 0 && sched_getcpu() == last);
}

int main(int argc, char **argv) {
    rounds = argument(argc, argv, 1, 20, 1, 100000);
    sleepers();
    pipes();
    sockets();
    events();
    timed_wait();
    signals();
    spinner();
    cores();
    return 0;
}
