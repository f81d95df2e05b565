// Older ways to enter the kernel: the vsyscall page and INT 80h. Hosts may lack both.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static sigjmp_buf back;
static long address;
static int code;
static char text[] = "written by int $0x80\n";

static void leave(int signal, siginfo_t *info, void *context) {
    address = (long)info->si_addr;
    code = info->si_code;
    siglongjmp(back, signal);
}

static long interrupt(long number, long b, long c, long d, long si) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "0"(number), "b"(b), "c"(c), "d"(d), "S"(si), "D"(0L) : "memory");
    return result;
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int round = 0; round < 300; round++) {
        struct timeval now, then;
        long stored = 0;
        unsigned processor = 9999, node = 9999;
        int failed = ((int (*)(void *, void *))0xffffffffff600000)(&now, NULL);
        failed |= ((int (*)(void *, void *))0xffffffffff600000)(NULL, NULL);
        gettimeofday(&then, NULL);
        long told = ((long (*)(long *))0xffffffffff600400)(&stored);
        failed |= ((int (*)(unsigned *, unsigned *, void *))0xffffffffff600800)(&processor, &node, NULL);
        int is_right = !failed && then.tv_sec - now.tv_sec <= 1 && told == stored && time(NULL) - told <= 1 && processor != 9999 && node != 9999;
        if (round == 0 || !is_right) printf("vsyscall: %d\n", is_right);
    }
    FILE *maps = fopen("/proc/self/maps", "r");
    for (char line[300]; fgets(line, sizeof line, maps);)
        if (strstr(line, "vsyscall")) fputs(line, stdout);
    struct sigaction action = {.sa_sigaction = leave, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    int signal = sigsetjmp(back, 1);
    if (!signal) (void)*(volatile char *)0xffffffffff600000;
    printf("read: signal %d, code %d, address %lx\n", signal, code, address);
    signal = sigsetjmp(back, 1);
    if (!signal) ((void (*)(void))0xffffffffff600c00)();
    printf("a call that does not exist: signal %d\n", signal);

    printf("%ld bytes\n", interrupt(4, 1, (long)text, sizeof text - 1, 0));
    printf("%ld bytes\n", interrupt(4 | 1L << 32, 1 | 1L << 40, (long)text | 1L << 44, sizeof text - 1, 0));
    printf("process %d\n", interrupt(20, 0, 0, 0, 0) == getpid());
    printf("errors %ld %ld\n", interrupt(6, -1, 0, 0, 0), interrupt(9999, 0, 0, 0, 0));
    static int few[2];
    printf("pipe %ld, ", interrupt(42, (long)few, 0, 0, 0));
    printf("seek %ld\n", interrupt(19, few[0], -1, 0, 0));
    interrupt(1, 7, 0, 0, 0);
    return 1;
}
