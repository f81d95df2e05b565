// Creating processes, executing programs, waiting for children, and limits.
// Source: fork(2), clone(2), execve(2), wait(2), pidfd_open(2), getrlimit(2) (prlimit), prctl(2), sched_setaffinity(2), getpriority(2).
#include "say.h"
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/times.h>

extern char **environ;
// /proc/self/exe, because in simulated time the program's own path is a fixed name that does not exist.
static char *self;

static void waiting(void) {
    int status;
    siginfo_t info;
    SAY(waitpid(-1, &status, 0));
    SAY(waitpid(-1, &status, WNOHANG));
    SAY(waitpid(getpid(), &status, 0));
    SAY(waitpid(-1, &status, 0x1000));
    SAY(waitpid(INT_MIN, &status, 0));
    SAY(waitid(P_ALL, 0, &info, WEXITED));
    SAY(waitid(P_ALL, 0, &info, 0));
    SAY(waitid(9, 0, &info, WEXITED));
    SAY(waitid(P_PIDFD, 999, &info, WEXITED));
    int ends[2];
    pipe(ends);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        read(ends[0], &byte, 1);
        _exit(0x1ff);
    }
    SAY(waitpid(child, &status, WNOHANG));
    info.si_pid = 5;
    SAY(waitid(P_PID, child, &info, WEXITED | WNOHANG));
    SAY(info.si_pid);
    int pidfd = syscall(SYS_pidfd_open, child, 0);
    SAY(pidfd >= 0);
    SAY(fcntl(pidfd, F_GETFD));
    SAY(syscall(SYS_pidfd_open, child, 1));
    SAY(syscall(SYS_pidfd_open, -1, 0));
    SAY(syscall(SYS_pidfd_open, 1 << 30, 0));
    SAY(syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0));
    SAY(syscall(SYS_pidfd_send_signal, 1, 0, NULL, 0));
    SAY(write(ends[1], "x", 1));
    SAY(waitid(P_PIDFD, pidfd, &info, WEXITED | WNOWAIT));
    printf("code %d status %x own %d\n", info.si_code, info.si_status, info.si_pid == child);
    SAY(waitpid(child, (int *)8, 0) == child || errno == EFAULT);
    SAY(waitpid(child, &status, 0));
    SAY(syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0));
    struct rusage usage;
    SAY(getrusage(99, &usage));
    SAY(getrusage(RUSAGE_CHILDREN, &usage));
    struct tms times_;
    SAY(times(&times_) != -1);
}

static long clone3_of(uint64_t flags, uint64_t signal, uint64_t stack, uint64_t bytes, size_t size) {
    uint64_t words[12] = {flags, 0, 0, 0, signal, stack, bytes, 0, 0, 0, 0, 0};
    long child = syscall(SYS_clone3, words, size);
    if (child == 0) _exit(9);
    return child;
}

static void cloning(void) {
    SAY(clone3_of(0, SIGCHLD, 0, 0, 63));
    SAY(clone3_of(0, SIGCHLD, 0, 0, 5000));
    SAY(clone3_of(0, 65, 0, 0, 88));
    SAY(clone3_of(0, SIGCHLD, 0, 4096, 88));
    SAY(clone3_of(0, SIGCHLD, 4096, 0, 88));
    SAY(clone3_of(CLONE_THREAD, 0, 0, 0, 88));
    SAY(clone3_of(CLONE_SIGHAND, 0, 0, 0, 88));
    SAY(clone3_of(CLONE_FS | CLONE_NEWNS, 0, 0, 0, 88));
    SAY(clone3_of(SIGCHLD, 0, 0, 0, 88));
    SAY(clone3_of(CLONE_DETACHED, 0, 0, 0, 88));
    SAY(clone3_of(1ull << 60, 0, 0, 0, 88));
    SAY(syscall(SYS_clone3, 8, 88));
    uint64_t words[12] = {[4] = SIGCHLD, [11] = 1};
    SAY(syscall(SYS_clone3, words, sizeof words));
    long child = clone3_of(0, SIGCHLD, 0, 0, 64);
    int status = 0;
    SAY(waitpid(child, &status, 0) == child);
    SAY(status);
    int pidfd = -1;
    uint64_t with_pidfd[11] = {CLONE_PIDFD, (uintptr_t)&pidfd, 0, 0, SIGCHLD};
    fflush(stdout);
    child = syscall(SYS_clone3, with_pidfd, sizeof with_pidfd);
    if (child == 0) _exit(4);
    siginfo_t info;
    SAY(waitid(P_PIDFD, pidfd, &info, WEXITED));
    SAY(info.si_status);
    SAY(syscall(SYS_clone, CLONE_THREAD, 0, 0, 0, 0));
    SAY(unshare(1 << 30 | 1));
    SAY(unshare(CLONE_FS | CLONE_FILES | CLONE_SYSVSEM));
    SAY(setns(999, 0));
}

