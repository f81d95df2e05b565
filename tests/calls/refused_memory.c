// Memory that children do not inherit, requests that exceed the process's limits, and changes to the vDSO that are refused.
// Source: madvise(2), getrlimit(2), mlockall(2), mmap(2), vdso(7).
#include "say.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

enum { PAGE = 65536 };
static char *kept;

static void read_kept(void) { printf("%d\n", *(volatile char *)kept); }

static void from_children(int flags, const char *what) {
    char *memory = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    kept = memory + PAGE;
    memory[0] = kept[0] = memory[2 * PAGE] = 3;
    printf("%s\n", what);
    SAY(madvise(kept, PAGE, MADV_DONTFORK));
    in_child("left out", read_kept);
    kept = memory + 2 * PAGE;
    in_child("beside it", read_kept);
    kept = memory + PAGE;
    read_kept();
    SAY(madvise(kept, PAGE, MADV_DOFORK));
    in_child("no longer", read_kept);
}

static void *nothing(void *argument) { return argument; }

static void with_little_memory(void) {
    struct rlimit limit = {256 << 20, 256 << 20};
    SAY(setrlimit(RLIMIT_AS, &limit));
    WELL(mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    WELL(mmap(NULL, 300 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    WELL(mmap(NULL, 200 << 20, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    void *grown = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    WELL(mremap(grown, PAGE, 300 << 20, MREMAP_MAYMOVE));
    WELL(mremap(grown, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    printf("%s\n", malloc(400 << 20) ? "there" : "none");
}

static void with_little_data(void) {
    struct rlimit limit = {32 << 20, 32 << 20};
    SAY(setrlimit(RLIMIT_DATA, &limit));
    WELL(mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    WELL(mmap(NULL, 64 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    WELL(mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    WELL(mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    pthread_t thread;
    ERROR(pthread_create(&thread, NULL, nothing, NULL));
}

static volatile int handled;
static void handle(int signal) { handled = signal; }

static void of_the_kernel(void) {
    unsigned char *code = (void *)getauxval(AT_SYSINFO_EHDR);
    SAY(madvise(code, sysconf(_SC_PAGESIZE), MADV_DONTNEED));
    printf("%s\n", code[0] == 0x7f ? "as it was" : "gone");
    signal(SIGUSR1, handle);
    raise(SIGUSR1);
    printf("handled %d\n", handled == SIGUSR1);
}

static void name(const char *file) {
    char text[32] = {0};
    int descriptor = open(file, O_RDONLY);
    read(descriptor, text, sizeof text - 1);
    close(descriptor);
    printf("%s: %s", file, text);
}

int main(void) {
    from_children(MAP_PRIVATE, "private memory");
    from_children(MAP_SHARED, "shared memory");
    in_child("address space", with_little_memory);
    in_child("data", with_little_data);
    of_the_kernel();
    SAY(mlockall(MCL_ONFAULT));
    WELL(mmap(NULL, PAGE, PROT_READ, MAP_SHARED_VALIDATE | MAP_ANONYMOUS, -1, 0));
    name("/proc/self/comm");
    name("/proc/thread-self/comm");
    char text[16];
    SAY(prctl(PR_GET_NAME, text));
    printf("%s\n", text);
}
