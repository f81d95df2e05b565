// Sets up state, is saved, and reports the restored state: everything that a checkpoint keeps, or one kind that it rejects.
// Tests checkpoints; without one, the output is the same.
// Arguments: WHAT ("all", or one kind by name), and any further argument to keep its files in the working directory.
// Source: what a process has, execve(2), fork(2), clone(2) and proc(5).
#include "../include/longma.h"
#include "guest.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 1 << 16 };

static void say(const char *what, long value) { printf("%s: %ld\n", what, value); }
static int fresh(const char *name) { return open(name, O_RDWR | O_CREAT | O_TRUNC, 0600); }

// --- State that a checkpoint keeps ---

static char *private_memory, *shared_memory, *read_only;
static void memory_before(void) {
    private_memory = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    shared_memory = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    strcpy(private_memory, "private");
    strcpy(shared_memory + PAGES / 2, "shared");
    // Two non-overlapping parts of one shared memory.
    mprotect(shared_memory, PAGES / 4, PROT_READ);
    int file = fresh("read-only");
    write(file, "contents", 8);
    read_only = mmap(NULL, PAGES, PROT_READ, MAP_SHARED, file, 0);
    close(file);
}
static void memory_after(void) {
    say("private memory", strcmp(private_memory, "private"));
    say("shared memory", strcmp(shared_memory + PAGES / 2, "shared"));
    say("a file's memory", strcmp(read_only, "contents"));
    pid_t child = fork();
    if (child == 0) {
        strcpy(shared_memory + PAGES / 2, "child");
        _exit(0);
    }
    waitpid(child, NULL, 0);
    say("memory is shared", strcmp(shared_memory + PAGES / 2, "child"));
}

static char *wiped;
static void wiped_before(void) {
    wiped = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    wiped[0] = 1;
    madvise(wiped, PAGES, 18); // MADV_WIPEONFORK
}
static void wiped_after(void) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) _exit(wiped[0]);
    waitpid(child, &status, 0);
    say("a child finds in wiped memory", status);
    say("its parent has", wiped[0]);
}

static char folder[PATH_MAX];
static void folder_before(void) {
    mkdir("inner", 0700);
    chdir("inner");
    getcwd(folder, sizeof folder);
}
static void folder_after(void) {
    char now[PATH_MAX];
    say("the folder has its name", getcwd(now, sizeof now) && strcmp(now, folder) == 0);
    say("and is there", access("../inner", X_OK));
    chdir("..");
}

static void umask_before(void) { umask(0137); }
static void umask_after(void) { say("umask", umask(022)); }

static void limits_before(void) {
    setrlimit(RLIMIT_AS, &(struct rlimit){123 << 20, 200 << 20});
    setrlimit(RLIMIT_DATA, &(struct rlimit){77 << 20, 78 << 20});
    setrlimit(RLIMIT_STACK, &(struct rlimit){3 << 20, 4 << 20});
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){60, 200});
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 20, 2 << 20});
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
}
static void limits_after(void) {
    static const struct { const char *name; int resource; } all[] = {
        {"RLIMIT_AS", RLIMIT_AS}, {"RLIMIT_DATA", RLIMIT_DATA}, {"RLIMIT_STACK", RLIMIT_STACK},
        {"RLIMIT_NOFILE", RLIMIT_NOFILE}, {"RLIMIT_FSIZE", RLIMIT_FSIZE}, {"RLIMIT_CORE", RLIMIT_CORE},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct rlimit limit;
        getrlimit(all[i].resource, &limit);
        printf("%s: %ld %ld\n", all[i].name, (long)limit.rlim_cur, (long)limit.rlim_max);
    }
    say("files that can be opened", fcntl(0, F_DUPFD, 60) == -1 && errno == EINVAL);
    signal(SIGXFSZ, SIG_IGN);
    int file = fresh("large");
    say("a file that is too large", ftruncate(file, 1 << 21) == -1 && errno == EFBIG);
    close(file);
}