static void executes(const char *path, char *const *arguments) {
    execve(path, arguments, environ);
    printf("execve: %s\n", error_name(errno));
    fflush(stdout);
    _exit(1);
}

static void again(void) { executes(self, (char *[]){"name", "told", "a", "", "b c", NULL}); }
static void unnamed(void) { executes(self, (char *[]){NULL}); }
static void masked(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    raise(SIGUSR1);
    signal(SIGUSR2, SIG_IGN);
    signal(SIGHUP, (void (*)(int))1000);
    fcntl(dup2(1, 40), F_SETFD, FD_CLOEXEC);
    dup2(1, 41);
    umask(051);
    executes(self, (char *[]){"name", "inherited", NULL});
}
static void *from_thread(void *unused) {
    (void)unused;
    again();
    return NULL;
}
static void threaded(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, from_thread, NULL);
    pause();
}
static void many(void) {
    static char *arguments[5000], text[4000];
    memset(text, 'x', sizeof text - 1);
    for (int i = 0; i < 4999; i++) arguments[i] = text;
    executes(self, arguments);
}
static void long_one(void) {
    static char text[140000];
    memset(text, 'x', sizeof text - 1);
    executes(self, (char *[]){"name", text, NULL});
}

static void executing(void) {
    char folder[] = "/tmp/longma-exec-XXXXXX";
    char *none[] = {"x", NULL};
    mkdtemp(folder);
    chdir(folder);
    SAY(execve("nothing", none, environ));
    SAY(execve("", none, environ));
    SAY(execve(".", none, environ));
    SAY(execve((char *)8, none, environ));
    SAY(execve(self, (char **)8, environ));
    close(open("plain", O_CREAT | O_WRONLY, 0600));
    SAY(execve("plain", none, environ));
    int text = open("text", O_CREAT | O_WRONLY, 0700);
    SAY(write(text, "just text\n", 10));
    SAY(execve("text", none, environ));
    close(text);
    SAY(execve("text", none, environ));
    int script = open("script", O_CREAT | O_WRONLY, 0700);
    SAY(write(script, "#!/nothing/here\n", 16));
    close(script);
    SAY(execve("script", none, environ));
    int circle = open("circle", O_CREAT | O_WRONLY, 0700);
    dprintf(circle, "#!%s/circle\n", folder);
    close(circle);
    SAY(execve("circle", none, environ));
    SAY(syscall(SYS_execveat, 999, "x", none, environ, 0));
    SAY(syscall(SYS_execveat, AT_FDCWD, "", none, environ, 0));
    SAY(syscall(SYS_execveat, AT_FDCWD, self, none, environ, 77));
    in_child("again", again);
    in_child("unnamed", unnamed);
    in_child("inheriting", masked);
    in_child("from a thread", threaded);
    in_child("too many arguments", many);
    in_child("a long argument", long_one);
    pid_t child;
    ERROR(posix_spawn(&child, "/nothing", NULL, NULL, none, environ));
    int status, error = posix_spawn(&child, self, NULL, NULL, (char *[]){"name", "told", "spawned", NULL}, environ);
    SAY(waitpid(child, &status, 0) == child);
    ERROR(error);
    SAY(status);
    child = vfork();
    if (child == 0) _exit(7);
    SAY(waitpid(child, &status, 0) == child);
    SAY(status);
}

