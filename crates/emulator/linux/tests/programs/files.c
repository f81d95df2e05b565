// Asks the kernel about files, descriptors, memory and System V IPC and prints what it answered: `files NAME DIRECTORY`.
// Everything printed is the same on every Linux with the same system calls, so that a native build is the reference.
// Built with zig 0.17.1: zig cc -target loongarch64-linux-musl -mcpu=generic_la64+d -Os -static -s -fno-sanitize=all -w -o files files.c
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define PAGE 65536 // a multiple of every page size

static char text[8192];

static const char *meaning(long result) { return result < 0 ? strerror(errno) : ""; }

// Prints the call and what it gave.
#define SHOW(call) do { errno = 0; long r = (long)(call); printf("%s: %ld %s\n", #call, r < 0 ? -1 : r, meaning(r)); } while (0)
// Prints the call and whether it worked; for descriptors, ids and addresses.
#define WORKS(call) ({ errno = 0; long r = (long)(call); printf("%s: %s %s\n", #call, r == -1 ? "fails" : "works", meaning(r == -1 ? -1 : 0)); r; })

static void status(const char *path, int follow) {
    struct stat s;
    if (fstatat(AT_FDCWD, path, &s, follow ? 0 : AT_SYMLINK_NOFOLLOW)) { printf("%s: %s\n", path, strerror(errno)); return; }
    printf("%s: mode %o, size %ld, links %ld, modified %ld.%09ld\n", path, s.st_mode, S_ISDIR(s.st_mode) ? 0L : (long)s.st_size,
           (long)s.st_nlink, s.st_mtim.tv_sec > 1000000000 ? 0L : (long)s.st_mtim.tv_sec,
           s.st_mtim.tv_sec > 1000000000 ? 0L : s.st_mtim.tv_nsec);
}

static void test_names(void) {
    int file = WORKS(open("a.txt", O_RDWR | O_CREAT | O_TRUNC, 0640));
    SHOW(write(file, "hello world", 11));
    SHOW(symlink("a.txt", "link")); status("link", 0); status("link", 1);
    memset(text, 0, 100); SHOW(readlink("link", text, 3)); puts(text);
    SHOW(link("a.txt", "hard")); status("hard", 1); SHOW(rename("hard", "harder")); status("hard", 1);
    SHOW(syscall(SYS_renameat2, AT_FDCWD, "harder", AT_FDCWD, "a.txt", 1));
    SHOW(access("harder", R_OK)); SHOW(access("nothing", R_OK)); SHOW(faccessat(AT_FDCWD, "a.txt", X_OK, AT_EACCESS));
    SHOW(mkdir("sub", 0755)); SHOW(mkdir("sub", 0755)); SHOW(rmdir("sub/")); SHOW(mkdir("sub/", 0700)); SHOW(unlink("sub"));
    SHOW(truncate("link", 20000)); SHOW(chmod("link", 0600)); status("a.txt", 1); SHOW(unlink("harder"));
    SHOW(open("nothing", O_RDONLY)); SHOW(open("sub", O_WRONLY)); SHOW(open("a.txt", O_RDONLY | O_DIRECTORY));
    SHOW(open("link", O_RDONLY | O_NOFOLLOW)); SHOW(open("a.txt", O_CREAT | O_EXCL, 0600)); SHOW(open("", O_RDONLY));
    memset(text, 'x', 5000); text[5000] = 0; SHOW(open(text, O_RDONLY)); text[300] = 0; SHOW(open(text, O_RDONLY));
    struct timespec times[2] = {{100, 5}, {200, 7}};
    SHOW(utimensat(AT_FDCWD, "a.txt", times, 0)); status("a.txt", 1); times[1].tv_nsec = UTIME_OMIT; SHOW(futimens(file, times)); status("a.txt", 1);
    SHOW(mkfifo("fifo", 0600)); status("fifo", 0); SHOW(fchownat(AT_FDCWD, "a.txt", -1, -1, 0));
    DIR *directory = opendir("."); int entries = 0; while (readdir(directory)) entries++; closedir(directory); printf("%d entries\n", entries);
    int sub = WORKS(open("sub", O_RDONLY | O_DIRECTORY)); WORKS(openat(sub, "inner", O_CREAT | O_WRONLY, 0600)); status("sub/inner", 1);
    SHOW(fchdir(sub)); status("inner", 1); SHOW(chdir("..")); SHOW(unlinkat(sub, "inner", 0)); SHOW(unlinkat(AT_FDCWD, "sub", AT_REMOVEDIR));
    SHOW(syscall(SYS_getcwd, text, 1)); SHOW(chdir("a.txt"));
    struct statfs system; SHOW(statfs(".", &system)); SHOW(statfs("nothing", &system));
    int events = WORKS(inotify_init1(IN_NONBLOCK)); SHOW(inotify_add_watch(events, ".", IN_CREATE)); close(open("new", O_CREAT | O_WRONLY, 0600));
    memset(text, 0, 100); read(events, text, sizeof text); puts(((struct inotify_event *)text)->name);
    SHOW(umask(022)); SHOW(umask(077));
}

