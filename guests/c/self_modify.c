// Writes machine code into memory, runs it, writes other code over it and runs that.
// A translator must detect the change: after `ibar` or mprotect, the new code runs.
// Arguments: ROUNDS (default 60000).
#include "guest.h"
#include <sys/mman.h>
#include <unistd.h>

typedef long (*returns_number)(void);

// Writes a function that returns `number` (0 to 2047).
static void write_function(unsigned char *code, unsigned number) {
#if defined(__loongarch__)
    uint32_t words[2] = {0x02800004u | number << 10, 0x4c000020u}; // addi.w a0, zero, number; ret
    memcpy(code, words, sizeof words);
    __asm__ volatile("ibar 0" : : : "memory");
#elif defined(__x86_64__)
    unsigned char bytes[6] = {0xb8, (unsigned char)number, (unsigned char)(number >> 8), 0, 0, 0xc3};
    memcpy(code, bytes, sizeof bytes);
#elif defined(__aarch64__)
    uint32_t words[2] = {0x52800000u | number << 5, 0xd65f03c0u}; // movz w0, number; ret
    memcpy(code, words, sizeof words);
    __builtin___clear_cache((char *)code, (char *)code + sizeof words);
#else
#error "no machine code for this machine"
#endif
}

int main(int argc, char **argv) {
    uint64_t rounds = argument(argc, argv, 1, 60000, 1, 100000000), sum = 0, wanted = 0;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *open = mmap(NULL, page, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *shut = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (open == MAP_FAILED || shut == MAP_FAILED) return perror("self_modify: mmap"), 1;
    for (uint64_t r = 0; r < rounds; r++) {
        // Writable and executable at once, at two addresses in one page.
        unsigned a = (unsigned)(r * 7 % 2048), b = (unsigned)(r * 13 % 2048);
        write_function(open + r % 8 * 16, a);
        write_function(open + 2048, b);
        for (int i = 0; i < 3; i++) sum += (uint64_t)((returns_number)(open + r % 8 * 16))() + (uint64_t)((returns_number)(open + 2048))();
        wanted += 3 * (a + b);
        if (r % 16 != 0) continue;
        // Writable, then executable (W^X).
        if (mprotect(shut, page, PROT_READ | PROT_WRITE) != 0) return perror("self_modify: mprotect"), 1;
        write_function(shut, b);
        if (mprotect(shut, page, PROT_READ | PROT_EXEC) != 0) return perror("self_modify: mprotect"), 1;
        sum += (uint64_t)((returns_number)shut)();
        wanted += b;
    }
    printf("self_modify %llu of %llu\n", (unsigned long long)sum, (unsigned long long)wanted);
    return sum != wanted;
}
