// System calls with architecture-specific numbers, flags and structures: files, processes, sockets, limits, names, time.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void files(void) {
    char folder[] = "/tmp/longma-mips-XXXXXX", text[64] = "";
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

// fstat with a stack that ends directly below the stack pointer.
static long call_on(char *end, long file, struct stat *found) {
    register long number __asm__("$2") = 5005;
    register long first __asm__("$4") = file;
    register struct stat *second __asm__("$5") = found;
    register long failed __asm__("$7");
    __asm__ volatile("move $16, $29\n\tmove $29, %4\n\tsyscall\n\tmove $29, $16"
                     : "+r"(number), "=r"(failed) : "r"(first), "r"(second), "r"(end)
                     : "$16", "$8", "$9", "$10", "$11", "$12", "$13", "$14", "$15", "$24", "$25", "memory");
    return failed ? -number : number;
}

// Below it is other data, then unmapped memory.
static void at_the_end_of_a_stack(int file) {
    struct stat found, nothing;
    char *area = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int changed = 0;
    memset(&nothing, 0, sizeof nothing);
    found = nothing;
    memset(area, 'a', 32768);
    long first = call_on(area + 32768 + 64, file, &found);
    for (int i = 0; i < 32768; i++) changed += area[i] != 'a';
    munmap(area, 32768);
    long second = call_on(area + 32768 + 64, file, &found);
    printf("at the end of a stack: %ld, %ld, %d, %d\n", first, second, changed,
           memcmp(&found, &nothing, sizeof found) != 0);
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
    older_entries();
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
    // The time that remains. QEMU refuses more than a million microseconds, which Linux permits.
    struct timeval shortly = {0, 10000};
    printf(", %ld", syscall(SYS__newselect, 0, NULL, NULL, NULL, &shortly));
    printf(" %ld %ld", (long)shortly.tv_sec, (long)shortly.tv_usec);
    getsockopt(pair[0], SOL_SOCKET, SO_TYPE, &kind, &length);
    printf(", stream %d\n", kind == SOCK_STREAM);
    at_the_end_of_a_stack(pair[0]);
    char *memory = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory[100] = 1;
    memory = mremap(memory, 65536, 1 << 20, MREMAP_MAYMOVE);
    printf("moved: %d, %d\n", memory[100], munmap(memory, 1 << 20));
    return 0;
}
