// Tests devices with invalid use by the program, the wire or another process: an Ethernet MAC with oversized frames,
// malformed descriptors and a full ring; devices after a fork and at a checkpoint.
// Each must be dropped or rejected and counted, and no byte outside the buffers may change.
// Arguments: none | mac (DEVICE, ROUNDS, SEED, KIB of its receive FIFO: 16) | fork | save (open | closed). `mac` needs a loopback wire: --wire eth0,loop.
#include "../include/idma.h"
#include "../include/longma.h"
#include "../include/mac.h"
#include "guest.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

enum { RING = 16, ROOM = 2048, GUARD = 64, PATTERN = 0xa5, LONGEST = 1518, CHECK_SEQUENCE = 4, PAGE = 16384 };
enum { CRC = 1 << 16, TOO_LONG = 1 << 17, MALFORMED = 1 << 18, BUS = 1 << 19 };

static struct mac mac;
static _Alignas(64) volatile struct mac_descriptor received[RING], sent[RING];
static unsigned char buffers[RING][ROOM + GUARD], frames[RING][ROOM];
static unsigned next_received, next_sent, number, fifo_bytes;
static uint64_t seed, sum = CHECKSUM_START;
static const char *kind = "set-up";
static const unsigned char STATION[6] = {2, 0, 0, 0, 0, 2};

static void wrong(const char *what, uint64_t got, uint64_t wanted) {
    printf("device_check: round %u (%s): %s is %llu, not %llu\n", number, kind, what, (unsigned long long)got, (unsigned long long)wanted);
    exit(1);
}

static void same(const char *what, uint64_t got, uint64_t wanted) {
    if (got != wanted) wrong(what, got, wanted);
}

static uint64_t below(uint64_t bound) { return random_next(&seed) % bound; }

// Waits until a register is `wanted`.
static void await(unsigned offset, uint64_t wanted, const char *what) {
    uint64_t got = 0;
    for (unsigned tries = 0; tries < 200000; tries++)
        if ((got = mac_read(&mac, offset)) == wanted) return;
    wrong(what, got, wanted);
}

// Waits until the MAC returns a descriptor; returns its status. If the MAC read the ring just before the descriptor was added, it must
// be notified again, as after the interrupt for a starved ring.
static uint32_t returned(volatile struct mac_descriptor *at) {
    for (unsigned tries = 0; at->status & MAC_STATUS_OWN; tries++) {
        if (tries > 200000) wrong("the descriptor's owner", 1, 0);
        uint64_t stands = mac_read(&mac, MAC_STATUS);
        if (stands & MAC_STATUS_RX_SUSPENDED && stands & MAC_STATUS_FIFO_MASK) mac_write(&mac, MAC_RX_POLL, 1);
        if (stands & MAC_STATUS_TX_SUSPENDED) mac_write(&mac, MAC_TX_POLL, 1);
    }
    mac_barrier();
    return at->status;
}

static void give(unsigned index, const volatile void *buffer, uint32_t bytes) {
    received[index].address = (uint64_t)(uintptr_t)buffer;
    received[index].control = bytes;
    mac_barrier();
    received[index].status = MAC_STATUS_OWN;
    mac_barrier();
}

// Gives `count` whole buffers to the MAC, starting with the next one.
static void give_whole(unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        unsigned index = (next_received + i) % RING;
        memset(buffers[index], PATTERN, sizeof buffers[index]);
        give(index, buffers[index], ROOM);
    }
}

// A frame of `bytes` without its check sequence, to this station.
static unsigned char *compose(unsigned char *frame, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) frame[i] = (unsigned char)random_next(&seed);
    memcpy(frame, STATION, 6);
    return frame;
}

// Adds a descriptor to the send ring; returns its number.
static unsigned put(const volatile void *data, uint32_t control) {
    unsigned index = next_sent;
    sent[index].address = (uint64_t)(uintptr_t)data;
    sent[index].control = control;
    mac_barrier();
    sent[index].status = MAC_STATUS_OWN;
    mac_barrier();
    next_sent = (next_sent + 1) % RING;
    return index;
}

static unsigned send_whole(unsigned char *frame, size_t bytes) {
    unsigned index = put(frame, (uint32_t)bytes | MAC_SEND_FIRST | MAC_SEND_LAST);
    mac_write(&mac, MAC_TX_POLL, 1);
    return index;
}

