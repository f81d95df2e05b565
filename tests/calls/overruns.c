// Timers that expire while their signal is pending, and invalid uses of timer descriptors.
// Levels: translated interpreted (in simulated time, only simultaneous expirations are added up, and a timerfd is an eventfd)
// Source: timer_getoverrun(2), timerfd_create(2).
#include "say.h"
#include <signal.h>
#include <sys/timerfd.h>
#include <time.h>

static volatile sig_atomic_t calls, overruns;
static void note(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    calls++, overruns += info->si_overrun;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    struct itimerspec setting;
    unsigned long count = 1;
    timer_t timer;
    sigaction(SIGALRM, &action, NULL);
    SAY(timer_create(CLOCK_MONOTONIC, &event, &timer));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    setting = (struct itimerspec){{0, 1000000}, {0, 1000000}};
    SAY(timer_settime(timer, 0, &setting, NULL));
    usleep(50000);
    calls = overruns = 0;
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    SAY(calls >= 1 && overruns > 5);
    SAY(timer_delete(timer));
    SAY(timer_gettime(timer, &setting));
    int file = timerfd_create(CLOCK_MONOTONIC, 0);
    SAY(write(file, &count, 8));
    SAY(lseek(file, 0, SEEK_SET));
    SAY(fsync(file));
    SAY(ftruncate(file, 0));
    SAY(timerfd_gettime(file, &setting));
    return 0;
}