static void test_descriptors(void) {
    int file = WORKS(open("b.txt", O_RDWR | O_CREAT | O_TRUNC, 0600));
    SHOW(write(file, "hello world", 11)); SHOW(pwrite(file, "J", 1, 0)); SHOW(lseek(file, 0, SEEK_SET)); SHOW(lseek(file, -1, SEEK_SET));
    memset(text, 0, 100); SHOW(read(file, text, 100)); puts(text);
    struct iovec pieces[2] = {{text, 3}, {text + 10, 4}};
    SHOW(preadv(file, pieces, 2, 1)); printf("%.3s %.4s\n", text, text + 10); SHOW(pwritev(file, pieces, 2, 20)); SHOW(readv(file, pieces, 5000));
    SHOW(read(file, (void *)-4096L, 10)); SHOW(write(file, (void *)-4096L, 10)); SHOW(write(99, "", 0)); SHOW(ftruncate(file, 5)); SHOW(ftruncate(file, -1));
    int ends[2]; SHOW(pipe2(ends, O_NONBLOCK)); SHOW(read(ends[0], text, 1)); SHOW(write(ends[1], "abc", 3)); int ready; SHOW(ioctl(ends[0], FIONREAD, &ready)); printf("%d\n", ready);
    SHOW(fcntl(ends[0], F_GETFL)); SHOW(fcntl(ends[0], F_SETFL, 0)); SHOW(fcntl(ends[0], F_GETFL)); SHOW(fcntl(ends[0], F_GETFD)); SHOW(fcntl(ends[0], F_SETFD, 1)); SHOW(fcntl(ends[0], F_GETFD));
    SHOW(fcntl(ends[0], F_DUPFD_CLOEXEC, 50)); SHOW(fcntl(ends[0], 12345, 0)); SHOW(dup2(ends[0], 60)); SHOW(dup3(ends[0], ends[0], 0)); SHOW(close(60)); SHOW(close(60));
    SHOW(fcntl(ends[0], F_GETPIPE_SZ)); struct f_owner_ex owner = {F_OWNER_PID, 0}; SHOW(fcntl(ends[0], F_SETOWN_EX, &owner));
    struct flock lock = {F_WRLCK, SEEK_SET, 0, 0, 0}; SHOW(fcntl(file, F_SETLK, &lock)); lock.l_type = F_RDLCK; SHOW(fcntl(file, F_GETLK, &lock)); printf("%d\n", lock.l_type);
    SHOW(flock(file, LOCK_EX | LOCK_NB)); struct termios terminal; SHOW(tcgetattr(file, &terminal)); SHOW(ioctl(99, TCGETS, text)); SHOW(isatty(ends[0]));
    SHOW(lseek(file, 0, SEEK_SET)); SHOW(sendfile(ends[1], file, NULL, 3)); loff_t from = 0; SHOW(splice(file, &from, ends[1], NULL, 2, 0)); printf("%d\n", (int)from); SHOW(tee(ends[0], ends[1], 1, 0));
    SHOW(fallocate(file, 0, 0, 30000)); SHOW(copy_file_range(file, NULL, open("copy", O_CREAT | O_RDWR, 0600), NULL, 100, 0)); status("copy", 1);
    SHOW(fsync(file)); SHOW(posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM)); SHOW(syscall(SYS_close_range, 100, 200, 0)); SHOW(syscall(SYS_close_range, 2, 1, 0));
    int memory = WORKS(memfd_create("x", MFD_ALLOW_SEALING)); SHOW(ftruncate(memory, 10)); SHOW(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK)); SHOW(ftruncate(memory, 5)); SHOW(fcntl(memory, F_GET_SEALS));
    int path = WORKS(open("b.txt", O_PATH)); SHOW(read(path, text, 1)); struct stat s; SHOW(fstat(path, &s)); SHOW(fstat(99, &s)); printf("%ld\n", (long)s.st_size);
    struct statx extended; SHOW(syscall(SYS_statx, file, "", AT_EMPTY_PATH, 0x7ff, &extended)); printf("%llu\n", (unsigned long long)extended.stx_size);
}

