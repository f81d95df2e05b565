// Forks processes that exit at once and waits for each, as UnixBench's spawn test does.
// Measures the cost of fork and checks that the child sees the parent's memory as it was.
// Arguments: PROCESSES (default 600).
#include "guest.h"
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    uint64_t processes = argument(argc, argv, 1, 600, 1, 1ull << 32), sum = CHECKSUM_START;
    static volatile uint64_t shared_until_written[512];
    for (uint64_t p = 0; p < processes; p++) {
        shared_until_written[p % 512] = p;
        pid_t child = fork();
        if (child < 0) return perror("unix_process: fork"), 1;
        if (child == 0) {
            uint64_t seen = shared_until_written[p % 512];
            shared_until_written[p % 512] = ~0ull;
            _exit((int)(seen * 31 % 251));
        }
        int status = 0;
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return puts("unix_process: child lost"), 1;
        sum = checksum(sum, (uint64_t)WEXITSTATUS(status) << 32 | shared_until_written[p % 512]);
    }
    print_checksum("unix_process", sum);
    return 0;
}
