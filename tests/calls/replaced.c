// Code whose memory changes without stores to it: by madvise, by a wipe at fork, by writes to its file, by truncation of the
// file, and by attaching a segment over it.
// Source: madvise(2), ftruncate(2), shmat(2), shmdt(2), mmap(2).
#include "say.h"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#define MADV_KEEPONFORK 19
#endif

enum { BYTES = 1 << 16, RUNS = 3000, ALL = PROT_READ | PROT_WRITE | PROT_EXEC };

static sigjmp_buf before;
static volatile int last_fault;
static void on_fault(int signal) { last_fault = signal, siglongjmp(before, 1); }

static void encode(volatile uint32_t *at, int value) {
#ifdef __loongarch__
    at[0] = 0x02800004u | (uint32_t)value << 10; // addi.w a0, zero, value
    at[1] = 0x4c000020;                          // ret
#else
    at[0] = 0xb8u | (uint32_t)value << 8; // mov eax, value
    at[1] = 0xc300u | (uint32_t)value >> 24;
#endif
}

static void synchronise(void) {
#ifdef __loongarch__
    __asm__ volatile("dbar 0\nibar 0" ::: "memory");
#endif
}

static void write_code(volatile uint32_t *at, int value) {
    encode(at, value);
    synchronise();
}

static int call(volatile uint32_t *code) {
#ifdef __loongarch__
    return ((int (*)(void))code)();
#else
    // Zeros are instructions that add to the byte at rax. rax is null, so they fault.
    uint64_t value = 0;
    __asm__ volatile("call *%1" : "+a"(value) : "r"(code) : "memory", "cc");
    return value;
#endif
}

// The result of the code; -2 if it is zeros and therefore not valid code.
static int run(volatile uint32_t *code) {
    volatile int sum = 0;
    synchronise();
    if (sigsetjmp(before, 1)) return -2;
    for (int i = 0; i < RUNS; i++) sum += call(code);
    return sum / RUNS;
}

static volatile uint32_t *code_in(int flags, int file) {
    volatile uint32_t *code = mmap(NULL, BYTES, ALL, flags, file, 0);
    write_code(code, 1);
    run(code);
    return code;
}

static volatile uint32_t *private_code(void) { return code_in(MAP_PRIVATE | MAP_ANONYMOUS, -1); }

static void advised(void) {
    volatile uint32_t *code = private_code();
    SAY(madvise((void *)code, BYTES, MADV_POPULATE_WRITE));
    SAY(run(code));
    write_code(code, 2);
    SAY(run(code));
    SAY(madvise((void *)code, BYTES, MADV_DONTNEED));
    SAY(run(code));
    write_code(code, 3);
    SAY(run(code));
    code = code_in(MAP_SHARED | MAP_ANONYMOUS, -1);
    SAY(madvise((void *)code, BYTES, MADV_DONTNEED));
    SAY(run(code));
    SAY(madvise((void *)code, BYTES, MADV_REMOVE));
    SAY(run(code));
}

static volatile uint32_t *inherited;
static void run_inherited(void) { SAY(run(inherited)); }

static void wiped(void) {
    inherited = private_code();
    volatile uint32_t *rest = inherited + BYTES / 2 / 4;
    write_code(rest, 4);
    SAY(run(rest));
    SAY(madvise((void *)inherited, BYTES / 2, MADV_WIPEONFORK));
    in_child("a child of wiped code", run_inherited);
    SAY(run(inherited));
    SAY(madvise((void *)inherited, BYTES, MADV_KEEPONFORK));
    in_child("a child of kept code", run_inherited);
    inherited = rest;
    in_child("a child of other code", run_inherited);
}