#define MAPPED(call) ({ errno = 0; char *given = (char *)(call); printf("%s: %s %s\n", #call, given == MAP_FAILED ? "fails" : "works", given == MAP_FAILED ? strerror(errno) : ""); given; })

static void test_memory(void) {
    const int fresh = MAP_PRIVATE | MAP_ANONYMOUS, both = PROT_READ | PROT_WRITE;
    int file = open("c.txt", O_RDWR | O_CREAT | O_TRUNC, 0600);
    char *m = MAPPED(mmap(0, 3 * PAGE, both, fresh, -1, 0)); m[3 * PAGE - 1] = 2;
    MAPPED(mmap(m + 100, PAGE, PROT_READ, fresh | MAP_FIXED, -1, 0)); MAPPED(mmap(0, 0, PROT_READ, fresh, -1, 0)); MAPPED(mmap(0, 1L << 60, PROT_READ, fresh, -1, 0));
    MAPPED(mmap(0, PAGE, PROT_READ, MAP_PRIVATE, -1, 0)); MAPPED(mmap(0, PAGE, PROT_READ, MAP_PRIVATE, file, 100)); MAPPED(mmap(0, PAGE, PROT_READ, MAP_ANONYMOUS, -1, 0));
    MAPPED(mmap(m, PAGE, PROT_READ, fresh | MAP_FIXED_NOREPLACE, -1, 0));
    SHOW(mprotect(m, PAGE, PROT_READ)); SHOW(mprotect(m + 1, PAGE, PROT_READ)); SHOW(mprotect(m, PAGE, both)); SHOW(mprotect(m, PAGE, 0x40));
    strcpy(m, "move me"); char *moved = MAPPED(mremap(m, 3 * PAGE, 1 << 20, MREMAP_MAYMOVE)); printf("%s %d\n", moved, moved[3 * PAGE - 1]); moved[(1 << 20) - 1] = 1;
    printf("shrinks in place: %d\n", mremap(moved, 1 << 20, PAGE, 0) == moved); MAPPED(mremap(moved, PAGE, 0, MREMAP_MAYMOVE)); MAPPED(mremap(moved, PAGE, PAGE, 64));
    char *place = mmap(0, 2 * PAGE, both, fresh, -1, 0); munmap(place, 2 * PAGE);
    char *there = MAPPED(mremap(moved, PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place)); printf("%d %s\n", there == place, there); SHOW(mprotect(moved, PAGE, PROT_READ));
    SHOW(madvise(there, 2 * PAGE, MADV_DONTNEED)); printf("%d\n", there[0]); SHOW(madvise(there + 1, 1, MADV_DONTNEED)); SHOW(madvise(there, PAGE, 9999));
    SHOW(munmap(there, 2 * PAGE)); SHOW(munmap(there, 2 * PAGE)); SHOW(munmap(there + 1, 1)); SHOW(munmap(there, 0)); SHOW(msync(there, PAGE, MS_SYNC)); SHOW(madvise(there, PAGE, MADV_DONTNEED));
    SHOW(ftruncate(file, 5000)); SHOW(pwrite(file, "tail", 4, 4996));
    char *private = MAPPED(mmap(0, PAGE, both, MAP_PRIVATE, file, 0)); printf("%.4s %d\n", private + 4996, private[5000]); private[0] = 'P';
    char *shared = MAPPED(mmap(0, 4096, both, MAP_SHARED, file, 0)); printf("%d\n", shared[0]); shared[0] = 'S'; SHOW(msync(shared, 4096, MS_SYNC)); SHOW(pread(file, text, 1, 0)); printf("%c\n", text[0]);
    int reader = open("c.txt", O_RDONLY); MAPPED(mmap(0, 4096, both, MAP_SHARED, reader, 0)); char *seen = MAPPED(mmap(0, 4096, PROT_READ, MAP_SHARED, reader, 0)); SHOW(mprotect(seen, 4096, both));
    printf("grows with its file: "); ftruncate(file, 2 * PAGE); char *big = mremap(shared, 4096, 2 * PAGE, MREMAP_MAYMOVE); big[PAGE] = 'G'; pread(file, text, 1, PAGE); printf("%c %c\n", big[0], text[0]);
    char *start = (char *)syscall(SYS_brk, 0);
    printf("%d", (char *)syscall(SYS_brk, start + 100000) == start + 100000); start[99999] = 3; printf(" %d", (char *)syscall(SYS_brk, start + 50000) == start + 50000);
    printf(" %d", (char *)syscall(SYS_brk, 1) == start + 50000); printf(" %d", (char *)syscall(SYS_brk, 1L << 50) == start + 50000); syscall(SYS_brk, start + 100000); printf(" %d\n", start[99999]);
    SHOW(mlock(private, 4096)); SHOW(munlock(private, 4096));
}

