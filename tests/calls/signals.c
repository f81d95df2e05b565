// Signals: actions, masks, alternate stacks, the handler's arguments, waiting, stopping and continuing.
// Source: signal(7), sigaction(2), sigaltstack(2), sigtimedwait(2), rt_sigqueueinfo(2), tgkill(2), wait(2).
#include "say.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>

static volatile sig_atomic_t calls, last, code, value;
static void *volatile address;
static volatile int on_alternate;

static void note(int signal, siginfo_t *info, void *context) {
    stack_t stack;
    (void)context;
    calls++, last = signal, code = info->si_code, address = info->si_addr, value = info->si_value.sival_int;
    sigaltstack(NULL, &stack);
    on_alternate = stack.ss_flags;
}

static void handle(int signal, int flags) {
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | flags};
    sigaction(signal, &action, NULL);
}

static void actions(void) {
    struct sigaction action = {.sa_handler = SIG_IGN};
    SAY(sigaction(SIGKILL, &action, NULL));
    SAY(sigaction(SIGSTOP, &action, NULL));
    SAY(sigaction(SIGKILL, NULL, &action));
    SAY(sigaction(0, &action, NULL));
    SAY(sigaction(65, &action, NULL));
    SAY(syscall(SYS_rt_sigaction, SIGUSR1, NULL, NULL, 4));
    SAY(syscall(SYS_rt_sigaction, SIGUSR1, (void *)8, NULL, 8));
    SAY(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, NULL, 4));
    SAY(syscall(SYS_rt_sigprocmask, 77, &action, NULL, 8));
    SAY(syscall(SYS_rt_sigprocmask, 77, NULL, NULL, 8));
    SAY(syscall(SYS_rt_sigprocmask, SIG_BLOCK, (void *)8, NULL, 8));
    SAY(kill(getpid(), 65));
    SAY(kill(getpid(), 0));
    SAY(kill(1 << 30, 0));
    SAY(syscall(SYS_tgkill, getpid(), 0, 0));
    SAY(syscall(SYS_tgkill, -1, syscall(SYS_gettid), 0));
    SAY(syscall(SYS_tgkill, getpid(), 1 << 30, 0));
    SAY(syscall(SYS_tkill, syscall(SYS_gettid), 65));
    siginfo_t info = {.si_code = SI_USER};
    SAY(syscall(SYS_rt_sigqueueinfo, 1 << 30, SIGUSR1, &info));
    handle(SIGUSR1, SA_RESETHAND);
    SAY(raise(SIGUSR1));
    SAY(calls);
    SAY(code == SI_TKILL);
    SAY(sigaction(SIGUSR1, NULL, &action));
    SAY(action.sa_handler == SIG_DFL);
    handle(SIGUSR1, SA_RESTART | SA_NODEFER);
    SAY(sigaction(SIGUSR1, NULL, &action));
    SAY(action.sa_flags & (SA_RESTART | SA_NODEFER | SA_SIGINFO | SA_ONSTACK));
    SAY(kill(getpid(), SIGUSR1));
    SAY(code == SI_USER);
    SAY(sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 42}));
    SAY(value);
    SAY(code == SI_QUEUE);
}

static volatile int depth, deepest, nested;
static void nests(int signal) {
    if (++depth > deepest) deepest = depth;
    if (nested++ < 2) raise(signal);
    depth--;
}

static int order[16], ordered;
static void notes_order(int signal) { order[ordered++] = signal; }

