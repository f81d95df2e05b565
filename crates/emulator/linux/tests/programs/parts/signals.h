// Signals: what they interrupt, what masks hold back, where they go.
// Part of calls.c: not to be compiled alone.
static int ends[2];
static void *write_later(void *unused) { (void)unused; pause_ms(60); write(ends[1], "d", 1); return NULL; }
// Again and again: on a busy machine the first may come before the call it shall interrupt.
static void alarm_in(int ms) {
    struct itimerval timer = {.it_value = {0, ms * 1000}, .it_interval = {0, 50000}};
    handled = 0;
    setitimer(ITIMER_REAL, &timer, NULL);
}
static int alarm_off(void) {
    struct itimerval none = {0};
    setitimer(ITIMER_REAL, &none, NULL);
    return handled > 0;
}
static void block_all_here(int how) { sigset_t set; sigfillset(&set); pthread_sigmask(how, &set, NULL); }
static void *send_later(void *pid) { pause_ms(20); kill((int)(intptr_t)pid, SIGUSR1); return NULL; }
static pthread_t sender(void) {
    pthread_t thread;
    sigset_t old; sigset_t all; sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    pthread_create(&thread, NULL, send_later, (void *)(intptr_t)getpid());
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return thread;
}
static void test_interrupt(void) {
    char c;
    pthread_t thread;
    int got;
    pipe(ends);
    handle(SIGALRM, SA_RESTART);
    block_all_here(SIG_BLOCK);
    pthread_create(&thread, NULL, write_later, NULL);
    block_all_here(SIG_UNBLOCK);
    alarm_in(5);
    got = read(ends[0], &c, 1);
    printf("read with SA_RESTART: %d, handled %d\n", got, alarm_off());
    pthread_join(thread, NULL);
    handle(SIGALRM, 0);
    alarm_in(20);
    got = read(ends[0], &c, 1);
    printf("read without: %s, handled %d\n", result(got), alarm_off());
    handle(SIGALRM, SA_RESTART);
    struct timespec long_time = {5, 0}, left;
    alarm_in(20);
    got = nanosleep(&long_time, &left);
    printf("nanosleep: %s, time left %d, handled %d\n", result(got), left.tv_sec == 4, alarm_off());
    alarm_in(20);
    struct pollfd poller = {ends[0], POLLIN, 0};
    printf("poll: %s, ", result(poll(&poller, 1, 5000)));
    printf("handled %d\n", alarm_off());
    alarm_in(20);
    fd_set set; FD_ZERO(&set); FD_SET(ends[0], &set);
    struct timeval time = {5, 0};
    printf("select: %s, ", result(select(ends[0] + 1, &set, NULL, NULL, &time)));
    printf("handled %d\n", alarm_off());
    int queue = epoll_create1(0);
    struct epoll_event event;
    alarm_in(20);
    printf("epoll_wait: %s, ", result(epoll_wait(queue, &event, 1, 5000)));
    printf("handled %d\n", alarm_off());
    alarm_in(20);
    printf("pause: %s, ", result(pause()));
    printf("handled %d\n", alarm_off());
    alarm_in(20);
    uint32_t word = 1;
    printf("futex with a timeout: %s, ", result(syscall(SYS_futex, &word, 0, 1, &long_time)));
    printf("handled %d\n", alarm_off());
    printf("futex, value changed: %s\n", result(syscall(SYS_futex, &word, 0, 2, NULL)));
    struct timespec short_time = {0, 10000000};
    printf("futex, timeout: %s\n", result(syscall(SYS_futex, &word, 0, 1, &short_time)));
    int sockets[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, sockets);
    struct timeval limit = {0, 20000};
    setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    printf("recv with a timeout: %s\n", result(recv(sockets[0], &c, 1, 0)));
    handle(SIGALRM, 0);
    alarm_in(20);
    printf("recv interrupted: %s, ", result(recv(sockets[1], &c, 1, 0)));
    printf("handled %d\n", alarm_off());
    int pid = child(stop_self), status;
    waitpid(pid, &status, WUNTRACED);
    alarm_in(20);
    printf("waiting for a child that lives: %s, ", result(waitpid(pid, &status, 0)));
    printf("handled %d\n", alarm_off());
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
}

