// Blocked matrix multiplication as in GotoBLAS, in 256-bit vectors: with loads and stores alone, or with IDMA and the in-core store.
// Shows how much of a tuned product's time is data movement. Panels of A are packed for the cache, a panel of B is kept
// near, 16 by 6 results stay in registers (Goto, van de Geijn, Anatomy of high-performance matrix multiplication, 2008).
// Entries are small whole numbers, so the sums are exact in any order.
// Arguments: plain | idma (default plain), SIDE, a multiple of 96 (default 96), REPEATS (default 3).
#include "../include/idma.h"
#include "../include/longma.h"
#include "guest.h"
#pragma STDC FP_CONTRACT ON

typedef double vec __attribute__((vector_size(32)));

enum { ROWS = 16, COLUMNS = 6, LANES = 4, VECS = ROWS / LANES, BLOCK_ROWS = 48, PLAIN_DEPTH = 32, STORE_DEPTH = 32, MOST_SIDE = 1920 };
// The store: two tiles of B, and a ring through which A is packed.
enum { TILE_BYTES = COLUMNS * STORE_DEPTH * 8, TILE_TAGS = TILE_BYTES / IDMA_BEAT, RING_TAGS = 32 };
// Double-buffered in the version with the engine.
#define PACKED_A_BYTES (BLOCK_ROWS * 2 * STORE_DEPTH * 8)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("clang loop unroll(full)")

// Adds the product of a packed panel of A, `depth` columns of 16, and `depth` rows of 6 of B to 16 by 6 of C, by columns.
// Entry (k, j) of B is at b[k * row + j * column].
INLINE void multiply_panel(double *c, size_t side, const vec *a, const double *b, size_t depth, size_t row, size_t column) {
    vec sum[COLUMNS][VECS] = {0};
    for (size_t k = 0; k < depth; k++) {
        UNROLL for (size_t j = 0; j < COLUMNS; j++) {
            double x = b[k * row + j * column];
            vec all = {x, x, x, x};
            UNROLL for (size_t i = 0; i < VECS; i++) sum[j][i] += a[k * VECS + i] * all;
        }
    }
    UNROLL for (size_t j = 0; j < COLUMNS; j++) {
        vec *to = (vec *)(c + j * side);
        UNROLL for (size_t i = 0; i < VECS; i++) to[i] += sum[j][i];
    }
}

// 48 rows of A's columns `from` to `from + depth` as panels of 16 rows: they stay in the first cache.
static void pack_a(vec *to, const double *a, size_t side, size_t from, size_t depth) {
    for (size_t i = 0; i < BLOCK_ROWS; i += ROWS)
        for (size_t k = from; k < from + depth; k++)
            for (size_t v = 0; v < VECS; v++) *to++ = *(const vec *)(a + k * side + i + LANES * v);
}

// B's rows `from` to `from + depth` as panels of 6 columns.
static void pack_b(double *to, const double *b, size_t side, size_t from, size_t depth) {
    for (size_t j = 0; j < side; j += COLUMNS)
        for (size_t k = from; k < from + depth; k++)
            for (size_t column = 0; column < COLUMNS; column++) *to++ = b[(j + column) * side + k];
}

static void multiply_plain(double *c, const double *a, const double *b, size_t side, vec *packed_a, double *packed_b) {
    memset(c, 0, side * side * sizeof *c);
    for (size_t from = 0; from < side; from += PLAIN_DEPTH) {
        pack_b(packed_b, b, side, from, PLAIN_DEPTH);
        for (size_t block = 0; block < side; block += BLOCK_ROWS) {
            pack_a(packed_a, a + block, side, from, PLAIN_DEPTH);
            for (size_t j = 0; j < side; j += COLUMNS)
                for (size_t i = 0; i < BLOCK_ROWS; i += ROWS)
                    multiply_panel(c + j * side + block + i, side, packed_a + i / LANES * PLAIN_DEPTH,
                                   packed_b + j * PLAIN_DEPTH, PLAIN_DEPTH, COLUMNS, 1);
        }
    }
}

// Read channel 1 and the write channel pack 48 rows of 32 columns of A in the background.
static void start_packing(const struct idma *engine, vec *to, const double *a, size_t side) {
    struct idma_transfer in = {
        .source = a, .destination = engine->store + 2 * TILE_BYTES, .length = BLOCK_ROWS * STORE_DEPTH * 8,
        .block_bytes = ROWS * 8, .block_count = STORE_DEPTH,
        .source_stride = (int32_t)side * 8, .destination_stride = ROWS * 8,
        .source_row_stride = ROWS * 8, .destination_row_stride = ROWS * 8 * STORE_DEPTH, .tags = RING_TAGS,
    };
    struct idma_transfer out = {.destination = to, .length = in.length, .tags = RING_TAGS};
    idma_describe(engine, 1, &in);
    idma_start(engine, 1, IDMA_CHANNEL_CONTROL_GIVE);
    idma_describe(engine, IDMA_WRITER, &out);
    idma_start(engine, IDMA_WRITER, IDMA_CHANNEL_CONTROL_GIVE | idma_fed_by(1));
}

