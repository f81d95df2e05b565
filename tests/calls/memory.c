// Mapping, unmapping, protecting, moving and advising.
// Source: mmap(2), munmap(2), mprotect(2), mremap(2), madvise(2), msync(2), mincore(2), mlock(2), brk(2), process_vm_readv(2).
#include "say.h"
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static long page;
#define PAGES(n) ((n) * page)
/// Prints -1, or the distance from `start` in pages.
#define AT(call) (errno = 0, result = (call), told(#call, result == MAP_FAILED ? -1 : (result - start) / page))
static char *start, *result;

static char *fresh(int pages) {
    char *made = mmap(NULL, PAGES(pages + 2), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mmap(made + page, PAGES(pages), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static int file_of(int pages) {
    int file = memfd_create("file", 0);
    if (ftruncate(file, PAGES(pages)) != 0) puts("no file");
    for (int i = 0; i < pages; i++) pwrite(file, &(char){'a' + i}, 1, PAGES(i));
    return file;
}

static void mapping(void) {
    const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS, both = PROT_READ | PROT_WRITE;
    start = fresh(4);
    AT(mmap(NULL, 0, both, anonymous, -1, 0));
    AT(mmap(NULL, page, both, MAP_ANONYMOUS, -1, 0));
    AT(mmap(NULL, page, both, MAP_PRIVATE | MAP_SHARED | 4 | MAP_ANONYMOUS, -1, 0));
    AT(mmap(NULL, page, both, MAP_PRIVATE, -1, 0));
    AT(mmap(NULL, page, both, MAP_PRIVATE, 999, 0));
    AT(mmap(start + 1, page, both, anonymous | MAP_FIXED, -1, 0));
    AT(mmap(NULL, SIZE_MAX - page, both, anonymous, -1, 0));
    AT(mmap(NULL, 1ul << 62, both, anonymous, -1, 0));
    AT((char *)syscall(SYS_mmap, NULL, page, both, MAP_PRIVATE, file_of(1), 1));
    AT(mmap(start + PAGES(1), page, both, anonymous | MAP_FIXED, -1, 0));
    AT(mmap(start + PAGES(1), page, both, anonymous | MAP_FIXED_NOREPLACE, -1, 0));
    int file = file_of(3), reader = open("/proc/self/exe", O_RDONLY), ends[2];
    pipe(ends);
    AT(mmap(NULL, page, both, MAP_SHARED, reader, 0));
    AT(mmap(NULL, page, PROT_READ, MAP_PRIVATE, ends[0], 0));
    AT(mmap(NULL, page, PROT_READ, MAP_PRIVATE, open(".", O_RDONLY), 0));
    AT(mmap(NULL, page, PROT_READ, MAP_PRIVATE, open("/proc/self/exe", O_PATH), 0));
    AT(mmap(NULL, page, both, MAP_SHARED_VALIDATE | 1 << 26, file, 0));
    AT(mmap(start, page, both, MAP_SHARED | MAP_FIXED, file, PAGES(2)));
    SAY(start[0]);
    start[0] = 'z';
    char byte = 0;
    SAY(pread(file, &byte, 1, PAGES(2)));
    SAY(byte);
    SAY(mprotect(mmap(NULL, page, PROT_READ, MAP_SHARED, reader, 0), page, both));
    SAY(mprotect(mmap(NULL, page, PROT_READ, MAP_PRIVATE, reader, 0), page, both));
    SAY(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE));
    SAY(munmap(start + 1, page));
    SAY(munmap(start, 0));
    SAY(munmap(start + PAGES(1), PAGES(1)));
    SAY(munmap(start + PAGES(1), PAGES(1)));
    SAY(munmap(start, 1));
    SAY(munmap((void *)page, SIZE_MAX - page));
    AT(mmap(start + PAGES(2), PAGES(1) + 1, both, anonymous | MAP_FIXED, -1, 0));
    SAY(munmap(start, PAGES(4)));
    AT(mmap(start, PAGES(4), PROT_NONE, anonymous, -1, 0));
    SAY(write(ends[1], start, 1));
    SAY(write(ends[1], "x", 1));
    SAY(read(ends[0], start, 1));
}

static void protecting(void) {
    start = fresh(5);
    SAY(mprotect(start + 1, page, PROT_READ));
    SAY(mprotect(start, 0, PROT_READ));
    SAY(mprotect(start, page, 0x80));
    SAY(mprotect(start, page, PROT_GROWSUP | PROT_GROWSDOWN | PROT_READ));
    SAY(mprotect(start, page, PROT_GROWSDOWN | PROT_READ));
    SAY(munmap(start + PAGES(2), page));
    SAY(mprotect(start, PAGES(5), PROT_READ));
    SAY(mprotect(start, PAGES(2), PROT_READ));
    SAY(mprotect(start, SIZE_MAX - page, PROT_READ));
    SAY(mprotect((void *)(PAGES(1)), page, PROT_READ));
    SAY(read(open("/dev/zero", O_RDONLY), start, 1));
    SAY(mprotect(start, PAGES(2), PROT_READ | PROT_WRITE | PROT_EXEC));
    SAY(read(open("/dev/zero", O_RDONLY), start, PAGES(3)) == PAGES(2));
    SAY(mprotect(start, PAGES(1), PROT_WRITE));
    start[0] = 5;
    SAY(start[0]);
}

static void moving(void) {
    start = fresh(8);
    start[0] = 1, start[PAGES(1)] = 2;
    AT(mremap(start + 1, page, page, 0));
    AT(mremap(start, PAGES(2), 0, 0));
    AT(mremap(start, 0, page, MREMAP_MAYMOVE));
    AT(mremap(start, page, page, 8));
    AT(mremap(start, page, page, MREMAP_FIXED, start + PAGES(4)));
    AT(mremap(start, PAGES(2), PAGES(3), MREMAP_MAYMOVE | MREMAP_FIXED, start + PAGES(1)));
    AT(mremap(start, PAGES(2), PAGES(2), MREMAP_MAYMOVE | MREMAP_FIXED, start + 1));
    AT(mremap(start, PAGES(8), PAGES(20), 0));
    AT(mremap(start, PAGES(8), PAGES(6), 0));
    AT(mremap(start, PAGES(6), PAGES(7), 0));
    SAY(munmap(start + PAGES(3), page));
    AT(mremap(start, PAGES(5), PAGES(6), MREMAP_MAYMOVE));
    AT(mremap(start + PAGES(3), PAGES(1), PAGES(2), MREMAP_MAYMOVE));
    AT(mremap(start, PAGES(2), PAGES(2), MREMAP_MAYMOVE | MREMAP_FIXED, start + PAGES(4)));
    SAY(start[PAGES(4)] + 10 * start[PAGES(5)]);
    AT(mremap(start, PAGES(1), PAGES(1), 0));
    result = mremap(start + PAGES(4), PAGES(2), PAGES(40), MREMAP_MAYMOVE);
    SAY(result != MAP_FAILED);
    SAY(result[0] + 10 * result[PAGES(1)] + 100 * result[PAGES(39)]);
    start = mmap(NULL, PAGES(2), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    start[0] = 7;
    result = mremap(start, 0, PAGES(2), MREMAP_MAYMOVE);
    SAY(result != MAP_FAILED && result != start);
    result[0] = 8;
    SAY(start[0]);
    start = fresh(2);
    start[0] = 9;
    result = mremap(start, PAGES(2), PAGES(2), MREMAP_MAYMOVE | 4);
    SAY(result != MAP_FAILED);
    SAY(result[0] * 10 + start[0]);
    AT(mremap(start, PAGES(2), PAGES(1), MREMAP_MAYMOVE | 4));
}

static void advising(void) {
    unsigned char there[8];
    start = fresh(6);
    memset(start, 'x', PAGES(6));
    SAY(madvise(start + 1, page, MADV_NORMAL));
    SAY(madvise(start, page, 999));
    SAY(madvise(start, 0, MADV_DONTNEED));
    SAY(madvise(start, page, MADV_DONTNEED));
    SAY(start[0] * 1000 + start[PAGES(1)]);
    SAY(madvise(start, SIZE_MAX - page, MADV_DONTNEED));
    SAY(madvise(start, page, MADV_REMOVE));
    SAY(munmap(start + PAGES(2), page));
    SAY(madvise(start, PAGES(4), MADV_DONTNEED));
    SAY(start[PAGES(3)]);
    SAY(madvise(start, PAGES(4), MADV_WILLNEED));
    start[PAGES(3)] = 'y';
    SAY(mincore(start + 1, page, there));
    SAY(mincore(start, PAGES(4), there));
    SAY(mincore(start + PAGES(3), PAGES(2), there));
    SAY((there[0] & 1) + 2 * (there[1] & 1));
    SAY(mincore(start + PAGES(3), PAGES(2), (void *)8));
    SAY(mlock(start, PAGES(4)));
    SAY(mlock(start + PAGES(3), PAGES(1)));
    SAY(madvise(start + PAGES(3), page, MADV_DONTNEED));
    SAY(munlock(start + PAGES(3), PAGES(1)));
    SAY(munlock(start, PAGES(4)));
    SAY(mlockall(0));
    SAY(mlockall(64));
    SAY(msync(start, PAGES(4), MS_SYNC));
    SAY(msync(start, page, MS_SYNC | MS_ASYNC));
    SAY(msync(start + 1, page, MS_SYNC));
    SAY(msync(start, page, 64));
    SAY(msync(start, 0, MS_ASYNC));
    int file = file_of(2);
    result = mmap(NULL, PAGES(2), PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    result[0] = 'c';
    SAY(madvise(result, page, MADV_DONTNEED));
    SAY(result[0]);
    result = mmap(NULL, PAGES(2), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    SAY(madvise(result, page, MADV_REMOVE));
    SAY(result[0]);
    SAY(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page, page));
    SAY(result[page]);
}

static void breaking(void) {
    char *now = (char *)syscall(SYS_brk, 0);
    SAY((char *)syscall(SYS_brk, now + PAGES(4)) == now + PAGES(4));
    now[PAGES(4) - 1] = 1;
    SAY((char *)syscall(SYS_brk, now) == now);
    SAY((char *)syscall(SYS_brk, now + PAGES(4)) == now + PAGES(4));
    SAY(now[PAGES(4) - 1]);
    SAY((char *)syscall(SYS_brk, 8) == now + PAGES(4));
    SAY((char *)syscall(SYS_brk, -1l) == now + PAGES(4));
}

static void sharing(void) {
    char *shared = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *private = fresh(1);
    fflush(stdout);
    if (fork() == 0) {
        shared[0] = 4, private[0] = 5;
        _exit(0);
    }
    wait(NULL);
    SAY(shared[0] * 10 + private[0]);
    char from[] = "abcdef", to[8] = {0};
    struct iovec local = {to, 6}, remote[2] = {{from, 3}, {(void *)8, 3}};
    SAY(process_vm_readv(getpid(), &local, 1, remote, 1, 0));
    SAY(process_vm_readv(getpid(), &local, 1, remote, 2, 0));
    SAY(process_vm_readv(getpid(), &local, 1, remote + 1, 1, 0));
    SAY(process_vm_readv(getpid(), &local, 1, remote, 1, 1));
    SAY(process_vm_readv(1 << 30, &local, 1, remote, 1, 0));
    puts(to);
    SAY(syscall(SYS_membarrier, 0, 0, 0) > 0);
    SAY(syscall(SYS_membarrier, 1 << 29, 0, 0));
    SAY(syscall(SYS_membarrier, 1 << 9, 0, 0));
    SAY(syscall(SYS_membarrier, 1 << 3, 0, 0));
    SAY(syscall(SYS_membarrier, 1 << 6, 0, 0));
    SAY(syscall(SYS_membarrier, 1 << 9, 0, 0));
    SAY(syscall(SYS_membarrier, 1 << 5, 0, 0));
    SAY(syscall(SYS_membarrier, 1 << 3, 0, 0));
}

int main(void) {
    page = sysconf(_SC_PAGESIZE);
    mapping();
    protecting();
    moving();
    advising();
    breaking();
    sharing();
    return 0;
}
