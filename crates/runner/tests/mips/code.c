// Self-modifying code: announced by cacheflush and synci, or unmapped.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static const int ALL = PROT_READ | PROT_WRITE | PROT_EXEC;

/// Writes a function of two instructions that returns `value`.
static void put(uint32_t *code, int value) {
    code[0] = 0x03e00008;
    code[1] = 0x24020000 | value;
}

static int call(uint32_t *code) {
    return ((int (*)(void))code)();
}

int main(void) {
    uint32_t *code = mmap(NULL, 65536, ALL, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long sum = 0;
    for (int i = 0; i < 2000; i++) {
        put(code + i % 3 * 2, i);
        syscall(SYS_cacheflush, code, 32, 3);
        sum += call(code + i % 3 * 2);
    }
    printf("cacheflush: %ld\n", sum);
    sum = 0;
    for (int i = 0; i < 200; i++) {
        put(code, i);
        __asm__ volatile("synci 0(%0)\n\tsync" : : "r"(code) : "memory");
        sum += call(code);
    }
    printf("synci: %ld\n", sum);
    munmap(code, 65536);
    sum = 0;
    for (int i = 0; i < 50; i++) {
        uint32_t *again =
            mmap(code, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        put(again, i * 3);
        mprotect(again, 65536, PROT_READ | PROT_EXEC);
        sum += call(again);
        munmap(again, 65536);
    }
    printf("mapped anew: %ld\n", sum);
    // The emulator's own memory is protected from the program.
    unsigned long start, end, kept = 0, changed = 0;
    char line[512];
    for (FILE *maps = fopen("/proc/self/maps", "r"); maps && fgets(line, sizeof line, maps);) {
        if (sscanf(line, "%lx-%lx", &start, &end) != 2) continue;
        char *name = line;
        while (*name && *name != '[') name++;
        if (name[0] != '[' || name[1] != 't') continue;
        kept++;
        changed += munmap((void *)start, 65536) == 0;
        changed += mprotect((void *)start, 65536, ALL) == 0;
        changed += mmap((void *)start, 65536, ALL, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
        changed += madvise((void *)start, 65536, MADV_DONTNEED) == 0;
        changed += mremap((void *)start, 65536, 131072, MREMAP_MAYMOVE) != MAP_FAILED;
    }
    printf("changed of what is kept: %lu\n", changed);
    return kept > 2;
}
