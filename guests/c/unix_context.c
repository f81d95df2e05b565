// Two processes pass a number back and forth through two pipes, as UnixBench's context test does.
// Exercises fork, blocking reads and context switches.
// Arguments: ROUNDS (default 60000).
#include "guest.h"
#include <sys/wait.h>
#include <unistd.h>

// Reads a number, checks it, writes the next; returns 0 when all rounds agreed.
static int play(int in, int out, uint64_t first, uint64_t rounds) {
    for (uint64_t r = 0; r < rounds; r++) {
        uint64_t number = first + 2 * r, got;
        if (first == 0 && write(out, &number, sizeof number) != sizeof number) return 1;
        if (read(in, &got, sizeof got) != sizeof got || got != (first == 0 ? number + 1 : number - 1)) return 1;
        if (first == 1 && write(out, &number, sizeof number) != sizeof number) return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    uint64_t rounds = argument(argc, argv, 1, 60000, 1, 1ull << 40);
    int there[2], back[2], status = 0;
    if (pipe(there) != 0 || pipe(back) != 0) return perror("unix_context: pipe"), 1;
    pid_t child = fork();
    if (child < 0) return perror("unix_context: fork"), 1;
    if (child == 0) _exit(play(there[0], back[1], 1, rounds));
    int failed = play(back[0], there[1], 0, rounds);
    waitpid(child, &status, 0);
    printf("unix_context %llu rounds, parent %d, child %d\n", (unsigned long long)rounds, failed, status);
    return failed || status;
}
