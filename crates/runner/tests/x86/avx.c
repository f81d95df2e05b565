// AVX2 and related extensions: compiled loops, 256-bit values across calls, mixed SSE, signals.
#define _GNU_SOURCE
#include <immintrin.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>
#include <ucontext.h>
#include <cpuid.h>

#define N 1003

static int a[N], b[N], c[N];
static float f[N], g[N], h[N];
static double d[N], e[N];
static uint8_t bytes[N], more[N];
static int16_t shorts[N];

static uint64_t sum(const void *from, size_t size) {
    const uint8_t *at = from;
    uint64_t value = 1469598103934665603u;
    for (size_t i = 0; i < size; i++) value = (value ^ at[i]) * 1099511628211u;
    return value;
}

static void loops(void) {
    for (int i = 0; i < N; i++) {
        a[i] = i * 2654435761u;
        b[i] = (i * 40503) ^ (i << 20);
        bytes[i] = i * 7;
        more[i] = i * 11 + 3;
        shorts[i] = i * 331;
        f[i] = i * 0.37f - 100;
        g[i] = 3.5f - i;
        d[i] = i / 7.0;
        e[i] = 1e9 / (i + 1);
    }
    for (int i = 0; i < N; i++) c[i] = a[i] > b[i] ? a[i] - b[i] : a[i] << (b[i] & 31);
    printf("choices and shifts %016lx\n", sum(c, sizeof c));
    for (int i = 0; i < N; i++) c[i] += (bytes[i] + more[i] + 1) >> 1;
    printf("averages %016lx\n", sum(c, sizeof c));
    long total = 0;
    for (int i = 0; i < N; i++) total += (long)a[i] * b[i];
    printf("products %016lx\n", total);
    for (int i = 0; i < N; i++) shorts[i] = shorts[i] * bytes[i] >> 3;
    printf("shorts %016lx\n", sum(shorts, sizeof shorts));
    for (int i = 0; i < N; i++) h[i] = f[i] * g[i] + sqrtf(fabsf(f[i]));
    printf("singles %016lx\n", sum(h, sizeof h));
    for (int i = 0; i < N; i++) d[i] = d[i] * e[i] - (double)f[i] + a[i];
    printf("doubles %016lx\n", sum(d, sizeof d));
    for (int i = 0; i < N; i++) c[i] = (int)e[i] + a[(unsigned)b[i] % N];
    printf("indices %016lx\n", sum(c, sizeof c));
    for (int i = 0; i < N; i++)
        if (b[i] & 4) c[i] = b[i];
    printf("masks %016lx\n", sum(c, sizeof c));
    float least = 1e30f;
    for (int i = 0; i < N; i++) least = h[i] < least ? h[i] : least;
    printf("least %a\n", least);
}

__attribute__((noinline)) static __m256i twice(__m256i x) { return _mm256_add_epi32(x, x); }
__attribute__((noinline)) static __m256d scaled(__m256d x, double by) { return _mm256_mul_pd(x, _mm256_set1_pd(by)); }
typedef __m256i (*function)(__m256i);
static function volatile pointer = twice;

static void show(const char *what, __m256i x) {
    uint64_t lanes[4];
    memcpy(lanes, &x, 32);
    printf("%s %016lx %016lx %016lx %016lx\n", what, lanes[0], lanes[1], lanes[2], lanes[3]);
}

static void calls(void) {
    __m256i x = _mm256_set_epi64x(0x4000000000000001, 3, 5, 7);
    show("through calls", twice(twice(x)));
    show("through a pointer", pointer(x));
    show("products of doubles", _mm256_castpd_si256(scaled(_mm256_set_pd(1, 2, 3, 4), 0.1)));
}

static void mixed(void) {
    uint64_t before[4] = {1, 2, 0x1111222233334444, 0x5555666677778888}, after[4];
    // SSE preserves upper halves, AVX clears them.
    __asm__ volatile("vmovdqu %1, %%ymm3\n\tpaddq %%xmm3, %%xmm3\n\tvmovdqu %%ymm3, %0" : "=m"(after) : "m"(before) : "xmm3");
    printf("SSE keeps %lx %lx %lx %lx\n", after[0], after[1], after[2], after[3]);
    __asm__ volatile("vmovdqu %1, %%ymm3\n\tvpaddq %%xmm3, %%xmm3, %%xmm3\n\tvmovdqu %%ymm3, %0" : "=m"(after) : "m"(before) : "xmm3");
    printf("AVX clears %lx %lx %lx %lx\n", after[0], after[1], after[2], after[3]);
    __asm__ volatile("vmovdqu %1, %%ymm13\n\tcall 1f\n\tjmp 2f\n1: cvtsi2sd %%eax, %%xmm13\n\tret\n2: vmovdqu %%ymm13, %0"
                     : "=m"(after) : "m"(before), "a"(3) : "xmm13", "memory");
    printf("a scalar keeps %lx %lx %lx %lx\n", after[0], after[1], after[2], after[3]);
    __asm__ volatile("vmovdqu %1, %%ymm9\n\tvzeroupper\n\tvmovdqu %%ymm9, %0" : "=m"(after) : "m"(before) : "xmm9");
    printf("vzeroupper %lx %lx %lx %lx\n", after[0], after[1], after[2], after[3]);
    __asm__ volatile("vmovdqu %1, %%ymm9\n\tvmovsd %1, %%xmm9\n\tvmovdqu %%ymm9, %0" : "=m"(after) : "m"(before) : "xmm9");
    printf("a load clears %lx %lx %lx %lx\n", after[0], after[1], after[2], after[3]);
}

