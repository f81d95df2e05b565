// Synchronous signals: handlers read and change all registers in the frame. The last signal kills the program.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

static sigjmp_buf back;
static volatile int caught, code;
static void *volatile where;

static volatile uint64_t syndrome;

// ESR_EL1; 0 with QEMU, which does not report it.
static uint64_t syndrome_of(const ucontext_t *context) {
    const uint8_t *record = context->uc_mcontext.__reserved;
    for (uint32_t head[2]; memcpy(head, record, 8), head[0] != 0; record += head[1]) {
        uint64_t value;
        memcpy(&value, record + 8, 8);
        if (head[0] == 0x45535201) return value;
    }
    return 0;
}

static void leave(int signal, siginfo_t *info, void *context) {
    syndrome = syndrome_of(context);
    caught = signal;
    code = info->si_code;
    where = info->si_addr;
    siglongjmp(back, 1);
}

static volatile uint64_t sum, flags, lanes[2];

// Each register holds its number. The handler sums them and writes other values.
static void go_on(int signal, siginfo_t *info, void *context) {
    (void)info;
    ucontext_t *registers = context;
    caught = signal;
    sum = 0;
    for (int i = 0; i < 29; i++) {
        sum = sum * 3 + registers->uc_mcontext.regs[i];
        registers->uc_mcontext.regs[i] += 100;
    }
    flags = registers->uc_mcontext.pstate >> 28;
    registers->uc_mcontext.pstate ^= 0xful << 28;
    struct { uint32_t magic, size, fpsr, fpcr; __uint128_t vregs[32]; } *floats = (void *)registers->uc_mcontext.__reserved;
    if (floats->magic == 0x46508001) {
        lanes[0] = floats->vregs[31];
        lanes[1] = floats->vregs[31] >> 64;
        floats->vregs[31] = (__uint128_t)77 << 64 | 66;
    }
    registers->uc_mcontext.pc += 4;
}

static void handle(int signal, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(signal, &action, NULL);
}

// A function that fills the registers, executes WORD, and sums the registers afterwards.
#define EXECUTE(NAME, WORD) \
    void NAME(volatile uint64_t *results); \
    __asm__( \
        ".globl " #NAME "\n" #NAME ":\n\tstp x29, x30, [sp, #-112]!\n\tstp x19, x20, [sp, #16]\n\tstp x21, x22, [sp, #32]\n\t" \
        "stp x23, x24, [sp, #48]\n\tstp x25, x26, [sp, #64]\n\tstp x27, x28, [sp, #80]\n\tstr x0, [sp, #96]\n\t" \
        "mov x9, #-1\n\tfmov d31, x9\n\tins v31.d[1], x9\n\t" \
        "mov x0, #0\n\tmov x1, #1\n\tmov x2, #2\n\tmov x3, #3\n\tmov x4, #4\n\tmov x5, #5\n\tmov x6, #6\n\tmov x7, #7\n\t" \
        "mov x8, #8\n\tmov x9, #9\n\tmov x10, #10\n\tmov x11, #11\n\tmov x12, #12\n\tmov x13, #13\n\tmov x14, #14\n\t" \
        "mov x15, #15\n\tmov x16, #16\n\tmov x17, #17\n\tmov x18, #18\n\tmov x19, #19\n\tmov x20, #20\n\tmov x21, #21\n\t" \
        "mov x22, #22\n\tmov x23, #23\n\tmov x24, #24\n\tmov x25, #25\n\tmov x26, #26\n\tmov x27, #27\n\tmov x28, #28\n\t" \
        "cmp x1, x1\n\t" WORD "\n\tcset x29, eq\n\t" \
        "add x0, x0, x1\n\tadd x0, x0, x5\n\tadd x0, x0, x7, lsl #1\n\tadd x0, x0, x16, lsl #2\n\tadd x0, x0, x18, lsl #3\n\t" \
        "add x0, x0, x24\n\tadd x0, x0, x26, lsl #1\n\tadd x0, x0, x27, lsl #2\n\tadd x0, x0, x28, lsl #3\n\tadd x0, x0, x29\n\t" \
        "ldr x1, [sp, #96]\n\tumov x2, v31.d[0]\n\tumov x3, v31.d[1]\n\tstr x0, [x1]\n\tstp x2, x3, [x1, #8]\n\t" \
        "ldp x19, x20, [sp, #16]\n\tldp x21, x22, [sp, #32]\n\tldp x23, x24, [sp, #48]\n\tldp x25, x26, [sp, #64]\n\t" \
        "ldp x27, x28, [sp, #80]\n\tldp x29, x30, [sp], #112\n\tret\n")