// Checks that the next descriptor holds `frame` completely and that the bytes after it are unchanged.
static void take(const unsigned char *frame, size_t bytes) {
    unsigned index = next_received;
    uint32_t status = returned(&received[index]);
    same("the status", status, MAC_STATUS_FIRST | MAC_STATUS_LAST | (uint32_t)(bytes < 60 ? 60 : bytes));
    if (memcmp(buffers[index], frame, bytes)) wrong("a received frame", index, bytes);
    for (size_t i = bytes < 60 ? 60 : bytes; i < sizeof buffers[index]; i++)
        if (buffers[index][i] != PATTERN) wrong("a byte behind the frame", buffers[index][i], PATTERN);
    sum = checksum_bytes(sum, buffers[index], bytes);
    next_received = (next_received + 1) % RING;
}

static void start(void) {
    uint64_t address = 0;
    memcpy(&address, STATION, 6);
    memset((void *)received, 0, sizeof received), memset((void *)sent, 0, sizeof sent);
    next_received = next_sent = 0;
    mac_write(&mac, MAC_CONTROL, 0);
    mac_write(&mac, MAC_ADDRESS, address);
    mac_write(&mac, MAC_MAX_FRAME, LONGEST);
    mac_write(&mac, MAC_RX_BASE, (uint64_t)(uintptr_t)received), mac_write(&mac, MAC_RX_COUNT, RING);
    mac_write(&mac, MAC_TX_BASE, (uint64_t)(uintptr_t)sent), mac_write(&mac, MAC_TX_COUNT, RING);
    mac_write(&mac, MAC_INTERRUPT, ~0ull);
    mac_write(&mac, MAC_CONTROL, MAC_CONTROL_RX_ENABLE | MAC_CONTROL_TX_ENABLE);
}

static void good_frame(void) {
    kind = "good frame";
    size_t bytes = 14 + below(LONGEST - CHECK_SEQUENCE - 13);
    give_whole(1);
    send_whole(compose(frames[0], bytes), bytes);
    take(frames[0], bytes);
}

// The receiver's limit is lowered while a frame is on the wire, so that it is too long. The longest allowed frame still passes.
static void too_long(void) {
    kind = "too long";
    uint64_t before = mac_read(&mac, MAC_COUNT_RX_LONG), good = mac_read(&mac, MAC_COUNT_TX_GOOD);
    size_t bytes = LONGEST - CHECK_SEQUENCE + 1 + below(400);
    give_whole(1);
    mac_write(&mac, MAC_MAX_FRAME, 4096);
    send_whole(compose(frames[0], bytes), bytes);
    await(MAC_COUNT_TX_GOOD, good + 1, "frames sent");
    mac_write(&mac, MAC_MAX_FRAME, LONGEST);
    await(MAC_COUNT_RX_LONG, before + 1, "frames too long");
    same("the descriptor's status", received[next_received].status, MAC_STATUS_OWN);
    send_whole(compose(frames[1], LONGEST - CHECK_SEQUENCE), LONGEST - CHECK_SEQUENCE);
    take(frames[1], LONGEST - CHECK_SEQUENCE);
}

static void to_others(void) {
    kind = "to others";
    uint64_t before = mac_read(&mac, MAC_COUNT_RX_FILTERED);
    give_whole(1);
    compose(frames[0], 100)[5] ^= 1;
    send_whole(frames[0], 100);
    await(MAC_COUNT_RX_FILTERED, before + 1, "frames to others");
    same("the descriptor's status", received[next_received].status, MAC_STATUS_OWN);
    send_whole(compose(frames[1], 60), 60);
    take(frames[1], 60);
}

// Malformed send descriptors return with the reason, and nothing is sent.
static void bad_to_send(unsigned char *hole) {
    kind = "bad to send";
    static const struct { uint32_t control, error; int in_hole; } bad[] = {
        {MAC_SEND_FIRST | MAC_SEND_LAST, MALFORMED, 0},                    // no bytes
        {100 | MAC_SEND_LAST, MALFORMED, 0},                               // no FIRST flag
        {13 | MAC_SEND_FIRST | MAC_SEND_LAST, MALFORMED, 0},               // shorter than an Ethernet header
        {LONGEST - 3 | MAC_SEND_FIRST | MAC_SEND_LAST, TOO_LONG, 0},
        {100 | MAC_SEND_FIRST | MAC_SEND_LAST, BUS, 1},
    };
    uint64_t before = mac_read(&mac, MAC_COUNT_TX_BAD), good = mac_read(&mac, MAC_COUNT_TX_GOOD), which = below(sizeof bad / sizeof *bad);
    unsigned index = put(bad[which].in_hole ? hole : compose(frames[0], ROOM), bad[which].control);
    mac_write(&mac, MAC_TX_POLL, 1);
    same("what is told to the sender", returned(&sent[index]), MAC_STATUS_ERROR | bad[which].error);
    same("frames not sent", mac_read(&mac, MAC_COUNT_TX_BAD), before + 1);
    same("frames sent", mac_read(&mac, MAC_COUNT_TX_GOOD), good);
    good_frame();
}

