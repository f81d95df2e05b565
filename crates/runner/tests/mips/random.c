// Executes random words as code, each time in a child, which returns or dies of a signal.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 200, WORDS = 16384 };
static uint64_t state;

static uint32_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 16;
}

/// A random word, one with a common opcode, or a register jump; never a system call.
static uint32_t word(void) {
    static const uint8_t common[] = {0x00, 0x04, 0x10, 0x14, 0x18, 0x1c, 0x24, 0x64, 0x3c, 0x34,
                                     0x8c, 0xdc, 0xac, 0xfc, 0x44, 0x4c, 0x70, 0x7c, 0xc0, 0xe0};
    uint32_t made = next();
    switch (next() % 8) {
    case 0:
    case 1:
    case 2: made = (made & 0x03ffffff) | (uint32_t)common[next() % sizeof common] << 24; break;
    case 3: made = next() % 32 << 21 | (next() & 1 ? 0x8 : 0xf809); break;
    default: break;
    }
    return (made & 0xfc00003f) == 0xc ? 0 : made;
}

int main(void) {
    int ended = 0;
    for (int child = 1; child <= CHILDREN; child++) {
        int id = fork(), status = 0;
        if (id == 0) {
            struct itimerval timer = {{0, 0}, {0, 300000}};
            setitimer(ITIMER_REAL, &timer, NULL);
            state = child * 0x9e3779b97f4a7c15u + 1;
            uint32_t *code =
                mmap(NULL, 4 * WORDS, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (int i = 0; i < WORDS; i++) code[i] = word();
            syscall(SYS_cacheflush, code, 4 * WORDS, 3);
            ((void (*)(void *, long, long))(code + next() % 1000))(code, next(), child);
            _exit(0);
        }
        ended += waitpid(id, &status, 0) == id && WTERMSIG(status) != SIGABRT && WTERMSIG(status) != SIGKILL;
    }
    printf("%d\n", ended);
    return 0;
}
