// Processes: how children end, stop and are waited for, and programs that take their place.
// Part of calls.c: not to be compiled alone.
static int shared_word;
static pid_t parent;
static void exit_seven(void) { shared_word = 1; _exit(getppid() == parent ? 7 : 8); }
static void die_term(void) { raise(SIGTERM); }
static void die_null(void) { *(volatile int *)8 = 1; }
static void die_abort(void) { abort(); }
static void die_pipe(void) { int p[2]; pipe(p); close(p[0]); write(p[1], "x", 1); }
static void die_sent_segv(void) { kill(getpid(), SIGSEGV); }
static void die_fpe(void) { raise(SIGFPE); }
static void ignore_segv_sent(void) { signal(SIGSEGV, SIG_IGN); kill(getpid(), SIGSEGV); _exit(5); }
static void ignore_segv_caused(void) { signal(SIGSEGV, SIG_IGN); *(volatile int *)8 = 1; }
static void block_segv_caused(void) {
    sigset_t set; sigemptyset(&set); sigaddset(&set, SIGSEGV); sigprocmask(SIG_BLOCK, &set, NULL);
    handle(SIGSEGV, 0);
    *(volatile int *)8 = 1;
}
static void die_real_time(void) { raise(SIGRTMIN + 3); }
static void test_fork(void) {
    parent = getpid();
    run_child("exit", exit_seven);
    printf("memory is the parent's own: %d\n", shared_word);
    run_child("SIGTERM", die_term);
    run_child("null pointer", die_null);
    run_child("abort", die_abort);
    run_child("closed pipe", die_pipe);
    run_child("sent SIGSEGV", die_sent_segv);
    run_child("raised SIGFPE", die_fpe);
    run_child("real-time signal", die_real_time);
    run_child("ignored SIGSEGV, sent", ignore_segv_sent);
    run_child("ignored SIGSEGV, caused", ignore_segv_caused);
    run_child("blocked SIGSEGV, caused", block_segv_caused);
    printf("no child left: %s\n", result(wait(NULL)));
}

static void stop_self(void) { raise(SIGSTOP); for (;;) pause(); }
static void test_stop(void) {
    int status, pid = child(stop_self);
    waitpid(pid, &status, WUNTRACED); print_status("stop", status);
    kill(pid, SIGCONT);
    waitpid(pid, &status, WCONTINUED); print_status("continue", status);
    siginfo_t info = {0};
    printf("waitid without a change: %s, pid %d\n", result(waitid(P_PID, pid, &info, WEXITED | WNOHANG)), info.si_pid);
    kill(pid, SIGKILL);
    waitid(P_PID, pid, &info, WEXITED);
    printf("waitid: code %d, status %d, right pid %d\n", info.si_code, info.si_status, info.si_pid == pid);
}

