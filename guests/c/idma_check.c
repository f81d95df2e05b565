// Checks the copy engine against memcpy in random cases: strides, overlaps, pauses, saved channels, faults, and concurrent stores
// by the core. It observes every tag: no tag may be set before its data has arrived.
// Arguments: CASES (100), SEED (1), CORE (0). Prints the number of cases and a checksum, or what was wrong. No cases need no engine.
#include "../include/longma_registers.h"
#include "guest.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 16384, ROOM = 4 * PAGE, STORE_BYTES = 4096, READER = 0, WRITER = 3, TAGS = 128, BEAT = 32 };

static volatile uint8_t *registers;
static uint8_t *store;
static int file;
static uint8_t source[ROOM], destination[ROOM], expected[ROOM];
static uint64_t seed, sum = CHECKSUM_START;
static unsigned number;
static const char *kind;

static uint64_t get(unsigned channel, unsigned offset) {
    return *(volatile uint64_t *)(registers + IDMA_CHANNEL(channel) + offset);
}

static void set(unsigned channel, unsigned offset, uint64_t value) {
    *(volatile uint64_t *)(registers + IDMA_CHANNEL(channel) + offset) = value;
}

static uint64_t below(uint64_t bound) { return random_next(&seed) % bound; }

static void wrong(const char *what, uint64_t at) {
    printf("idma_check: case %u (%s): %s at %llu\n", number, kind, what, (unsigned long long)at);
    exit(1);
}

static void fill(uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) bytes[i] = (uint8_t)random_next(&seed);
}

static int tag_ready(unsigned channel, unsigned tag) {
    return get(channel, tag < 64 ? IDMA_CHANNEL_TAGS0 : IDMA_CHANNEL_TAGS1) >> (tag % 64) & 1;
}

static void give(unsigned channel, unsigned tag) {
    set(channel, tag < 64 ? IDMA_CHANNEL_GIVE0 : IDMA_CHANNEL_GIVE1, 1ull << (tag % 64));
}

static void take(unsigned channel, unsigned tag) {
    set(channel, tag < 64 ? IDMA_CHANNEL_TAKE0 : IDMA_CHANNEL_TAKE1, 1ull << (tag % 64));
}

// Waits until all of `bits` are clear in the channel's status.
static void wait_clear(unsigned channel, uint64_t bits) {
    for (unsigned tries = 0; get(channel, IDMA_CHANNEL_STATUS) & bits; tries++)
        if (tries > 2000000) wrong("the channel never comes to rest", channel);
}

static void wait_done(unsigned channel) {
    wait_clear(channel, IDMA_CHANNEL_STATUS_RUNNING | IDMA_CHANNEL_STATUS_BUSY);
    if (!(get(channel, IDMA_CHANNEL_STATUS) & IDMA_CHANNEL_STATUS_DONE)) wrong("not done", get(channel, IDMA_CHANNEL_STATUS));
}

// Sets a channel's addresses and length; all else as after a reset.
static void set_up(unsigned channel, const void *from, void *to, uint64_t length) {
    static const unsigned zeroed[] = {IDMA_CHANNEL_BLOCK, IDMA_CHANNEL_STRIDE, IDMA_CHANNEL_ROW_STRIDE, IDMA_CHANNEL_TAG,
                                      IDMA_CHANNEL_MASK0, IDMA_CHANNEL_MASK1};
    for (unsigned i = 0; i < sizeof zeroed / sizeof *zeroed; i++) set(channel, zeroed[i], 0);
    set(channel, IDMA_CHANNEL_SOURCE, (uint64_t)(uintptr_t)from);
    set(channel, IDMA_CHANNEL_DESTINATION, (uint64_t)(uintptr_t)to);
    set(channel, IDMA_CHANNEL_LENGTH, length);
}

// The core fills a piece, sets its tag, does other work, and checks the piece in the store as soon as the tag changes.
static void check_tags(void) {
    kind = "tags";
    unsigned pieces = 1 + below(TAGS), piece = 1 + below(BEAT), next = 0, seen = 0;
    uint64_t length = (uint64_t)pieces * piece - below(piece);
    memset(store, 0, STORE_BYTES);
    set_up(READER, source, store, length);
    set(READER, IDMA_CHANNEL_TAG, (uint64_t)piece << IDMA_CHANNEL_TAG_PIECE_SHIFT);
    // Every tag belongs to the core before the start.
    set(READER, IDMA_CHANNEL_TAGS0, ~0ull), set(READER, IDMA_CHANNEL_TAGS1, ~0ull);
    set(READER, IDMA_CHANNEL_CONTROL, IDMA_CHANNEL_CONTROL_START);
    while (seen < pieces) {
        unsigned ahead = 1 + below(8);
        for (; next < pieces && next < seen + ahead; next++) {
            fill(source + next * piece, piece);
            memcpy(expected + next * piece, source + next * piece, piece);
            __atomic_thread_fence(__ATOMIC_SEQ_CST);
            give(READER, next);
        }
        while (seen < next && tag_ready(READER, seen)) {
            uint64_t bytes = length - (uint64_t)seen * piece < piece ? length - (uint64_t)seen * piece : piece;
            if (memcmp(store + seen * piece, expected + seen * piece, bytes)) wrong("a tag is ready before its data", seen);
            // The engine does not see what the core writes from here on.
            memset(source + seen * piece, 0xee, piece);
            seen++;
        }
    }
    wait_done(READER);
    if (memcmp(store, expected, length)) wrong("the store differs", length);
    for (uint64_t i = length; i < STORE_BYTES; i++)
        if (store[i]) wrong("a byte behind the end was written", i);
    sum = checksum_bytes(sum, store, length);
}

