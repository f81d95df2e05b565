// Corner cases of opening, reading, writing, naming and listing files.
// Source: open(2), lseek(2), read(2), fcntl(2), rename(2), getdents64(2), utimensat(2), memfd_create(2), copy_file_range(2).
#include "say.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static void opening(void) {
    char name[5000];
    int file = open("file", O_CREAT | O_RDWR | O_EXCL, 0640);
    SAY(file >= 0);
    SAY(open("file", O_CREAT | O_EXCL | O_RDWR, 0600));
    SAY(open("file", O_DIRECTORY));
    SAY(open("file/", O_RDONLY));
    SAY(open("file/x", O_RDONLY));
    SAY(open("", O_RDONLY));
    SAY(open(".", O_WRONLY));
    SAY(open(".", O_CREAT | O_RDONLY, 0600));
    SAY(open("new/", O_CREAT | O_RDWR, 0600));
    SAY(symlink("file", "link"));
    SAY(open("link", O_NOFOLLOW));
    SAY(symlink("loop", "loop"));
    SAY(open("loop", O_RDONLY));
    SAY(symlink("nothing", "dangling"));
    SAY(open("dangling", O_RDONLY));
    SAY(open("dangling", O_CREAT | O_EXCL | O_RDWR, 0600));
    WELL(open("dangling", O_CREAT | O_RDWR, 0600));
    SAY(access("nothing", F_OK));
    memset(name, 'n', sizeof name);
    name[256] = 0;
    SAY(open(name, O_RDONLY));
    name[256] = 'n', name[4999] = 0;
    SAY(open(name, O_RDONLY));
    SAY(open((char *)8, O_RDONLY));
    SAY(openat(999, "file", O_RDONLY));
    SAY(openat(file, "file", O_RDONLY));
    WELL(openat(999, "/", O_RDONLY));
    int path = open("file", O_PATH);
    SAY(path >= 0);
    SAY(read(path, name, 1));
    SAY(fchmod(path, 0600));
    SAY(fcntl(path, F_GETFL) == O_PATH);
    SAY(ioctl(path, 0) == -1 ? (errno == EBADF) : 2);
    SAY(open("file", O_RDWR | O_PATH | O_CREAT | O_EXCL, 0600) >= 0);
    struct stat status;
    SAY(fstat(path, &status));
    SAY(status.st_mode & 07777);
    SAY(fstatat(path, "", &status, AT_EMPTY_PATH));
    SAY(fstatat(path, "", &status, 0));
    SAY(fstatat(AT_FDCWD, "link", &status, AT_SYMLINK_NOFOLLOW));
    SAY(S_ISLNK(status.st_mode));
    SAY(status.st_size);
    SAY(fstatat(AT_FDCWD, "link", &status, 0x40000000));
    int unnamed = open(".", O_TMPFILE | O_RDWR, 0600);
    SAY(unnamed >= 0);
    SAY(linkat(unnamed, "", AT_FDCWD, "named", AT_EMPTY_PATH));
    SAY(open(".", O_TMPFILE | O_RDONLY, 0600));
    SAY(fcntl(open("file", O_RDWR | O_APPEND | O_NONBLOCK | O_NOATIME), F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK | O_NOATIME));
    SAY(umask(027));
    close(open("masked", O_CREAT | O_WRONLY, 0666));
    SAY(stat("masked", &status));
    SAY(status.st_mode & 07777);
    SAY(umask(022));
    SAY(faccessat(AT_FDCWD, "file", R_OK, 0x4000));
    SAY(access("file", 8));
}

