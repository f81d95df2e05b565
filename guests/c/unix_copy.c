// Copies a file in pieces of 256, 1024 and 4096 bytes, as UnixBench's file copy does.
// Exercises open, read, write, lseek, pread and ftruncate on real files.
// Arguments: KIBIBYTES of file (default 1000), REPEATS (default 60). Files go to TMPDIR or /tmp.
#include "guest.h"
#include <fcntl.h>
#include <unistd.h>

static int open_temporary(void) {
    const char *folder = getenv("TMPDIR");
    char name[4096];
    snprintf(name, sizeof name, "%s/guest-copy-XXXXXX", folder && *folder ? folder : "/tmp");
    int file = mkstemp(name);
    if (file < 0) {
        perror("unix_copy: temporary file (set TMPDIR to a folder you may write to)");
        exit(1);
    }
    unlink(name);
    return file;
}

static int copy(int from, int to, size_t piece, uint64_t *sum) {
    static unsigned char buffer[4096];
    ssize_t got;
    if (lseek(from, 0, SEEK_SET) != 0 || lseek(to, 0, SEEK_SET) != 0 || ftruncate(to, 0) != 0) return 1;
    while ((got = read(from, buffer, piece)) > 0) {
        *sum = (*sum ^ buffer[0]) * 0x100000001b3u;
        if (write(to, buffer, (size_t)got) != got) return 1;
    }
    return got < 0;
}

int main(int argc, char **argv) {
    uint64_t kibibytes = argument(argc, argv, 1, 1000, 1, 1u << 20), repeats = argument(argc, argv, 2, 60, 1, 1000000);
    uint64_t seed = 0xf11e, sum = CHECKSUM_START;
    uint64_t block[128];
    int a = open_temporary(), b = open_temporary();
    for (uint64_t k = 0; k < kibibytes; k++) {
        for (int i = 0; i < 128; i++) block[i] = random_next(&seed);
        if (write(a, block, sizeof block) != sizeof block) return perror("unix_copy: write"), 1;
    }
    for (uint64_t r = 0; r < repeats; r++)
        for (size_t piece = 256; piece <= 4096; piece *= 4) {
            if (copy(r % 2 ? b : a, r % 2 ? a : b, piece, &sum)) return perror("unix_copy: copy"), 1;
        }
    for (uint64_t k = 0; k < kibibytes; k++) {
        if (pread(b, block, sizeof block, (off_t)(k * 1024)) != sizeof block) return perror("unix_copy: pread"), 1;
        sum = checksum_bytes(sum, block, sizeof block);
    }
    print_checksum("unix_copy", sum);
    return 0;
}