EXECUTE(no_instruction, ".inst 0x00000000");
EXECUTE(breakpoint, "brk #12");
EXECUTE(load, "ldr x9, [x0]");

static void tell(const char *what, int wanted, volatile uint64_t *results) {
    printf("%s: %d, sum %lu, flags %lu, %lx %lx, then %lu, %lu %lu\n", what, caught == wanted, (unsigned long)sum, (unsigned long)flags,
           (unsigned long)lanes[0], (unsigned long)lanes[1], (unsigned long)results[0], (unsigned long)results[1], (unsigned long)results[2]);
    caught = 0;
}

// Flags set before an indirect jump and read after it: compilers move the common start of all cases of a switch there.
static long behind_table(long which, long tested) {
    long found;
    __asm__ volatile("adr x9, 1f\n\tadd x9, x9, %1, lsl #3\n\tcmp %2, #5\n\tbr x9\n"
                     "1: cset %0, eq\n\tb 2f\n\tcset %0, lt\n\tb 2f\n\tcset %0, hi\n\tb 2f\n\tcset %0, cs\n2:"
                     : "=&r"(found)
                     : "r"(which), "r"(tested)
                     : "x9", "cc");
    return found;
}

// The index register is overwritten after the comparison, so the compared value is not the index.
static long behind_other_index(long which, long tested) {
    long found;
    __asm__ volatile("adr x10, 3f\n\tmov x9, %2\n\tcmp x9, #5\n\tmov x9, %1\n\tldrsw x9, [x10, x9, lsl #2]\n\tadd x10, x10, x9\n\tbr x10\n"
                     "3: .word 1f - 3b, 4f - 3b\n1: cset %0, eq\n\tb 2f\n4: cset %0, cs\n2:"
                     : "=&r"(found)
                     : "r"(which), "r"(tested)
                     : "x9", "x10", "cc");
    return found;
}

// A vfork child shares the memory, but no registers.
static long parents_registers(void) {
    long sum;
    __asm__ volatile("mov x5, #1\n\tmov x6, #2\n\tmov x7, #4\n\tmov x25, #8\n\tmov x26, #16\n\tmov x27, #32\n\tmov x28, #64\n\tmov x16, #128\n\t"
                     "mov x17, #256\n\tmov x0, #0x4111\n\tmov x1, #0\n\tmov x2, #0\n\tmov x3, #0\n\tmov x4, #0\n\tmov x8, #220\n\tsvc #0\n\t"
                     "cbnz x0, 1f\n\tmov x5, #7\n\tmov x6, #7\n\tmov x7, #7\n\tmov x25, #7\n\tmov x26, #7\n\tmov x27, #7\n\tmov x28, #7\n\t"
                     "mov x16, #7\n\tmov x17, #7\n\tmov x0, #0\n\tmov x8, #93\n\tsvc #0\n"
                     "1: add x0, x5, x6\n\tadd x0, x0, x7\n\tadd x0, x0, x25\n\tadd x0, x0, x26\n\tadd x0, x0, x27\n\tadd x0, x0, x28\n\t"
                     "add x0, x0, x16\n\tadd %0, x0, x17"
                     : "=r"(sum)
                     :
                     : "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x16", "x17", "x25", "x26", "x27", "x28", "memory");
    return sum;
}

