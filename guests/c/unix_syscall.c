// Calls the kernel in a tight loop, as UnixBench's syscall test does.
// Measures the cost of a system call; the null call is getppid, which no library caches.
// Arguments: CALLS (default 2000000), MIX (default 0: getppid only; 1: dup, close, getuid, umask too).
#include "guest.h"
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
    uint64_t calls = argument(argc, argv, 1, 2000000, 1, 1ull << 40);
    uint64_t mix = argument(argc, argv, 2, 0, 0, 1);
    long parent = syscall(SYS_getppid);
    uint64_t same = 0;
    double start = seconds();
    for (uint64_t i = 0; i < calls; i++) {
        same += syscall(SYS_getppid) == parent;
        if (mix) {
            int copy = dup(2);
            same += close(copy) == 0;
            same += getuid() == geteuid();
            umask(umask(022));
        }
    }
    fprintf(stderr, "%.1f ns a round\n", (seconds() - start) * 1e9 / (double)calls);
    printf("unix_syscall %llu as expected\n", (unsigned long long)same);
    return 0;
}
