// Shared code of the guests: argument parsing, a checksum, random numbers.
// It has no state, and prints only an error for a bad argument.
// Source: FNV-1a (Fowler, Noll, Vo); xorshift64* (Vigna, ACM TOMS 2016).
#ifndef GUEST_H
#define GUEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Argument `index` as a whole number from `least` to `most`, or `fallback` if absent.
static inline uint64_t argument(int argc, char **argv, int index, uint64_t fallback, uint64_t least,
                                uint64_t most) {
    if (index >= argc) return fallback;
    char *end;
    uint64_t value = strtoull(argv[index], &end, 10);
    if (argv[index][0] == '-' || *end || end == argv[index] || value < least || value > most) {
        fprintf(stderr, "%s: argument %d is '%s': give a whole number from %llu to %llu\n", argv[0],
                index, argv[index], (unsigned long long)least, (unsigned long long)most);
        exit(2);
    }
    return value;
}

#define CHECKSUM_START 0xcbf29ce484222325u

// FNV-1a over the eight bytes of `value`.
static inline uint64_t checksum(uint64_t sum, uint64_t value) {
    for (int i = 0; i < 8; i++, value >>= 8) sum = (sum ^ (value & 0xff)) * 0x100000001b3u;
    return sum;
}

static inline uint64_t checksum_bytes(uint64_t sum, const void *data, size_t length) {
    const unsigned char *p = data;
    for (size_t i = 0; i < length; i++) sum = (sum ^ p[i]) * 0x100000001b3u;
    return sum;
}

// The bits of a double, which must be the same on all machines.
static inline uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// xorshift64*; the state must not be zero.
static inline uint64_t random_next(uint64_t *state) {
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545f4914f6cdd1du;
}

static inline double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

// Allocates memory; exits if that fails.
static inline void *allocate(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory) {
        fprintf(stderr, "no memory for %zu bytes: give a smaller size\n", bytes);
        exit(1);
    }
    return memory;
}

static inline void print_checksum(const char *name, uint64_t sum) {
    printf("%s %016llx\n", name, (unsigned long long)sum);
}

#endif
