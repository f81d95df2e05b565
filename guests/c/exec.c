// Starts itself again: by execve, by /proc/self/exe, from a child, through a #! script.
// Tests execve: a new program must keep what Linux keeps (open files, the signal mask, ignored
// signals) and lose the rest (close-on-exec files, handlers, memory). User-mode QEMU leaves
// execve of a guest's program to the host, so this runs there only with binfmt_misc.
// Arguments: TIMES to start itself by execve (default 3).
#include "guest.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static char *self;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void ignore_it(int signal) { (void)signal; }

// The executed program: reports what it inherited, then continues or exits.
static int reborn(int left, char **argv) {
    struct sigaction ignored, handled;
    sigset_t mask;
    sigaction(SIGUSR1, NULL, &ignored);
    sigaction(SIGUSR2, NULL, &handled);
    sigprocmask(SIG_BLOCK, NULL, &mask);
    printf("%d left: variable %s, kept file %d, closed file %d, ignored %d, handler gone %d, masked %d\n", left,
           getenv("GUEST") ? getenv("GUEST") : "missing", fcntl(100, F_GETFD) == 0, fcntl(101, F_GETFD) == -1,
           ignored.sa_handler == SIG_IGN, handled.sa_handler == SIG_DFL, sigismember(&mask, SIGHUP));
    fflush(stdout);
    if (left == 0) return 23;
    char number[16], *next[] = {self, (char *)"again", number, argv[3], NULL};
    snprintf(number, sizeof number, "%d", left - 1);
    execve(left % 2 ? argv[3] : "/proc/self/exe", next, environ);
    fail("exec: execve");
    return 1;
}

static int status_of(pid_t child) {
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) fail("exec: child");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void from_a_child(int times, const char *path) {
    if (dup2(1, 100) != 100 || dup2(1, 101) != 101 || fcntl(101, F_SETFD, FD_CLOEXEC) != 0) fail("exec: dup2");
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, ignore_it);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGHUP);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    setenv("GUEST", "kept", 1);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char number[16], *next[] = {self, (char *)"again", number, (char *)path, NULL};
        snprintf(number, sizeof number, "%d", times - 1);
        execve(path, next, environ);
        fail("exec: execve");
    }
    printf("child ended with %d\n", status_of(child));
}

static void by_spawn(const char *path) {
    pid_t child;
    char *next[] = {self, (char *)"again", (char *)"0", (char *)path, NULL};
    int error = posix_spawn(&child, path, NULL, NULL, next, environ);
    if (error) errno = error, fail("exec: posix_spawn");
    printf("spawned child ended with %d\n", status_of(child));
}

static void by_script(const char *path) {
    char name[] = "/tmp/guest-exec-XXXXXX";
    int file = mkstemp(name);
    if (file < 0 || dprintf(file, "#!%s script\nnot read\n", path) < 0 || fchmod(file, 0700) != 0) fail("exec: script");
    close(file);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char *next[] = {name, (char *)"last", NULL};
        execve(name, next, environ);
        _exit(1);
    }
    int ended = status_of(child);
    unlink(name);
    printf("script ended with %d\n", ended);
}

static void errors(void) {
    char *next[] = {self, NULL};
    execve("/no/such/file", next, environ);
    printf("missing file: ENOENT %d\n", errno == ENOENT);
    execve("/tmp", next, environ);
    printf("a folder: EACCES %d\n", errno == EACCES);
    execve("/proc/self/status", next, environ);
    printf("not executable: EACCES %d\n", errno == EACCES);
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc == 4 && strcmp(argv[1], "again") == 0) return reborn(atoi(argv[2]), argv);
    // Linux runs a script as: interpreter, its argument, the script's path, the script's arguments.
    if (argc == 4 && strcmp(argv[1], "script") == 0) return strcmp(argv[3], "last") == 0 ? 42 : 1;
    int times = (int)argument(argc, argv, 1, 3, 1, 1000);
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0) fail("exec: /proc/self/exe");
    path[length] = 0;
    errors();
    from_a_child(times, path);
    by_spawn(path);
    by_script(path);
    return 0;
}
