// Copies memory: with the C library, a tuned loop of 256-bit loads and stores, or the IDMA engine.
// Measures the cost of copies by size. `idma` lets the read channel feed the write channel; `tags` is the pipeline of Su et
// al. 2012, figure 5: the core sees from the tags what has been read and passes it to the write channel while more is read.
// Arguments: BYTES (default 1024), library | plain | idma | tags (default plain), ARENA: the copies go through this many KiB of
// source and as much of destination in turn, 0: the same copy again and again (default 0), REPEATS (0: about 256 KiB in all).
#include "../include/idma.h"
#include "../include/longma.h"
#include "copy_plain.h"
#include "guest.h"

enum { MOST = 1 << 26 };

static struct idma engine;

static void copy_library(void *to, const void *from, size_t n) { memcpy(to, from, n); }

// Sets the registers that are the same for all copies: sequential, through the whole store.
static void set_up(void) {
    struct idma_transfer in = {.destination = engine.store}, out = {.source = engine.store};
    idma_describe(&engine, 0, &in);
    idma_describe(&engine, IDMA_WRITER, &out);
}

static void start_reader(const void *from, size_t n) {
    idma_set(&engine, 0, IDMA_CHANNEL_SOURCE, (uint64_t)(uintptr_t)from);
    idma_set(&engine, 0, IDMA_CHANNEL_LENGTH, n);
    idma_start(&engine, 0, IDMA_CHANNEL_CONTROL_GIVE);
}

static void copy_idma(void *to, const void *from, size_t n) {
    start_reader(from, n);
    idma_set(&engine, IDMA_WRITER, IDMA_CHANNEL_DESTINATION, (uint64_t)(uintptr_t)to);
    idma_set(&engine, IDMA_WRITER, IDMA_CHANNEL_LENGTH, n);
    idma_start(&engine, IDMA_WRITER, IDMA_CHANNEL_CONTROL_GIVE | idma_fed_by(0));
    idma_finish(&engine, IDMA_WRITER);
}

static void copy_tags(void *to, const void *from, size_t n) {
    uint64_t handed[2] = {0, 0};
    start_reader(from, n);
    idma_set(&engine, IDMA_WRITER, IDMA_CHANNEL_DESTINATION, (uint64_t)(uintptr_t)to);
    idma_set(&engine, IDMA_WRITER, IDMA_CHANNEL_LENGTH, n);
    idma_set(&engine, IDMA_WRITER, IDMA_CHANNEL_TAGS0, ~0ull);
    idma_set(&engine, IDMA_WRITER, IDMA_CHANNEL_TAGS1, ~0ull);
    idma_start(&engine, IDMA_WRITER, 0);
    uint64_t pieces = (n + IDMA_BEAT - 1) / IDMA_BEAT, written = 0;
    for (int word = 0; written < pieces; word = n > 64 * IDMA_BEAT ? word ^ 1 : 0) {
        uint64_t fresh = idma_tags(&engine, 0, word) & ~handed[word];
        if (fresh) idma_give(&engine, IDMA_WRITER, word, fresh);
        handed[word] |= fresh;
        uint64_t done = idma_tags(&engine, IDMA_WRITER, word) & handed[word];
        if (!done) continue;
        handed[word] &= ~done;
        written += (uint64_t)__builtin_popcountll(done);
        // The engine ignores tags beyond the end.
        idma_give(&engine, 0, word, done);
    }
    idma_finish(&engine, IDMA_WRITER);
}

static const struct method {
    const char *name;
    void (*copy)(void *, const void *, size_t);
    int engine;
} METHODS[] = {
    {"library", copy_library, 0},
    {"plain", copy_plain, 0},
    {"idma", copy_idma, 1},
    {"tags", copy_tags, 1},
};

int main(int argc, char **argv) {
    const char *wanted = argc > 2 ? argv[2] : "plain";
    const struct method *method = NULL;
    for (size_t i = 0; i < sizeof METHODS / sizeof *METHODS; i++)
        if (strcmp(METHODS[i].name, wanted) == 0) method = &METHODS[i];
    if (!method) {
        fprintf(stderr, "%s: the second argument is '%s': say library, plain, idma or tags\n", argv[0], wanted);
        return 2;
    }
    size_t bytes = argument(argc, argv, 1, 1024, 1, MOST);
    uint64_t arena = argument(argc, argv, 3, 0, 0, MOST >> 10) << 10, repeats = argument(argc, argv, 4, 0, 0, 100000000);
    if (!repeats) repeats = bytes < 640 ? 400 : bytes > 65536 ? 4 : (256 << 10) / bytes;
    if (method->engine) {
        if (idma_open(&engine, 0)) {
            perror("idma_memcpy: no IDMA engine with an in-core store, name a machine that has one (/dev/longma/idma0)");
            return 1;
        }
        set_up();
    }
    // Copies start at lines, with one line between them to detect writes outside a copy.
    size_t apart = (bytes + 127) / 64 * 64, places = arena / apart ? arena / apart : 1;
    unsigned char *from = aligned_alloc(64, places * apart), *to = aligned_alloc(64, places * apart);
    uint64_t seed = 0xc0b1, sum = CHECKSUM_START;
    for (size_t i = 0; i < places * apart; i++) from[i] = (unsigned char)(random_next(&seed) >> 32), to[i] = 0xee;
    // The first copy warms up code and tables.
    method->copy(to, from, bytes);
    longma_roi_begin();
    double begin = seconds();
    for (uint64_t r = 0, place = 0; r < repeats; r++) {
        method->copy(to + place * apart, from + place * apart, bytes);
        place = place + 1 < places ? place + 1 : 0;
    }
    double took = seconds() - begin;
    longma_roi_end();
    for (size_t place = 0; place < places; place++)
        for (size_t i = 0; i < apart; i++) {
            int copied = i < bytes && (place == 0 || place < repeats);
            if (to[place * apart + i] != (copied ? from[place * apart + i] : 0xee)) {
                printf("idma_memcpy: byte %zu of copy %zu is wrong\n", i, place);
                return 1;
            }
        }
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ to[i]) * 0x100000001b3u;
    fprintf(stderr, "%.2f ns a copy, %.2f MB/s\n", took / (double)repeats * 1e9, (double)bytes * (double)repeats / took * 1e-6);
    print_checksum("idma_memcpy", sum);
    return 0;
}