static void eats_time(void) {
    struct rlimit limit = {1, 2};
    SAY(setrlimit(RLIMIT_CPU, &limit));
    for (volatile long i = 0; i < 1l << 40; i++) {}
}
static void writes_much(void) {
    struct rlimit limit = {100, 100};
    char bytes[200] = {0};
    int file = memfd_create("x", 0);
    SAY(setrlimit(RLIMIT_FSIZE, &limit));
    SAY(write(file, bytes, 90));
    SAY(write(file, bytes, 20));
    signal(SIGXFSZ, SIG_IGN);
    SAY(write(file, bytes, 20));
    SAY(ftruncate(file, 200));
    signal(SIGXFSZ, SIG_DFL);
    SAY(write(file, bytes, 20));
}

static void limits(void) {
    struct rlimit limit = {10, 5};
    SAY(getrlimit(99, &limit));
    SAY(setrlimit(RLIMIT_NOFILE, &limit));
    SAY(setrlimit(RLIMIT_STACK, &limit));
    SAY(setrlimit(RLIMIT_AS, &limit));
    SAY(syscall(SYS_prlimit64, 1 << 30, RLIMIT_NOFILE, NULL, &limit));
    SAY(syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, (void *)8));
    SAY(syscall(SYS_prlimit64, 0, RLIMIT_AS, NULL, (void *)8));
    SAY(syscall(SYS_prlimit64, 0, RLIMIT_STACK, (void *)8, NULL));
    limit.rlim_cur = 12, limit.rlim_max = 300;
    SAY(setrlimit(RLIMIT_NOFILE, &limit));
    SAY(dup2(0, 12));
    SAY(dup2(0, 11));
    SAY(fcntl(0, F_DUPFD, 12));
    int last = 0, next;
    while ((next = dup(0)) >= 0) last = next;
    SAY(last);
    SAY(open("/dev/null", O_RDONLY));
    for (int i = 3; i < 12; i++) close(i);
    SAY(getrlimit(RLIMIT_NOFILE, &limit));
    printf("%ld %ld\n", (long)limit.rlim_cur, (long)limit.rlim_max);
    limit.rlim_cur = 1 << 20, limit.rlim_max = RLIM_INFINITY;
    SAY(setrlimit(RLIMIT_CORE, &limit));
    SAY(getrlimit(RLIMIT_CORE, &limit));
    SAY(limit.rlim_cur);
    limit.rlim_cur = 64 << 20, limit.rlim_max = 128 << 20;
    SAY(setrlimit(RLIMIT_STACK, &limit));
    SAY(setrlimit(RLIMIT_DATA, &limit));
    in_child("its limits", (void (*)(void))0 == NULL ? again : NULL);
    in_child("uses up its time", eats_time);
    in_child("writes too much", writes_much);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) executes(self, (char *[]){"name", "limits", NULL});
    waitpid(child, NULL, 0);
}

// A limit on open files, set by another process, applies at once and after execve.
static void limited_by_another(void) {
    int ends[2];
    pipe(ends);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit;
        char byte;
        int last = 0, next;
        read(ends[0], &byte, 1);
        SAY(getrlimit(RLIMIT_NOFILE, &limit));
        SAY(limit.rlim_cur);
        while ((next = dup(0)) >= 0) last = next;
        SAY(last);
        SAY(open("/dev/null", O_RDONLY));
        executes(self, (char *[]){"name", "limit", NULL});
    }
    struct rlimit limit = {40, 40}, wrong = {41, 40}, most = {40, RLIM_INFINITY};
    SAY(prlimit(child, RLIMIT_NOFILE, &wrong, NULL));
    SAY(prlimit(child, RLIMIT_NOFILE, &most, NULL));
    SAY(prlimit(child, RLIMIT_NOFILE, (void *)8, NULL));
    SAY(prlimit(child, RLIMIT_NOFILE, &limit, NULL));
    SAY(prlimit(child, RLIMIT_NOFILE, NULL, &limit));
    SAY(limit.rlim_cur);
    write(ends[1], "x", 1);
    SAY(waitpid(child, NULL, 0) == child);
}

