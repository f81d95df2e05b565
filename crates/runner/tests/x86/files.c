// System calls with architecture-specific numbers, flags and structures: files, processes, sockets, limits, names, time.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void files(void) {
    char folder[] = "/tmp/longma-x86-XXXXXX", text[64] = "";
    struct stat open_one, named;
    if (!mkdtemp(folder) || chdir(folder)) exit(1);
    int file = open("a", O_CREAT | O_RDWR | O_TRUNC | O_APPEND, 0640);
    printf("written: %zd\n", write(file, "hello", 5));
    fstat(file, &open_one);
    printf("stat: %ld %o %ld\n", (long)open_one.st_size, open_one.st_mode, (long)open_one.st_nlink);
    int same = dup2(file, file), missing = dup2(999, 999);
    printf("dup2 to itself: %d, %d %s\n", same == file, missing, strerror(errno));
    int flags = fcntl(file, F_GETFL);
    printf("flags: %d\n", flags & O_APPEND && (flags & O_ACCMODE) == O_RDWR);
    stat("a", &named);
    printf("the same: %d\n", named.st_ino == open_one.st_ino && named.st_mtime == open_one.st_mtime);
    if (mkdir("d", 0755) || symlink("a", "l") || rename("a", "b")) exit(1);
    int count = 0, sum = 0;
    DIR *entries = opendir(".");
    for (struct dirent *entry; (entry = readdir(entries)); count++)
        for (char *byte = entry->d_name; *byte; byte++) sum += *byte;
    closedir(entries);
    printf("entries: %d, %d\n", count, sum);
    printf("link: %zd %s\n", readlink("l", text, 63), text);
    printf("access: %d %d\n", access("b", R_OK), access("zz", R_OK));
    printf("removed: %d %d %d %d %d\n", unlink("l"), unlink("b"), rmdir("d"), chdir("/"), rmdir(folder));
    open("/nonexistent/x", O_RDONLY);
    printf("%d %s\n", errno, strerror(errno));
    struct statfs system;
    statfs("/proc", &system);
    printf("statfs: %lx %ld\n", (long)system.f_type, (long)system.f_namelen);
}

static void processes(void) {
    int ends[2], state;
    char text[64];
    if (pipe(ends)) exit(1);
    for (int i = 0; i < 4; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) _exit(write(ends[1], "child\n", 6) == 6 ? i : 99);
        waitpid(child, &state, 0);
        printf("status %d\n", WEXITSTATUS(state));
    }
    close(ends[1]);
    ssize_t bytes = read(ends[0], text, sizeof text);
    printf("%.*s", (int)bytes, text);
    pid_t child = vfork();
    if (child == 0) _exit(3);
    waitpid(child, &state, 0);
    printf("vfork: %d\n", WEXITSTATUS(state));
    FILE *command = popen("echo a host program; exit 3", "r");
    printf("%s", fgets(text, sizeof text, command));
    printf("status %d\n", WEXITSTATUS(pclose(command)));
    char *shared = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fflush(stdout);
    if (fork() == 0) {
        shared[5] = 9;
        _exit(0);
    }
    wait(NULL);
    printf("shared: %d\n", shared[5]);
}

// A call with a stack that ends directly below the stack pointer. Below it is other data, then unmapped memory.
static void at_the_end_of_a_stack(int file) {
    struct stat found = {0};
    char *area = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *stack = area + 32768 + 64;
    long first, second;
    int changed = 0;
    memset(area, 'a', 32768);
    __asm__ volatile("mov %%rsp, %%r12\n\tmov %4, %%rsp\n\tsyscall\n\tmov %%r12, %%rsp"
                     : "=a"(first) : "a"(5L), "D"((long)file), "S"(&found), "r"(stack) : "r12", "rcx", "r11", "memory");
    for (int i = 0; i < 32768; i++) changed += area[i] != 'a';
    munmap(area, 32768);
    __asm__ volatile("mov %%rsp, %%r12\n\tmov %4, %%rsp\n\tsyscall\n\tmov %%r12, %%rsp"
                     : "=a"(second) : "a"(5L), "D"((long)file), "S"(&found), "r"(stack) : "r12", "rcx", "r11", "memory");
    printf("at the end of a stack: %ld, %ld, %d, %d\n", first, second, changed, S_ISSOCK(found.st_mode));
}

// Events that do not fit stay pending.
static void events_at_the_end(void) {
    char *area = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ;
    struct epoll_event found[8];
    int set = epoll_create1(0);
    munmap(area + 32768, 32768);
    for (int i = 0; i < 5; i++) {
        struct epoll_event wanted = {EPOLLIN | EPOLLET, {.u64 = i}};
        epoll_ctl(set, EPOLL_CTL_ADD, eventfd(1, 0), &wanted);
    }
    printf("events at the end: %d", epoll_wait(set, (void *)(area + 32768 - 5), 8, 0));
    printf(", %d", epoll_wait(set, (void *)(area + 32768 - 3 * 12), 8, 0));
    printf(", %d\n", epoll_wait(set, found, 8, 0));
}