// The address of byte `at` of a stream described by the registers.
static int64_t place(uint64_t at, uint64_t block, uint64_t count, int64_t stride, int64_t row_stride) {
    if (!block) return (int64_t)at;
    uint64_t index = at / block, row = count ? index / count : 0;
    return (int64_t)(count ? index % count : index) * stride + (int64_t)row * row_stride + (int64_t)(at % block);
}

// Stops a channel before its next piece; returns its previous control register.
static uint64_t stop(unsigned channel) {
    uint64_t control = get(channel, IDMA_CHANNEL_CONTROL);
    set(channel, IDMA_CHANNEL_CONTROL, control | IDMA_CHANNEL_CONTROL_STOP);
    wait_clear(channel, IDMA_CHANNEL_STATUS_RUNNING | IDMA_CHANNEL_STATUS_BUSY);
    return control;
}

// Stops a channel, saves its readable state, overwrites the registers, and restores it.
static void save_and_restore(unsigned channel) {
    static const unsigned kept[] = {IDMA_CHANNEL_SOURCE, IDMA_CHANNEL_DESTINATION, IDMA_CHANNEL_LENGTH, IDMA_CHANNEL_BLOCK,
                                    IDMA_CHANNEL_STRIDE, IDMA_CHANNEL_ROW_STRIDE, IDMA_CHANNEL_TAG, IDMA_CHANNEL_POSITION,
                                    IDMA_CHANNEL_TAGS0, IDMA_CHANNEL_TAGS1};
    enum { KEPT = sizeof kept / sizeof *kept };
    // The writer consumes the reader's tags, so it must be stopped while they are restored.
    uint64_t fed = channel == READER ? stop(WRITER) : 0;
    uint64_t values[KEPT], control = stop(channel);
    for (int i = 0; i < KEPT; i++) values[i] = get(channel, kept[i]);
    for (int i = 0; i < KEPT; i++) set(channel, kept[i], 0x5555);
    for (int i = 0; i < KEPT; i++) set(channel, kept[i], values[i]);
    set(channel, IDMA_CHANNEL_CONTROL, control | IDMA_CHANNEL_CONTROL_RESUME);
    if (channel == READER) set(WRITER, IDMA_CHANNEL_CONTROL, fed | IDMA_CHANNEL_CONTROL_RESUME);
}