static void contents(void) {
    char bytes[64] = "0123456789";
    int file = open("contents", O_CREAT | O_RDWR | O_TRUNC, 0600), reader = open("contents", O_RDONLY);
    SAY(write(file, bytes, 10));
    SAY(write(reader, bytes, 1));
    SAY(read(open("contents", O_WRONLY), bytes, 1));
    SAY(read(open(".", O_RDONLY), bytes, 1));
    SAY(read(999, bytes, 1));
    SAY(read(reader, (char *)8, 4));
    SAY(read(reader, bytes, 64));
    SAY(read(reader, bytes, 64));
    SAY(read(reader, (char *)8, 4));
    SAY(lseek(reader, -1, SEEK_SET));
    SAY(lseek(reader, -11, SEEK_END));
    SAY(lseek(reader, 4, SEEK_END));
    SAY(lseek(reader, 0, 9));
    SAY(lseek(file, 0, SEEK_DATA));
    SAY(lseek(file, 0, SEEK_HOLE));
    SAY(lseek(file, 10, SEEK_DATA) == -1 && errno == ENXIO);
    SAY(pread(file, bytes, 4, -1));
    SAY(pread(file, bytes, 4, 8));
    SAY(pread(file, bytes, 4, 100));
    SAY(pwrite(file, bytes, 4, -1));
    SAY(ftruncate(reader, 0));
    SAY(ftruncate(file, -1));
    SAY(ftruncate(file, 20));
    SAY(truncate("nothing-here", 0));
    SAY(truncate(".", 0));
    SAY(fallocate(file, 0, 0, 0));
    SAY(fallocate(file, 0, 30, 10));
    SAY(fallocate(reader, 0, 0, 1));
    int appending = open("contents", O_WRONLY | O_APPEND);
    SAY(pwrite(appending, "at the end", 10, 0));
    SAY(lseek(file, 0, SEEK_END));
    struct iovec parts[3] = {{bytes, 3}, {(void *)8, 3}, {bytes, 2}};
    SAY(pwritev(file, parts, 1, 0));
    SAY(writev(file, parts, -1));
    SAY(writev(file, parts, 1025));
    SAY(writev(file, parts, 0));
    SAY(writev(file, parts, 2) == 3 || errno == EFAULT);
    parts[1].iov_base = bytes, parts[1].iov_len = (size_t)-1;
    SAY(readv(reader, parts, 2));
    SAY(preadv(reader, parts, 1, -1));
    int copy = open("copy", O_CREAT | O_RDWR | O_TRUNC, 0600);
    off_t from = 0;
    SAY(sendfile(copy, file, &from, 10));
    SAY(from);
    SAY(sendfile(copy, 999, &from, 10));
    from = 0;
    SAY(copy_file_range(file, &from, copy, NULL, 5, 0));
    SAY(copy_file_range(file, &from, copy, NULL, 5, 1));
    SAY(lseek(copy, 0, SEEK_CUR));
    SAY(fsync(copy));
    SAY(fdatasync(999));
    int pipes[2];
    SAY(pipe(pipes));
    SAY(fsync(pipes[0]));
    SAY(lseek(pipes[0], 0, SEEK_CUR));
    SAY(pread(pipes[0], bytes, 1, 0));
    SAY(ftruncate(pipes[1], 0));
    from = 0;
    SAY(splice(file, &from, pipes[1], NULL, 6, 0));
    SAY(splice(file, &from, copy, NULL, 6, 0));
    SAY(tee(pipes[0], pipes[0], 6, 0));
    SAY(posix_fadvise(file, 0, 0, 77));
    SAY(posix_fadvise(pipes[0], 0, 0, POSIX_FADV_NORMAL));
}

// A thread finds its files, whether it gets a private descriptor table or the call is refused.
static void *apart(void *argument) {
    syscall(SYS_close_range, 60, 80, 2);
    SAY(access("file", F_OK));
    WELL(open("/proc/self/maps", O_RDONLY));
    WELL(open("file", O_RDONLY));
    return argument;
}

