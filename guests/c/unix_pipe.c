// Writes 512 bytes into a pipe and reads them back, in one process, as UnixBench does.
// Exercises system calls that move data.
// Arguments: ROUNDS (default 700000).
#include "guest.h"
#include <unistd.h>

int main(int argc, char **argv) {
    uint64_t rounds = argument(argc, argv, 1, 700000, 1, 1ull << 40), sum = CHECKSUM_START;
    int ends[2];
    uint64_t out[64], in[64];
    if (pipe(ends) != 0) return perror("unix_pipe: pipe"), 1;
    for (int i = 0; i < 64; i++) out[i] = (uint64_t)i * 0x9e3779b97f4a7c15u;
    for (uint64_t r = 0; r < rounds; r++) {
        out[r % 64] += r;
        if (write(ends[1], out, sizeof out) != sizeof out || read(ends[0], in, sizeof in) != sizeof in)
            return perror("unix_pipe: short transfer"), 1;
        sum = checksum(sum, in[r % 64]);
    }
    print_checksum("unix_pipe", sum);
    return 0;
}