// Read channel 0 brings tile after tile of B, rows `from` to `from + STORE_DEPTH`, into the two places of the store.
static void start_tiles(const struct idma *engine, const double *b, size_t side, size_t from) {
    struct idma_transfer in = {
        .source = b + from, .destination = engine->store, .length = side / COLUMNS * TILE_BYTES,
        .block_bytes = STORE_DEPTH * 8, .block_count = COLUMNS,
        .source_stride = (int32_t)side * 8, .destination_stride = STORE_DEPTH * 8,
        .source_row_stride = (int32_t)side * 8 * COLUMNS, .destination_row_stride = TILE_BYTES, .tags = 2 * TILE_TAGS,
    };
    idma_describe(engine, 0, &in);
    idma_start(engine, 0, IDMA_CHANNEL_CONTROL_GIVE);
}

// The tags of a tile in one word: tile 0 has tags 0 to 47, tile 1 has 48 to 95.
static uint64_t tile_tags(size_t tile, int word) {
    const uint64_t tags[2][2] = {{(1ull << TILE_TAGS) - 1, 0}, {~0ull << TILE_TAGS, (1ull << (2 * TILE_TAGS - 64)) - 1}};
    return tags[tile][word];
}

static void multiply_idma(const struct idma *engine, double *c, const double *a, const double *b, size_t side, vec *packed_a) {
    size_t blocks = side / BLOCK_ROWS, turns = side / STORE_DEPTH * blocks, half = BLOCK_ROWS * STORE_DEPTH / LANES;
    memset(c, 0, side * side * sizeof *c);
    start_packing(engine, packed_a, a, side);
    for (size_t turn = 0; turn < turns; turn++) {
        size_t from = turn / blocks * STORE_DEPTH, block = turn % blocks * BLOCK_ROWS;
        size_t next_from = (turn + 1) / blocks * STORE_DEPTH, next_block = (turn + 1) % blocks * BLOCK_ROWS;
        const vec *panels = packed_a + turn % 2 * half;
        start_tiles(engine, b, side, from);
        idma_finish(engine, IDMA_WRITER);
        if (turn + 1 < turns)
            start_packing(engine, packed_a + (turn + 1) % 2 * half, a + next_from * side + next_block, side);
        for (size_t j = 0, tile = 0; j < side; j += COLUMNS, tile ^= 1) {
            // Pieces become ready in order: the last word is enough.
            int last = (int)tile;
            while ((idma_tags(engine, 0, last) & tile_tags(tile, last)) != tile_tags(tile, last)) {}
            const double *near = (const double *)(engine->store + tile * TILE_BYTES);
            for (size_t i = 0; i < BLOCK_ROWS; i += ROWS)
                multiply_panel(c + j * side + block + i, side, panels + i / LANES * STORE_DEPTH, near, STORE_DEPTH, 1,
                               STORE_DEPTH);
            if (j + 2 * COLUMNS < side)
                for (int word = 0; word <= last; word++) idma_give(engine, 0, word, tile_tags(tile, word));
        }
    }
}

static int right(const double *c, const double *a, const double *b, size_t side) {
    for (size_t j = 0; j < side; j++)
        for (size_t i = 0; i < side; i++) {
            double sum = 0;
            for (size_t k = 0; k < side; k++) sum += a[k * side + i] * b[j * side + k];
            if (c[j * side + i] != sum) return 0;
        }
    return 1;
}

int main(int argc, char **argv) {
    int idma = argc > 1 && strcmp(argv[1], "idma") == 0;
    if (argc > 1 && !idma && strcmp(argv[1], "plain") != 0) {
        fprintf(stderr, "%s: the first argument is '%s': say plain or idma\n", argv[0], argv[1]);
        return 2;
    }
    size_t side = argument(argc, argv, 2, 96, 96, MOST_SIDE);
    uint64_t repeats = argument(argc, argv, 3, 3, 1, 1000000);
    if (side % 96) {
        fprintf(stderr, "%s: argument 2 is %zu: give a multiple of 96\n", argv[0], side);
        return 2;
    }
    struct idma engine;
    if (idma && idma_open(&engine, 0)) {
        perror("idma_matmul: no IDMA engine with an in-core store, name a machine that has one (/dev/longma/idma0)");
        return 1;
    }
    size_t bytes = side * side * sizeof(double);
    double *a = aligned_alloc(64, bytes), *b = aligned_alloc(64, bytes), *c = aligned_alloc(64, bytes);
    vec *packed_a = aligned_alloc(64, PACKED_A_BYTES);
    double *packed_b = aligned_alloc(64, side * PLAIN_DEPTH * 8);
    uint64_t seed = 0x3a7;
    for (size_t i = 0; i < side * side; i++) {
        a[i] = (double)(int)(random_next(&seed) % 33) - 16;
        b[i] = (double)(int)(random_next(&seed) % 33) - 16;
    }
    memset(c, 0, bytes), memset(packed_a, 0, PACKED_A_BYTES), memset(packed_b, 0, side * PLAIN_DEPTH * 8);
    longma_roi_begin();
    double begin = seconds();
    for (uint64_t r = 0; r < repeats; r++) {
        if (idma) multiply_idma(&engine, c, a, b, side, packed_a);
        else multiply_plain(c, a, b, side, packed_a, packed_b);
    }
    double each = (seconds() - begin) / (double)repeats;
    longma_roi_end();
    fprintf(stderr, "%.2f us a product, %.1f Mflop/s\n", each * 1e6, 2e-6 * (double)(side * side * side) / each);
    int good = right(c, a, b, side);
    printf("idma_matmul %zu: %s\n", side, good ? "right" : "wrong");
    return !good;
}
