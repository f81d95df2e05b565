// SHA-256 (FIPS 180-4), CRC-32 (IEEE 802.3), SipHash-2-4, Adler-32 (RFC 1950) and a hash table.
// Exercises rotates, shifts, 32-bit arithmetic, table lookups and bit operations.
// Arguments: KIBIBYTES to hash (default 36000).
#include "../include/longma.h"
#include "guest.h"

static uint32_t rotate_right(uint32_t x, int n) { return x >> n | x << (32 - n); }
static uint64_t rotate_left(uint64_t x, int n) { return x << n | x >> (64 - n); }

// SHA-256's constants are the first 32 bits of the fractional parts of roots of primes.
static uint32_t round_constant[64], start_state[8];

// floor(2^32 * frac(p^(1/root))), by binary search on whole numbers.
static uint32_t root_fraction(uint64_t p, int root) {
    unsigned __int128 low = 0, high = (unsigned __int128)1 << 38;
    while (high - low > 1) {
        unsigned __int128 middle = (low + high) / 2;
        int over = root == 2 ? middle * middle > (unsigned __int128)p << 64
                             : middle * middle * middle > (unsigned __int128)p << 96;
        if (over) high = middle; else low = middle;
    }
    return (uint32_t)low;
}

static void sha256_constants(void) {
    int count = 0;
    for (uint64_t p = 2; count < 64; p++) {
        int prime = 1;
        for (uint64_t d = 2; d * d <= p; d++) prime &= p % d != 0;
        if (!prime) continue;
        if (count < 8) start_state[count] = root_fraction(p, 2);
        round_constant[count++] = root_fraction(p, 3);
    }
}

static void sha256_block(uint32_t state[8], const unsigned char *p) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotate_right(x, 7) ^ rotate_right(x, 18) ^ x >> 3) +
               (rotate_right(y, 17) ^ rotate_right(y, 19) ^ y >> 10);
    }
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t e = v[4], a = v[0];
        uint32_t t1 = v[7] + (rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25)) +
                      ((e & v[5]) ^ (~e & v[6])) + round_constant[i] + w[i];
        uint32_t t2 = (rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22)) +
                      ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        v[7] = v[6], v[6] = v[5], v[5] = v[4], v[4] = v[3] + t1;
        v[3] = v[2], v[2] = v[1], v[1] = v[0], v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) state[i] += v[i];
}

static void sha256(uint32_t digest[8], const unsigned char *data, size_t length) {
    unsigned char last[128] = {0};
    size_t whole = length / 64 * 64, left = length - whole, tail = left < 56 ? 64 : 128;
    memcpy(digest, start_state, sizeof start_state);
    for (size_t i = 0; i < whole; i += 64) sha256_block(digest, data + i);
    memcpy(last, data + whole, left);
    last[left] = 0x80;
    for (int i = 0; i < 8; i++) last[tail - 1 - (size_t)i] = (unsigned char)((uint64_t)length * 8 >> 8 * i);
    for (size_t i = 0; i < tail; i += 64) sha256_block(digest, last + i);
}

static uint32_t crc32(const unsigned char *data, size_t length) {
    static uint32_t table[256];
    for (uint32_t i = 0; !table[255] && i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1;
        table[i] = c;
    }
    uint32_t crc = ~0u;
    for (size_t i = 0; i < length; i++) crc = table[(crc ^ data[i]) & 0xff] ^ crc >> 8;
    return ~crc;
}

static uint32_t adler32(const unsigned char *data, size_t length) {
    uint32_t a = 1, b = 0;
    while (length > 0) {
        // 5552 bytes is the most before b can overflow.
        size_t n = length < 5552 ? length : 5552;
        uint32_t total = 0, weighted = 0;
        for (size_t i = 0; i < n; i++) total += data[i], weighted += (uint32_t)(n - i) * data[i];
        b = (b + (uint32_t)n * a % 65521 + weighted % 65521) % 65521;
        a = (a + total) % 65521;
        data += n, length -= n;
    }
    return b << 16 | a;
}

static void sip_round(uint64_t v[4]) {
    v[0] += v[1], v[1] = rotate_left(v[1], 13) ^ v[0], v[0] = rotate_left(v[0], 32);
    v[2] += v[3], v[3] = rotate_left(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotate_left(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotate_left(v[1], 17) ^ v[2], v[2] = rotate_left(v[2], 32);
}

static uint64_t siphash(const unsigned char *data, size_t length, uint64_t k0, uint64_t k1) {
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du, k0 ^ 0x6c7967656e657261u, k1 ^ 0x7465646279746573u};
    uint64_t word;
    size_t i = 0;
    for (; i + 8 <= length; i += 8) {
        memcpy(&word, data + i, 8);
        v[3] ^= word;
        sip_round(v), sip_round(v);
        v[0] ^= word;
    }
    word = (uint64_t)length << 56;
    for (int shift = 0; i < length; i++, shift += 8) word |= (uint64_t)data[i] << shift;
    v[3] ^= word;
    sip_round(v), sip_round(v);
    v[0] ^= word;
    v[2] ^= 0xff;
    for (int k = 0; k < 4; k++) sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

// Counts words of the data in an open-addressing table; returns a sum over the entries.
static uint64_t count_words(const unsigned char *data, size_t length) {
    enum { SLOTS = 1 << 14 };
    static struct { uint64_t key, count; } table[SLOTS];
    memset(table, 0, sizeof table);
    uint64_t found = 0;
    for (size_t i = 0; i + 8 <= length; i += 8) {
        uint64_t key = 1 + data[i] + 256u * (data[i + 1] & 31);
        size_t slot = key * 0x9e3779b97f4a7c15u >> 50;
        while (table[slot].count && table[slot].key != key) slot = (slot + 1) % SLOTS;
        table[slot].key = key;
        found += ++table[slot].count * (uint64_t)__builtin_popcountll(key) + (uint64_t)__builtin_clzll(key);
    }
    return found;
}

int main(int argc, char **argv) {
    uint64_t kibibytes = argument(argc, argv, 1, 36000, 1, 1u << 24);
    static unsigned char data[64 * 1024 + 13];
    uint64_t seed = 0x4a54, sum = CHECKSUM_START;
    uint32_t digest[8];
    sha256_constants();
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(random_next(&seed) >> 29);
    sha256(digest, (const unsigned char *)"abc", 3);
    // FIPS 180-4's own example, and the usual check value of CRC-32.
    if (digest[0] != 0xba7816bf || digest[7] != 0xf20015ad || crc32((const unsigned char *)"123456789", 9) != 0xcbf43926) {
        puts("hashing: a known answer is wrong");
        return 1;
    }
    longma_roi_begin();
    for (uint64_t left = kibibytes * 1024; left > 0;) {
        size_t n = left < sizeof data ? left : sizeof data;
        sha256(digest, data, n);
        sum = checksum_bytes(sum, digest, sizeof digest);
        sum = checksum(sum, crc32(data, n));
        sum = checksum(sum, adler32(data, n));
        sum = checksum(sum, siphash(data, n, sum, left));
        sum = checksum(sum, count_words(data, n));
        data[left % sizeof data] ^= (unsigned char)sum;
        left -= n;
    }
    longma_roi_end();
    print_checksum("hashing", sum);
    return 0;
}