static void test_masks(void) {
    sigset_t usr1, none, old;
    sigemptyset(&usr1); sigaddset(&usr1, SIGUSR1); sigemptyset(&none);
    handle(SIGUSR1, SA_RESTART);
    sigprocmask(SIG_BLOCK, &usr1, &old);
    raise(SIGUSR1);
    printf("blocked: handled %d\n", handled);
    printf("sigsuspend: %s, handled %d\n", result(sigsuspend(&none)), handled);
    sigset_t now;
    sigprocmask(SIG_SETMASK, NULL, &now);
    printf("blocked again %d\n", sigismember(&now, SIGUSR1));
    struct timespec time = {5, 0};
    for (int pending = 0; pending < 2; pending++) {
        pthread_t thread;
        handled = 0;
        if (pending) raise(SIGUSR1); else thread = sender();
        printf("ppoll: %s, handled %d\n", result(ppoll(NULL, 0, &time, &none)), handled);
        if (!pending) pthread_join(thread, NULL);
        if (pending) raise(SIGUSR1); else thread = sender();
        printf("pselect: %s, handled %d\n", result(pselect(0, NULL, NULL, NULL, &time, &none)), handled);
        if (!pending) pthread_join(thread, NULL);
        struct epoll_event event;
        int queue = epoll_create1(0);
        if (pending) raise(SIGUSR1); else thread = sender();
        printf("epoll_pwait: %s, handled %d\n", result(epoll_pwait(queue, &event, 1, 5000, &none)), handled);
        if (!pending) pthread_join(thread, NULL);
    }
    sigset_t usr2; sigemptyset(&usr2); sigaddset(&usr2, SIGUSR2);
    handled = 0;
    raise(SIGUSR1);
    sigsuspend(&usr2);
    sigset_t in = *(sigset_t *)&mask_in_handler;
    printf("in the handler: SIGUSR1 blocked %d, SIGUSR2 blocked %d\n", sigismember(&in, SIGUSR1), sigismember(&in, SIGUSR2));
    siginfo_t info;
    union sigval value = {.sival_int = 99};
    sigqueue(getpid(), SIGUSR1, value);
    printf("sigtimedwait: %d, ", sigtimedwait(&usr1, &info, &time));
    printf("code %d, value %d\n", info.si_code, info.si_value.sival_int);
    time.tv_sec = 0; time.tv_nsec = 10000000;
    printf("sigtimedwait, nothing: %s\n", result(sigtimedwait(&usr1, &info, &time)));
    sigset_t segv; sigemptyset(&segv); sigaddset(&segv, SIGSEGV);
    sigprocmask(SIG_BLOCK, &segv, NULL);
    handle(SIGSEGV, 0);
    handled = 0;
    raise(SIGSEGV);
    sigpending(&now);
    printf("SIGSEGV blocked: handled %d, pending %d\n", handled, sigismember(&now, SIGSEGV));
    sigprocmask(SIG_UNBLOCK, &segv, NULL);
    printf("unblocked: handled %d\n", handled);
    sigprocmask(SIG_BLOCK, &segv, NULL);
    raise(SIGSEGV);
    printf("sigwaitinfo: %d\n", sigwaitinfo(&segv, &info));
    printf("bad size: %s\n", result(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &segv, NULL, 4)));
    printf("bad address: %s\n", result(syscall(SYS_rt_sigprocmask, SIG_BLOCK, 8, NULL, 8)));
    printf("SIGKILL: %s, signal 65: %s\n", result(sigaction(SIGKILL, &(struct sigaction){0}, NULL)), result(kill(getpid(), 65)));
}

static int storm_got, storm_order = 1, storm_last;
static void on_storm(int signal, siginfo_t *info, void *context) {
    (void)signal; (void)context;
    storm_got++;
    if (info->si_value.sival_int != storm_last + 1) storm_order = 0;
    storm_last = info->si_value.sival_int;
}
static void *storm(void *pid) {
    for (int i = 1; i <= 300; i++) {
        union sigval value = {.sival_int = i};
        while (sigqueue((int)(intptr_t)pid, SIGRTMIN, value) < 0) sched_yield();
    }
    return NULL;
}
static void test_storm(void) {
    struct sigaction action = {.sa_sigaction = on_storm, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGRTMIN, &action, NULL);
    block_all_here(SIG_BLOCK);
    pthread_t thread;
    pthread_create(&thread, NULL, storm, (void *)(intptr_t)getpid());
    block_all_here(SIG_UNBLOCK);
    volatile double x = 1;
    while (storm_got < 300) { x = x * 1.0000001 + 1e-9; if (getppid() == 0) break; }
    pthread_join(thread, NULL);
    printf("all of 300 real-time signals: %d, in order: %d\n", storm_got, storm_order);
}
static volatile int taker;
static void on_take(int signal) { (void)signal; taker = gettid(); }
static void *take(void *tid) {
    sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    *(volatile int *)tid = gettid();
    while (!taker) {}
    return NULL;
}
static void test_direction(void) {
    signal(SIGUSR1, on_take);
    sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    volatile int tid = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, take, (void *)&tid);
    while (!tid) {}
    kill(getpid(), SIGUSR1);
    pthread_join(thread, NULL);
    printf("the thread that takes it got it: %d\n", taker == tid);
    printf("a thread that is gone: %s\n", result(syscall(SYS_tgkill, getpid(), 0x3ffffff, SIGUSR1)));
}
