// A tuned copy with 256-bit loads and stores, the baseline for the IDMA engine.
// The C library's memcpy is built without vectors.
// Source: none.
#ifndef COPY_PLAIN_H
#define COPY_PLAIN_H

#include <stddef.h>
#include <stdint.h>

typedef long copy_vec __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint64_t copy_word __attribute__((aligned(1), may_alias));

// Both ends first, since they may overlap the middle; then 128 bytes per iteration.
__attribute__((noinline, no_builtin("memcpy"))) static void copy_plain(void *to, const void *from, size_t n) {
    unsigned char *d = to;
    const unsigned char *s = from;
    if (n < 32) {
        if (n >= 8) {
            for (size_t i = 0; i + 8 <= n; i += 8) *(copy_word *)(d + i) = *(const copy_word *)(s + i);
            *(copy_word *)(d + n - 8) = *(const copy_word *)(s + n - 8);
        } else {
            for (size_t i = 0; i < n; i++) d[i] = s[i];
        }
        return;
    }
    copy_vec head = *(const copy_vec *)s, tail = *(const copy_vec *)(s + n - 32);
    // Aligned stores: loads may cross lines, stores do not.
    size_t i = 32 - ((uintptr_t)d & 31);
    for (; i + 128 <= n; i += 128) {
        copy_vec a = *(const copy_vec *)(s + i), b = *(const copy_vec *)(s + i + 32);
        copy_vec e = *(const copy_vec *)(s + i + 64), f = *(const copy_vec *)(s + i + 96);
        *(copy_vec *)(d + i) = a, *(copy_vec *)(d + i + 32) = b, *(copy_vec *)(d + i + 64) = e, *(copy_vec *)(d + i + 96) = f;
    }
    for (; i + 32 <= n; i += 32) *(copy_vec *)(d + i) = *(const copy_vec *)(s + i);
    *(copy_vec *)d = head, *(copy_vec *)(d + n - 32) = tail;
}

#endif
