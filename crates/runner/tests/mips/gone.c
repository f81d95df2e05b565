// Another thread unmaps, restores and changes code while it runs and is translated. Stale code must never run.
// In code.c, the thread changes its own code.
// Source: madvise(2) (MADV_DONTNEED leaves zeros, which are nops on MIPS), mprotect(2), cacheflush(2).
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROUNDS = 400, WORDS = 4096 };
static uint32_t *code;
static atomic_int over, written;
static long calls, wrong;
static sigjmp_buf back;

static void on_fault(int signal) { siglongjmp(back, 1); }

// Many blocks, so that translation takes some time: addiu v0, zero, value; b past the next; nop; ... jr ra; nop.
static void write_code(int value) {
    for (int i = 0; i < WORDS - 4; i += 3) {
        code[i] = 0x24020000 | value;
        code[i + 1] = 0x10000001;
        code[i + 2] = 0;
    }
    code[WORDS - 2] = 0x03e00008;
    code[WORDS - 1] = 0;
    __builtin___clear_cache((char *)code, (char *)(code + WORDS));
}

static void *run(void *unused) {
    while (!over) {
        if (sigsetjmp(back, 1)) continue;
        int oldest = written;
        int found = ((int (*)(int))code)(-1);
        if (found < oldest) wrong++;
        calls++;
    }
    return NULL;
}

int main(void) {
    struct sigaction action = {.sa_handler = on_fault};
    sigaction(SIGSEGV, &action, NULL);
    long bytes = 4 * WORDS;
    code = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // Zeros (nops) lead here.
    code[WORDS] = 0x24027fff;
    code[WORDS + 1] = 0x03e00008;
    write_code(1);
    written = 1;
    pthread_t thread;
    pthread_create(&thread, NULL, run, NULL);
    for (int round = 2; round < ROUNDS; round++) {
        if (round % 2) {
            madvise(code, bytes, MADV_DONTNEED);
            mprotect(code, bytes, PROT_READ | PROT_WRITE | PROT_EXEC);
        } else {
            mprotect(code, bytes, PROT_NONE);
            usleep(100);
            mprotect(code, bytes, PROT_READ | PROT_WRITE | PROT_EXEC);
        }
        if (round % 3 == 0) usleep(200);
        write_code(round);
        written = round;
    }
    over = 1;
    pthread_join(thread, NULL);
    printf("called %d, wrong %ld\n", calls > 0, wrong);
    return 0;
}
