// Every instruction of AES-NI, PCLMULQDQ and SHA-NI, on chained values, so that one wrong result changes all that follow.
#include <immintrin.h>
#include <stdio.h>

static void show(const char *name, __m128i value) {
    printf("%s %016llx%016llx\n", name, (unsigned long long)_mm_extract_epi64(value, 1),
           (unsigned long long)_mm_cvtsi128_si64(value));
}

int main(void) {
    __m128i a = _mm_set_epi32(1, 20, 300, 4000), b = _mm_set1_epi8(0xa7);
    static __m128i memory[2];
    for (int i = 0; i < 2000; i++) {
        memory[i % 2] = b;
        a = _mm_aesenclast_si128(_mm_aesenc_si128(a, b), memory[1]);
        b = _mm_aesdeclast_si128(_mm_aesdec_si128(_mm_aesimc_si128(b), memory[0]), a);
        b = _mm_xor_si128(b, i % 2 ? _mm_aeskeygenassist_si128(a, 0x36) : _mm_aeskeygenassist_si128(a, 1));
    }
    show("aes", _mm_xor_si128(a, b));
    __m128i p = a;
    for (int i = 0; i < 2000; i++) {
        __m128i low = _mm_clmulepi64_si128(p, a, 0x00), middle = _mm_clmulepi64_si128(p, b, 0x01);
        __m128i high = _mm_clmulepi64_si128(low, middle, 0x11);
        p = _mm_xor_si128(_mm_xor_si128(high, _mm_clmulepi64_si128(middle, p, 0x10)), a);
    }
    show("pclmulqdq", p);
    __m128i s = p, w = _mm_set1_epi32(0x1234567), v = _mm_set1_epi32(77);
    for (int i = 0; i < 2000; i++) {
        __m128i e = _mm_sha1nexte_epu32(s, w);
        s = i % 4 == 0   ? _mm_sha1rnds4_epu32(s, e, 0)
            : i % 4 == 1 ? _mm_sha1rnds4_epu32(s, e, 1)
            : i % 4 == 2 ? _mm_sha1rnds4_epu32(s, e, 2)
                         : _mm_sha1rnds4_epu32(s, e, 3);
        __m128i t = _mm_sha1msg2_epu32(_mm_xor_si128(_mm_sha1msg1_epu32(w, v), s), v);
        w = v;
        v = t;
    }
    show("sha1", _mm_xor_si128(s, w));
    __m128i h = s, g = w;
    for (int i = 0; i < 2000; i++) {
        __m128i t = _mm_sha256rnds2_epu32(h, g, w);
        h = g;
        g = t;
        t = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w, v), h), v);
        w = v;
        v = t;
    }
    show("sha256", _mm_xor_si128(_mm_xor_si128(h, g), _mm_xor_si128(v, w)));
    return 0;
}
