// A ring of processes that pass a token through pipes and read their own data each time, as LMbench's lat_ctx does, in a virtual machine
// whose virtual CPUs first stay and then migrate according to `vcpus`: the cost of a migration.
// Used by the placement experiments. Threads represent processes: sharing an address space is equivalent to tagged TLBs.
// Arguments: PROCESSES (default 2), KIB of data of each (default 0), ROUNDS (default 200), VCPUS (default 1), EVERY: number of rounds between
// placements of the virtual CPUs (default 1), also while they stay, so that the calls cost the same. Times go to stderr.
#include "../include/longma.h"
#include "vcpu.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_PROCESSES = 64 };

static unsigned processes, vcpus, every;
static uint64_t rounds;
static size_t words;
static int pipes[MOST_PROCESSES][2];
static atomic_int threads[MOST_PROCESSES];
static uint64_t *data[MOST_PROCESSES], sums[MOST_PROCESSES], switches;
static double spent[2];

static void receive(unsigned own) {
    char token;
    if (read(pipes[own][0], &token, 1) != 1) exit(1);
    for (size_t i = 0; i < words; i++) sums[own] += data[own][i];
}

static void pass(unsigned own) {
    if (write(pipes[(own + 1) % processes][1], "", 1) != 1) exit(1);
}

static void put(unsigned step) {
    for (unsigned i = 0; i < processes; i++) vcpu_put(threads[i], i % vcpus, step);
}

// Passes the token; the first process places the virtual CPUs, on the same CPUs while they stay.
static void lead(unsigned phase) {
    put(0);
    for (uint64_t round = 0; round <= rounds; round++) {
        // The first round only warms up.
        if (round == 1) spent[phase] = seconds();
        if (round > 0 && round % every == 0) {
            unsigned step = (unsigned)(round / every);
            put(phase == 0 ? 0 : step);
            switches += phase == 0 ? 0 : vcpu_changes(vcpus, step - 1);
        }
        pass(0);
        receive(0);
    }
    spent[phase] = seconds() - spent[phase];
}

// A process's data is on the node of its virtual CPU's first CPU.
static void settle(unsigned own) {
    vcpu_put(0, own % vcpus, 0);
    data[own] = allocate(words * sizeof **data + 1);
    for (size_t w = 0; w < words; w++) data[own][w] = w + own;
    threads[own] = (int)syscall(SYS_gettid);
}

static void *follow(void *number) {
    unsigned own = (unsigned)(uintptr_t)number;
    settle(own);
    for (uint64_t round = 0; round < 2 * (rounds + 1); round++) {
        receive(own);
        pass(own);
    }
    return NULL;
}

int main(int argc, char **argv) {
    processes = (unsigned)argument(argc, argv, 1, 2, 2, MOST_PROCESSES);
    words = argument(argc, argv, 2, 0, 0, 1 << 16) * 1024 / sizeof **data;
    rounds = argument(argc, argv, 3, 200, 1, 1u << 24);
    vcpus = (unsigned)argument(argc, argv, 4, 1, 1, MOST_VCPUS);
    every = (unsigned)argument(argc, argv, 5, 1, 1, 1u << 24);
    vcpu_read(vcpus);
    pthread_t others[MOST_PROCESSES];
    settle(0);
    for (unsigned i = 0; i < processes; i++) {
        if (pipe(pipes[i]) != 0) {
            perror("pipe");
            return 1;
        }
    }
    for (unsigned i = 1; i < processes; i++)
        if (pthread_create(&others[i], NULL, follow, (void *)(uintptr_t)i) != 0) {
            fprintf(stderr, "no thread %u: give fewer processes\n", i);
            return 1;
        }
    for (unsigned i = 1; i < processes; i++)
        while (threads[i] == 0) sched_yield();
    longma_roi_begin();
    lead(0);
    lead(1);
    longma_roi_end();
    uint64_t sum = CHECKSUM_START;
    for (unsigned i = 0; i < processes; i++) {
        if (i > 0) pthread_join(others[i], NULL);
        sum = checksum(sum, sums[i]);
    }
    double hops = (double)(rounds * processes);
    fprintf(stderr, "%.3f us a switch of processes while the virtual CPUs stay\n", spent[0] * 1e6 / hops);
    fprintf(stderr, "%.3f us a switch of processes while they move\n", spent[1] * 1e6 / hops);
    fprintf(stderr, "%llu switches of processors\n", (unsigned long long)switches);
    fprintf(stderr, "%.3f us a switch of processors\n", switches ? (spent[1] - spent[0]) * 1e6 / (double)switches : 0.0);
    print_checksum("vm_ring", sum);
    return 0;
}
