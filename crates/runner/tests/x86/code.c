// Self-modifying code without barriers: stores take effect at the next call.
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

// A jump through a table at a fixed address, as compilers emit for `switch`.
static long by_table(long which) {
    long found;
    __asm__ volatile("jmp *9f(,%1,8)\n\t"
                     ".pushsection .rodata\n\t.balign 8\n\t9: .quad 1f, 2f, 3f\n\t.popsection\n"
                     "1: mov $10, %0\n\tjmp 8f\n2: mov $20, %0\n\tjmp 8f\n3: mov $30, %0\n8:"
                     : "=r"(found)
                     : "r"(which));
    return found;
}

// Flags set before the jump and read after it: compilers move the common start of all cases there.
static long behind_table(long which, long tested) {
    long found;
    __asm__ volatile("cmp $5, %2\n\tjmp *9f(,%1,8)\n\t"
                     ".pushsection .rodata\n\t.balign 8\n\t9: .quad 1f, 2f, 3f, 4f\n\t.popsection\n"
                     "1: mov $0, %0\n\tje 8f\n\tmov $1, %0\n\tjmp 8f\n"
                     "2: mov $0, %0\n\tjl 8f\n\tmov $2, %0\n\tjmp 8f\n"
                     "3: mov $0, %0\n\tja 8f\n\tmov $3, %0\n\tjmp 8f\n"
                     "4: mov $0, %0\n\tjp 8f\n\tmov $4, %0\n8:"
                     : "=&r"(found)
                     : "r"(which), "r"(tested)
                     : "cc");
    return found;
}

// An instruction whose last bytes are on a page that is mapped later.
static uint8_t *later;
static int brought, wrong;
static void bring(int signal, siginfo_t *info, void *context) {
    brought++;
    wrong += info->si_addr != later || signal != SIGSEGV || brought > 1;
    if (wrong) siglongjmp(back, signal);
    mprotect(later, 4096, PROT_READ | PROT_EXEC);
}

static void across(void) {
    struct sigaction action = {.sa_sigaction = bring, .sa_flags = SA_SIGINFO};
    uint8_t *code = mmap(NULL, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    later = code + 4096;
    write_function(later - 3, 77);
    mprotect(later, 4096, PROT_NONE);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGILL, &action, NULL);
    int caught = sigsetjmp(back, 1);
    printf("across pages: %d", caught ? -caught : ((function *)(later - 3))());
    printf(", %d, %d\n", brought, wrong);
}

// A comparison of the index register's previous value, and one of the register that becomes the target.
static long behind_other_index(long which, long tested) {
    long found;
    __asm__ volatile("lea 3f(%%rip), %%rdx\n\tmov %2, %%rcx\n\tcmp $5, %%rcx\n\tmov %1, %%rcx\n\tjmp *(%%rdx,%%rcx,8)\n"
                     "1: sete %%al\n\tjmp 2f\n4: setc %%al\n2: movzbl %%al, %%eax\n\t"
                     ".pushsection .data\n3: .quad 1b, 4b\n\t.popsection"
                     : "=&a"(found)
                     : "r"(which), "r"(tested)
                     : "rcx", "rdx", "cc");
    return found;
}

static long behind_reused(long left, long right) {
    long found;
    __asm__ volatile("mov %1, %%rcx\n\tcmp %2, %%rcx\n\tmovabs $1f, %%rcx\n\tjmp *%%rcx\n1: setc %%al\n\tmovzbl %%al, %%eax"
                     : "=&a"(found)
                     : "r"(left), "r"(right)
                     : "rcx", "cc");
    return found;
}

int main(void) {
    printf("behind others: %ld %ld %ld", behind_other_index(0, 5), behind_other_index(1, 4), behind_other_index(1, 6));
    printf(" %ld %ld\n", behind_reused(1, 2), behind_reused(2, 1));
    printf("by table: %ld\n", by_table(0) + 10 * by_table(1) + 100 * by_table(2));
    printf("behind the table:");
    for (long tested = -1; tested <= 7; tested += 2)
        for (long which = 0; which < 4; which++) printf(" %ld", behind_table(which, tested));
    puts("");
    across();
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
