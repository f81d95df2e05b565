// Signals in all the ways programs use them; each case prints one constant line.
// Tests delivery, siginfo, masks, sigreturn, the alternate stack and recovery from faults.
// Arguments: ROUNDS of the repeated cases (default 20000).
#include "guest.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static volatile sig_atomic_t count, depth, deepest, order[16], ordered;
static siginfo_t last;
static sigjmp_buf back;
static volatile uintptr_t handler_stack;

static void install(int signal, void (*handler)(int, siginfo_t *, void *), int flags, int masked) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    sigemptyset(&action.sa_mask);
    if (masked) sigaddset(&action.sa_mask, masked);
    if (sigaction(signal, &action, NULL) != 0) perror("sigaction"), exit(1);
}

static void count_it(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    last = *info;
    count++;
}

static void jump_back(int signal, siginfo_t *info, void *context) {
    (void)context;
    int here;
    handler_stack = (uintptr_t)&here;
    last = *info;
    siglongjmp(back, signal);
}

static void raise_many(uint64_t rounds) {
    install(SIGUSR1, count_it, 0, 0);
    count = 0;
    for (uint64_t r = 0; r < rounds; r++) raise(SIGUSR1);
    printf("raise: %s\n", (uint64_t)count == rounds ? "every signal handled once" : "signals lost or doubled");
}

static void information(void) {
    install(SIGRTMIN, count_it, 0, 0);
    sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 4711});
    printf("sigqueue: code %d, value %d, own pid %d\n", last.si_code == SI_QUEUE, last.si_value.sival_int,
           last.si_pid == getpid());
    kill(getpid(), SIGUSR1);
    printf("kill: code %d, number %d, own uid %d\n", last.si_code == SI_USER, last.si_signo == SIGUSR1,
           last.si_uid == getuid());
}

static void inner(int signal, siginfo_t *info, void *context) {
    (void)info, (void)context;
    depth++;
    if (depth > deepest) deepest = depth;
    order[ordered++ % 16] = signal;
    if (signal == SIGUSR1) raise(SIGUSR2);
    order[ordered++ % 16] = -signal;
    depth--;
}

static void nested(void) {
    for (int masked = 0; masked < 2; masked++) {
        ordered = deepest = 0;
        install(SIGUSR1, inner, 0, masked ? SIGUSR2 : 0);
        install(SIGUSR2, inner, 0, 0);
        raise(SIGUSR1);
        printf("nested, inner %s: depth %d, order", masked ? "masked" : "open", (int)deepest);
        for (int i = 0; i < ordered; i++)
            printf(" %s%d", order[i] < 0 ? "-" : "+", abs(order[i]) == SIGUSR1 ? 1 : 2);
        puts("");
    }
}

static void pending(void) {
    sigset_t set, old, waiting;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGRTMIN);
    install(SIGUSR1, count_it, 0, 0);
    sigprocmask(SIG_BLOCK, &set, &old);
    count = 0;
    for (int i = 0; i < 3; i++) {
        raise(SIGUSR1);
        sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = i});
    }
    sigpending(&waiting);
    int blocked = count, is_pending = sigismember(&waiting, SIGUSR1) && sigismember(&waiting, SIGRTMIN);
    sigprocmask(SIG_SETMASK, &old, NULL);
    printf("blocked: %d handled, pending %d, then %d handled\n", blocked, is_pending, (int)count);
}

static void wait_for_signal(void) {
    sigset_t set, old;
    siginfo_t info;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, &old);
    raise(SIGUSR2);
    int got = sigwaitinfo(&set, &info);
    struct timespec soon = {0, 1000000};
    int none = sigtimedwait(&set, &info, &soon);
    printf("sigwaitinfo: %d, then sigtimedwait %d, EAGAIN %d\n", got == SIGUSR2, none, errno == EAGAIN);
    sigprocmask(SIG_SETMASK, &old, NULL);
}

// Volatile, otherwise the compiler considers the call impossible.
static void (*volatile nowhere)(void);