// The parent continues when the child has exited, and sees its writes.
static void lent(void) {
    static volatile int value;
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        usleep(20000);
        value = 5;
        _exit(3);
    }
    int seen = value, status;
    waitpid(child, &status, 0);
    printf("vfork: %d, %d\n", seen, WEXITSTATUS(status));
}

// Calls that C libraries no longer use. Source: Linux fs/select.c (kern_select), kernel/time/itimer.c (alarm_setitimer).
static void times_of_old_calls(void) {
    struct timeval normal = {-1, 1010000}, negative = {1, -1};
    printf("select: %ld", syscall(SYS_select, 0, NULL, NULL, NULL, &normal));
    printf(", %ld", syscall(SYS_select, 0, NULL, NULL, NULL, &negative));
    printf(" %s\n", strerror(errno));
    const int left[] = {300000, 990000};
    for (int i = 0; i < 2; i++) {
        struct itimerval timer = {.it_value = {9, left[i]}};
        setitimer(ITIMER_REAL, &timer, NULL);
        printf("alarm: %ld\n", syscall(SYS_alarm, 0));
    }
    printf("epoll_create: %ld", syscall(SYS_epoll_create, 0));
    printf(" %s\n", strerror(errno));
}

// Entries of the older getdents have their type in the last byte. Source: getdents(2).
static void older_entries(void) {
    char path[] = "/tmp/longma-entries-XXXXXX", entries[4096];
    struct { unsigned long inode, offset; unsigned short bytes; char name[]; } *entry;
    int kind[128] = {0};
    if (!mkdtemp(path) || chdir(path) || mkdir("d", 0755) || symlink("a", "l")) exit(1);
    close(open("f", O_CREAT | O_WRONLY, 0600));
    int folder = open(".", O_RDONLY | O_DIRECTORY);
    long bytes = syscall(SYS_getdents, folder, entries, sizeof entries);
    for (long at = 0; at < bytes; at += entry->bytes) {
        entry = (void *)(entries + at);
        if (!strcmp(entry->name, "..") || !entry->name[1]) kind[entry->name[0]] += ((char *)entry)[entry->bytes - 1];
    }
    printf("kinds: %d %d %d %d\n", kind['.'], kind['d'], kind['f'], kind['l']);
    lseek(folder, 0, SEEK_SET);
    printf("too small: %ld", syscall(SYS_getdents, folder, entries, 8));
    printf(" %s\n", strerror(errno));
    close(folder);
    if (rmdir("d") || unlink("f") || unlink("l") || chdir("/") || rmdir(path)) exit(1);
}

int main(void) {
    files();
    processes();
    struct utsname names;
    uname(&names);
    puts(names.machine);
    struct timespec before, after, pause = {0, 20000000};
    clock_gettime(CLOCK_MONOTONIC, &before);
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_MONOTONIC, &after);
    printf("slept: %d\n", (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec >= 20000000);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 77;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    printf("files: %d\n", (int)limit.rlim_cur);
    int pair[2], kind = 0;
    socklen_t length = sizeof kind;
    printf("pair: %d", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    printf(", %zd", write(pair[0], "xyz", 3));
    struct pollfd ready = {pair[1], POLLIN, 0};
    printf(", poll %d", poll(&ready, 1, 1000));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair[1], &set);
    struct timeval second = {1, 0};
    printf(", select %d", select(pair[1] + 1, &set, NULL, NULL, &second));
    getsockopt(pair[0], SOL_SOCKET, SO_TYPE, &kind, &length);
    printf(", stream %d\n", kind == SOCK_STREAM);
    char *memory = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory[100] = 1;
    memory = mremap(memory, 65536, 1 << 20, MREMAP_MAYMOVE);
    printf("moved: %d", memory[100]);
    printf(", %d\n", munmap(memory, 1 << 20));
    struct epoll_event wanted[3] = {{EPOLLIN, {.u64 = 0x123456789abcdef0}}, {EPOLLOUT, {.u64 = 7}}}, found[3];
    int set_of_events = epoll_create1(0);
    for (int i = 0; i < 2; i++) epoll_ctl(set_of_events, EPOLL_CTL_ADD, pair[1 - i], &wanted[i]);
    int events = epoll_wait(set_of_events, found, 3, 1000);
    unsigned long sum = 0;
    for (int i = 0; i < events; i++) sum += found[i].data.u64 + found[i].events;
    printf("events: %d, %lx\n", events, sum);
    at_the_end_of_a_stack(pair[0]);
    events_at_the_end();
    lent();
    times_of_old_calls();
    older_entries();
    void *page = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("pages: %ld, %d, %d\n", sysconf(_SC_PAGESIZE), mprotect((char *)page + 4096, 4096, PROT_NONE),
           munmap((char *)page + 8192, 4096));
    return 0;
}
