// Moves pages of a virtual machine to another chip's memory: by loads and stores, or by RDMA, which is IDMA with far addresses.
// Here for what migration costs the core that does it, and the core that then uses the pages. With RDMA, which writes to the other
// chip's memory, the core counts meanwhile, to show that it is free; loads and stores leave the pages in the first chip's caches.
// Arguments: plain | rdma (default plain), PAGES of 16 KiB (default 16), CORE: one of the other chip, whose memory takes the
// pages because it touches them first (default 4; 0: the same chip).
#include "../include/idma.h"
#include "../include/longma.h"
#include "copy_plain.h"
#include "guest.h"

enum { PAGE = 16384, ENTRIES = 64 };

// Keeps this thread on one core; 0 if there is no such core.
static int go_to(int core) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(core, &only);
    return sched_setaffinity(0, sizeof only, &only) == 0;
}

// Starts a page on its way from memory to memory.
static void start_page(const struct idma *engine, unsigned char *to, const unsigned char *from) {
    idma_set(engine, 0, IDMA_CHANNEL_SOURCE, (uint64_t)(uintptr_t)from);
    idma_set(engine, 0, IDMA_CHANNEL_LENGTH, PAGE);
    idma_start(engine, 0, IDMA_CHANNEL_CONTROL_GIVE);
    idma_set(engine, IDMA_WRITER, IDMA_CHANNEL_DESTINATION, (uint64_t)(uintptr_t)to);
    idma_set(engine, IDMA_WRITER, IDMA_CHANNEL_LENGTH, PAGE);
    idma_start(engine, IDMA_WRITER, IDMA_CHANNEL_CONTROL_GIVE | idma_fed_by(0) | 1ull << IDMA_CHANNEL_CONTROL_PLACEMENT_SHIFT);
}

int main(int argc, char **argv) {
    int rdma = argc > 1 && strcmp(argv[1], "rdma") == 0;
    if (argc > 1 && !rdma && strcmp(argv[1], "plain") != 0) {
        fprintf(stderr, "%s: the first argument is '%s': say plain or rdma\n", argv[0], argv[1]);
        return 2;
    }
    size_t pages = argument(argc, argv, 2, 16, 1, 65536);
    int core = (int)argument(argc, argv, 3, 4, 0, 1023);
    unsigned char *from = aligned_alloc(PAGE, pages * PAGE), *to = aligned_alloc(PAGE, pages * PAGE);
    struct idma engine = {0};
    uint64_t seed = 0x9a6e, counted = 0;
    if (!go_to(core)) {
        fprintf(stderr, "page_migration: there is no core %d: name one of the machine's\n", core);
        return 1;
    }
    memset(to, 0xee, pages * PAGE);
    go_to(0);
    for (size_t i = 0; i < pages * PAGE; i++) from[i] = (unsigned char)(random_next(&seed) >> 32);
    if (rdma && idma_open(&engine, 0)) {
        perror("page_migration: no IDMA engine with an in-core store, name a machine that has one (/dev/longma/idma0)");
        return 1;
    }
    if (rdma) {
        struct idma_transfer in = {.destination = engine.store}, out = {.source = engine.store};
        idma_describe(&engine, 0, &in);
        idma_describe(&engine, IDMA_WRITER, &out);
    }
    longma_roi_begin();
    double begin = seconds();
    for (size_t page = 0; page < pages; page++) {
        if (!rdma) {
            copy_plain(to + page * PAGE, from + page * PAGE, PAGE);
            continue;
        }
        start_page(&engine, to + page * PAGE, from + page * PAGE);
        // The virtual machines that stay go on: here the core counts, and looks now and then.
        do
            for (int i = 0; i < 200; i++) {
                counted++;
                __asm__ volatile("" : "+r"(counted));
            }
        while (!(idma_status(&engine, IDMA_WRITER) & (IDMA_CHANNEL_STATUS_DONE | IDMA_CHANNEL_STATUS_FAULTED)));
        idma_finish(&engine, IDMA_WRITER);
    }
    double took = seconds() - begin;
    // The machine goes on over there: its first look at every line.
    go_to(core);
    uint64_t sum = 0;
    begin = seconds();
    for (size_t i = 0; i < pages * PAGE; i += 32) sum += to[i];
    double read = seconds() - begin;
    longma_roi_end();
    uint64_t wanted = 0;
    for (size_t i = 0; i < pages * PAGE; i += 32) wanted += from[i];
    int good = memcmp(from, to, pages * PAGE) == 0 && sum == wanted;
    fprintf(stderr, "%.2f us a page, %.1f MB/s, counted %llu a page, %.2f us to read a page there\n", took / (double)pages * 1e6,
            (double)(pages * PAGE) / took * 1e-6, (unsigned long long)(counted / pages), read / (double)pages * 1e6);
    printf("page_migration: %zu pages %s\n", pages, good ? "right" : "wrong");
    return !good;
}
