// Clocks, sleeping, timers of all kinds.
// Source: clock_gettime(2), clock_nanosleep(2), timer_create(2), timer_settime(2), timerfd_create(2), setitimer(2).
#include "say.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>

static volatile sig_atomic_t calls, value;
static void note(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    calls++, value = info->si_value.sival_int;
}

static long nanoseconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000l + now.tv_nsec;
}

static void clocks(void) {
    struct timespec time;
    SAY(clock_gettime(99, &time));
    SAY(clock_gettime(-1, &time));
    SAY(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, 8));
    SAY(clock_getres(CLOCK_MONOTONIC, &time));
    SAY(time.tv_sec);
    SAY(clock_getres(99, &time));
    SAY(clock_getres(CLOCK_REALTIME, NULL));
    time.tv_nsec = 1000000000;
    SAY(clock_settime(CLOCK_REALTIME, &time));
    time.tv_nsec = 0;
    SAY(clock_settime(CLOCK_MONOTONIC, &time));
    clockid_t of[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, CLOCK_MONOTONIC_RAW,
                      CLOCK_REALTIME_COARSE, CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME};
    for (int i = 0; i < 8; i++) {
        long first = nanoseconds(of[i]);
        for (volatile int n = 0; n < 10000; n++) {}
        long second = nanoseconds(of[i]);
        printf("clock %d goes forward: %d\n", i, first >= 0 && second >= first && second - first < 10000000000l);
    }
    clockid_t own;
    SAY(clock_getcpuclockid(0, &own));
    SAY(clock_gettime(own, &time));
    ERROR(clock_getcpuclockid(1 << 30, &own));
    ERROR(pthread_getcpuclockid(pthread_self(), &own));
    SAY(clock_gettime(own, &time));
}

static void sleeping(void) {
    struct timespec soon = {0, 1000000}, wrong = {0, 1000000000}, negative = {-1, 0}, past = {1, 0}, rest = {7, 7};
    SAY(nanosleep(&soon, NULL));
    SAY(nanosleep(&wrong, NULL));
    SAY(nanosleep(&negative, NULL));
    SAY(nanosleep((void *)8, NULL));
    ERROR(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &past, NULL));
    ERROR(clock_nanosleep(CLOCK_REALTIME, 0, &soon, NULL));
    ERROR(clock_nanosleep(99, 0, &soon, NULL));
    ERROR(clock_nanosleep(CLOCK_THREAD_CPUTIME_ID, 0, &soon, NULL));
    ERROR(clock_nanosleep(CLOCK_MONOTONIC, 0, &wrong, NULL));
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct timespec long_time = {1000, 0};
    ualarm(20000, 0);
    SAY(nanosleep(&long_time, &rest));
    SAY(rest.tv_sec);
    long before = nanoseconds(CLOCK_MONOTONIC);
    soon.tv_nsec = 5000000;
    SAY(nanosleep(&soon, NULL));
    SAY(nanoseconds(CLOCK_MONOTONIC) - before >= 5000000);
    SAY(usleep(1000));
    SAY(sleep(0));
}

static void timers(void) {
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM, .sigev_value.sival_int = 55};
    struct itimerspec setting = {{0, 0}, {0, 10000000}}, old;
    SAY(timer_create(99, &event, &timer));
    event.sigev_signo = 99;
    SAY(timer_create(CLOCK_MONOTONIC, &event, &timer));
    event.sigev_signo = SIGALRM, event.sigev_notify = 77;
    SAY(timer_create(CLOCK_MONOTONIC, &event, &timer));
    event.sigev_notify = SIGEV_SIGNAL;
    SAY(timer_create(CLOCK_MONOTONIC, &event, &timer));
    SAY(timer_gettime(timer, &old));
    SAY(old.it_value.tv_sec + old.it_value.tv_nsec);
    calls = 0;
    SAY(timer_settime(timer, 0, &setting, NULL));
    SAY(pause());
    SAY(calls);
    SAY(value);
    setting.it_value.tv_nsec = 1000000000;
    SAY(timer_settime(timer, 0, &setting, NULL));
    setting.it_value.tv_nsec = -1;
    SAY(timer_settime(timer, 0, &setting, NULL));
    setting.it_value.tv_sec = 1000, setting.it_value.tv_nsec = 0;
    SAY(timer_settime(timer, 0, &setting, &old));
    SAY(old.it_value.tv_sec);
    SAY(timer_settime(timer, 0, &(struct itimerspec){0}, &old));
    SAY(old.it_value.tv_sec);
    SAY(timer_getoverrun(timer));
    SAY(timer_delete(timer));
    SAY(syscall(SYS_timer_delete, 12345));
    SAY(syscall(SYS_timer_gettime, 12345, &old));
    struct itimerval both = {{0, 0}, {500, 0}}, before;
    SAY(setitimer(ITIMER_REAL, &both, NULL));
    SAY(getitimer(ITIMER_REAL, &before));
    SAY(before.it_value.tv_sec >= 499);
    SAY(alarm(0) >= 499);
    SAY(getitimer(5, &before));
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO};
    sigaction(SIGVTALRM, &action, NULL);
    both = (struct itimerval){{0, 0}, {0, 5000}};
    calls = 0;
    SAY(setitimer(ITIMER_VIRTUAL, &both, NULL));
    while (!calls) {}
    SAY(calls);
}

static void timer_files(void) {
    unsigned long count = 0;
    struct itimerspec setting = {{0, 0}, {0, 1000000}}, old;
    SAY(timerfd_create(99, 0));
    SAY(timerfd_create(CLOCK_MONOTONIC, 1));
    SAY(timerfd_create(CLOCK_PROCESS_CPUTIME_ID, 0));
    int file = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    SAY(fcntl(file, F_GETFD));
    SAY(read(file, &count, 8));
    SAY(timerfd_settime(file, 0, &setting, NULL));
    struct pollfd one = {file, POLLIN, 0};
    SAY(poll(&one, 1, 1000));
    SAY(read(file, &count, 4));
    SAY(read(file, &count, 8));
    SAY(count);
    SAY(read(file, &count, 8));
    setting.it_value.tv_nsec = 1000000000;
    SAY(timerfd_settime(file, 0, &setting, NULL));
    SAY(timerfd_settime(file, 99, &setting, NULL));
    SAY(timerfd_settime(1, 0, &(struct itimerspec){0}, NULL));
    SAY(timerfd_settime(999, 0, &(struct itimerspec){0}, NULL));
    setting = (struct itimerspec){{0, 1000000}, {1, 0}};
    SAY(timerfd_settime(file, TFD_TIMER_ABSTIME, &setting, NULL));
    SAY(poll(&one, 1, 1000));
    SAY(read(file, &count, 8));
    SAY(count > 1);
    SAY(timerfd_settime(file, 0, &(struct itimerspec){0}, &old));
    SAY(old.it_interval.tv_nsec);
    SAY(timerfd_gettime(file, &old));
    SAY(old.it_value.tv_sec + old.it_value.tv_nsec + old.it_interval.tv_nsec);
}

int main(void) {
    clocks();
    sleeping();
    timers();
    timer_files();
    return 0;
}
