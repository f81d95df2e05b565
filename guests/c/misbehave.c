// Makes one error, so that the kernel's response can be checked.
// A program's fault must become the signal or errno that Linux gives.
// Arguments: CASE; without it, the cases are listed. Dies by the signal, or prints the result.
#include "guest.h"
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile uintptr_t zero;
static volatile long divisor;

static void jump_to_zero(void) { ((void (*)(void))zero)(); }
static void read_null(void) { printf("%d\n", *(volatile char *)zero); }
static void write_code(void) { *(volatile char *)(uintptr_t)&read_null = 1; }
static void write_kernel(void) { *(volatile char *)(zero - 4096) = 1; }
static void run_data(void) {
    static volatile uint32_t data[4];
    ((void (*)(void))(uintptr_t)data)();
}

// Invalid instructions: zeros on LoongArch, ud2 on x86-64.
static void run_garbage(void) {
    uint32_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        perror("misbehave: mmap");
        exit(1);
    }
#if defined(__x86_64__)
    page[0] = 0x0b0f0b0f;
#endif
    ((void (*)(void))(uintptr_t)page)();
}

__attribute__((noinline)) static int overflow(int level) {
    volatile char frame[4096];
    frame[0] = (char)level;
    return divisor == 1 ? level : overflow(level + 1) + frame[0];
}
static void overflow_stack(void) { printf("%d\n", overflow(0)); }

// LoongArch's division never traps; x86-64's does.
static void divide_by_zero(void) {
    long quotient = 0;
#if defined(__loongarch__)
    __asm__ volatile("div.d %0, %1, %2" : "=r"(quotient) : "r"(7L), "r"(divisor));
    quotient = 0; // the value is undefined in the manual
#endif
    printf("divided, %ld\n", quotient);
}

static void map_too_much(void) {
    void *got = mmap(NULL, (size_t)1 << 62, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("mmap of 2^62 bytes: failed %d, ENOMEM %d\n", got == MAP_FAILED, errno == ENOMEM);
    got = mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("mmap of 0 bytes: failed %d, EINVAL %d\n", got == MAP_FAILED, errno == EINVAL);
    got = mmap((void *)0x1001, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    printf("mmap at an odd address: failed %d, EINVAL %d\n", got == MAP_FAILED, errno == EINVAL);
    got = mmap((void *)(~(uintptr_t)0 << 16), 65536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    printf("mmap at the top: failed %d, ENOMEM %d\n", got == MAP_FAILED, errno == ENOMEM);
}

static void bad_pointers(void) {
    long got = write(1, (void *)8, 5);
    printf("write from a bad pointer: %ld, EFAULT %d\n", got, errno == EFAULT);
    got = read(-1, &got, 1);
    printf("read from no file: %ld, EBADF %d\n", got, errno == EBADF);
    got = syscall(4242);
    printf("unknown call: %ld, ENOSYS %d\n", got, errno == ENOSYS);
}

static void give_up(void) { abort(); }
static void trap(void) {
#if defined(__loongarch__)
    __asm__ volatile("break 0");
#elif defined(__x86_64__)
    __asm__ volatile("int3");
#endif
}

static const struct {
    const char *name;
    void (*act)(void);
} cases[] = {
    {"jump-to-zero", jump_to_zero}, {"read-null", read_null},           {"write-code", write_code},
    {"write-kernel", write_kernel}, {"run-data", run_data},             {"run-garbage", run_garbage},
    {"overflow-stack", overflow_stack}, {"divide-by-zero", divide_by_zero}, {"map-too-much", map_too_much},
    {"bad-pointers", bad_pointers}, {"abort", give_up},                 {"trap", trap},
};

int main(int argc, char **argv) {
    for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof *cases; i++)
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].act();
            return 0;
        }
    fputs("misbehave: give one case:", stderr);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) fprintf(stderr, " %s", cases[i].name);
    fputs("\n", stderr);
    return 2;
}