static void descriptors(void) {
    int file = open("file", O_RDONLY);
    SAY(dup2(file, file) == file);
    SAY(dup3(file, file, 0));
    SAY(dup3(file, 50, 1));
    SAY(dup3(file, 50, O_CLOEXEC));
    SAY(fcntl(50, F_GETFD));
    SAY(dup2(file, -1));
    SAY(dup2(file, 1 << 30));
    SAY(fcntl(file, F_DUPFD, -1));
    SAY(fcntl(file, F_DUPFD, 1 << 30));
    SAY(fcntl(file, F_DUPFD_CLOEXEC, 70));
    SAY(fcntl(70, F_GETFD));
    SAY(fcntl(file, 9999));
    SAY(fcntl(999, F_GETFD));
    SAY(fcntl(70, F_SETFD, 0));
    SAY(fcntl(70, F_GETFD));
    SAY(syscall(SYS_close_range, 60, 80, 0));
    SAY(fcntl(70, F_GETFD));
    SAY(syscall(SYS_close_range, 80, 60, 0));
    SAY(syscall(SYS_close_range, 60, 80, 64));
    SAY(fcntl(file, F_DUPFD, 70));
    SAY(syscall(SYS_close_range, 60, 80, 2));
    SAY(fcntl(70, F_GETFD));
    pthread_t thread;
    pthread_create(&thread, NULL, apart, NULL);
    pthread_join(thread, NULL);
    SAY(close(999));
    SAY(close(-1));
    SAY(flock(file, LOCK_SH | LOCK_NB));
    int other = open("file", O_RDWR);
    SAY(flock(other, LOCK_EX | LOCK_NB));
    SAY(flock(other, 99));
    SAY(flock(file, LOCK_UN));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    SAY(fcntl(other, F_OFD_SETLK, &lock));
    SAY(fcntl(open("file", O_RDWR), F_OFD_SETLK, &lock));
    SAY(fcntl(file, F_OFD_SETLK, &lock));
    lock.l_pid = 1;
    SAY(fcntl(other, F_OFD_SETLK, &lock));
    lock.l_pid = 0, lock.l_type = F_UNLCK;
    SAY(fcntl(other, F_OFD_SETLK, &lock));
    lock.l_type = F_WRLCK, lock.l_start = -5;
    SAY(fcntl(other, F_SETLK, &lock));
    lock.l_start = 0, lock.l_len = -5, lock.l_whence = 7;
    SAY(fcntl(other, F_SETLK, &lock));
    SAY(fcntl(other, F_GETLK, (void *)8));
    int memory = memfd_create("name", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    SAY(memory >= 0);
    SAY(memfd_create("name", 0x8000));
    SAY(ftruncate(memory, 100));
    SAY(fcntl(memory, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK));
    SAY(ftruncate(memory, 200));
    SAY(ftruncate(memory, 50));
    SAY(fcntl(memory, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL));
    SAY(write(memory, "x", 1));
    SAY(fcntl(memory, F_ADD_SEALS, F_SEAL_WRITE));
    SAY(fcntl(memory, F_GET_SEALS));
    SAY(fcntl(memfd_create("sealed", 0), F_ADD_SEALS, F_SEAL_WRITE));
}

#define RENAME(from, to, flags) syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags)
static void naming(void) {
    struct stat status;
    char text[8];
    SAY(mkdir("folder", 0755));
    SAY(mkdir("folder", 0755));
    SAY(mkdir("folder/inner", 0755));
    SAY(mkdir("none/inner", 0755));
    SAY(rename("folder", "folder/inner/again"));
    SAY(rename("file", "folder"));
    SAY(rename("folder", "file"));
    SAY(mkdir("second", 0755));
    SAY(rename("second", "folder"));
    SAY(rename("nothing-here", "folder"));
    SAY(rename("file", "file"));
    SAY(rename("folder/.", "other"));
    SAY(RENAME("file", "masked", 1));
    SAY(RENAME("file", "masked", 2));
    SAY(RENAME("file", "masked", 3));
    SAY(RENAME("file", "masked", 64));
    SAY(unlink("folder"));
    SAY(rmdir("file"));
    SAY(rmdir("folder"));
    SAY(rmdir("folder/."));
    SAY(rmdir("folder/inner/.."));
    SAY(unlinkat(AT_FDCWD, "second", AT_REMOVEDIR));
    SAY(unlinkat(AT_FDCWD, "second", 1));
    SAY(link("folder", "hard"));
    SAY(link("file", "masked"));
    SAY(linkat(AT_FDCWD, "link", AT_FDCWD, "hard-link", 0));
    SAY(linkat(AT_FDCWD, "link", AT_FDCWD, "hard-file", AT_SYMLINK_FOLLOW));
    SAY(stat("hard-file", &status));
    SAY(status.st_nlink);
    SAY(readlink("link", text, 2));
    SAY(readlink("link", text, 0));
    SAY(readlink("file", text, 2));
    SAY(symlink("", "empty"));
    SAY(mkfifo("fifo", 0600));
    SAY(open("fifo", O_WRONLY | O_NONBLOCK));
    SAY(chdir("file"));
    SAY(chdir("nothing-here"));
    SAY(fchdir(open("file", O_RDONLY)));
    SAY(getcwd(text, 2) == NULL ? -1 : 0);
    SAY(chdir("folder/inner"));
    SAY(rmdir("../inner"));
    SAY(open("new", O_CREAT | O_RDWR, 0600));
    char path[PATH_MAX];
    SAY(getcwd(path, sizeof path) == NULL ? -1 : 0);
    SAY(open("..", O_RDONLY) >= 0);
    SAY(chdir("/proc/self/cwd/..") == -1);
    SAY(fchmodat(AT_FDCWD, "/nothing-here", 0600, 0));
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void listing(void) {
    char bytes[4096];
    SAY(mkdir("list", 0755));
    for (int i = 0; i < 300; i++) {
        sprintf(bytes, "list/%03d", i);
        close(open(bytes, O_CREAT | O_WRONLY, 0600));
    }
    int folder = open("list", O_RDONLY | O_DIRECTORY), file = open("file", O_RDONLY);
    SAY(syscall(SYS_getdents64, file, bytes, sizeof bytes));
    SAY(syscall(SYS_getdents64, folder, bytes, 8));
    SAY(syscall(SYS_getdents64, folder, (char *)8, 4096));
    SAY(syscall(SYS_getdents64, 999, bytes, sizeof bytes));
    char *names[400];
    int count = 0;
    for (long got; (got = syscall(SYS_getdents64, folder, bytes, sizeof bytes)) > 0;)
        for (long at = 0; at < got && count < 400;) {
            struct dirent *entry = (struct dirent *)(bytes + at);
            names[count++] = strdup(entry->d_name);
            at += entry->d_reclen;
        }
    qsort(names, count, sizeof *names, by_name);
    printf("%d names, from %s to %s\n", count, names[0], names[count - 1]);
    DIR *again = opendir("list");
    for (int i = 0; i < 100; i++) readdir(again);
    long place = telldir(again);
    char *then = strdup(readdir(again)->d_name);
    while (readdir(again)) {}
    seekdir(again, place);
    SAY(strcmp(readdir(again)->d_name, then));
    rewinddir(again);
    int rest = 0;
    while (readdir(again)) rest++;
    SAY(rest);
    for (int i = 0; i < 300; i++) {
        sprintf(bytes, "list/%03d", i);
        unlink(bytes);
    }
    SAY(rmdir("list"));
    SAY(syscall(SYS_getdents64, folder, bytes, sizeof bytes));
}

static void times(void) {
    struct stat status;
    struct timespec both[2] = {{100, 5}, {200, 7}};
    SAY(utimensat(AT_FDCWD, "file", both, 0));
    both[0].tv_nsec = UTIME_OMIT, both[1].tv_sec = -300, both[1].tv_nsec = 9;
    SAY(utimensat(AT_FDCWD, "file", both, 0));
    SAY(stat("file", &status));
    printf("%ld.%09ld %ld.%09ld\n", (long)status.st_atim.tv_sec, status.st_atim.tv_nsec, (long)status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
    both[1].tv_nsec = 1000000000;
    SAY(utimensat(AT_FDCWD, "file", both, 0));
    SAY(utimensat(AT_FDCWD, "nothing-here", NULL, 0));
    SAY(utimensat(AT_FDCWD, NULL, NULL, 0));
    SAY(utimensat(AT_FDCWD, "link", NULL, 0x10));
    SAY(futimens(open("file", O_RDONLY), NULL));
}

int main(void) {
    char folder[] = "/tmp/longma-files-XXXXXX";
    SAY(mkdtemp(folder) == NULL);
    SAY(chdir(folder));
    opening();
    contents();
    descriptors();
    times();
    listing();
    naming();
    return 0;
}
