// Resource limits and mapping limits must not affect what the kernel does for a process itself: files in /proc, execve, fork.
// Levels: translated interpreted (65,000 mappings take long in simulated time, and children leave it)
// Source: getrlimit(2) (RLIMIT_FSIZE), proc(5), execve(2), fork(2), mmap(2) (vm.max_map_count), vmsplice(2).
#include "say.h"
#include "write_code.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>

static int has_line(const char *path, const char *part) {
    static char all[1 << 20];
    int file = open(path, O_RDONLY), bytes = 0, now;
    if (file < 0) return -1;
    while ((now = read(file, all + bytes, sizeof all - 1 - bytes)) > 0) bytes += now;
    close(file);
    for (int i = 0; i < bytes; i++) all[i] = all[i] ? all[i] : '\n';
    all[bytes] = 0;
    return now == 0 && strstr(all, part) != NULL;
}

static const char *self;
static void file_size(void) {
    struct rlimit none = {0, 0};
    SAY(setrlimit(RLIMIT_FSIZE, &none));
    SAY(has_line("/proc/self/maps", "[stack]"));
    SAY(has_line("/proc/self/status", "Name:"));
    SAY(has_line("/proc/self/environ", "LONG="));
    SAY(has_line("/proc/self/cmdline", "bounds"));
    fflush(stdout);
    static char text[100001] = "LONG=";
    memset(text + 5, 'x', sizeof text - 6);
    SAY(execle(self, self, "limited", NULL, (char *[]){text, "SHORT=1", NULL}));
}

static void writes_a_file(void) {
    char path[] = "/tmp/longma-bounds-XXXXXX";
    int file = mkstemp(path);
    unlink(path);
    SAY(write(file, "x", 1));
}

// Code that becomes hot, so that a forked child inherits its translation.
static int work(int n) {
    volatile int sum = 0;
    for (int i = 0; i < n; i++) sum += i % 7 == 3;
    return sum;
}

static void works(void) {
    SAY(work(3000000));
}

static volatile uint32_t *code;
static int call_all(int times) {
    int sum = 0;
    for (int i = 0; i < times; i++) sum += ((int (*)(void))code)();
    return sum / times;
}

static void changes(void) {
    SAY(call_all(5000));
    write_code(code, 2);
    SAY(call_all(5000));
    SAY(work(1000000));
    in_child("a child's child", works);
}

static void mappings(void) {
    SAY(work(3000000));
    code = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    write_code(code, 1);
    SAY(call_all(5000));
    fflush(stdout);
    static void *made[200000];
    int count = 0;
    for (; count < 200000; count++) {
        made[count] = mmap(NULL, 1 << 16, count % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made[count] == MAP_FAILED) break;
    }
    SAY(count > 50000);
    in_child("a child without a mapping left", changes);
    SAY(call_all(5000));
    for (int i = 0; i < count; i++) munmap(made[i], 1 << 16);
    in_child("a child with mappings left", changes);
}

static void pages_in_pipes(void) {
    char *page = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int ends[2];
    char byte;
    code = (void *)page;
    pipe(ends);
    write_code(code, 1);
    SAY(call_all(5000));
    struct iovec vector = {page, 8};
    SAY(vmsplice(ends[1], &vector, 1, 0));
    write_code(code, 2);
    SAY(call_all(5000));
    vector.iov_base = page + 100;
    SAY(vmsplice(ends[0], &vector, 1, 0));
    SAY(call_all(5000));
    write_code((void *)(page + 200), 3);
    write(ends[1], page + 200, 8);
    vector.iov_base = page;
    SAY(vmsplice(ends[0], &vector, 1, 0));
#ifdef __loongarch__
    __asm__ volatile("dbar 0\nibar 0" ::: "memory");
#endif
    SAY(call_all(5000));
    SAY(vmsplice(ends[0], &vector, 1, SPLICE_F_NONBLOCK));
    SAY(vmsplice(99, &vector, 1, 0));
    vector.iov_base = (void *)8;
    write(ends[1], "x", 1);
    SAY(vmsplice(ends[0], &vector, 1, 0));
    SAY(read(ends[0], &byte, 1));
    SAY(vmsplice(ends[1], &vector, 1, 0));
}

int main(int count, char **arguments) {
    self = arguments[0];
    if (count > 1) {
        SAY(strlen(getenv("LONG")));
        SAY(strlen(getenv("SHORT")));
        in_child("what writes a file", writes_a_file);
        return 0;
    }
    pages_in_pipes();
    in_child("a bound for files", file_size);
    in_child("a bound for mappings", mappings);
    return 0;
}