static void settings(void) {
    char name[17] = {0};
    cpu_set_t set;
    struct sched_param parameter = {5};
    SAY(prctl(PR_SET_NAME, "a name that is too long"));
    SAY(prctl(PR_GET_NAME, name));
    puts(name);
    SAY(prctl(9999, 0, 0, 0, 0));
    SAY(prctl(PR_SET_PDEATHSIG, 99));
    SAY(prctl(PR_SET_PDEATHSIG, SIGKILL));
    int value = 0;
    SAY(prctl(PR_GET_PDEATHSIG, &value));
    SAY(value);
    SAY(prctl(PR_SET_DUMPABLE, 7));
    SAY(prctl(PR_GET_DUMPABLE));
    SAY(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 1));
    SAY(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
    SAY(prctl(PR_GET_CHILD_SUBREAPER, &value));
    SAY(value);
    SAY(prctl(PR_SET_TIMERSLACK, 1000));
    SAY(prctl(PR_GET_TIMERSLACK));
    SAY(syscall(SYS_sched_getaffinity, 0, 1, &set));
    SAY(syscall(SYS_sched_getaffinity, 1 << 30, sizeof set, &set));
    CPU_ZERO(&set);
    SAY(sched_setaffinity(0, sizeof set, &set));
    SAY(sched_setscheduler(0, 99, &parameter));
    SAY(sched_setscheduler(0, SCHED_OTHER, &parameter));
    SAY(sched_getscheduler(0));
    SAY(sched_get_priority_max(SCHED_FIFO));
    SAY(sched_get_priority_max(99));
    SAY(sched_yield());
    SAY(getpriority(9, 0));
    SAY(setpriority(PRIO_PROCESS, 0, 3));
    SAY(getpriority(PRIO_PROCESS, 0));
    SAY(getpriority(PRIO_PROCESS, 1 << 30));
    SAY(setpgid(1 << 30, 0));
    SAY(setpgid(0, -1));
    SAY(getpgid(1 << 30));
    SAY(getsid(1 << 30));
    SAY(setsid() != -1 || errno == EPERM);
    SAY(getpgid(0) == getpgrp());
    SAY(syscall(SYS_getcpu, NULL, NULL, NULL));
    SAY(syscall(SYS_getrandom, name, 16, 0x100));
    SAY(syscall(SYS_getrandom, (char *)8, 16, 0));
    SAY(syscall(SYS_getrandom, name, 16, 0));
    SAY(syscall(9999));
    SAY(gethostname(name, 0) == -1 || 1);
}

/// Prints the arguments and the inherited state after this program has executed itself.
static int child_main(int count, char **arguments) {
    if (count == 1) {
        printf("%d arguments, the first '%s'\n", count, arguments[0]);
        return 2;
    }
    if (strcmp(arguments[1], "told") == 0) {
        for (int i = 0; i < count; i++) printf("'%s' ", arguments[i]);
        puts("");
        return 3;
    }
    if (strcmp(arguments[1], "limits") == 0) {
        int of[] = {RLIMIT_NOFILE, RLIMIT_CORE, RLIMIT_STACK, RLIMIT_DATA};
        for (int i = 0; i < 4; i++) {
            struct rlimit limit;
            getrlimit(of[i], &limit);
            printf("limit %d: %ld %ld\n", i, (long)limit.rlim_cur, (long)limit.rlim_max);
        }
        return 5;
    }
    if (strcmp(arguments[1], "limit") == 0) {
        struct rlimit limit;
        getrlimit(RLIMIT_NOFILE, &limit);
        printf("behind execve: %ld\n", (long)limit.rlim_cur);
        return 6;
    }
    sigset_t set;
    struct sigaction action;
    sigprocmask(SIG_BLOCK, NULL, &set);
    printf("blocked %d %d", sigismember(&set, SIGUSR1), sigismember(&set, SIGUSR2));
    sigpending(&set);
    printf(" pending %d", sigismember(&set, SIGUSR1));
    sigaction(SIGUSR2, NULL, &action);
    printf(" ignored %d", action.sa_handler == SIG_IGN);
    sigaction(SIGHUP, NULL, &action);
    printf(" default %d", action.sa_handler == SIG_DFL);
    printf(" open %d %d mask %o\n", fcntl(40, F_GETFD), fcntl(41, F_GETFD), umask(0));
    return 4;
}

int main(int count, char **arguments) {
    if (getenv("CALLS_CHILD")) return child_main(count, arguments);
    setenv("CALLS_CHILD", "1", 1);
    self = "/proc/self/exe";
    waiting();
    cloning();
    executing();
    settings();
    limited_by_another();
    limits();
    return 0;
}