// CASP of words and doublewords, equal and unequal, with all kinds of registers.
static void pairs(void) {
    static _Alignas(16) uint64_t memory[2];
#define SWAP(kind, s, s1, t, t1, expected, other)                                                                          \
    do {                                                                                                                   \
        uint64_t first = expected, second = other;                                                                         \
        memory[0] = 0x1111111122222222, memory[1] = 0x3333333344444444;                                                    \
        __asm__ volatile(".arch_extension lse\n\tmov x" #s ", %0\n\tmov x" #s1 ", %1\n\tmov x" #t ", #55\n\tmov x" #t1 ", #66\n\t" \
                         "caspal " kind #s ", " kind #s1 ", " kind #t ", " kind #t1 ", [%2]\n\tmov %0, x" #s "\n\tmov %1, x" #s1 \
                         : "+r"(first), "+r"(second)                                                                      \
                         : "r"(memory)                                                                                     \
                         : "x" #s, "x" #s1, "x" #t, "x" #t1, "memory");                                                    \
        printf(" %lx %lx %lx %lx", (unsigned long)first, (unsigned long)second, (unsigned long)memory[0], (unsigned long)memory[1]); \
    } while (0)
    printf("pairs:");
    SWAP("x", 6, 7, 26, 27, 0x1111111122222222, 0x3333333344444444);
    SWAP("x", 6, 7, 26, 27, 0x1111111122222222, 1);
    SWAP("x", 2, 3, 16, 17, 2, 0x3333333344444444);
    SWAP("x", 24, 25, 4, 5, 0x1111111122222222, 0x3333333344444444);
    SWAP("w", 6, 7, 26, 27, 0x22222222, 0x11111111);
    SWAP("w", 2, 3, 16, 17, 0x22222222, 0x11111112);
    SWAP("w", 24, 25, 4, 5, 0x22222222, 0x11111111);
    puts("");
}

// The top byte of an address is ignored (TBI).
static void tags(void) {
    static uint64_t memory[4] __attribute__((aligned(16))) = {1, 2, 3, 4};
    uint64_t *volatile tagged = (uint64_t *)((uint64_t)memory | 0x5aul << 56);
    memory[3] = (uint64_t)memory;
    tagged[0] += 10;
    __atomic_fetch_add(tagged + 1, 20, __ATOMIC_SEQ_CST);
    uint64_t itself = (uint64_t)(tagged + 3), lanes = 0;
    __asm__ volatile("ldr %0, [%0]" : "+r"(itself) : : "memory");
    __asm__ volatile("ldr q3, [%1]\n\taddp d3, v3.2d\n\tfmov %0, d3" : "=r"(lanes) : "r"(tagged) : "v3", "memory");
    // Exclusives, a stored base, structures, and all of them often enough to be translated.
    for (int i = 0; i < 300; i++) {
        uint64_t old, *place = tagged + 2;
        uint32_t failed;
        __asm__ volatile("1: ldxr %0, [%2]\n\tadd %0, %0, #1\n\tstlxr %w1, %0, [%2]\n\tcbnz %w1, 1b" : "=&r"(old), "=&r"(failed) : "r"(place) : "memory");
        __asm__ volatile("1: ldaxrb %w0, [%2]\n\tadd %w0, %w0, #1\n\tstxrb %w1, %w0, [%2]\n\tcbnz %w1, 1b" : "=&r"(old), "=&r"(failed) : "r"((char *)place + 3) : "memory");
        __asm__ volatile("1: ldxp x4, x5, [%1]\n\tadd x5, x5, #1\n\tstxp %w0, x4, x5, [%1]\n\tcbnz %w0, 1b" : "=&r"(failed) : "r"(place) : "x4", "x5", "memory");
    }
    uint64_t counted[2] = {memory[2], memory[3] - (uint64_t)memory};
    uint64_t *stored = tagged + 3, structures[8];
    uint64_t *volatile tagged_structures = (uint64_t *)((uint64_t)structures | 0x80ul << 56);
    for (int i = 0; i < 300; i++) {
        __asm__ volatile("str %0, [%0]" : : "r"(stored) : "memory");
        __asm__ volatile("ld3 {v0.8h, v1.8h, v2.8h}, [%0]\n\tst3 {v0.8h, v1.8h, v2.8h}, [%1]\n\tld2 {v4.2d, v5.2d}, [%0]\n\tst2 {v4.4s, v5.4s}, [%1]"
                         : : "r"(tagged_structures), "r"(tagged_structures) : "v0", "v1", "v2", "v4", "v5", "memory");
    }
    int keeps_tag = memory[3] == (uint64_t)stored;
    memory[3] = (uint64_t)memory;
    printf("exclusives: %lx %lu, a base that keeps its tag: %d\n", (unsigned long)counted[0], (unsigned long)counted[1], keeps_tag);
    int (*volatile called)(const char *) = (int (*)(const char *))((uint64_t)atoi | 0x7ful << 56);
    printf("tags: %d %lu %lu %d %lu\n", called("7"), (unsigned long)memory[0], (unsigned long)memory[1], itself == (uint64_t)memory, (unsigned long)lanes);
}

// Accesses that need an alignment, often enough to be translated before the last one is misaligned.
static void alignment(void) {
    static char memory[64] __attribute__((aligned(64)));
    static const char *const names[] = {"ldar x", "ldar w", "ldarh", "ldarb", "stlr x", "stlrh", "ldxr", "ldr"};
    for (int how = 0; how < 8; how++) {
        volatile int done = 0;
        caught = 0;
        if (!sigsetjmp(back, 1)) {
            for (int i = 0; i <= 500; i++) {
                char *at = memory + (i == 500 ? 17 : 16);
                unsigned long value = 0;
                switch (how) {
                case 0: __asm__ volatile("ldar %0, [%1]" : "=r"(value) : "r"(at) : "memory"); break;
                case 1: __asm__ volatile("ldar %w0, [%1]" : "=r"(value) : "r"(at) : "memory"); break;
                case 2: __asm__ volatile("ldarh %w0, [%1]" : "=r"(value) : "r"(at) : "memory"); break;
                case 3: __asm__ volatile("ldarb %w0, [%1]" : "=r"(value) : "r"(at) : "memory"); break;
                case 4: __asm__ volatile("stlr %0, [%1]" : : "r"(value), "r"(at) : "memory"); break;
                case 5: __asm__ volatile("stlrh %w0, [%1]" : : "r"(value), "r"(at) : "memory"); break;
                case 6: __asm__ volatile("ldxr %0, [%1]" : "=r"(value) : "r"(at) : "memory"); break;
                case 7: __asm__ volatile("ldr %0, [%1]" : "=r"(value) : "r"(at) : "memory"); break;
                }
                done = i;
            }
        }
        int is_right = caught == SIGBUS && code == BUS_ADRALN && where == memory + 17;
        printf("%s: %s after %d\n", names[how], is_right ? "misaligned" : caught ? "another fault" : "no fault", done);
    }
}

// Linux reports the kind of a fault: arch/arm64/include/asm/esr.h.
static void syndromes(void) {
    static const uint64_t expected[] = {0x9200004f, 0x92000047, 0x92000007, 0x8200000f, 0x82000007, 0x8a000000};
    int wrong = 0;
    char *pages = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pages[0] = pages[4096] = 1;
    mprotect(pages, 4096, PROT_READ);
    mprotect(pages + 4096, 4096, PROT_NONE);
    munmap(pages + 8192, 4096);
    for (int how = 0; how < 6; how++) {
        if (!sigsetjmp(back, 1)) {
            switch (how) {
            case 0: *(volatile char *)pages = 1; break;
            case 1: *(volatile char *)(pages + 4096) = 1; break;
            case 2: (void)*(volatile char *)(pages + 8192); break;
            case 3: ((void (*)(void))pages)(); break;
            case 4: ((void (*)(void))(pages + 8192))(); break;
            case 5: ((void (*)(void))((char *)syndromes + 2))(); break;
            }
        }
        wrong += syndrome != 0 && syndrome != expected[how];
    }
    printf("syndromes: %d wrong, the last is of signal %d, code %d\n", wrong, caught, code);
}

// Compare-and-swap needs a writable page even if the comparison fails.
static void failing_swaps(void) {
    char *page = mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(page, 7, 16384);
    mprotect(page, 16384, PROT_READ);
    __asm__ volatile(".arch_extension lse");
    static const char *const names[] = {"cas x", "casal w", "casab", "caslh", "casp x", "caspal w", "ldadd"};
    for (int how = 0; how < 7; how++) {
        uint64_t expected = 1, value = 2;
        caught = 0;
        if (!sigsetjmp(back, 1)) {
            switch (how) {
            case 0: __asm__ volatile("cas %0, %1, [%2]" : "+r"(expected) : "r"(value), "r"(page) : "memory"); break;
            case 1: __asm__ volatile("casal %w0, %w1, [%2]" : "+r"(expected) : "r"(value), "r"(page) : "memory"); break;
            case 2: __asm__ volatile("casab %w0, %w1, [%2]" : "+r"(expected) : "r"(value), "r"(page) : "memory"); break;
            case 3: __asm__ volatile("caslh %w0, %w1, [%2]" : "+r"(expected) : "r"(value), "r"(page) : "memory"); break;
            case 4: __asm__ volatile("mov x0, #1\n\tmov x1, #1\n\tcasp x0, x1, x2, x3, [%0]" : : "r"(page) : "x0", "x1", "memory"); break;
            case 5: __asm__ volatile("mov x0, #1\n\tmov x1, #1\n\tcaspal w0, w1, w2, w3, [%0]" : : "r"(page) : "x0", "x1", "memory"); break;
            case 6: __asm__ volatile("ldadd %0, %0, [%1]" : "+r"(expected) : "r"(page) : "memory"); break;
            }
        }
        printf("%s: %s\n", names[how], caught == SIGSEGV && code == SEGV_ACCERR && where == page ? "refused" : "no fault");
    }
}

int main(void) {
    tags();
    pairs();
    printf("registers after a child: %ld\n", parents_registers());
    printf("behind another index: %ld %ld %ld\n", behind_other_index(0, 5), behind_other_index(1, 4), behind_other_index(1, 6));
    printf("behind the table:");
    for (long tested = -1; tested <= 7; tested += 2)
        for (long which = 0; which < 4; which++) printf(" %ld", behind_table(which, tested));
    puts("");
    static volatile uint64_t results[3];
    setvbuf(stdout, NULL, _IONBF, 0);
    handle(SIGSEGV, leave);
    handle(SIGBUS, leave);
    if (!sigsetjmp(back, 1)) *(volatile int *)0x123450 = 1;
    printf("a store: %d at %#lx\n", caught == SIGSEGV && code == SEGV_MAPERR, (unsigned long)where);
    caught = 0;
    if (!sigsetjmp(back, 1)) ((void (*volatile)(void))0x7654320)();
    printf("a call: %d at %#lx\n", caught == SIGSEGV, (unsigned long)where);
    caught = 0;
    void (*volatile nowhere)(void) = NULL;
    if (!sigsetjmp(back, 1)) nowhere();
    printf("a call of null: %d at %#lx\n", caught == SIGSEGV, (unsigned long)where);
    caught = 0;
    alignment();
    syndromes();
    failing_swaps();
    caught = 0;
    volatile int zero = 0, five = 5;
    printf("a division by zero: %d\n", five / zero);
    handle(SIGILL, go_on);
    handle(SIGTRAP, go_on);
    no_instruction(results);
    tell("no instruction", SIGILL, results);
    breakpoint(results);
    tell("a breakpoint", SIGTRAP, results);
    handle(SIGSEGV, go_on);
    load(results);
    tell("a load", SIGSEGV, results);
    signal(SIGSEGV, SIG_DFL);
    *(volatile int *)8 = 1;
    return 0;
}