static volatile int alarms;
static void on_alarm(int signal) { alarms += signal == SIGALRM; }
static stack_t stack;
static void signals_before(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(SIGALRM, &action, NULL);
    signal(SIGHUP, SIG_IGN);
    stack = (stack_t){.ss_sp = malloc(1 << 16), .ss_flags = 0, .ss_size = 1 << 16};
    sigaltstack(&stack, NULL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 30000}, {0, 30000}}, NULL);
}
static void signals_after(void) {
    while (alarms < 2) usleep(5000);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    puts("the timer rings");
    struct sigaction action;
    sigaction(SIGALRM, NULL, &action);
    say("flags", (action.sa_flags & (SA_RESTART | SA_ONSTACK)) == (SA_RESTART | SA_ONSTACK));
    say("mask of the handler", sigismember(&action.sa_mask, SIGUSR2));
    sigaction(SIGHUP, NULL, &action);
    say("ignored", action.sa_handler == SIG_IGN);
    stack_t now;
    sigaltstack(NULL, &now);
    say("alternate stack", now.ss_sp == stack.ss_sp && now.ss_size == 1 << 16);
    sigset_t set;
    sigprocmask(SIG_BLOCK, NULL, &set);
    say("blocked", sigismember(&set, SIGUSR1));
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, robust;
static pthread_cond_t go = PTHREAD_COND_INITIALIZER;
static int gone, worker_name, has_robust;
static void *work(void *unused) {
    char name[16];
    prctl(PR_SET_NAME, "worker");
    pthread_mutex_lock(&robust);
    pthread_mutex_lock(&lock);
    has_robust = 1;
    pthread_cond_broadcast(&go);
    while (!gone) pthread_cond_wait(&go, &lock);
    pthread_mutex_unlock(&lock);
    prctl(PR_GET_NAME, name);
    worker_name = strcmp(name, "worker") == 0;
    return unused;
}
static pthread_t worker;
static void threads_before(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &attributes);
    prctl(PR_SET_NAME, "main one");
    pthread_create(&worker, NULL, work, NULL);
    pthread_mutex_lock(&lock);
    while (!has_robust) pthread_cond_wait(&go, &lock);
    pthread_mutex_unlock(&lock);
}
static void threads_after(void) {
    char name[16] = "";
    pthread_mutex_lock(&lock);
    gone = 1;
    pthread_cond_broadcast(&go);
    pthread_mutex_unlock(&lock);
    pthread_join(worker, NULL);
    prctl(PR_GET_NAME, name);
    printf("the main thread is %s\n", name);
    say("the other has its name", worker_name);
    say("a robust mutex whose owner has ended", pthread_mutex_lock(&robust) == EOWNERDEAD);
}

static int file, copy, append, once_locked;
static void files_before(void) {
    file = fresh("digits");
    write(file, "0123456789", 10);
    lseek(file, 4, SEEK_SET);
    copy = fcntl(file, F_DUPFD_CLOEXEC, 20);
    append = open("digits", O_WRONLY | O_APPEND | O_NONBLOCK);
    once_locked = open("digits", O_RDONLY);
    flock(once_locked, LOCK_EX);
    flock(once_locked, LOCK_UN);
}
static void files_after(void) {
    char bytes[16] = "";
    say("read", read(file, bytes, 3));
    say("read by the copy", read(copy, bytes + 3, 3));
    printf("bytes %s\n", bytes);
    say("close on exec", fcntl(copy, F_GETFD));
    say("of the first", fcntl(file, F_GETFD));
    say("flags", (fcntl(append, F_GETFL) & (O_APPEND | O_NONBLOCK)) == (O_APPEND | O_NONBLOCK));
    struct stat earlier, status;
    fstat(file, &earlier);
    lseek(append, 0, SEEK_SET);
    write(append, "ab", 2);
    fstat(file, &status);
    say("appended", status.st_size - earlier.st_size);
}

static int ends[2], count, semaphore, set;
static void waits_before(void) {
    pipe(ends);
    fcntl(ends[1], F_SETPIPE_SZ, 1 << 18);
    write(ends[1], "in the pipe", 11);
    count = eventfd(3, EFD_NONBLOCK);
    semaphore = eventfd(2, EFD_SEMAPHORE | EFD_NONBLOCK);
    set = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &(struct epoll_event){EPOLLIN, {.u64 = 77}});
}
static void waits_after(void) {
    char bytes[32] = "";
    uint64_t value = 0;
    struct epoll_event event = {0};
    say("ready", epoll_wait(set, &event, 1, 0));
    say("its data", event.data.u64);
    say("from the pipe", read(ends[0], bytes, 32));
    printf("bytes %s\n", bytes);
    say("the pipe holds", fcntl(ends[0], F_GETPIPE_SZ));
    read(count, &value, 8);
    say("counted", value);
    read(semaphore, &value, 8);
    say("semaphore", value);
    say("and once more", read(semaphore, &value, 8));
    say("and no more", read(semaphore, &value, 8));
}

static const struct { void (*before)(void), (*after)(void); } kept[] = {
    {memory_before, memory_after}, {wiped_before, wiped_after},     {threads_before, threads_after}, {files_before, files_after},
    {waits_before, waits_after},   {signals_before, signals_after}, {folder_before, folder_after},   {umask_before, umask_after},
    {limits_before, limits_after},
};

// --- State that a checkpoint rejects, by name ---

