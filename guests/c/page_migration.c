// Moves pages of a virtual machine to another chip's memory: with loads and stores, or with RDMA, which is IDMA with remote addresses.
// Measures the cost for the migrating core and for the core that then uses the pages. With RDMA, which writes to the other
// chip's memory, the core counts meanwhile, to show that it is idle; loads and stores leave the pages in the first chip's caches.
// Arguments: plain | rdma (default plain), PAGES of 16 KiB (default 16), CORE: a core of the other chip, whose memory receives the
// pages because it touches them first (default 4; 0: the same chip), and the address translation there: straight (none;
// default), table (walked in the first chip's memory), cold (the other core's CAM fills on misses), cam (CAM
// entries move with the pages). With the last three, it looks up and reads LOOKUPS random lines (default 2000).
#include "../include/idma.h"
#include "../include/longma.h"
#include "copy_plain.h"
#include "guest.h"
#include "translation.h"

enum { PAGE = 16384, LINE = 32, SPACE = 7 };
enum finding { STRAIGHT, TABLE, COLD, CAM };

static struct cam here, there;
static uint64_t *root;

// Binds this thread to a core; returns 0 if there is no such core.
static int go_to(int core) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(core, &only);
    return sched_setaffinity(0, sizeof only, &only) == 0;
}

// Starts copying a page.
static void start_page(const struct idma *engine, unsigned char *to, const unsigned char *from) {
    idma_set(engine, 0, IDMA_CHANNEL_SOURCE, (uint64_t)(uintptr_t)from);
    idma_set(engine, 0, IDMA_CHANNEL_LENGTH, PAGE);
    idma_start(engine, 0, IDMA_CHANNEL_CONTROL_GIVE);
    idma_set(engine, IDMA_WRITER, IDMA_CHANNEL_DESTINATION, (uint64_t)(uintptr_t)to);
    idma_set(engine, IDMA_WRITER, IDMA_CHANNEL_LENGTH, PAGE);
    idma_start(engine, IDMA_WRITER, IDMA_CHANNEL_CONTROL_GIVE | idma_fed_by(0) | 1ull << IDMA_CHANNEL_CONTROL_PLACEMENT_SHIFT);
}

// The page's guest page number: distinct in the table and the CAM.
static uint64_t guest_page(uint64_t page) { return (page + 1) * 0x9e37 & ((1u << LEVELS * LEVEL_BITS) - 1); }

static enum finding finding_of(int argc, char **argv) {
    static const char *const WORDS[] = {"straight", "table", "cold", "cam"};
    for (int i = 0; argc > 4 && i < 4; i++)
        if (strcmp(argv[4], WORDS[i]) == 0) return (enum finding)i;
    if (argc <= 4) return STRAIGHT;
    fprintf(stderr, "%s: argument 4 is '%s': say straight, table, cold or cam\n", argv[0], argv[4]);
    exit(2);
}

// Enters the pages' initial addresses into the table and, up to its size, the first core's CAM.
static void describe_pages(enum finding how, unsigned char *from, size_t pages, int core) {
    if (how == STRAIGHT) return;
    root = translation_table();
    if (how != TABLE && (cam_open(&here, 0) || cam_open(&there, core))) {
        perror("page_migration: no CAM table, name a machine that has one on both cores (/dev/longma/cam0)");
        exit(1);
    }
    if (how != TABLE) cam_set(&here, CAM_SPACE, SPACE), cam_set(&there, CAM_SPACE, SPACE);
    for (size_t page = 0; page < pages; page++) {
        uint64_t place = (uint64_t)(uintptr_t)(from + page * PAGE) / PAGE;
        *translation_entry(root, guest_page(page)) = place;
        if (how != TABLE && page < here.entries) cam_enter(&here, guest_page(page), place);
    }
}

// Updates the table after a page has moved, and moves its CAM entry.
static void move_entry(enum finding how, size_t page, unsigned char *to) {
    if (how == STRAIGHT) return;
    uint64_t place = (uint64_t)(uintptr_t)to / PAGE;
    *translation_entry(root, guest_page(page)) = place;
    if (how != CAM) return;
    cam_set(&here, CAM_SEARCH, guest_page(page));
    uint64_t result = cam_get(&here, CAM_RESULT);
    if (!(result & CAM_RESULT_HIT)) return;
    cam_set(&here, CAM_INDEX, (result & CAM_RESULT_INDEX_MASK) >> CAM_RESULT_INDEX_SHIFT);
    cam_set(&here, CAM_COMMAND, CAM_COMMAND_CLEAR);
    cam_enter(&there, guest_page(page), place);
}

