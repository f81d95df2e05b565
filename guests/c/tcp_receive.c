// Receives a TCP stream through an Ethernet MAC's descriptor rings, as an operating system does, and checks every byte.
// Exercises the receive path: interrupt, ring refill, buffer allocation, IP and TCP headers, checksum, socket queue, copy to the
// user, acknowledgements. The program does the kernel's work; an empty system call represents each system call of a read.
// Arguments: software (default) | a device in /dev/longma, such as eth0. Options are numbers in environment variables:
//   message   bytes per read of the application (1024)             dca      0 memory, 1 shared cache, 2 locked lines (0)
//   ring      receive descriptors (256)                            ways     of the shared cache for packets; 0: the machine's (0)
//   room      bytes of the receive buffer (87380)                  lock     1: lock rings, sk_buffs and the path's code (0)
//   delay_ns, frames, interval_ns  interrupt moderation (0)        wait     0: sleep in read, 1: in epoll_wait, 2: poll the ring (0)
//   sums      1: compute TCP checksums, 0: the MAC checks them (1)
//   check     1: check every byte, 0: the ends of each read (1)
//   work_kib, work_lines  size of the application's own data, and lines of it to access after each read (0, 0)
//   malformed  interval of malformed descriptors given to the MAC (0: none)
//   bytes     length of the stream, for `software` (300000), and seed (1)
#include "../include/longma.h"
#include "../include/mac.h"
#include "tcp_socket.h"
#include "tcp_wire.h"
#include <sys/epoll.h>
#include <sys/syscall.h>

enum { MOST_RING = 4096, SEND_RING = 64, BUFFER_BYTES = 2048, LINE = 32, DELAYED_MS = 40, SPARE = 128 };
enum { BUDGET = 64 }; // Linux's NAPI_POLL_WEIGHT
enum waiting { SLEEP, EPOLL, POLL_RING };

// The locked area is aligned to its size.
static struct mac_descriptor *receive_ring, *send_ring;
static struct sk_buff *buffs;
static _Alignas(64) unsigned char send_buffers[SEND_RING][64];
static struct sk_buff *in_ring[MOST_RING];

static struct {
    struct mac mac;
    struct sk_buff *free;
    uint32_t count, next, send_next;
    uint64_t malformed, given;
    enum waiting waiting;
    int events;
    uint64_t interrupts, frames, errors, no_buffer, no_send_room;
} driver;
static struct socket sock;

static uint64_t setting(const char *name, uint64_t fallback, uint64_t least, uint64_t most) {
    const char *text = getenv(name);
    if (!text || !*text) return fallback;
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (*text == '-' || *end || value < least || value > most) {
        fprintf(stderr, "tcp_receive: %s is '%s': give a whole number from %llu to %llu\n", name, text, (unsigned long long)least,
                (unsigned long long)most);
        exit(2);
    }
    return value;
}

RECEIVE_PATH static void release(struct sk_buff *b) {
    b->next = driver.free;
    driver.free = b;
}

static inline struct sk_buff *allocate_buff(void) {
    struct sk_buff *b = driver.free;
    if (b) driver.free = b->next;
    return b;
}

// Gives a buffer to the MAC.
static inline void give(uint32_t index, struct sk_buff *b) {
    volatile struct mac_descriptor *at = &receive_ring[index];
    in_ring[index] = b;
    at->address = (uint64_t)(uintptr_t)b->buffer;
    at->control = driver.malformed && ++driver.given % driver.malformed == 0 ? 0 : BUFFER_BYTES - 64;
    mac_barrier();
    at->status = MAC_STATUS_OWN;
}

// Sends a frame. The send ring holds more than a window's acknowledgements; a frame that does not fit is lost, as on a wire.
RECEIVE_PATH static void send_frame(const unsigned char *frame, size_t bytes) {
    volatile struct mac_descriptor *at = &send_ring[driver.send_next];
    if (at->status & MAC_STATUS_OWN) {
        driver.no_send_room++;
        return;
    }
    memcpy(send_buffers[driver.send_next], frame, bytes);
    at->address = (uint64_t)(uintptr_t)send_buffers[driver.send_next];
    // The MAC does not pad frames: the smallest has 60 bytes without its frame check sequence.
    at->control = (uint32_t)(bytes < 60 ? 60 : bytes) | MAC_SEND_FIRST | MAC_SEND_LAST;
    mac_barrier();
    at->status = MAC_STATUS_OWN;
    mac_barrier();
    driver.send_next = (driver.send_next + 1) % SEND_RING;
    mac_write(&driver.mac, MAC_TX_POLL, 1);
}