static void views(void) {
    char *first = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    mremap(first, 0, PAGES, MREMAP_MAYMOVE);
}
static void shared_file(void) {
    int file = fresh("shared");
    ftruncate(file, PAGES);
    mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
}
static void segment(void) {
    int id = shmget(IPC_PRIVATE, PAGES, 0600 | IPC_CREAT);
    shmat(id, NULL, 0);
    shmctl(id, IPC_RMID, NULL);
}
static void undo(void) {
    int id = semget(IPC_PRIVATE, 1, 0600 | IPC_CREAT);
    semop(id, &(struct sembuf){0, 1, SEM_UNDO}, 1);
    semctl(id, 0, IPC_RMID);
}
static void flock_held(void) { flock(fresh("locked"), LOCK_EX); }
static void range_locked(void) { fcntl(fresh("locked"), F_SETLK, &(struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 5}); }
static void description_locked(void) {
    fcntl(fresh("locked"), F_OFD_SETLK, &(struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 5});
}
static void sends_signals(void) {
    int ends[2];
    pipe(ends);
    fcntl(ends[0], F_SETOWN, getpid());
    fcntl(ends[0], F_SETFL, O_ASYNC);
}
static void packets(void) {
    int ends[2];
    pipe2(ends, O_DIRECT);
}
static void memory_file(void) { memfd_create("memory", 0); }
static void deleted(void) {
    fresh("deleted");
    unlink("deleted");
}
static void renamed(void) {
    fresh("renamed");
    link("renamed", "other name");
    unlink("renamed");
}
static void a_socket(void) { socket(AF_UNIX, SOCK_DGRAM, 0); }
static void timer_file(void) { timerfd_create(CLOCK_MONOTONIC, 0); }
static void signal_file(void) {
    sigset_t set;
    sigemptyset(&set);
    signalfd(-1, &set, 0);
}
static void watch(void) { inotify_init(); }
static void process_file(void) { syscall(SYS_pidfd_open, getpid(), 0); }
static void named_pipe(void) {
    mkfifo("named", 0600);
    open("named", O_RDWR);
}
static void closed_watched(void) {
    int ends[2], set = epoll_create1(0);
    pipe(ends);
    epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &(struct epoll_event){EPOLLIN, {.u64 = 77}});
    dup(ends[0]);
    close(ends[0]);
    eventfd(0, 0);
}
static void child(void) {
    if (fork() == 0) {
        alarm(2);
        pause();
        _exit(0);
    }
}
static void zombie(void) {
    if (fork() == 0) _exit(0);
    usleep(50000);
}
static void pending(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    kill(getpid(), SIGUSR1);
}
static void priority(void) { setpriority(PRIO_PROCESS, 0, 19); }
static void group(void) { setpgid(0, 0); }
static void attributes(void) { prctl(PR_SET_CHILD_SUBREAPER, 1); }
static void processor_timer(void) { setitimer(ITIMER_PROF, &(struct itimerval){{0, 0}, {1000, 0}}, NULL); }

static const struct { const char *name; void (*act)(void); } refused[] = {
#define THING(name) {#name, name}
    THING(views), THING(shared_file), THING(segment), THING(undo), THING(flock_held), THING(range_locked), THING(description_locked),
    THING(sends_signals), THING(packets), THING(memory_file), THING(deleted), THING(renamed), THING(a_socket), THING(timer_file),
    THING(signal_file), THING(watch), THING(process_file), THING(named_pipe), THING(closed_watched), THING(child), THING(zombie),
    THING(pending), THING(priority), THING(group), THING(attributes), THING(processor_timer),
#undef THING
};

// Accepted, but not part of "all": a pipe at descriptor 9, created by the parent.
static int outside(void) {
    char bytes[16] = "";
    longma_checkpoint();
    if (read(9, bytes, sizeof bytes - 1) < 0) return puts("descriptor 9 is closed"), 0;
    return puts(bytes), 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IONBF, 0);
    if (argc < 2 || strcmp(argv[1], "all") == 0) {
        size_t number = sizeof kept / sizeof *kept;
        for (size_t i = 0; i < number; i++) kept[i].before();
        longma_checkpoint();
        for (size_t i = 0; i < number; i++) kept[i].after();
        if (argc > 2) return 0;
        unlink("read-only");
        unlink("digits");
        unlink("large");
        rmdir("inner");
        return 0;
    }
    if (strcmp(argv[1], "outside") == 0) return outside();
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (strcmp(argv[1], refused[i].name) != 0) continue;
        refused[i].act();
        longma_checkpoint();
        puts("not saved");
        return 0;
    }
    fprintf(stderr, "%s: '%s' is nothing that it knows\n", argv[0], argv[1]);
    return 2;
}