// Reads random lines of random pages on the other chip, each after a lookup; returns the time.
static double look_up(enum finding how, uint64_t lookups, size_t pages, uint64_t *sum) {
    uint64_t seed = 0x100c;
    double begin = seconds();
    for (uint64_t i = 0; i < lookups; i++) {
        uint64_t random = random_next(&seed), page = guest_page((random >> 32) % pages);
        uint64_t place = how == TABLE ? walk(root, page) : cam_search(&there, root, page);
        *sum += ((const unsigned char *)(uintptr_t)(place * PAGE))[random % (PAGE / LINE) * LINE];
    }
    return seconds() - begin;
}

// The expected sum of the lookups, from the pages' old addresses.
static uint64_t sum_before(uint64_t lookups, size_t pages, const unsigned char *from) {
    uint64_t seed = 0x100c, sum = 0;
    for (uint64_t i = 0; i < lookups; i++) {
        uint64_t random = random_next(&seed);
        sum += from[(random >> 32) % pages * PAGE + random % (PAGE / LINE) * LINE];
    }
    return sum;
}

int main(int argc, char **argv) {
    int rdma = argc > 1 && strcmp(argv[1], "rdma") == 0;
    if (argc > 1 && !rdma && strcmp(argv[1], "plain") != 0) {
        fprintf(stderr, "%s: the first argument is '%s': say plain or rdma\n", argv[0], argv[1]);
        return 2;
    }
    size_t pages = argument(argc, argv, 2, 16, 1, 65536);
    int core = (int)argument(argc, argv, 3, 4, 0, 1023);
    enum finding how = finding_of(argc, argv);
    uint64_t lookups = how == STRAIGHT ? 0 : argument(argc, argv, 5, 2000, 1, 100000000);
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
    describe_pages(how, from, pages, core);
    longma_roi_begin();
    double begin = seconds();
    for (size_t page = 0; page < pages; page++) {
        if (!rdma) {
            copy_plain(to + page * PAGE, from + page * PAGE, PAGE);
            move_entry(how, page, to + page * PAGE);
            continue;
        }
        start_page(&engine, to + page * PAGE, from + page * PAGE);
        // Other virtual machines would keep running: the core counts, and polls now and then.
        do
            for (int i = 0; i < 200; i++) {
                counted++;
                __asm__ volatile("" : "+r"(counted));
            }
        while (!(idma_status(&engine, IDMA_WRITER) & (IDMA_CHANNEL_STATUS_DONE | IDMA_CHANNEL_STATUS_FAULTED)));
        idma_finish(&engine, IDMA_WRITER);
        move_entry(how, page, to + page * PAGE);
    }
    double took = seconds() - begin;
    // The first access to every line on the other chip.
    go_to(core);
    uint64_t sum = 0, found = 0;
    double searched = lookups ? look_up(how, lookups, pages, &found) : 0;
    begin = seconds();
    for (size_t i = 0; i < pages * PAGE; i += LINE) sum += to[i];
    double read = seconds() - begin;
    longma_roi_end();
    uint64_t wanted = 0;
    for (size_t i = 0; i < pages * PAGE; i += LINE) wanted += from[i];
    int good = memcmp(from, to, pages * PAGE) == 0 && sum == wanted && found == sum_before(lookups, pages, from);
    fprintf(stderr, "%.2f us a page, %.1f MB/s, counted %llu a page, %.2f us to read a page there\n", took / (double)pages * 1e6,
            (double)(pages * PAGE) / took * 1e-6, (unsigned long long)(counted / pages), read / (double)pages * 1e6);
    if (lookups)
        fprintf(stderr, "%.3f us a lookup, %llu CAM misses\n", searched / (double)lookups * 1e6, (unsigned long long)there.misses);
    printf("page_migration: %zu pages %s\n", pages, good ? "right" : "wrong");
    return !good;
}