static void faults(uint64_t rounds) {
    install(SIGSEGV, jump_back, 0, 0);
    long page = sysconf(_SC_PAGESIZE);
    char *guarded = mmap(NULL, (size_t)page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    volatile uint64_t recovered = 0;
    for (volatile uint64_t r = 0; r < rounds; r++) {
        if (sigsetjmp(back, 1) == 0) {
            *(volatile char *)guarded = 1;
        } else
            recovered += last.si_addr == guarded && last.si_code == SEGV_ACCERR;
    }
    printf("write to a read-only page: %s\n", recovered == rounds ? "recovered each time" : "wrong siginfo");
    if (sigsetjmp(back, 1) == 0)
        *(volatile long *)(uintptr_t)0x18 = 1;
    else
        printf("null pointer: address %#lx, not mapped %d\n", (unsigned long)last.si_addr, last.si_code == SEGV_MAPERR);
    munmap(guarded, (size_t)page);
    if (sigsetjmp(back, 1) == 0)
        printf("%d\n", *(volatile char *)(guarded + 5));
    else
        printf("unmapped page: offset %d, not mapped %d\n", (int)((char *)last.si_addr - guarded),
               last.si_code == SEGV_MAPERR);
    if (sigsetjmp(back, 1) == 0)
        nowhere();
    else
        printf("jump to 0: address %#lx\n", (unsigned long)last.si_addr);
}

static void bus_error(void) {
    long page = sysconf(_SC_PAGESIZE);
    char name[] = "/tmp/guest-signals-XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    char *mapped = mmap(NULL, (size_t)page, PROT_READ, MAP_SHARED, file, 0);
    install(SIGBUS, jump_back, 0, 0);
    if (sigsetjmp(back, 1) == 0)
        printf("%d\n", *(volatile char *)mapped);
    else
        printf("read past the end of a file: own address %d, code %d\n", last.si_addr == mapped,
               last.si_code == BUS_ADRERR);
    close(file);
}

static volatile int stop_depth = 1 << 30;

__attribute__((noinline)) static int descend(int level) {
    volatile char frame[1024];
    frame[level % 1024] = (char)level;
    if (level == stop_depth) return 0;
    return descend(level + 1) + frame[level % 1024];
}

static void stack_overflow(void) {
    static char stack[65536];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack}, seen;
    sigaltstack(&alternate, NULL);
    install(SIGSEGV, jump_back, SA_ONSTACK, 0);
    for (volatile int r = 0; r < 3; r++) {
        if (sigsetjmp(back, 1) == 0)
            printf("%d\n", descend(0));
        else {
            sigaltstack(NULL, &seen);
            printf("stack overflow: handled on the alternate stack %d, off it again %d\n",
                   handler_stack >= (uintptr_t)stack && handler_stack < (uintptr_t)(stack + sizeof stack),
                   seen.ss_flags == 0);
        }
    }
}

// The handler skips the faulting load and supplies its result.
static void skip_load(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    ucontext_t *at = context;
#if defined(__loongarch__)
    at->uc_mcontext.__pc += 4;
    at->uc_mcontext.__gregs[4] = 42;
#elif defined(__x86_64__)
    at->uc_mcontext.gregs[REG_RIP] += 3;
    at->uc_mcontext.gregs[REG_RAX] = 42;
#elif defined(__aarch64__)
    at->uc_mcontext.pc += 4;
    at->uc_mcontext.regs[0] = 42;
#endif
}

static void edit_context(void) {
    install(SIGSEGV, skip_load, 0, 0);
#if defined(__loongarch__)
    register long result __asm__("$a0") = 0x10;
    __asm__ volatile("ld.d %0, %0, 0" : "+r"(result) : : "memory");
#elif defined(__x86_64__)
    long result = 0x10;
    __asm__ volatile(".byte 0x48, 0x8b, 0x00" : "+a"(result) : : "memory");
#elif defined(__aarch64__)
    register long result __asm__("x0") = 0x10;
    __asm__ volatile("ldr %0, [%0]" : "+r"(result) : : "memory");
#else
    long result = 42;
#endif
    printf("handler edits the context: %ld\n", result);
}

