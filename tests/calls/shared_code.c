// Code in memory shared by processes: after an instruction barrier, a process runs the code that another one has written.
// Source: mmap(2), memfd_create(2), shmat(2), fork(2); LoongArch Reference Manual 2.2.8 (DBAR, IBAR).
#include "say.h"
#include "write_code.h"
#include <sys/mman.h>
#include <sys/shm.h>

typedef int function(void);
enum { PAGE = 65536 };

static void see_stores(void) {
#ifdef __loongarch__
    __asm__ volatile("dbar 0\nibar 0" ::: "memory");
#else
    unsigned a = 0, b, c = 0, d;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d)::"memory");
#endif
}

static int run(void *code) {
    see_stores();
    return ((function *)code)();
}

// Numbers of calls: cold code, hot code, and code hot enough for further optimization.
static const int times[] = {1, 50, 5000};

// A child writes code through `writes`, another view of the memory at `runs`.
static void written_by_a_child(const char *what, void *runs, void *writes) {
    for (int i = 0; i < 3; i++) {
        write_code(writes, 1);
        int sum = 0, wanted = times[i];
        for (int n = 0; n < times[i]; n++) sum += run(runs);
        pid_t child = fork();
        if (!child) {
            write_code(writes, 7);
            _exit(run(runs));
        }
        int status;
        waitpid(child, &status, 0);
        printf("%s, %d times: %s before, %d in the child, %d after\n", what, times[i], sum == wanted ? "right" : "wrong",
               WEXITSTATUS(status), run(runs));
    }
}

// A child runs the code that its parent writes.
static void run_by_a_child(const char *what, void *code) {
    for (int i = 0; i < 3; i++) {
        int ready[2], written[2];
        pipe(ready);
        pipe(written);
        write_code(code, 1);
        pid_t child = fork();
        if (!child) {
            char byte = 0;
            for (int n = 0; n < times[i]; n++) run(code);
            write(ready[1], &byte, 1);
            read(written[0], &byte, 1);
            _exit(run(code));
        }
        char byte;
        read(ready[0], &byte, 1);
        write_code(code, 9);
        write(written[1], &byte, 1);
        int status;
        waitpid(child, &status, 0);
        printf("%s, %d times: %d\n", what, times[i], WEXITSTATUS(status));
        close(ready[0]), close(ready[1]), close(written[0]), close(written[1]);
    }
}

static void by_a_file(void) {
    int file = memfd_create("code", 0);
    ftruncate(file, PAGE);
    void *code = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
    uint32_t words[2];
    for (int i = 0; i < 3; i++) {
        write_code(words, 1);
        pwrite(file, words, sizeof words, 0);
        for (int n = 0; n < times[i]; n++) run(code);
        pid_t child = fork();
        if (!child) {
            write_code(words, 5);
            pwrite(file, words, sizeof words, 0);
            _exit(0);
        }
        waitpid(child, NULL, 0);
        printf("a child writes to the file, %d times: %d\n", times[i], run(code));
    }
}

int main(void) {
    const int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    void *shared = mmap(NULL, PAGE, all, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    written_by_a_child("shared memory", shared, shared);
    run_by_a_child("the parent's stores", shared);
    int file = memfd_create("code", 0);
    ftruncate(file, PAGE);
    void *runs = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
    void *writes = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    written_by_a_child("two views", runs, writes);
    by_a_file();
    int id = shmget(IPC_PRIVATE, PAGE, 0600);
    void *segment = shmat(id, NULL, SHM_EXEC);
    shmctl(id, IPC_RMID, NULL);
    written_by_a_child("a segment", segment, segment);
}
