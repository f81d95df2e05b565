// Forks while other threads make all system calls, and lets each child make all of them.
// Tests the child of a fork: operations of other threads must not leave locks held or state incomplete in it.
// Arguments: PROCESSES (default 100), THREADS (default 3).
#include "guest.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLS 470
#define CHILD_SECONDS 60

// With arguments of -1 these end the thread, affect the host, or take long; 335 and 336 (uretprobe, uprobe) raise SIGILL.
static int is_left_out(long number) {
    static const long left_out[] = {
        SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_setsid, SYS_set_tid_address, SYS_msgget, SYS_umask,
#if defined(__x86_64__)
        335, 336, SYS_pause, SYS_vfork, SYS_fork, SYS_arch_prctl, SYS_alarm, SYS_iopl, SYS_uselib, SYS_modify_ldt,
#endif
        SYS_sync, SYS_vhangup,
    };
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (number == left_out[i]) return 1;
    return 0;
}

static atomic_int stopped;
// The child's current call, for the parent to report if it hangs.
static atomic_long *now_doing;

static void require(int good, const char *what) {
    if (good) return;
    perror(what);
    _exit(3);
}

static void limits(unsigned char *code, size_t page) {
    (void)code, (void)page;
    struct rlimit limit;
    require(getrlimit(RLIMIT_AS, &limit) == 0 && setrlimit(RLIMIT_AS, &limit) == 0, "fork_storm: limits");
}

static void actions(unsigned char *code, size_t page) {
    (void)code, (void)page;
    struct sigaction action;
    require(sigaction(SIGUSR1, NULL, &action) == 0 && sigaction(SIGUSR1, &action, NULL) == 0, "fork_storm: sigaction");
}

static void mappings(unsigned char *code, size_t page) {
    (void)code;
    char *memory = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED, "fork_storm: mmap");
    require(mprotect(memory + page, page, PROT_READ) == 0, "fork_storm: mprotect");
    require(munmap(memory, 4 * page) == 0, "fork_storm: munmap");
}

static void heap(unsigned char *code, size_t page) {
    (void)code, (void)page;
    syscall(SYS_brk, 0);
}

static void missing_call(unsigned char *code, size_t page) {
    (void)code, (void)page;
    syscall(1000, 0);
}

// Writes a function and calls it until it is translated.
static void changed_code(unsigned char *code, size_t page) {
    (void)page;
#if defined(__loongarch__)
    *(volatile uint32_t *)code = 0x4c000020u; // ret
    __asm__ volatile("dbar 0\n\tibar 0" : : : "memory");
#elif defined(__x86_64__)
    *(volatile unsigned char *)code = 0xc3;
#elif defined(__aarch64__)
    *(volatile uint32_t *)code = 0xd65f03c0u; // ret
    __builtin___clear_cache((char *)code, (char *)code + 4);
#else
#error "no machine code for this machine"
#endif
    for (int i = 0; i < 50; i++) ((void (*)(void))code)();
}

static void *nothing(void *given) { return given; }

static void threads_of_threads(unsigned char *code, size_t page) {
    (void)code, (void)page;
    pthread_t thread;
    if (pthread_create(&thread, NULL, nothing, NULL) == 0) pthread_join(thread, NULL);
}

// Process state that an emulator keeps in addition to the host's.
static void (*const uses[])(unsigned char *, size_t) = {limits, actions, mappings, heap, missing_call, changed_code, threads_of_threads};
#define USES (sizeof uses / sizeof *uses)

static void make_call(long number) {
    if (!is_left_out(number)) syscall(number, -1L, -1L, -1L, -1L, -1L, -1L);
}

static void make_every_call(unsigned char *code, size_t page) {
    for (long number = 0; number < CALLS; number++) {
        atomic_store(now_doing, number);
        make_call(number);
    }
    for (size_t use = 0; use < USES; use++) {
        atomic_store(now_doing, -(long)use - 1);
        uses[use](code, page);
    }
}

// Repeats one call for a while, so that a fork hits it, then continues with another.
static void *work(void *given) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *code = mmap(NULL, page, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(code != MAP_FAILED, "fork_storm: mmap");
    uint64_t state = (uint64_t)(intptr_t)given + 1;
    while (!atomic_load(&stopped)) {
        uint64_t drawn = random_next(&state) >> 33;
        for (int i = 0; i < 2000 && !atomic_load(&stopped); i++) {
            if (drawn % 2 == 0) uses[drawn / 2 % USES](code, page);
            else make_call((long)(drawn / 2 % CALLS));
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    uint64_t processes = argument(argc, argv, 1, 100, 1, 1 << 20), threads = argument(argc, argv, 2, 3, 1, 64);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    pthread_t workers[64];
    now_doing = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned char *code = mmap(NULL, page, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(now_doing != MAP_FAILED && code != MAP_FAILED, "fork_storm: mmap");
    atomic_long *everybodys = now_doing;
    static atomic_long own;
    now_doing = &own;
    for (uint64_t i = 0; i < threads; i++)
        if (pthread_create(&workers[i], NULL, work, (void *)(intptr_t)i) != 0) return puts("fork_storm: no thread"), 1;
    uint64_t hung = 0, wrong = 0;
    for (uint64_t p = 0; p < processes; p++) {
        pid_t child = fork();
        if (child < 0) return perror("fork_storm: fork"), 1;
        if (child == 0) {
            alarm(CHILD_SECONDS);
            now_doing = everybodys;
            make_every_call(code, page);
            _exit(0);
        }
        int status = 0;
        if (waitpid(child, &status, 0) != child) return puts("fork_storm: child lost"), 1;
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
            hung++;
            fprintf(stderr, "fork_storm: child %llu hangs in call %ld\n", (unsigned long long)p, atomic_load(everybodys));
            break;
        }
        if (status != 0) {
            wrong++;
            fprintf(stderr, "fork_storm: child %llu ends with %#x in call %ld\n", (unsigned long long)p, status, atomic_load(everybodys));
        }
    }
    atomic_store(&stopped, 1);
    for (uint64_t i = 0; i < threads; i++) pthread_join(workers[i], NULL);
    printf("fork_storm %llu children, %llu hung, %llu wrong\n", (unsigned long long)processes, (unsigned long long)hung, (unsigned long long)wrong);
    return hung + wrong != 0;
}