static void others(void) {
    __m256i x = _mm256_loadu_si256((void *)a), y = _mm256_loadu_si256((void *)b);
    show("gather", _mm256_i32gather_epi32(a, _mm256_and_si256(y, _mm256_set1_epi32(511)), 4));
    show("masked", _mm256_maskload_epi32(b, x));
    show("permutation", _mm256_permutevar8x32_epi32(x, y));
    show("halves", _mm256_permute2x128_si256(x, y, 0x31));
    show("bytes", _mm256_shuffle_epi8(x, y));
    show("blend", _mm256_blend_epi32(x, y, 0x5a));
    show("words", _mm256_cvtepi8_epi16(_mm256_castsi256_si128(x)));
    show("shifts", _mm256_srlv_epi32(x, _mm256_and_si256(y, _mm256_set1_epi32(63))));
    show("fused", _mm256_castps_si256(_mm256_fmadd_ps(_mm256_loadu_ps(f), _mm256_loadu_ps(g), _mm256_loadu_ps(h))));
    show("fused, negated", _mm256_castpd_si256(_mm256_fnmadd_pd(_mm256_loadu_pd(d), _mm256_loadu_pd(e), _mm256_loadu_pd(d + 4))));
    printf("a fused scalar %a\n", fma(1 + 0x1p-30, 1 - 0x1p-30, -1));
    printf("halves %a\n", _cvtsh_ss(_cvtss_sh(3.14159f, 0)));
    printf("signs %08x, test %d %d\n", _mm256_movemask_epi8(x), _mm256_testz_si256(x, y), _mm256_testc_si256(x, x));
    uint64_t high;
    uint64_t low = _mulx_u64(0x123456789abcdef1, 0xfedcba9876543211, (unsigned long long *)&high);
    printf("bits %lx %lx %lx %lx %x %x\n", low, high, _pdep_u64(0xabcd, 0x0f0f0f0f0f0f), _pext_u64(low, high),
           (unsigned)_tzcnt_u32(0), (unsigned)_lzcnt_u32(0x1000));
}

static __thread int local[8] = {3, 1, 4, 1, 5, 9, 2, 6};

// Masked-off elements are not accessed, and a gather's address may have a segment.
static void edges(void) {
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + 4096, 4096, PROT_NONE);
    memset(pages, 0x11, 4096);
    int *end = (int *)(pages + 4096 - 12);
    __m256i three = _mm256_set_epi32(0, 0, 0, 0, 0, -1, -1, -1);
    _mm256_maskstore_epi32(end, three, _mm256_set1_epi32(0x22));
    show("at the end of a page", _mm256_maskload_epi32(end, three));
    __m256i all = _mm256_setzero_si256(), index = _mm256_set_epi32(0, 0, 0, 0, 4000, 2, 1, 0), chosen = three;
    __asm__("vpgatherdd %1, (%2, %3, 4), %0" : "+x"(all), "+x"(chosen) : "r"(end), "x"(index));
    show("gathered there", all);
    show("the mask behind", chosen);
    char *base;
    __asm__("mov %%fs:0, %0" : "=r"(base));
    index = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0), chosen = _mm256_set1_epi32(-1);
    __asm__("vpgatherdd %1, %%fs:(%2, %3, 4), %0" : "+x"(all), "+x"(chosen) : "r"((char *)local - base), "x"(index));
    show("of a thread's own", all);
}

static volatile sig_atomic_t caught;
static volatile int is_whole;
static uint64_t seen[2];

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    ucontext_t *u = context;
    uint8_t *area = (uint8_t *)u->uc_mcontext.fpregs;
    uint32_t words[3];
    memcpy(words, area + 464, 12);
    uint32_t end = 0;
    if (words[0] == FP_XSTATE_MAGIC1) memcpy(&end, area + words[1] - 4, 4);
    is_whole = words[0] == FP_XSTATE_MAGIC1 && end == FP_XSTATE_MAGIC2 && (u->uc_flags & 1);
    memcpy(seen, area + 576 + 16 * 7, 16);
    // Replace the upper half of ymm7 in the frame.
    uint64_t other[2] = {0xaaaabbbbccccdddd, 0xeeeeffff00001111};
    memcpy(area + 576 + 16 * 7, other, 16);
    __asm__ volatile("vpcmpeqd %%ymm7, %%ymm7, %%ymm7\n\tvpcmpeqd %%ymm8, %%ymm8, %%ymm8" : : : "xmm7", "xmm8");
    caught++;
}