// Takes frames from the ring, up to Linux's budget, and gives the MAC a new buffer for each. Returns 1 if there may be more.
RECEIVE_PATH static int drain_ring(void) {
    for (int taken = 0; taken < BUDGET; taken++) {
        volatile struct mac_descriptor *at = &receive_ring[driver.next];
        uint32_t status = at->status;
        if (status & MAC_STATUS_OWN) return 0;
        mac_barrier();
        struct sk_buff *full = in_ring[driver.next], *fresh = allocate_buff();
        driver.frames++;
        uint32_t whole = MAC_STATUS_FIRST | MAC_STATUS_LAST;
        int sound = (status & (MAC_STATUS_ERROR | whole)) == whole;
        driver.errors += !sound;
        driver.no_buffer += sound && !fresh;
        give(driver.next, fresh ? fresh : full);
        driver.next = driver.next + 1 < driver.count ? driver.next + 1 : 0;
        if (!fresh) continue;
        full->length = status & MAC_STATUS_LENGTH;
        if (sound) socket_receive(&sock, full);
        else release(full);
    }
    return 1;
}

// The interrupt handler. Clears the causes before the work, so that none is lost. Returns 1 if frames are left in the ring.
RECEIVE_PATH static int interrupt(void) {
    uint64_t causes = mac_read(&driver.mac, MAC_INTERRUPT);
    mac_write(&driver.mac, MAC_INTERRUPT, causes);
    driver.interrupts++;
    int more = drain_ring();
    if (causes & MAC_INTERRUPT_RX_STARVED) mac_write(&driver.mac, MAC_RX_POLL, 1);
    return more;
}

// Polls the next descriptor until the MAC returns it, like a driver with interrupts off; returns 1, or 0 after the time limit.
static int poll_ring(int milliseconds) {
    volatile struct mac_descriptor *at = &receive_ring[driver.next];
    double end = seconds() + milliseconds * 1e-3;
    for (unsigned turns = 1; at->status & MAC_STATUS_OWN; turns++)
        if (turns % 64 == 0 && milliseconds >= 0 && seconds() > end) return 0;
    return 1;
}

// Waits for frames; returns 1, or 0 after this many milliseconds (-1: no limit).
static int wait_for_frames(int milliseconds) {
    struct epoll_event event;
    uint64_t count;
    if (driver.waiting == SLEEP || driver.mac.software) return mac_wait(&driver.mac, milliseconds);
    if (driver.waiting == POLL_RING) return poll_ring(milliseconds);
    int ready;
    while ((ready = epoll_wait(driver.events, &event, 1, milliseconds)) < 0 && errno == EINTR) {}
    if (ready <= 0) return 0;
    // Another descriptor of the same open file would consume the event too.
    while (read(driver.mac.file, &count, sizeof count) < 0 && errno == EINTR) {}
    return 1;
}

// Takes arrived frames in the way that the waiting mode requires; returns 1 if there may be more.
static int take_frames(void) {
    if (driver.waiting != POLL_RING || driver.mac.software) return interrupt();
    int more = drain_ring();
    // The MAC may have run out of descriptors meanwhile, which raises no interrupt.
    mac_write(&driver.mac, MAC_RX_POLL, 1);
    return more;
}

// Sets up the waiting mode; enables interrupts if it needs them.
static void choose_waiting(void) {
    driver.waiting = (enum waiting)setting("wait", SLEEP, SLEEP, POLL_RING);
    if (driver.waiting == EPOLL && !driver.mac.software) {
        struct epoll_event event = {.events = EPOLLIN};
        driver.events = epoll_create1(EPOLL_CLOEXEC);
        if (driver.events < 0 || epoll_ctl(driver.events, EPOLL_CTL_ADD, driver.mac.file, &event)) {
            perror("tcp_receive: epoll");
            exit(1);
        }
    }
    uint64_t causes = MAC_INTERRUPT_RX | MAC_INTERRUPT_RX_STARVED | MAC_INTERRUPT_RX_MISSED;
    mac_write(&driver.mac, MAC_ENABLE, driver.waiting == POLL_RING ? 0 : causes);
}

static uint64_t smallest_power(uint64_t bytes) {
    uint64_t power = LINE;
    while (power < bytes) power *= 2;
    return power;
}

// Zeroed memory whose size is a power of two, aligned to its size.
static void *aligned_power(uint64_t bytes) {
    uint64_t power = smallest_power(bytes);
    void *memory = aligned_alloc(power < 64 ? 64 : power, power < 64 ? 64 : power);
    if (!memory) {
        fprintf(stderr, "tcp_receive: no memory for %llu bytes: give a smaller ring\n", (unsigned long long)power);
        exit(1);
    }
    return memset(memory, 0, power);
}