static void test_system(void) {
    struct utsname name; SHOW(uname(&name)); puts(name.sysname);
    struct rlimit limit; SHOW(getrlimit(RLIMIT_NOFILE, &limit)); SHOW(getrlimit(999, &limit)); limit.rlim_cur = 1 << 30; limit.rlim_max = RLIM_INFINITY; SHOW(setrlimit(RLIMIT_AS, &limit)); SHOW(getrlimit(RLIMIT_AS, &limit)); printf("%ld\n", (long)limit.rlim_cur);
    struct rusage usage; SHOW(getrusage(RUSAGE_SELF, &usage)); SHOW(getrusage(99, &usage)); SHOW(prctl(PR_SET_NAME, "files")); memset(text, 0, 20); SHOW(prctl(PR_GET_NAME, text)); puts(text); SHOW(prctl(9999));
    struct timespec time; SHOW(clock_gettime(CLOCK_REALTIME, &time)); SHOW(clock_getres(CLOCK_MONOTONIC, &time)); SHOW(clock_gettime(99, &time));
    time.tv_sec = 0; time.tv_nsec = 1000; SHOW(nanosleep(&time, NULL)); time.tv_nsec = -1; SHOW(nanosleep(&time, NULL)); SHOW(syscall(SYS_getrandom, text, 16, 0)); SHOW(syscall(SYS_getrandom, text, 16, 77)); SHOW(syscall(9999));
    int id = WORKS(shmget(IPC_PRIVATE, 20000, 0600)); char *a = MAPPED(shmat(id, NULL, 0)), *b = MAPPED(shmat(id, NULL, SHM_RDONLY)); strcpy(a, "shared"); puts(b);
    struct shmid_ds segment; SHOW(shmctl(id, IPC_STAT, &segment)); printf("%ld bytes, %ld attached\n", (long)segment.shm_segsz, (long)segment.shm_nattch); SHOW(shmdt(b)); SHOW(shmctl(id, IPC_STAT, &segment)); printf("%ld attached\n", (long)segment.shm_nattch);
    SHOW(shmdt(b)); SHOW(shmctl(id, IPC_RMID, NULL)); SHOW(shmdt(a));
    int set = WORKS(semget(IPC_PRIVATE, 3, 0600)); SHOW(semctl(set, 1, SETVAL, 5)); struct sembuf down = {1, -2, 0}; SHOW(semop(set, &down, 1)); SHOW(semctl(set, 1, GETVAL)); struct semid_ds semaphores; SHOW(semctl(set, 0, IPC_STAT, &semaphores)); printf("%ld semaphores, used %d\n", (long)semaphores.sem_nsems, semaphores.sem_otime > 1600000000);
    unsigned short values[3] = {1, 2, 3}; SHOW(semctl(set, 0, SETALL, values)); SHOW(semctl(set, 2, GETVAL)); down.sem_op = -9; down.sem_flg = IPC_NOWAIT; SHOW(semop(set, &down, 1)); SHOW(semctl(set, 0, IPC_RMID));
    int queue = WORKS(msgget(IPC_PRIVATE, 0600)); struct { long type; char body[16]; } message = {7, "message"}; SHOW(msgsnd(queue, &message, 8, 0)); message.body[0] = 0; SHOW(msgrcv(queue, &message, 16, 0, 0)); printf("%ld %s\n", message.type, message.body); SHOW(msgrcv(queue, &message, 16, 0, IPC_NOWAIT)); SHOW(msgctl(queue, IPC_RMID, NULL));
}

int main(int count, char **arguments) {
    static const struct { const char *name; void (*test)(void); } tests[] = {
        {"names", test_names}, {"descriptors", test_descriptors}, {"memory", test_memory}, {"system", test_system}};
    setvbuf(stdout, NULL, _IONBF, 0);
    umask(022);
    for (unsigned i = 0; count > 2 && i < sizeof tests / sizeof *tests; i++)
        if (strcmp(arguments[1], tests[i].name) == 0 && chdir(arguments[2]) == 0) { tests[i].test(); return 0; }
    fprintf(stderr, "files: name a test and a directory\n");
    return 2;
}
