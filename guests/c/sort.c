// Sorts the same numbers four ways: quicksort, heapsort, radix sort and the C library's qsort.
// Exercises unpredictable branches, swaps and indirect calls.
// Arguments: NUMBERS (default 700000).
#include "../include/longma.h"
#include "guest.h"

static void swap(uint64_t *a, uint64_t *b) {
    uint64_t t = *a;
    *a = *b;
    *b = t;
}

static void quicksort(uint64_t *v, size_t n) {
    while (n > 16) {
        uint64_t pivot = v[n / 2];
        size_t i = 0, j = n - 1;
        for (;; i++, j--) {
            while (v[i] < pivot) i++;
            while (v[j] > pivot) j--;
            if (i >= j) break;
            swap(&v[i], &v[j]);
        }
        quicksort(v + j + 1, n - j - 1);
        n = j + 1;
    }
    for (size_t i = 1; i < n; i++)
        for (size_t j = i; j > 0 && v[j - 1] > v[j]; j--) swap(&v[j - 1], &v[j]);
}

static void sift(uint64_t *v, size_t at, size_t n) {
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && v[child] < v[child + 1]) child++;
        if (v[at] >= v[child]) return;
        swap(&v[at], &v[child]);
    }
}

static void heapsort(uint64_t *v, size_t n) {
    for (size_t i = n / 2; i-- > 0;) sift(v, i, n);
    for (size_t i = n; i-- > 1;) {
        swap(&v[0], &v[i]);
        sift(v, 0, i);
    }
}

static void radix_sort(uint64_t *v, uint64_t *spare, size_t n) {
    for (int shift = 0; shift < 64; shift += 8) {
        size_t start[257] = {0};
        for (size_t i = 0; i < n; i++) start[(v[i] >> shift & 0xff) + 1]++;
        for (int k = 0; k < 256; k++) start[k + 1] += start[k];
        for (size_t i = 0; i < n; i++) spare[start[v[i] >> shift & 0xff]++] = v[i];
        uint64_t *t = v;
        v = spare;
        spare = t;
    }
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    size_t n = argument(argc, argv, 1, 700000, 1, 1u << 28);
    uint64_t *input = allocate(n * 8), *first = allocate(n * 8), *other = allocate(n * 8), *spare = allocate(n * 8);
    uint64_t seed = 0x5047, sum = CHECKSUM_START;
    // Include many equal keys, which partitioning handles specially.
    for (size_t i = 0; i < n; i++) input[i] = random_next(&seed) >> (i % 3 * 20 + (i % 7 == 0 ? 16 : 0));
    memcpy(first, input, n * 8);
    longma_roi_begin();
    quicksort(first, n);
    for (int way = 0; way < 3; way++) {
        memcpy(other, input, n * 8);
        if (way == 0) heapsort(other, n);
        if (way == 1) radix_sort(other, spare, n);
        if (way == 2) qsort(other, n, 8, compare);
        if (memcmp(first, other, n * 8) != 0) {
            printf("sort: way %d disagrees with quicksort\n", way);
            return 1;
        }
    }
    longma_roi_end();
    for (size_t i = 0; i < n; i++) sum = (sum ^ first[i]) * 0x100000001b3u;
    print_checksum("sort", sum);
    return 0;
}