static void masks(void) {
    sigset_t set, pending;
    struct sigaction action = {.sa_handler = nests, .sa_flags = SA_NODEFER};
    sigaction(SIGUSR2, &action, NULL);
    raise(SIGUSR2);
    SAY(deepest);
    deepest = depth = nested = 0, action.sa_flags = 0;
    sigaction(SIGUSR2, &action, NULL);
    raise(SIGUSR2);
    SAY(deepest);
    int most[] = {SIGRTMIN + 2, SIGUSR2, SIGRTMIN + 1, SIGUSR1, SIGRTMIN + 2, SIGUSR1};
    sigemptyset(&set);
    action.sa_handler = notes_order;
    sigfillset(&action.sa_mask);
    for (int i = 0; i < 6; i++) sigaddset(&set, most[i]), sigaction(most[i], &action, NULL);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (int i = 0; i < 6; i++) kill(getpid(), most[i]);
    SAY(sigpending(&pending));
    SAY(sigismember(&pending, SIGUSR1) + 2 * sigismember(&pending, SIGRTMIN + 2) + 4 * sigismember(&pending, SIGINT));
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    for (int i = 0; i < ordered; i++) printf("%d ", order[i] >= SIGRTMIN ? 100 + order[i] - SIGRTMIN : order[i]);
    puts("");
    sigfillset(&set);
    SAY(sigprocmask(SIG_SETMASK, &set, NULL));
    SAY(sigprocmask(SIG_SETMASK, NULL, &set));
    SAY(sigismember(&set, SIGKILL) + 2 * sigismember(&set, SIGSTOP) + 4 * sigismember(&set, SIGTERM));
    sigemptyset(&set);
    sigprocmask(SIG_SETMASK, &set, NULL);
    signal(SIGUSR1, SIG_IGN);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    kill(getpid(), SIGUSR1);
    sigpending(&pending);
    SAY(sigismember(&pending, SIGUSR1));
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static sigjmp_buf back;
static void jumps(int signal) { (void)signal; siglongjmp(back, 1); }
static void changes_stack(int signal) {
    stack_t none = {.ss_flags = SS_DISABLE};
    (void)signal;
    SAY(sigaltstack(&none, NULL));
}

static int recurse(int n) {
    volatile char frame[4096];
    frame[n % 4096] = (char)n;
    return n > 1 << 24 ? 0 : recurse(n + 1) + frame[n % 4096];
}

static void alternate_stacks(void) {
    static char memory[1 << 16];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory}, old;
    SAY(sigaltstack(NULL, &old));
    SAY(old.ss_flags);
    stack.ss_size = 100;
    SAY(sigaltstack(&stack, NULL));
    stack.ss_size = sizeof memory, stack.ss_flags = 99;
    SAY(sigaltstack(&stack, NULL));
    SAY(syscall(SYS_sigaltstack, 8, NULL));
    stack.ss_flags = 0;
    SAY(sigaltstack(&stack, NULL));
    handle(SIGUSR1, SA_ONSTACK);
    raise(SIGUSR1);
    SAY(on_alternate);
    handle(SIGUSR1, 0);
    raise(SIGUSR1);
    SAY(on_alternate);
    struct sigaction action = {.sa_handler = changes_stack, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    action.sa_handler = jumps;
    sigaction(SIGSEGV, &action, NULL);
    if (sigsetjmp(back, 1) == 0) recurse(0);
    else puts("came back from an overflow");
    if (sigsetjmp(back, 1) == 0) recurse(0);
    else puts("and from another");
    stack.ss_flags = (int)(1u << 31);
    SAY(sigaltstack(&stack, NULL));
    handle(SIGUSR1, SA_ONSTACK);
    raise(SIGUSR1);
    SAY(on_alternate == SS_DISABLE);
    SAY(sigaltstack(NULL, &old));
    SAY(old.ss_flags == (int)(1u << 31));
}

static void repairs(int signal, siginfo_t *info, void *context) {
    (void)context;
    last = signal, code = info->si_code, address = info->si_addr, calls++;
    siglongjmp(back, 1);
}

#define FAULT(what) do { if (sigsetjmp(back, 1) == 0) { what; puts(#what ": nothing"); } \
    else printf(#what ": signal %d code %d at %ld\n", last, code, (long)((char *)address - (char *)page)); } while (0)

static void faults(void) {
    struct sigaction action = {.sa_sigaction = repairs, .sa_flags = SA_SIGINFO};
    long bytes = sysconf(_SC_PAGESIZE);
    char *volatile page = mmap(NULL, 3 * bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FILE *file = tmpfile();
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    munmap(page + bytes, bytes);
    FAULT(page[5] = 1);
    printf("%d past the first page: ", 0);
    if (sigsetjmp(back, 1) == 0) page[bytes + 3] = 1;
    else printf("code %d at page %ld\n", code, (long)((char *)address - page) / bytes);
    mprotect(page, bytes, PROT_NONE);
    FAULT((void)page[7]);
    page = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fileno(file), 0);
    FAULT((void)page[9]);
    ftruncate(fileno(file), 1);
    FAULT((void)page[9]);
    ftruncate(fileno(file), 0);
    FAULT((void)page[9]);
    page = NULL;
    FAULT(*(volatile char *)page = 1);
    FAULT(((void (*)(void))page)());
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
}

static void dies_blocked(void) {
    sigset_t set;
    sigfillset(&set);
    sigprocmask(SIG_SETMASK, &set, NULL);
    *(volatile char *)8 = 1;
}
static void dies_ignoring(void) {
    signal(SIGSEGV, SIG_IGN);
    *(volatile char *)8 = 1;
}
static void aborts_blocked(void) {
    signal(SIGABRT, SIG_IGN);
    abort();
}
static void ignores_segv_sent(void) {
    signal(SIGSEGV, SIG_IGN);
    raise(SIGSEGV);
}

static void waiting(void) {
    sigset_t set;
    siginfo_t info;
    struct timespec soon = {0, 1000000}, none = {0, 0}, wrong = {0, -1};
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGRTMIN + 4);
    sigprocmask(SIG_BLOCK, &set, NULL);
    SAY(sigtimedwait(&set, &info, &soon));
    SAY(sigtimedwait(&set, &info, &none));
    SAY(sigtimedwait(&set, &info, &wrong));
    for (int i = 0; i < 3; i++) sigqueue(getpid(), SIGRTMIN + 4, (union sigval){.sival_int = i});
    kill(getpid(), SIGUSR1);
    SAY(sigwaitinfo(&set, &info) == SIGUSR1);
    for (int i = 0; i < 3; i++) sigwaitinfo(&set, &info), SAY(info.si_value.sival_int);
    SAY(sigtimedwait(&set, &info, &none));
    handle(SIGALRM, 0);
    ualarm(20000, 0);
    SAY(syscall(SYS_rt_sigtimedwait, &set, &info, NULL, 8));
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    sigemptyset(&set);
    ualarm(20000, 0);
    SAY(sigsuspend(&set));
    ualarm(20000, 0);
    SAY(pause());
    int ends[2];
    char byte;
    pipe(ends);
    ualarm(20000, 0);
    SAY(read(ends[0], &byte, 1));
    handle(SIGALRM, SA_RESTART);
    fflush(stdout);
    if (fork() == 0) {
        usleep(100000);
        write(ends[1], "x", 1);
        _exit(0);
    }
    ualarm(20000, 0);
    SAY(read(ends[0], &byte, 1));
    wait(NULL);
    struct itimerval timer = {{0, 0}, {0, 1000000}};
    SAY(setitimer(ITIMER_REAL, &timer, NULL));
    SAY(setitimer(9, &timer, NULL));
    SAY(alarm(100));
    SAY(alarm(0));
}

static void *gets_one(void *unused) {
    sigset_t set;
    int got;
    (void)unused;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigwait(&set, &got);
    return (void *)(long)got;
}

static void threads(void) {
    sigset_t set;
    pthread_t thread;
    void *got;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_create(&thread, NULL, gets_one, NULL);
    ERROR(pthread_kill(thread, 0));
    ERROR(pthread_kill(thread, 99));
    ERROR(pthread_kill(thread, SIGUSR2));
    pthread_join(thread, &got);
    SAY((long)got == SIGUSR2);
    pthread_create(&thread, NULL, gets_one, NULL);
    kill(getpid(), SIGUSR2);
    pthread_join(thread, &got);
    SAY((long)got == SIGUSR2);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static void stopping(void) {
    int status;
    siginfo_t info;
    handle(SIGCHLD, SA_NOCLDSTOP);
    calls = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        raise(SIGSTOP);
        pause();
        _exit(3);
    }
    SAY(waitpid(child, &status, WUNTRACED) == child);
    SAY(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    SAY(calls);
    SAY(kill(child, SIGCONT));
    SAY(waitpid(child, &status, WCONTINUED) == child);
    SAY(WIFCONTINUED(status) != 0);
    SAY(kill(child, SIGTERM));
    SAY(waitid(P_PID, child, &info, WEXITED | WNOWAIT));
    printf("code %d status %d signal %d\n", info.si_code, info.si_status, info.si_signo == SIGCHLD);
    SAY(waitpid(child, &status, 0) == child);
    SAY(WTERMSIG(status));
    SAY(calls);
    signal(SIGCHLD, SIG_IGN);
    fflush(stdout);
    if ((child = fork()) == 0) _exit(0);
    SAY(waitpid(child, &status, 0));
    signal(SIGCHLD, SIG_DFL);
}

int main(void) {
    actions();
    masks();
    alternate_stacks();
    faults();
    in_child("a fault while blocked", dies_blocked);
    in_child("a fault while ignored", dies_ignoring);
    in_child("abort while ignored", aborts_blocked);
    in_child("an ignored SIGSEGV that was sent", ignores_segv_sent);
    waiting();
    threads();
    stopping();
    return 0;
}