// A malformed receive descriptor loses its frame; the next frame arrives.
static void bad_to_receive(unsigned char *hole, unsigned char *fixed) {
    kind = "bad to receive";
    uint64_t before = mac_read(&mac, MAC_COUNT_RX_BAD_DESCRIPTOR), which = below(3);
    give(next_received, which == 1 ? hole : which == 2 ? fixed : buffers[next_received], which == 0 ? 0 : ROOM);
    send_whole(compose(frames[0], 200), 200);
    same("what is told to the receiver", returned(&received[next_received]),
         MAC_STATUS_ERROR | MAC_STATUS_FIRST | MAC_STATUS_LAST | (which == 0 ? MALFORMED : BUS));
    same("bad descriptors", mac_read(&mac, MAC_COUNT_RX_BAD_DESCRIPTOR), before + 1);
    for (size_t i = 0; which == 2 && i < ROOM; i++) same("a byte that may not be written", fixed[i], 0);
    next_received = (next_received + 1) % RING;
    good_frame();
}

// More frames than the descriptors and the FIFO hold: the first ones arrive in order, the others are counted as lost.
static void overrun(void) {
    kind = "overrun";
    uint64_t missed = mac_read(&mac, MAC_COUNT_RX_MISSED), starved = mac_read(&mac, MAC_COUNT_RX_STARVED);
    uint64_t good = mac_read(&mac, MAC_COUNT_TX_GOOD);
    enum { SENT = RING - 1, BYTES = 1514 };
    unsigned given = (unsigned)below(3), held = fifo_bytes / (BYTES + CHECK_SEQUENCE);
    if (held > SENT - given) held = SENT - given;
    unsigned lost = SENT - given - held;
    give_whole(given);
    for (unsigned i = 0; i < SENT; i++) send_whole(compose(frames[i], BYTES), BYTES);
    await(MAC_COUNT_TX_GOOD, good + SENT, "frames sent");
    await(MAC_COUNT_RX_MISSED, missed + lost, "frames missed");
    for (unsigned i = 0; i < given; i++) take(frames[i], BYTES);
    for (unsigned tries = 0; mac_read(&mac, MAC_COUNT_RX_STARVED) == starved; tries++)
        if (tries > 200000) wrong("starved", starved, starved + 1);
    same("the cause of the interrupt", (mac_read(&mac, MAC_INTERRUPT) & MAC_INTERRUPT_RX_MISSED) != 0, lost != 0);
    mac_write(&mac, MAC_INTERRUPT, ~0ull);
    give_whole(held + 1);
    mac_write(&mac, MAC_RX_POLL, 1);
    for (unsigned i = given; i < given + held; i++) take(frames[i], BYTES);
    same("the last descriptor's status", received[next_received].status, MAC_STATUS_OWN);
    send_whole(compose(frames[0], 77), 77);
    take(frames[0], 77);
}

// An unmapped ring disables its direction with an error; a new ring resumes it.
static void no_ring(unsigned char *hole) {
    kind = "no ring";
    mac_write(&mac, MAC_ENABLE, MAC_INTERRUPT_BUS);
    mac_write(&mac, MAC_RX_BASE, (uint64_t)(uintptr_t)hole);
    send_whole(compose(frames[0], 60), 60);
    same("an interrupt", (uint64_t)mac_wait(&mac, -1), 1);
    same("the cause", mac_read(&mac, MAC_INTERRUPT) & MAC_INTERRUPT_BUS, MAC_INTERRUPT_BUS);
    same("what is switched on", mac_read(&mac, MAC_CONTROL), MAC_CONTROL_TX_ENABLE);
    mac_write(&mac, MAC_ENABLE, 0);
    start();
    // The frame that had no ring comes first.
    give_whole(1);
    mac_write(&mac, MAC_RX_POLL, 1);
    take(frames[0], 60);
}