extern const unsigned char __start_receive_path[], __stop_receive_path[];

// Locks the memory used by every packet: descriptors, sk_buffs and the path's code.
static void lock_path(uint64_t ring) {
    volatile uint8_t *lock;
    int file;
    if (device_map("lock0", &lock, &file)) {
        perror("tcp_receive: no line lock, name a machine that has one (/dev/longma/lock0)");
        exit(1);
    }
    uint64_t code = (uint64_t)(uintptr_t)__start_receive_path;
    uint64_t bytes = smallest_power((uint64_t)(uintptr_t)__stop_receive_path - code);
    while ((code & ~(bytes - 1)) + bytes < (uint64_t)(uintptr_t)__stop_receive_path) bytes *= 2;
    lock_window(lock, 0, receive_ring, smallest_power(ring * sizeof *receive_ring));
    lock_window(lock, 1, send_ring, SEND_RING * sizeof *send_ring);
    lock_window(lock, 2, buffs, smallest_power((ring + SPARE) * sizeof *buffs));
    lock_window(lock, 3, (void *)(uintptr_t)(code & ~(bytes - 1)), bytes);
}

static void open_device(const char *device, uint64_t ring) {
    if (strcmp(device, "software") == 0) {
        driver.mac.software = wire_access;
        wire.total = setting("bytes", 300000, 1, 1u << 30);
        wire.seed = setting("seed", 1, 1, UINT32_MAX);
    } else if (mac_open(&driver.mac, device)) {
        fprintf(stderr, "tcp_receive: cannot open the MAC /dev/longma/%s: ", device);
        perror("name a device of the machine");
        exit(1);
    }
    // All buffers of the ring, and those that the socket may hold.
    uint64_t room = setting("room", 87380, MSS, 1u << 29);
    uint64_t spare = room / MSS + SPARE > 2 * MOST_RING ? 2 * MOST_RING : room / MSS + SPARE;
    unsigned char *data = aligned_alloc(4096, (ring + spare) * BUFFER_BYTES);
    memset(data, 0, (ring + spare) * BUFFER_BYTES);
    receive_ring = aligned_power(ring * sizeof *receive_ring), send_ring = aligned_power(SEND_RING * sizeof *send_ring);
    buffs = aligned_power((ring + spare) * sizeof *buffs);
    // The IP header is aligned if the frame starts two bytes after a word boundary.
    for (uint64_t i = ring + spare; i-- > 0;) {
        buffs[i].buffer = data + i * BUFFER_BYTES + 2;
        release(&buffs[i]);
    }
    driver.count = (uint32_t)ring, driver.malformed = setting("malformed", 0, 0, 1u << 20);
    for (uint32_t i = 0; i < ring; i++) give(i, allocate_buff());
    sock.room = (uint32_t)room, sock.summed = (int)setting("sums", 1, 0, 1), sock.sent = 7000, sock.send = send_frame, sock.release = release;
    if (setting("lock", 0, 0, 1)) lock_path(ring);
    uint64_t dca = setting("dca", 0, 0, 2), ways = setting("ways", 0, 0, 64);
    uint64_t address = 0;
    memcpy(&address, OUR_STATION, 6);
    mac_write(&driver.mac, MAC_ADDRESS, address);
    mac_write(&driver.mac, MAC_DCA, dca | dca << MAC_DCA_HEADER_SHIFT | dca << MAC_DCA_DESCRIPTOR_SHIFT | ways << MAC_DCA_WAYS_SHIFT);
    mac_write(&driver.mac, MAC_RX_BASE, (uint64_t)(uintptr_t)receive_ring);
    mac_write(&driver.mac, MAC_RX_COUNT, ring);
    mac_write(&driver.mac, MAC_TX_BASE, (uint64_t)(uintptr_t)send_ring);
    mac_write(&driver.mac, MAC_TX_COUNT, SEND_RING);
    mac_write(&driver.mac, MAC_RX_DELAY, setting("delay_ns", 0, 0, 1000000000));
    mac_write(&driver.mac, MAC_RX_FRAMES, setting("frames", 0, 0, 65535));
    mac_write(&driver.mac, MAC_INTERVAL, setting("interval_ns", 0, 0, 1000000000));
    choose_waiting();
    mac_write(&driver.mac, MAC_CONTROL, MAC_CONTROL_RX_ENABLE | MAC_CONTROL_TX_ENABLE);
}

// The application: its reads, its check of the stream, and its own data.
struct application {
    unsigned char *message, *data;
    size_t message_bytes, data_lines, lines_a_read, at;
    int whole_check;
    uint64_t received, wrong, sum, reads;
};

