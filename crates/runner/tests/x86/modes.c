// MXCSR's modes and flags, and alignment, in code that is hot enough to be translated.
#define _GNU_SOURCE
#include <emmintrin.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <smmintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <xmmintrin.h>

static void set_control(uint32_t value) {
    __asm__ volatile("ldmxcsr %0" ::"m"(value));
}

static uint32_t control(void) {
    uint32_t value;
    __asm__ volatile("stmxcsr %0" : "=m"(value));
    return value;
}

// The compiler does not move these.
#define OF_TWO(name, a, b) \
    ({ \
        __m128i x = _mm_cvtsi64_si128(a), y = _mm_cvtsi64_si128(b); \
        __asm__ volatile(name " %1, %0" : "+x"(x) : "x"(y)); \
        (uint64_t)_mm_cvtsi128_si64(x); \
    })

#define TINY 0x00012345
#define LEAST 0x00800001
#define HALF 0x3f000000
#define ONE 0x3f800000
#define MINUS_ONE 0xbf800000
#define MINUTE 0x37a16c262777579c // 1e-40
#define THIRD 0x3fd3333333333333

// Results and exceptions of many operations in one mode.
static void run(const char *name, uint32_t mode) {
    uint64_t sum = 0;
    uint32_t raised[8] = {0};
    for (int i = 0; i < 300; i++) {
        uint64_t all[8];
        for (int at = 0; at < 8; at++) {
            set_control(mode);
            switch (at) {
            case 0: all[at] = OF_TWO("addss", TINY, TINY); break;
            case 1: all[at] = OF_TWO("mulss", LEAST, HALF); break;
            case 2: all[at] = OF_TWO("divss", ONE, TINY); break;
            case 3: all[at] = OF_TWO("minps", TINY, ONE); break;
            case 4: all[at] = OF_TWO("maxss", TINY, MINUS_ONE); break;
            case 5: all[at] = OF_TWO("cvtsd2ss", 0, MINUTE); break;
            case 6: all[at] = OF_TWO("cmpeqss", TINY, 0); break;
            case 7: all[at] = OF_TWO("cvtps2dq", TINY, TINY); break;
            }
            raised[at] |= control() & 0x3f;
            sum = sum * 31 + all[at];
        }
    }
    set_control(0x1f80);
    printf("%s %016llx", name, (unsigned long long)sum);
    for (int at = 0; at < 8; at++) printf(" %02x", raised[at]);
    printf("\n");
}

static void *other_thread(void *unused) {
    run("other thread", control());
    return unused;
}

static void rounding(void) {
    uint32_t raised[4] = {0};
    for (int i = 0; i < 300; i++) {
        for (int at = 0; at < 4; at++) {
            set_control(0x1f80);
            switch (at) {
            case 0: OF_TWO("roundsd $1,", THIRD, THIRD); break;
            case 1: OF_TWO("roundsd $9,", THIRD, THIRD); break;
            case 2: OF_TWO("roundss $12,", ONE + 1, ONE + 1); break;
            case 3: OF_TWO("roundpd $10,", THIRD, THIRD); break;
            }
            raised[at] |= control() & 0x3f;
        }
    }
    set_control(0x1f80);
    printf("rounding %02x %02x %02x %02x\n", raised[0], raised[1], raised[2], raised[3]);
}

static sigjmp_buf back;
static siginfo_t seen;
static long error;

static void on_fault(int signal, siginfo_t *info, void *context) {
    seen = *info;
    error = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR];
    siglongjmp(back, signal);
}

