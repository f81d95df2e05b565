// Every cryptographic instruction of Armv8.0, on chained values, so that one wrong result changes all that follow.
#include <arm_neon.h>
#include <stdint.h>
#include <stdio.h>

static void show(const char *name, uint8x16_t value) {
    uint64x2_t halves = vreinterpretq_u64_u8(value);
    printf("%s %016llx%016llx\n", name, (unsigned long long)halves[1], (unsigned long long)halves[0]);
}

#define W(value) vreinterpretq_u8_u32(value)

int main(void) {
    uint8x16_t a = {1, 2, 3, 4, 5, 6, 7, 8, 9}, b = vdupq_n_u8(0xa7);
    for (int i = 0; i < 2000; i++) {
        a = vaesmcq_u8(vaeseq_u8(a, b));
        b = vaesimcq_u8(vaesdq_u8(b, a));
    }
    show("aes", veorq_u8(a, b));
    uint64x2_t p = vreinterpretq_u64_u8(a);
    for (int i = 0; i < 2000; i++) {
        uint64x2_t low = vreinterpretq_u64_p128(vmull_p64(p[0], p[1]));
        uint64x2_t high =
            vreinterpretq_u64_p128(vmull_high_p64(vreinterpretq_p64_u64(p), vreinterpretq_p64_u64(low)));
        p = veorq_u64(veorq_u64(high, low), vreinterpretq_u64_u8(a));
    }
    show("pmull", vreinterpretq_u8_u64(p));
    uint32x4_t s = vreinterpretq_u32_u64(p), w = vdupq_n_u32(0x1234567), v = vdupq_n_u32(77);
    uint32_t e = 5;
    for (int i = 0; i < 2000; i++) {
        uint32_t next = vsha1h_u32(s[0]);
        s = i % 3 == 0 ? vsha1cq_u32(s, e, w) : i % 3 == 1 ? vsha1pq_u32(s, e, w) : vsha1mq_u32(s, e, w);
        e = next;
        uint32x4_t t = vsha1su1q_u32(vsha1su0q_u32(w, v, s), v);
        w = v;
        v = t;
    }
    show("sha1", W(veorq_u32(veorq_u32(s, w), vdupq_n_u32(e))));
    uint32x4_t h = s, g = w;
    for (int i = 0; i < 2000; i++) {
        uint32x4_t before = h;
        h = vsha256hq_u32(h, g, w);
        g = vsha256h2q_u32(g, before, w);
        uint32x4_t t = vsha256su1q_u32(vsha256su0q_u32(w, v), v, h);
        w = v;
        v = t;
    }
    show("sha256", W(veorq_u32(veorq_u32(h, g), veorq_u32(v, w))));
    return 0;
}