static void signals(void) {
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, NULL);
    uint64_t before[4] = {1, 2, 3, 4}, after[4], other[4];
    long pid = getpid();
    __asm__ volatile(
        "vmovdqu %2, %%ymm7\n\tvmovdqu %2, %%ymm8\n\tmov $62, %%eax\n\tmov %3, %%rdi\n\tmov $10, %%esi\n\tsyscall\n\t"
        "vmovdqu %%ymm7, %0\n\tvmovdqu %%ymm8, %1"
        : "=m"(after), "=m"(other) : "m"(before), "r"(pid) : "rax", "rdi", "rsi", "rcx", "r11", "xmm7", "xmm8", "memory");
    printf("%d signal, whole %d, it saw %lx %lx\n", (int)caught, is_whole, seen[0], seen[1]);
    printf("as the handler left it %lx %lx %lx %lx\n", after[0], after[1], after[2], after[3]);
    printf("as it was %lx %lx %lx %lx\n", other[0], other[1], other[2], other[3]);
}

static volatile sig_atomic_t ticks;
static void on_tick(int number) {
    (void)number;
    ticks++;
    __asm__ volatile("vpcmpeqd %%ymm1, %%ymm1, %%ymm1\n\tvzeroall" : : : "xmm1");
}

static void interrupted(void) {
    signal(SIGALRM, on_tick);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &every, NULL);
    __m256i total = _mm256_setzero_si256();
    int rounds = 0;
    while (ticks < 20) {
        __m256i x = _mm256_setzero_si256();
        for (int i = 0; i + 8 <= N; i += 8) x = _mm256_add_epi32(x, _mm256_loadu_si256((void *)(a + i)));
        total = rounds++ ? _mm256_or_si256(total, x) : x;
    }
    every.it_value.tv_usec = every.it_interval.tv_usec = 0;
    setitimer(ITIMER_REAL, &every, NULL);
    show("interrupted", total);
}

static uint8_t *absent;
static void on_absent(int number, siginfo_t *info, void *context) {
    (void)number;
    ucontext_t *u = context;
    uint8_t *at = (uint8_t *)u->uc_mcontext.gregs[REG_RIP];
    printf("signal %d at %d, address %d\n", number, (int)(at - absent), (int)((uint8_t *)info->si_addr - absent));
    u->uc_mcontext.gregs[REG_RIP] += 6;
}

static void illegal(void) {
    struct sigaction action = {.sa_sigaction = on_absent, .sa_flags = SA_SIGINFO};
    sigaction(SIGILL, &action, NULL);
    // An undefined VEX opcode.
    __asm__ volatile("lea 1f(%%rip), %0\n\tmov %0, absent(%%rip)\n1: .byte 0xc5, 0xf8, 0x04, 0x90, 0x90, 0x90" : "=&r"(absent) : : "memory");
}

static void announced(void) {
    unsigned eax, ebx, ecx, edx, low, high;
    __cpuid(1, eax, ebx, ecx, edx);
    unsigned wanted = 1u | 1 << 9 | 1 << 12 | 1 << 19 | 1 << 20 | 1 << 22 | 1 << 23 | 1 << 27 | 1 << 28 | 1 << 29;
    __cpuid_count(7, 0, eax, ebx, edx, edx);
    printf("announced %d %d\n", (ecx & wanted) == wanted, (ebx & 0x128) == 0x128);
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    printf("enabled %u\n", low & 7);
    __cpuid_count(0xd, 2, eax, ebx, ecx, edx);
    printf("upper halves %u at %u\n", eax, ebx);
    __builtin_cpu_init();
    printf("v3 %d\n", !!__builtin_cpu_supports("avx2") && !!__builtin_cpu_supports("fma") && !!__builtin_cpu_supports("bmi2"));
}

static void saved(void) {
    static uint8_t area[4096] __attribute__((aligned(64)));
    uint64_t before[4] = {1, 2, 3, 4}, after[4];
    __asm__ volatile(
        "vmovdqu %1, %%ymm5\n\tmov $7, %%eax\n\txor %%edx, %%edx\n\txsavec %2\n\tvzeroall\n\tmov $7, %%eax\n\txor %%edx, %%edx\n\txrstor %2\n\t"
        "vmovdqu %%ymm5, %0"
        : "=m"(after), "+m"(before), "+m"(area) : : "rax", "rdx", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
          "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    printf("saved and restored %lx %lx %lx %lx\n", after[0], after[1], after[2], after[3]);
}

int main(void) {
    announced();
    loops();
    calls();
    mixed();
    others();
    edges();
    saved();
    signals();
    interrupted();
    illegal();
    char text[300];
    memset(text, 'x', sizeof text);
    text[299] = 0;
    text[200] = 'y';
    printf("%zu %zu %d %zu\n", strlen(text), (size_t)(strchr(text, 'y') - text), memcmp(text, text + 1, 150),
           strcspn(text, "yz"));
    return 0;
}
