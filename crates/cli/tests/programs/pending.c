// Blocked and pending signals across execve: what the new program inherits, and the state after a failed execve.
// guests/c/exec.c tests the other attributes.
// Source: execve(2), sigpending(2).
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static void show(const char *when) {
    sigset_t pending, blocked;
    sigpending(&pending);
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    printf("%s:", when);
    for (int signal = 1; signal < 65; signal++) {
        if (sigismember(&pending, signal) == 1)
            printf(" %d%s", signal, sigismember(&blocked, signal) == 1 ? "" : " not blocked");
    }
    printf("\n");
    fflush(stdout);
}

int main(int count, char **arguments) {
    if (count == 1) {
        const int signals[] = {SIGSEGV, SIGFPE, SIGTRAP, SIGILL, SIGBUS, SIGUSR1, SIGRTMIN + 3};
        sigset_t set;
        sigemptyset(&set);
        for (int i = 0; i < 7; i++)
            sigaddset(&set, signals[i]);
        sigprocmask(SIG_BLOCK, &set, NULL);
        kill(getpid(), SIGSEGV);
        raise(SIGFPE);
        sigqueue(getpid(), SIGTRAP, (union sigval){.sival_int = 7});
        kill(getpid(), SIGUSR1);
        for (int i = 0; i < 3; i++)
            sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = i});
        show("before");
        execl("/", "nothing", NULL);
        show("after a failure");
    }
    if (count < 3) {
        execl(arguments[0], arguments[0], "again", count == 1 ? NULL : "and again", NULL);
        return 1;
    }
    show("after");
    for (int signal = 1; signal < 65; signal++) {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, signal);
        siginfo_t info;
        while (sigtimedwait(&one, &info, &(struct timespec){0}) == signal)
            printf("%d code %d value %d, my own %d\n", signal, info.si_code,
                   info.si_code == SI_QUEUE ? info.si_value.sival_int : 0, info.si_pid == getpid());
    }
    return 0;
}