static void check(struct application *app, size_t bytes) {
    size_t step = app->whole_check || bytes < 2 ? 1 : bytes - 1;
    for (size_t i = 0; i < bytes; i += step) app->wrong += app->message[i] != stream_byte(app->received + i);
    app->received += bytes;
}

// Reads all available data, message by message.
static void read_messages(struct application *app) {
    while (sock.queued) {
        syscall(SYS_getppid);
        size_t bytes = socket_read(&sock, app->message, app->message_bytes);
        app->reads++;
        check(app, bytes);
        for (size_t i = 0; i < app->lines_a_read; i++) {
            app->sum += app->data[app->at * LINE];
            app->at = app->at + 1 < app->data_lines ? app->at + 1 : 0;
        }
    }
}

static void report(const struct application *app, double took) {
    const struct socket_counters *c = &sock.counters;
    double good = (double)app->received * 8e-6;
    fprintf(stderr, "%.3f Mb/s\n%llu interrupts, %llu frames, %llu reads, %llu acknowledgements\n", took > 0 ? good / took : 0,
            (unsigned long long)driver.interrupts, (unsigned long long)driver.frames, (unsigned long long)app->reads,
            (unsigned long long)c->acknowledgements);
    const struct { const char *what; uint64_t count; } dropped[] = {
        {"descriptors with errors", driver.errors}, {"without a buffer", driver.no_buffer}, {"without room to send", driver.no_send_room},
        {"not ours", c->not_ours}, {"bad IP", c->bad_ip}, {"bad checksum", c->bad_checksum}, {"out of order", c->out_of_order},
        {"duplicates", c->duplicates}, {"beyond the window", c->beyond_window}, {"bad acknowledgements", c->bad_acknowledgements},
        {"delayed acknowledgements", c->late_acknowledgements},
        {"MAC bad check sequence", mac_read(&driver.mac, MAC_COUNT_RX_CRC)}, {"MAC too long", mac_read(&driver.mac, MAC_COUNT_RX_LONG)},
        {"MAC too short", mac_read(&driver.mac, MAC_COUNT_RX_SHORT)}, {"MAC missed", mac_read(&driver.mac, MAC_COUNT_RX_MISSED)}, {"MAC starved", mac_read(&driver.mac, MAC_COUNT_RX_STARVED)},
        {"MAC bad descriptor", mac_read(&driver.mac, MAC_COUNT_RX_BAD_DESCRIPTOR)},
    };
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        fprintf(stderr, "%s: %llu\n", dropped[i].what, (unsigned long long)dropped[i].count);
}

int main(int argc, char **argv) {
    uint64_t ring = setting("ring", 256, 2, MOST_RING);
    struct application app = {.message_bytes = setting("message", 1024, 1, 1u << 24), .whole_check = (int)setting("check", 1, 0, 1)};
    app.message = allocate(app.message_bytes);
    app.data_lines = setting("work_kib", 0, 0, 1u << 20) * 1024 / LINE;
    app.lines_a_read = app.data_lines ? setting("work_lines", 0, 0, 1u << 20) : 0;
    app.data = allocate(app.data_lines * LINE + 1);
    memset(app.data, 1, app.data_lines * LINE + 1);
    open_device(argc > 1 ? argv[1] : "software", ring);
    double begin = 0, end = 0;
    int opened = 0, more = 0;
    while (!sock.finished && sock.state != CLOSED) {
        // A delayed acknowledgement is sent after 40 ms without data, as in Linux.
        if (!more && !wait_for_frames(sock.unacknowledged ? DELAYED_MS : -1) && sock.unacknowledged) {
            sock.counters.late_acknowledgements++;
            acknowledge(&sock, 0);
            continue;
        }
        // Exclude setup and waiting for the connection.
        if (!opened) opened = 1, longma_roi_begin();
        if (begin == 0 && sock.state != LISTEN) begin = seconds();
        more = more ? drain_ring() : take_frames();
        read_messages(&app);
    }
    end = seconds();
    if (opened) longma_roi_end();
    // Wait until the MAC has taken the last acknowledgement.
    volatile struct mac_descriptor *last_sent = &send_ring[(driver.send_next + SEND_RING - 1) % SEND_RING];
    for (int turn = 0; turn < 1000 && !driver.mac.software; turn++)
        if (!(last_sent->status & MAC_STATUS_OWN)) break;
    report(&app, end - begin);
    int good = sock.finished && !app.wrong && app.sum != 1;
    printf("tcp_receive: %llu bytes %s\n", (unsigned long long)app.received, good ? "right" : "wrong");
    return !good;
}
