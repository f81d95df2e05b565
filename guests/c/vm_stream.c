// The four loops of STREAM (McCalpin 1995) in a virtual machine that the host may migrate: each virtual CPU touches its part of the arrays
// on its first CPU (step 0 of `vcpus`), and all loops run on its second (step 1).
// Used by the placement experiments to measure memory that stays on the old node. Values stay whole numbers below 2^53.
// Arguments: ELEMENTS (default 200000), VCPUS (default 4). Rates go to stderr.
#include "../include/longma.h"
#include "vcpu.h"
#include <pthread.h>
#include <unistd.h>
#pragma STDC FP_CONTRACT ON

enum { KERNELS = 4 };

static double *a, *b, *c;
static size_t elements, page;
static unsigned vcpus;
static pthread_barrier_t together;
static double spent[KERNELS];

static void run(int kernel, size_t from, size_t to) {
    switch (kernel) {
    case 0:
        for (size_t i = from; i < to; i++) c[i] = a[i];
        break;
    case 1:
        for (size_t i = from; i < to; i++) b[i] = 3.0 * c[i];
        break;
    case 2:
        for (size_t i = from; i < to; i++) c[i] = a[i] + b[i];
        break;
    case 3:
        for (size_t i = from; i < to; i++) a[i] = b[i] + 3.0 * c[i];
        break;
    }
}

// Touch a word of each page, which allocates it on this node. The arrays are filled before the measured region.
static void touch(double *array, size_t from, size_t to) {
    for (size_t i = from; i < to; i += page / sizeof *array) *(volatile double *)&array[i];
}

static void *work(void *number) {
    unsigned own = (unsigned)(uintptr_t)number;
    size_t from = elements * own / vcpus, to = elements * (own + 1) / vcpus;
    vcpu_put(0, own, 0);
    for (size_t i = from; i < to; i++) a[i] = (double)(i % 1000), b[i] = c[i] = 0;
    pthread_barrier_wait(&together);
    if (own == 0) longma_roi_begin();
    pthread_barrier_wait(&together);
    touch(a, from, to), touch(b, from, to), touch(c, from, to);
    vcpu_put(0, own, 1);
    for (int kernel = 0; kernel < KERNELS; kernel++) {
        pthread_barrier_wait(&together);
        double start = seconds();
        run(kernel, from, to);
        pthread_barrier_wait(&together);
        if (own == 0) spent[kernel] = seconds() - start;
    }
    if (own == 0) longma_roi_end();
    return NULL;
}

int main(int argc, char **argv) {
    elements = argument(argc, argv, 1, 200000, 1, 1u << 28);
    vcpus = (unsigned)argument(argc, argv, 2, 4, 1, MOST_VCPUS);
    page = (size_t)sysconf(_SC_PAGESIZE);
    vcpu_read(vcpus);
    a = allocate(elements * sizeof *a), b = allocate(elements * sizeof *b), c = allocate(elements * sizeof *c);
    pthread_t others[MOST_VCPUS];
    pthread_barrier_init(&together, NULL, vcpus);
    for (unsigned i = 1; i < vcpus; i++)
        if (pthread_create(&others[i], NULL, work, (void *)(uintptr_t)i) != 0) {
            fprintf(stderr, "no thread %u: give fewer virtual CPUs\n", i);
            return 1;
        }
    work(NULL);
    for (unsigned i = 1; i < vcpus; i++) pthread_join(others[i], NULL);
    uint64_t sum = CHECKSUM_START;
    for (size_t i = 0; i < elements; i++) sum = (sum ^ bits_of(a[i]) ^ bits_of(b[i]) ^ bits_of(c[i])) * 0x100000001b3u;
    static const char *const names[KERNELS] = {"copy", "scale", "add", "triad"};
    static const int words[KERNELS] = {2, 2, 3, 3};
    for (int k = 0; k < KERNELS; k++)
        fprintf(stderr, "%s %.0f MB/s\n", names[k], (double)(elements * 8) * words[k] / spent[k] / 1e6);
    print_checksum("vm_stream", sum);
    return 0;
}