static void access_at(int how, char *at) {
    __m128i v = _mm_set1_epi32(7);
    switch (how) {
    case 0: __asm__ volatile("movaps %%xmm0, (%0)" ::"r"(at) : "memory"); break;
    case 1: __asm__ volatile("movdqa (%0), %%xmm1" ::"r"(at) : "xmm1"); break;
    case 2: __asm__ volatile("paddd (%0), %%xmm1" ::"r"(at) : "xmm1"); break;
    case 3: __asm__ volatile("movntdq %0, (%1)" ::"x"(v), "r"(at) : "memory"); break;
    case 4: __asm__ volatile("movups (%0), %%xmm1; movdqu %%xmm1, (%0)" ::"r"(at) : "xmm1", "memory"); break;
    case 5: __asm__ volatile("cvtps2pd (%0), %%xmm1; addsd (%0), %%xmm1" ::"r"(at) : "xmm1"); break;
    case 6: __asm__ volatile("movaps %%xmm0, (%0,%1)" ::"r"(at), "r"(0l) : "memory"); break;
    case 7: __asm__ volatile("fxsave (%0)" ::"r"(at - 64) : "memory"); break;
    case 8: __asm__ volatile("dpps $0xff, (%0), %%xmm1" ::"r"(at) : "xmm1"); break;
    }
}

static void alignment(void) {
    static char large[1024] __attribute__((aligned(64)));
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, 0);
    for (int how = 0; how < 9; how++) {
        volatile int done = 0;
        int signal = sigsetjmp(back, 1);
        if (signal == 0) {
            for (int i = 0; i <= 500; i++) {
                access_at(how, large + 512 + (i == 500 ? 8 : 16 * (i % 4)));
                done = i;
            }
            printf("access %d: no fault after %d\n", how, done);
        } else {
            printf("access %d: signal %d, code %d, address %p, after %d\n", how, signal, seen.si_code, seen.si_addr,
                   done);
        }
    }
    unsigned reserved = 0x10000;
    int signal = sigsetjmp(back, 1);
    if (signal == 0) {
        __asm__ volatile("ldmxcsr %0" ::"m"(reserved));
        printf("reserved bits are accepted\n");
    } else {
        printf("reserved bits: signal %d, address %p\n", signal, seen.si_addr);
    }
}

// The error code of page faults: bit 0 of pages that are there, bit 1 of stores, bit 4 of instruction fetches. Reading
// and writing the same operand is a store.
static void errors(void) {
    char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *page = 1;
    munmap(page + 4096, 4096);
    char *fixed = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fixed[0] = fixed[4096] = 1;
    mprotect(fixed, 4096, PROT_READ);
    mprotect(fixed + 4096, 4096, PROT_NONE);
    for (int how = 0; how < 12; how++) {
        if (sigsetjmp(back, 1) == 0) {
            switch (how) {
            case 0: (void)*(volatile char *)(page + 4096); break;
            case 1: *(volatile char *)(page + 4096) = 1; break;
            case 2: ((void (*)(void))page)(); break;
            case 3: ((void (*)(void))(page + 4096))(); break;
            case 4: ((void (*)(void))(1ul << 62))(); break;
            case 5: *(volatile char *)fixed = *(volatile char *)fixed; break;
            case 6: *(volatile char *)(fixed + 4096) = 1; break;
            case 7: __asm__ volatile("addl $1, (%0)" ::"r"(page + 4096) : "memory"); break;
            case 8: __asm__ volatile("lock xaddl %%eax, (%0)" ::"r"(page + 4096) : "eax", "memory"); break;
            case 9: __asm__ volatile("cmpl $1, (%0)" ::"r"(page + 4096) : "cc"); break;
            case 10: *(volatile char *)0xffffffff80000000ul = 1; break;
            case 11: (void)*(volatile char *)0xffffffff80000000ul; break;
            }
        }
        printf("error %d: %lx\n", how, error);
    }
}

int main(void) {
    run("usual", 0x1f80);
    run("operands", 0x1f80 | 0x40);
    run("results", 0x1f80 | 0x8000);
    run("both", 0x1f80 | 0x8040);
    run("usual again", 0x1f80);
    set_control(0x9fc0);
    pthread_t thread;
    pthread_create(&thread, 0, other_thread, 0);
    pthread_join(thread, 0);
    set_control(0x1f80);
    rounding();
    alignment();
    errors();
    return 0;
}
