// Code that a program makes and changes without a word: stores take effect when it is called next.
#define _GNU_SOURCE
#include <signal.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int function(void);
static sigjmp_buf back;

static void on_fault(int signal) { siglongjmp(back, signal); }

// mov eax, value; ret
static void write_function(uint8_t *code, uint32_t value) {
    code[0] = 0xb8;
    memcpy(code + 1, &value, 4);
    code[5] = 0xc3;
}

int main(void) {
    const int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    uint8_t *code = mmap(NULL, 65536, all, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long sum = 0;
    for (int i = 0; i < 1000; i++) {
        write_function(code, i);
        sum += ((function *)code)();
    }
    printf("rewritten: %ld\n", sum);
    sum = 0;
    for (int i = 0; i < 300; i++) {
        uint8_t *here = code + 4096 + 7 * i;
        write_function(here, i);
        sum += ((function *)here)();
        code[1] = i; // another page's function changes too
        sum += ((function *)code)() & 0xff;
    }
    printf("unaligned: %ld\n", sum);
    mprotect(code, 4096, PROT_READ | PROT_EXEC);
    printf("protected: %d\n", ((function *)code)() & 0xff);
    signal(SIGSEGV, on_fault);
    int caught = sigsetjmp(back, 1);
    if (!caught) code[0] = 0;
    printf("written to: %d\n", caught);
    mprotect(code, 4096, PROT_READ);
    caught = sigsetjmp(back, 1);
    if (!caught) ((function *)code)();
    printf("not executable: %d\n", caught);
    munmap(code, 65536);
    caught = sigsetjmp(back, 1);
    if (!caught) ((function *)code)();
    printf("gone: %d\n", caught);
    code = mmap(code, 65536, all, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    write_function(code, 5);
    printf("again: %d\n", ((function *)code)());
    return 0;
}
