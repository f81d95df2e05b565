// The four loops of STREAM (McCalpin 1995) by several threads, each on its part of the arrays.
// Measures the memory bandwidth of several cores; `stream` uses one. Values stay whole numbers below 2^53.
// Arguments: ELEMENTS (default 200000), REPEATS (default 20), THREADS (default 4). Rates go to stderr.
#include "../include/longma.h"
#include "guest.h"
#include <pthread.h>
#pragma STDC FP_CONTRACT ON

enum { KERNELS = 4, MOST_THREADS = 64 };

static double *a, *b, *c;
static size_t elements;
static uint64_t repeats;
static unsigned threads;
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

// One thread's part, which it touches first. The first thread measures the time.
static void *work(void *number) {
    unsigned own = (unsigned)(uintptr_t)number;
    size_t from = elements * own / threads, to = elements * (own + 1) / threads;
    for (size_t i = from; i < to; i++) b[i] = c[i] = 0;
    for (uint64_t r = 0; r < repeats; r++) {
        // The values grow in each round; reset them to keep them exact.
        for (size_t i = from; r % 8 == 0 && i < to; i++) a[i] = (double)(i % 1000);
        for (int kernel = 0; kernel < KERNELS; kernel++) {
            pthread_barrier_wait(&together);
            // The other threads have touched their parts and wait at the same barrier.
            if (own == 0 && r == 0 && kernel == 0) longma_roi_begin();
            double start = seconds();
            run(kernel, from, to);
            pthread_barrier_wait(&together);
            if (own == 0) spent[kernel] += seconds() - start;
        }
    }
    if (own == 0) longma_roi_end();
    return NULL;
}

int main(int argc, char **argv) {
    elements = argument(argc, argv, 1, 200000, 1, 1u << 28);
    repeats = argument(argc, argv, 2, 20, 1, 1000000);
    threads = (unsigned)argument(argc, argv, 3, 4, 1, MOST_THREADS);
    a = allocate(elements * sizeof *a), b = allocate(elements * sizeof *b), c = allocate(elements * sizeof *c);
    pthread_t others[MOST_THREADS];
    pthread_barrier_init(&together, NULL, threads);
    for (unsigned i = 1; i < threads; i++)
        if (pthread_create(&others[i], NULL, work, (void *)(uintptr_t)i) != 0) {
            fprintf(stderr, "no thread %u: give fewer threads\n", i);
            return 1;
        }
    work(NULL);
    for (unsigned i = 1; i < threads; i++) pthread_join(others[i], NULL);
    uint64_t sum = CHECKSUM_START;
    for (size_t i = 0; i < elements; i++) sum = (sum ^ bits_of(a[i]) ^ bits_of(b[i]) ^ bits_of(c[i])) * 0x100000001b3u;
    static const char *const names[KERNELS] = {"copy", "scale", "add", "triad"};
    static const int words[KERNELS] = {2, 2, 3, 3};
    for (int k = 0; k < KERNELS; k++)
        fprintf(stderr, "%s %.0f MB/s\n", names[k], (double)(elements * 8 * repeats) * words[k] / spent[k] / 1e6);
    print_checksum("stream_threads", sum);
    return 0;
}