// Copies memory with random patterns, while the core stores between the blocks, pauses and saves channels.
static void check_copy(void) {
    kind = "copy";
    uint64_t block = below(4) ? 1 + below(100) : 0, count = block && below(2) ? 1 + below(6) : 0, length = 1 + below(5000);
    int64_t from_stride = block + below(40), to_stride = block + below(40);
    int64_t from_row = (count ? count : 1) * from_stride + below(50), to_row = (count ? count : 1) * to_stride + below(50);
    // Patterns must stay within the arrays.
    while (length > 1 && (place(length - 1, block, count, from_stride, from_row) >= ROOM - 64 ||
                          place(length - 1, block, count, to_stride, to_row) >= ROOM - 64))
        length /= 2;
    unsigned tags = 4 + below(TAGS - 3), piece = 1 + below(BEAT);
    uint64_t from_at = below(32), to_at = below(32);
    fill(source, ROOM);
    memset(destination, 0, ROOM), memset(expected, 0, ROOM);
    // The core may write destination bytes outside the pattern.
    static uint8_t touched[ROOM];
    memset(touched, 0, ROOM);
    for (uint64_t i = 0; i < length; i++) {
        uint64_t to = to_at + place(i, block, count, to_stride, to_row);
        expected[to] = source[from_at + place(i, block, count, from_stride, from_row)];
        touched[to] = 1;
    }
    set_up(READER, source + from_at, store, length), set_up(WRITER, store, destination + to_at, length);
    uint64_t tag = (uint64_t)tags << IDMA_CHANNEL_TAG_COUNT_SHIFT | (uint64_t)piece << IDMA_CHANNEL_TAG_PIECE_SHIFT;
    uint64_t shape = block | count << IDMA_CHANNEL_BLOCK_COUNT_SHIFT;
    set(READER, IDMA_CHANNEL_TAG, tag), set(WRITER, IDMA_CHANNEL_TAG, tag);
    // In the store, blocks are packed contiguously.
    set(READER, IDMA_CHANNEL_BLOCK, shape), set(WRITER, IDMA_CHANNEL_BLOCK, shape);
    uint64_t row = (count ? count : 1) * block;
    set(READER, IDMA_CHANNEL_STRIDE, (uint32_t)from_stride | block << IDMA_CHANNEL_STRIDE_DESTINATION_SHIFT);
    set(READER, IDMA_CHANNEL_ROW_STRIDE, (uint32_t)from_row | row << IDMA_CHANNEL_ROW_STRIDE_DESTINATION_SHIFT);
    set(WRITER, IDMA_CHANNEL_STRIDE, block | (uint64_t)(uint32_t)to_stride << IDMA_CHANNEL_STRIDE_DESTINATION_SHIFT);
    set(WRITER, IDMA_CHANNEL_ROW_STRIDE, row | (uint64_t)(uint32_t)to_row << IDMA_CHANNEL_ROW_STRIDE_DESTINATION_SHIFT);
    set(READER, IDMA_CHANNEL_CONTROL, IDMA_CHANNEL_CONTROL_START | IDMA_CHANNEL_CONTROL_GIVE);
    set(WRITER, IDMA_CHANNEL_CONTROL,
        IDMA_CHANNEL_CONTROL_START | IDMA_CHANNEL_CONTROL_GIVE | IDMA_CHANNEL_CONTROL_RECYCLE |
            (1ull + READER) << IDMA_CHANNEL_CONTROL_FEED_SHIFT);
    uint64_t rest = below(4);
    for (uint64_t stores = below(60); stores; stores--) {
        uint64_t at = below(ROOM);
        if (!touched[at]) destination[at] = expected[at] = (uint8_t)(stores | 1);
        if (stores == 5 && rest == 0) {
            unsigned paused = below(tags);
            take(WRITER, paused);
            for (volatile unsigned wait = below(300); wait; wait--) {}
            give(WRITER, paused);
        }
        if (stores == 6 && rest == 1) save_and_restore(READER);
        if (stores == 7 && rest == 2) save_and_restore(WRITER);
    }
    wait_done(WRITER);
    for (uint64_t i = 0; i < ROOM; i++)
        if (destination[i] != expected[i]) wrong(touched[i] ? "a copied byte differs" : "the core's byte is gone", i);
    sum = checksum_bytes(sum, destination, ROOM);
}

// An overlapping copy towards lower addresses, in ascending order.
static void check_overlap(void) {
    kind = "overlap";
    uint64_t length = 1 + below(6000), by = 1 + below(300);
    fill(source, ROOM);
    memcpy(expected, source, ROOM);
    memmove(expected, expected + by, length);
    set_up(READER, source + by, store, length), set_up(WRITER, store, source, length);
    set(READER, IDMA_CHANNEL_CONTROL, IDMA_CHANNEL_CONTROL_START | IDMA_CHANNEL_CONTROL_GIVE);
    set(WRITER, IDMA_CHANNEL_CONTROL,
        IDMA_CHANNEL_CONTROL_START | IDMA_CHANNEL_CONTROL_GIVE | IDMA_CHANNEL_CONTROL_RECYCLE |
            (1ull + READER) << IDMA_CHANNEL_CONTROL_FEED_SHIFT);
    wait_done(WRITER);
    for (uint64_t i = 0; i < ROOM; i++)
        if (source[i] != expected[i]) wrong("a byte differs from memmove", i);
}