static int check_mac(int argc, char **argv) {
    const char *device = argc > 2 ? argv[2] : "eth0";
    unsigned rounds = (unsigned)argument(argc, argv, 3, 40, 1, 1000000);
    seed = argument(argc, argv, 4, 1, 1, UINT64_MAX);
    fifo_bytes = (unsigned)argument(argc, argv, 5, 16, 1, 65536) * 1024;
    if (mac_open(&mac, device)) {
        fprintf(stderr, "device_check: cannot open the MAC /dev/longma/%s: ", device);
        perror("name a machine that has it, and add --wire for what comes back");
        return 1;
    }
    unsigned char *hole = mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *fixed = hole + PAGE;
    munmap(hole, PAGE);
    start();
    for (number = 0; number < rounds; number++) switch (below(7)) {
            case 0: good_frame(); break;
            case 1: too_long(); break;
            case 2: to_others(); break;
            case 3: bad_to_send(hole); break;
            case 4: bad_to_receive(hole, fixed); break;
            case 5: overrun(); break;
            default: no_ring(hole);
        }
    printf("device_check: mac %u rounds right, %016llx\n", rounds, (unsigned long long)sum);
    return 0;
}

static sigjmp_buf back;
static void on_bus_error(int signal) { (void)signal, siglongjmp(back, 1); }

// In the child: the parent's registers are rejected; the in-core store is ordinary shared memory.
static int in_child(const struct idma *engine) {
    struct idma own;
    signal(SIGBUS, on_bus_error);
    if (!sigsetjmp(back, 1)) {
        idma_read(engine, IDMA_IDENTITY);
        return 1;
    }
    errno = 0;
    if (!idma_open(&own, 0) || errno != EBUSY) return 2;
    if (engine->store[0] != 41) return 3;
    engine->store[0]++;
    return 0;
}

static int check_fork(void) {
    struct idma engine;
    int status = 0;
    if (idma_open(&engine, 0)) {
        perror("device_check: no IDMA engine with an in-core store, name a machine that has one (/dev/longma/idma0)");
        return 1;
    }
    kind = "fork";
    engine.store[0] = 41;
    pid_t child = fork();
    if (child == 0) _exit(in_child(&engine));
    if (child < 0 || waitpid(child, &status, 0) != child) wrong("a child", 0, 1);
    same("the child's status", (uint64_t)status, 0);
    same("the shared byte", engine.store[0], 42);
    // The parent's engine keeps working.
    static unsigned char source[3000];
    struct idma_transfer in = {.source = source, .destination = engine.store, .length = sizeof source};
    for (size_t i = 0; i < sizeof source; i++) source[i] = (unsigned char)(i * 7);
    idma_describe(&engine, 0, &in);
    idma_start(&engine, 0, IDMA_CHANNEL_CONTROL_GIVE);
    same("an error", idma_error(idma_finish(&engine, 0)), 0);
    if (memcmp(engine.store, source, sizeof source)) wrong("the copy", 0, 1);
    puts("device_check: fork right");
    return 0;
}

// A checkpoint with open devices, or after closing them; the program then uses them again.
static int check_save(int closed) {
    for (int turn = 0; turn < 2; turn++) {
        struct idma engine;
        if (idma_open(&engine, 0)) {
            perror("device_check: no IDMA engine with an in-core store, name a machine that has one (/dev/longma/idma0)");
            return 1;
        }
        static unsigned char source[1000];
        struct idma_transfer in = {.source = source, .destination = engine.store, .length = sizeof source};
        memset(source, 5 + turn, sizeof source);
        idma_describe(&engine, 0, &in);
        idma_start(&engine, 0, IDMA_CHANNEL_CONTROL_GIVE);
        same("an error", idma_error(idma_finish(&engine, 0)), 0);
        if (memcmp(engine.store, source, sizeof source)) wrong("the copy", 0, 1);
        if (closed) {
            munmap((void *)(uintptr_t)engine.registers, IDMA_BYTES), munmap(engine.store, IDMA_STORE_BYTES);
            close(engine.file), close(engine.store_file);
        }
        if (turn == 0) longma_checkpoint();
    }
    puts("device_check: save right");
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "none";
    if (strcmp(what, "mac") == 0) return check_mac(argc, argv);
    if (strcmp(what, "fork") == 0) return check_fork();
    if (strcmp(what, "save") == 0) return check_save(argc > 2 && strcmp(argv[2], "closed") == 0);
    if (strcmp(what, "none") == 0) return puts("device_check: nothing to check") < 0;
    fprintf(stderr, "device_check: the first argument is '%s': say none, mac, fork or save\n", what);
    return 2;
}