static void written(void) {
    char path[] = "/tmp/longma-replaced-XXXXXX";
    int other = mkstemp(path), file = memfd_create("code", 0);
    uint32_t words[2];
    SAY(ftruncate(file, BYTES));
    volatile uint32_t *code = code_in(MAP_SHARED, file);
    SAY(run(code));
    encode(words, 2);
    SAY(pwrite(file, words, 8, 0));
    SAY(run(code));
    encode(words, 3);
    SAY(lseek(file, 0, SEEK_SET));
    SAY(write(file, words, 8));
    SAY(run(code));
    encode(words, 4);
    SAY(write(other, words, 8));
    off_t from = 0;
    SAY(lseek(file, 0, SEEK_SET));
    SAY(sendfile(file, other, &from, 8));
    SAY(run(code));
    SAY(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BYTES));
    SAY(run(code));
    write_code(code, 5);
    SAY(run(code));
    SAY(ftruncate(file, 0));
    SAY(run(code));
    SAY(ftruncate(file, BYTES));
    SAY(run(code));
    write_code(code, 6);
    SAY(run(code));
    ftruncate(other, BYTES);
    code = code_in(MAP_SHARED, other);
    SAY(run(code));
    close(open(path, O_RDWR | O_TRUNC));
    SAY(run(code));
    ftruncate(other, BYTES);
    write_code(code, 7);
    SAY(run(code));
    SAY(truncate(path, 0));
    SAY(run(code));
    unlink(path);
}

// A private mapping is inaccessible beyond the end of its file, even if code there has been run.
static void cut(void) {
    char path[] = "/tmp/longma-replaced-XXXXXX";
    int file = mkstemp(path);
    uint32_t words[2];
    encode(words, 1);
    for (int way = 0; way < 4; way++) {
        pwrite(file, words, 8, BYTES);
        ftruncate(file, 2 * BYTES);
        char *both = mmap(NULL, 2 * BYTES, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
        volatile uint32_t *code = (void *)(both + BYTES);
        SAY(run(code));
        if (way == 0) SAY(ftruncate(file, BYTES));
        if (way == 1) SAY(truncate(path, 4));
        if (way == 2) SAY(close(open(path, O_RDWR | O_TRUNC)) + ftruncate(file, BYTES));
        if (way == 3) SAY(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, BYTES, BYTES));
        SAY(run(code));
        SAY(last_fault == (way < 3 ? SIGBUS : last_fault));
        munmap(both, 2 * BYTES);
    }
    unlink(path);
}

static void attached(void) {
    volatile uint32_t *code = private_code();
    int segment = shmget(IPC_PRIVATE, BYTES, 0700 | IPC_CREAT);
    SAY(shmat(segment, (void *)code, SHM_REMAP | SHM_EXEC) == (void *)code);
    SAY(run(code));
    write_code(code, 2);
    SAY(run(code));
    volatile uint32_t *second = shmat(segment, NULL, 0);
    write_code(second, 3);
    SAY(run(code));
    struct shmid_ds state;
    SAY(shmdt((void *)second));
    // A segment's mapping in several pieces: all of them are detached.
    SAY(mprotect((char *)code + BYTES / 4, BYTES / 4, PROT_READ));
    SAY(shmdt((char *)code + BYTES / 4));
    SAY(shmdt((void *)code));
    SAY(shmctl(segment, IPC_STAT, &state));
    SAY(state.shm_nattch);
    SAY(shmdt((void *)code));
    char *pieces = shmat(segment, NULL, 0);
    SAY(munmap(pieces, BYTES / 4));
    SAY(munmap(pieces + BYTES / 2, BYTES / 4));
    SAY(shmdt(pieces));
    SAY(shmctl(segment, IPC_STAT, &state));
    SAY(state.shm_nattch);
    SAY(shmctl(segment, IPC_RMID, NULL));
}

static void shrunk(void) {
    char *start = (char *)syscall(SYS_brk, 0);
    SAY(syscall(SYS_brk, start + 4 * BYTES) == (long)start + 4 * BYTES);
    char *page = (char *)(((uintptr_t)start + 2 * BYTES) & -(uintptr_t)BYTES);
    SAY(mprotect(page, BYTES, ALL));
    volatile uint32_t *code = (void *)page;
    write_code(code, 1);
    SAY(run(code));
    SAY(syscall(SYS_brk, start) == (long)start);
    SAY(mmap(page, BYTES, ALL, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page);
    SAY(run(code));
    write_code(code, 2);
    SAY(run(code));
}

int main(void) {
    struct sigaction action = {.sa_handler = on_fault};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGILL, &action, NULL);
    advised();
    wiped();
    written();
    cut();
    attached();
    shrunk();
    return 0;
}