// A copy that reaches an unmapped or read-only page: it stops there with an error and writes nothing beyond.
static void check_fault(uint8_t *pages) {
    kind = "fault";
    int reads = below(2), denied = !reads && below(2);
    unsigned channel = reads ? READER : WRITER;
    uint64_t before = below(3000), length = before + 1 + below(3000);
    uint8_t *edge = pages + PAGE, *start = edge - before;
    fill(source, ROOM), fill(pages, 2 * PAGE);
    memcpy(expected, reads ? destination : pages, 2 * PAGE);
    if (denied) mprotect(edge, PAGE, PROT_READ);
    else munmap(edge, PAGE);
    set_up(READER, reads ? start : source, store, length);
    set_up(WRITER, store, reads ? destination : start, length);
    *(volatile uint64_t *)(registers + IDMA_INTERRUPT) = ~0ull;
    set(READER, IDMA_CHANNEL_CONTROL, IDMA_CHANNEL_CONTROL_START | IDMA_CHANNEL_CONTROL_GIVE);
    set(WRITER, IDMA_CHANNEL_CONTROL,
        IDMA_CHANNEL_CONTROL_START | IDMA_CHANNEL_CONTROL_GIVE | IDMA_CHANNEL_CONTROL_RECYCLE |
            (1ull + READER) << IDMA_CHANNEL_CONTROL_FEED_SHIFT);
    // A fault raises an interrupt even if none was requested.
    uint64_t events = 0;
    if (read(file, &events, 8) != 8 || events == 0) wrong("no interrupt", errno);
    uint64_t causes = *(volatile uint64_t *)(registers + IDMA_INTERRUPT);
    if (!(causes >> 16 >> channel & 1)) wrong("the interrupt is not the fault's", causes);
    wait_clear(READER, IDMA_CHANNEL_STATUS_BUSY);
    // The other channel waits for data that never comes, or for space.
    unsigned other = reads ? WRITER : READER;
    stop(other);
    uint64_t status = get(channel, IDMA_CHANNEL_STATUS), error = reads ? 2 : denied ? 4 : 3;
    if (!(status & IDMA_CHANNEL_STATUS_FAULTED)) wrong("no fault", status);
    if ((status & IDMA_CHANNEL_STATUS_ERROR_MASK) >> IDMA_CHANNEL_STATUS_ERROR_SHIFT != error) wrong("another error", status);
    if (get(channel, IDMA_CHANNEL_FAULT) != (uint64_t)(uintptr_t)edge) wrong("another address", get(channel, IDMA_CHANNEL_FAULT));
    *(volatile uint64_t *)(registers + IDMA_INTERRUPT) = ~0ull;
    if (denied) mprotect(edge, PAGE, PROT_READ | PROT_WRITE);
    else if (mmap(edge, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != edge) wrong("no page", errno);
    // Data before the faulting beat has been written, and nothing else has changed.
    uint8_t *to = reads ? destination : start, *whole = reads ? destination : pages;
    const uint8_t *from = reads ? start : source;
    uint64_t sure = before < BEAT ? 0 : before - BEAT, first = (uint64_t)(to - whole);
    if (!reads && memcmp(to, from, sure)) wrong("a byte before the fault is missing", sure);
    for (uint64_t i = 0; i < 2 * PAGE; i++) {
        int moved = i >= first && i < first + before;
        // The unmapped page is mapped with zeros.
        if (!reads && !denied && i >= PAGE) expected[i] = 0;
        if (whole[i] != expected[i] && !(moved && whole[i] == from[i - first])) wrong("a byte beyond the fault was written", i);
    }
    // With the page mapped again, the channels resume and complete the copy.
    for (unsigned each = 0; each < 2; each++) {
        unsigned going_on = each ? WRITER : READER;
        set(going_on, IDMA_CHANNEL_CONTROL, get(going_on, IDMA_CHANNEL_CONTROL) | IDMA_CHANNEL_CONTROL_RESUME);
    }
    wait_done(WRITER);
    if (memcmp(to, from, length)) wrong("the resumed copy differs", length);
    *(volatile uint64_t *)(registers + IDMA_INTERRUPT) = ~0ull;
}

int main(int argc, char **argv) {
    unsigned cases = (unsigned)argument(argc, argv, 1, 100, 0, 1000000);
    seed = argument(argc, argv, 2, 1, 1, UINT64_MAX);
    int core = (int)argument(argc, argv, 3, 0, 0, 1023);
    if (cases == 0) {
        printf("idma_check: 0 cases right, %016llx\n", (unsigned long long)sum);
        return 0;
    }
    char engine[32], in_core[32];
    snprintf(engine, sizeof engine, "/dev/longma/idma%d", core);
    snprintf(in_core, sizeof in_core, "/dev/longma/store%d", core);
    file = open(engine, O_RDWR);
    int store_file = open(in_core, O_RDWR);
    if (file < 0 || store_file < 0) {
        fprintf(stderr, "idma_check: cannot open %s: ", file < 0 ? engine : in_core);
        perror("run it in simulated time on a machine with IDMA");
        return 1;
    }
    registers = mmap(NULL, IDMA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    store = mmap(NULL, STORE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, store_file, 0);
    uint8_t *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (registers == MAP_FAILED || store == MAP_FAILED || pages == MAP_FAILED) {
        perror("idma_check: mmap");
        return 1;
    }
    cpu_set_t only;
    CPU_ZERO(&only), CPU_SET(core, &only);
    sched_setaffinity(0, sizeof only, &only);
    for (number = 0; number < cases; number++) switch (below(4)) {
            case 0: check_tags(); break;
            case 1: check_copy(); break;
            case 2: check_overlap(); break;
            default: check_fault(pages);
        }
    printf("idma_check: %u cases right, %016llx\n", cases, (unsigned long long)sum);
    return 0;
}