static void interrupted(void) {
    struct itimerval once = {.it_value = {0, 20000}}, twice = {{0, 20000}, {0, 20000}}, off = {{0, 0}, {0, 0}};
    install(SIGALRM, count_it, 0, 0);
    count = 0;
    setitimer(ITIMER_REAL, &once, NULL);
    struct timespec minute = {60, 0};
    int slept = nanosleep(&minute, NULL);
    printf("nanosleep: %d, EINTR %d, alarms %d\n", slept, errno == EINTR, (int)count);
    int pipe_ends[2];
    char c = 0;
    if (pipe(pipe_ends) != 0) perror("pipe"), exit(1);
    setitimer(ITIMER_REAL, &once, NULL);
    long got = read(pipe_ends[0], &c, 1);
    printf("read: %ld, EINTR %d\n", got, errno == EINTR);
    // With SA_RESTART the read is restarted after the alarms and returns the child's byte.
    install(SIGALRM, count_it, SA_RESTART, 0);
    count = 0;
    pid_t child = fork();
    if (child == 0) {
        struct timespec tenth = {0, 150000000};
        nanosleep(&tenth, NULL);
        _exit(write(pipe_ends[1], "x", 1) == 1 ? 7 : 1);
    }
    setitimer(ITIMER_REAL, &twice, NULL);
    got = read(pipe_ends[0], &c, 1);
    setitimer(ITIMER_REAL, &off, NULL);
    int status = 0;
    waitpid(child, &status, 0);
    printf("read restarted: %ld byte '%c', alarms came %d, child's status %d\n", got, c, count > 1, WEXITSTATUS(status));
}

// Timer signals arrive between any two instructions; all registers must be preserved.
static void storm(void) {
    struct itimerval often = {{0, 500}, {0, 500}}, off = {{0, 0}, {0, 0}};
    install(SIGALRM, count_it, SA_RESTART, 0);
    count = 0;
    setitimer(ITIMER_REAL, &often, NULL);
    int wrong = 0;
    do {
        uint64_t state = 99, sum = 0;
        double x = 1, y = 0.5, z = 3;
        for (int i = 0; i < 20000; i++) {
            sum += random_next(&state) ^ (uint64_t)i;
            x = x * 0.75 + y;
            y = y * 0.5 + 1 / z;
            z = z + x - y;
        }
        static uint64_t first_sum, first_bits;
        uint64_t bits = bits_of(x) ^ bits_of(y) ^ bits_of(z);
        if (!first_sum) first_sum = sum, first_bits = bits;
        wrong += sum != first_sum || bits != first_bits;
    } while (count < 100);
    setitimer(ITIMER_REAL, &off, NULL);
    printf("a hundred timer signals: %d results disturbed\n", wrong);
}

static pthread_t target;
static volatile int hit_target, ready;

static void in_thread(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    hit_target = pthread_equal(pthread_self(), target);
}

static void *wait_for_hit(void *unused) {
    ready = 1;
    while (!hit_target) usleep(1000);
    return unused;
}

static void to_a_thread(void) {
    install(SIGUSR2, in_thread, 0, 0);
    pthread_create(&target, NULL, wait_for_hit, NULL);
    while (!ready) usleep(1000);
    pthread_kill(target, SIGUSR2);
    pthread_join(target, NULL);
    puts("pthread_kill: the right thread ran the handler");
}

static void deaths(void) {
    static const int signals[] = {SIGSEGV, SIGABRT, SIGTERM, SIGKILL};
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        if (child == 0) {
            signal(signals[i], SIG_DFL);
            raise(signals[i]);
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        printf("child ended by signal: %d\n", WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
    }
}

int main(int argc, char **argv) {
    uint64_t rounds = argument(argc, argv, 1, 20000, 1, 100000000);
    setvbuf(stdout, NULL, _IOLBF, 0);
    raise_many(rounds);
    information();
    nested();
    pending();
    wait_for_signal();
    faults(rounds);
    bus_error();
    stack_overflow();
    edit_context();
    interrupted();
    storm();
    to_a_thread();
    fflush(stdout);
    deaths();
    return 0;
}