static volatile int order;
static int vfork_child(void *told) { pause_ms(30); *(int *)told = 5; _exit(4); }
static void test_vfork(void) {
    static char stack[65536];
    volatile int told = 0;
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    int pid = clone(vfork_child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, (void *)&told);
    clock_gettime(CLOCK_MONOTONIC, &b);
    long ms = (b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000;
    int status;
    waitpid(pid, &status, 0);
    print_status("vfork child", status);
    printf("the parent waited: %d, was told %d\n", ms >= 29, told);
    printf("a thread without shared files: %s\n", result(syscall(SYS_clone, CLONE_THREAD | CLONE_SIGHAND, 0, 0, 0, 0)));
}

static int in_child = 1;
static char pages[1 << 20];
static struct { volatile long counter; volatile int word, stop, lost; } neighbours;
static int write_far(void *heap) {
    in_child = 7;
    *(int *)heap = 8;
    for (unsigned i = 0; i < sizeof pages; i += 4096) pages[i] = 9;
    _exit(3);
}
static int write_and_execute(void *heap) {
    char *none[] = {"calls", NULL};
    *(int *)heap = 11;
    pages[1] = 1;
    execve("/nowhere/at/all", none, environ);
    in_child = errno;
    pages[1] = 0;
    execve(self, none, environ);
    _exit(9);
}
static int write_beside(void *unused) { pause_ms(50); neighbours.word = 5; _exit(0); }
static int sleep_long(void *unused) { pause_ms(1500); _exit(0); }
static int sleep_short(void *unused) { pause_ms(300); _exit(0); }
static void *count_on(void *unused) {
    while (!neighbours.stop) {
        long next = neighbours.counter + 1;
        neighbours.counter = next;
        if (neighbours.counter != next) neighbours.lost = 1;
    }
    return NULL;
}
static int borrow(int (*body)(void *), void *argument) {
    static char stack[65536];
    return clone(body, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, argument);
}
static void wait_long(void) { borrow(sleep_long, NULL); }
static void wait_with_handler(void) {
    handle(SIGUSR1, 0);
    long begun = now_ms();
    int pid = borrow(sleep_short, NULL);
    long ms = now_ms() - begun;
    waitpid(pid, NULL, 0);
    printf("a handled signal: %d, after the wait %d\n", handled, ms >= 290);
}
static void test_borrow(void) {
    int status, *heap = calloc(1, 100000);
    waitpid(borrow(write_far, heap), &status, 0);
    unsigned written = 0;
    for (unsigned i = 0; i < sizeof pages; i += 4096) written += pages[i] == 9;
    printf("written by the child: %d, %d, %u pages\n", in_child, *heap, written);
    print_status("writer", status);
    waitpid(borrow(write_and_execute, heap), &status, 0);
    printf("written before execve: %d, after one that failed: %s, taken back %d\n", *heap, name_of(in_child), pages[1]);
    print_status("executer", status);
    pthread_t thread;
    pthread_create(&thread, NULL, count_on, NULL);
    for (int i = 0; i < 5; i++) { neighbours.word = 0; waitpid(borrow(write_beside, NULL), &status, 0); }
    neighbours.stop = 1;
    pthread_join(thread, NULL);
    printf("beside another thread: %d, lost by it %d\n", neighbours.word, neighbours.lost);
    int pid = child(wait_long);
    pause_ms(300);
    long begun = now_ms();
    kill(pid, SIGTERM);
    waitpid(pid, &status, 0);
    print_status("killed while it waits", status);
    printf("at once: %d\n", now_ms() - begun < 1000);
    fflush(stdout);
    pid = child(wait_with_handler);
    pause_ms(100);
    kill(pid, SIGUSR1);
    waitpid(pid, &status, 0);
    print_status("with a handler", status);
}

static void test_spawn(void) {
    int pid, status, error;
    fflush(stdout);
    char *arguments[] = {"a name of its own", "show", "one", "two words", NULL};
    char *environment[] = {"COLOUR=blue", NULL};
    error = posix_spawn(&pid, self, NULL, NULL, arguments, environment);
    waitpid(pid, &status, 0);
    printf("spawn: %s\n", name_of(error));
    print_status("spawned", status);
    error = posix_spawn(&pid, "/nowhere/at/all", NULL, NULL, arguments, environment);
    printf("spawn of nothing: %s\n", name_of(error));
    printf("system: %d\n", WEXITSTATUS(system("exit 3")));
    FILE *file = popen("echo from a shell", "r");
    char line[100] = "";
    fgets(line, sizeof line, file);
    printf("popen: %s", line);
    print_status("pclose", pclose(file));
}

static void show(int count, char **arguments) {
    for (int i = 0; i < count; i++) printf("argument %d: %s\n", i, arguments[i]);
    for (char **e = environ; *e; e++) if (strncmp(*e, "COLOUR=", 7) == 0) printf("environment: %s\n", *e);
    struct sigaction action;
    sigaction(SIGUSR1, NULL, &action);
    printf("SIGUSR1 ignored %d", action.sa_handler == SIG_IGN);
    sigaction(SIGUSR2, NULL, &action);
    printf(", SIGUSR2 default %d", action.sa_handler == SIG_DFL);
    sigaction(SIGPIPE, NULL, &action);
    printf(", SIGPIPE default %d", action.sa_handler == SIG_DFL);
    sigset_t set;
    sigprocmask(SIG_SETMASK, NULL, &set);
    printf(", SIGHUP blocked %d, SIGINT blocked %d\n", sigismember(&set, SIGHUP), sigismember(&set, SIGINT));
    sigpending(&set);
    printf("SIGHUP pending %d; descriptor 40 open %d, 41 open %d\n", sigismember(&set, SIGHUP), fcntl(40, F_GETFD) >= 0,
           fcntl(41, F_GETFD) >= 0);
}

static void prepare_exec(void) {
    signal(SIGUSR1, SIG_IGN);
    handle(SIGUSR2, 0);
    sigset_t set; sigemptyset(&set); sigaddset(&set, SIGHUP); sigprocmask(SIG_BLOCK, &set, NULL);
    raise(SIGHUP);
    dup2(0, 40);
    dup3(0, 41, O_CLOEXEC);
}
static void exec_self(void) {
    prepare_exec();
    char *arguments[] = {"another name", "show", "x", "", NULL}, *environment[] = {"COLOUR=red", NULL};
    execve(self, arguments, environment);
    printf("exec: %s\n", name_of(errno));
}
static char directory[] = "/tmp/longma-calls-XXXXXX", path[200];
static void in_directory(const char *name) { snprintf(path, sizeof path, "%s/%s", directory, name); }
static void put(const char *name, const char *text, int mode) {
    in_directory(name);
    int file = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    write(file, text, strlen(text));
    fchmod(file, mode);
    close(file);
}
static void exec_path(void) {
    char *arguments[] = {"script-name", "extra", NULL};
    execve(path, arguments, environ);
    printf("exec: %s\n", name_of(errno));
}
static void exec_descriptor(void) {
    char *arguments[] = {"by descriptor", "show", NULL};
    int file = open(self, O_RDONLY | O_CLOEXEC);
    syscall(SYS_execveat, file, "", arguments, environ, AT_EMPTY_PATH);
    printf("execveat: %s\n", name_of(errno));
}
static void exec_proc(void) {
    char *arguments[] = {"by proc", "show", NULL};
    execve("/proc/self/exe", arguments, environ);
    printf("exec: %s\n", name_of(errno));
}
static void *do_exec(void *unused) { (void)unused; exec_proc(); return NULL; }
static void exec_in_thread(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, do_exec, NULL);
    pthread_join(thread, NULL);
}
static void test_exec(void) {
    unsetenv("COLOUR");
    mkdtemp(directory);
    run_child("exec", exec_self);
    char text[400];
    snprintf(text, sizeof text, "#!%s show  with blanks \nmore\n", self);
    put("script", text, 0755);
    // The path differs from run to run.
    in_directory("script");
    char *link = "/tmp/longma-calls-script";
    unlink(link); symlink(path, link); strcpy(path, link);
    run_child("script", exec_path);
    unlink(link);
    put("plain", "no program\n", 0755); run_child("no program", exec_path);
    put("empty", "", 0755); run_child("empty file", exec_path);
    put("mode", "#!/bin/sh\n", 0644); run_child("no permission", exec_path);
    put("missing", "#!/no/such/interpreter\n", 0755); run_child("no interpreter", exec_path);
    snprintf(text, sizeof text, "#!%s/loop\n", directory);
    put("loop", text, 0755); run_child("loop", exec_path);
    strcpy(path, directory); run_child("directory", exec_path);
    strcpy(path, "/nowhere"); run_child("nothing", exec_path);
    run_child("descriptor", exec_descriptor);
    run_child("/proc/self/exe", exec_proc);
    run_child("from a thread", exec_in_thread);
    strcpy(path, "/bin/true"); run_child("a program of the host", exec_path);
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", directory);
    system(command);
}
