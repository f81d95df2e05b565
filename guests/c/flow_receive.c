// Receives a TCP stream on two cores, as a kernel does: one takes the NIC's interrupts, the other runs the program that reads.
// Here for the flow's and the application's cores: the first thread stands for interrupt, softirq, driver and protocol, the second for a
// program in recv(2). Between them lies a socket with an owner and a backlog, as in Linux: a segment that comes while the program has the
// socket waits in the backlog, and whoever has the socket last sees to it. No GRO, no timestamps; one connection.
// Arguments: a device of /dev/longma, such as eth0. All else by the environment, as numbers:
//   flow      core of interrupts and protocol (0)            application  core of the program that reads (0)
//   ring      receive descriptors (1024)                     message  bytes that the application reads at once (131072)
//   room      bytes of the receive buffer (3145728)          ways     of the shared cache for packets; 0: the machine's (0)
//   begin     the region of interest begins after so many bytes (0)    settle  and the rate is measured so many further on (0)
//   bytes     after so many both are over (0: at the stream's end)
//   delay_ns, frames   interrupt moderation (0, 0)            budget   frames that a poll takes (64)
//   path      additions, each of the result of the one before, so a cycle each, that a frame takes besides: for what a kernel does and
//             this does not (0)
#include "guest.h"
#define LARGEST_SEGMENT 8960
#include "../include/longma.h"
#include "../include/mac.h"
#include "tcp_socket.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

// Metadata of a buffer: struct sk_buff and skb_shared_info of Linux 3.13 on 64-bit machines, 256 and 320 bytes.
enum { MOST_RING = 4096, SEND_RING = 256, BUFFER_BYTES = 9216, SPARE = 256, METADATA_BYTES = 576, MOST_BACKLOG = 8192 };
// The calling thread takes the device's interrupts, and goes first on its core.
enum { HANDLE_INTERRUPTS = 0x4c01 };

static struct {
    struct mac mac;
    struct mac_descriptor *receive_ring, *send_ring;
    struct sk_buff *in_ring[MOST_RING];
    uint32_t count, next, send_next, budget;
    uint64_t interrupts, polls, frames, errors, no_buffer, no_send_room, path;
} driver;

static unsigned char send_buffers[SEND_RING][64] __attribute__((aligned(64)));
static unsigned char (*metadata)[METADATA_BYTES];
static struct sk_buff *buffs;

// Free buffers: the softirq's own, most recently used first, and those that were given back, which it takes all at once.
static struct sk_buff *own_free;
static _Alignas(64) _Atomic(struct sk_buff *) given_back;

enum owner { NOBODY, SOFTIRQ, READER };

// The socket, who has it, and the backlog: written by the softirq, read by whoever has the socket.
static struct {
    _Alignas(64) atomic_int owner;
    _Alignas(64) atomic_uint pushed;
    _Alignas(64) atomic_uint popped;
    _Alignas(64) atomic_int sleeps;
    struct sk_buff *backlog[MOST_BACKLOG];
    struct socket socket;
    uint64_t wakes, late;
} sock;

static atomic_int over;

static uint64_t setting(const char *name, uint64_t fallback, uint64_t least, uint64_t most) {
    const char *text = getenv(name);
    if (!text || !*text) return fallback;
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (*text == '-' || *end || value < least || value > most) {
        fprintf(stderr, "flow_receive: %s is '%s': give a whole number from %llu to %llu\n", name, text, (unsigned long long)least,
                (unsigned long long)most);
        exit(2);
    }
    return value;
}

static inline int take(atomic_int *held, int as) {
    int nobody = 0;
    return atomic_compare_exchange_strong_explicit(held, &nobody, as, memory_order_acquire, memory_order_relaxed);
}

// --- Buffers -----------------------------------------------------------------------------------------------------------

// Only the softirq allocates.
__attribute__((noinline)) static struct sk_buff *allocate_buff(void) {
    struct sk_buff *b = own_free ? own_free : atomic_exchange(&given_back, NULL);
    if (!b) return NULL;
    own_free = b->next;
    memset(metadata[b - buffs], 0, METADATA_BYTES);
    return b;
}

// Freeing looks at the fragments and their counts.
__attribute__((noinline)) static void release(struct sk_buff *b) {
    metadata[b - buffs][METADATA_BYTES - 1]++;
    struct sk_buff *former = atomic_load_explicit(&given_back, memory_order_relaxed);
    do b->next = former;
    while (!atomic_compare_exchange_weak(&given_back, &former, b));
}

// --- The driver --------------------------------------------------------------------------------------------------------

static inline void give(uint32_t index, struct sk_buff *b) {
    volatile struct mac_descriptor *at = &driver.receive_ring[index];
    driver.in_ring[index] = b;
    at->address = (uint64_t)(uintptr_t)b->buffer;
    at->control = BUFFER_BYTES - 64;
    mac_barrier();
    at->status = MAC_STATUS_OWN;
}

// Whoever has the socket sends.
static void send_frame(const unsigned char *frame, size_t bytes) {
    volatile struct mac_descriptor *at = &driver.send_ring[driver.send_next];
    if (at->status & MAC_STATUS_OWN) {
        driver.no_send_room++;
        return;
    }
    memcpy(send_buffers[driver.send_next], frame, bytes);
    at->address = (uint64_t)(uintptr_t)send_buffers[driver.send_next];
    at->control = (uint32_t)(bytes < 60 ? 60 : bytes) | MAC_SEND_FIRST | MAC_SEND_LAST;
    mac_barrier();
    at->status = MAC_STATUS_OWN;
    mac_barrier();
    driver.send_next = (driver.send_next + 1) % SEND_RING;
    mac_write(&driver.mac, MAC_TX_POLL, 1);
}

// --- The socket --------------------------------------------------------------------------------------------------------

__attribute__((noinline)) static void wake_reader(void) {
    sock.wakes++;
    syscall(SYS_futex, &sock.sleeps, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
}

#define ADD __asm__ volatile("" : "+r"(sum)); sum++;
#define FOUR(what) what what what what

// What else a kernel does for a segment: hooks, accounting, timestamps. The compiler may not add these up.
__attribute__((noinline)) static void other_work(uint64_t cycles) {
    uint64_t sum = 0;
    for (uint64_t i = cycles / 16; i > 0; i--) { FOUR(FOUR(ADD)) }
    for (uint64_t i = cycles % 16; i > 0; i--) { ADD }
    __asm__ volatile("" : : "r"(sum));
}

// Sees to the backlog. Only who has the socket may call it.
__attribute__((noinline)) static void process_backlog(void) {
    unsigned popped = atomic_load_explicit(&sock.popped, memory_order_relaxed);
    while (popped != atomic_load_explicit(&sock.pushed, memory_order_acquire)) {
        struct sk_buff *b = sock.backlog[popped++ % MOST_BACKLOG];
        atomic_store_explicit(&sock.popped, popped, memory_order_release);
        other_work(driver.path);
        socket_receive(&sock.socket, b);
    }
}

// Gives the socket up; what came meanwhile is seen to first.
static void give_up(int me) {
    for (;;) {
        atomic_store_explicit(&sock.owner, NOBODY, memory_order_seq_cst);
        unsigned popped = atomic_load_explicit(&sock.popped, memory_order_relaxed);
        if (popped == atomic_load_explicit(&sock.pushed, memory_order_seq_cst) || !take(&sock.owner, me)) return;
        process_backlog();
    }
}

// A frame goes to the socket, or to its backlog if the reader has it.
static void deliver(struct sk_buff *b) {
    unsigned pushed = atomic_load_explicit(&sock.pushed, memory_order_relaxed);
    if (pushed - atomic_load_explicit(&sock.popped, memory_order_acquire) == MOST_BACKLOG) {
        release(b);
        return;
    }
    sock.backlog[pushed % MOST_BACKLOG] = b;
    atomic_store_explicit(&sock.pushed, pushed + 1, memory_order_seq_cst);
    if (!take(&sock.owner, SOFTIRQ)) return;
    process_backlog();
    int wakes = (sock.socket.queued || sock.socket.finished || sock.socket.state == CLOSED) && atomic_exchange(&sock.sleeps, 0);
    give_up(SOFTIRQ);
    if (wakes) wake_reader();
}

// Takes frames of the ring up to the budget: 1 if there may be more.
__attribute__((noinline)) static int poll_ring(void) {
    driver.polls++;
    for (uint32_t taken = 0; taken < driver.budget; taken++) {
        volatile struct mac_descriptor *at = &driver.receive_ring[driver.next];
        uint32_t status = at->status;
        if (status & MAC_STATUS_OWN) return 0;
        mac_barrier();
        struct sk_buff *full = driver.in_ring[driver.next], *fresh = allocate_buff();
        driver.frames++;
        uint32_t whole = MAC_STATUS_FIRST | MAC_STATUS_LAST;
        int sound = (status & (MAC_STATUS_ERROR | whole)) == whole;
        driver.errors += !sound;
        driver.no_buffer += sound && !fresh;
        give(driver.next, fresh ? fresh : full);
        driver.next = driver.next + 1 < driver.count ? driver.next + 1 : 0;
        if (!fresh) continue;
        full->length = status & MAC_STATUS_LENGTH;
        if (sound) deliver(full);
        else release(full);
    }
    return 1;
}

// --- The two threads -----------------------------------------------------------------------------------------------------

static void bind_to(uint64_t core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set)) {
        fprintf(stderr, "flow_receive: cannot run on core %llu: ", (unsigned long long)core);
        perror("name one that the machine has");
        exit(1);
    }
}

// Interrupt and softirq: interrupts are off while there are frames, as NAPI has it.
static void *softirq(void *core) {
    bind_to((uint64_t)(uintptr_t)core);
    if (ioctl(driver.mac.file, HANDLE_INTERRUPTS)) perror("flow_receive: interrupts stay where they are");
    const uint64_t causes = MAC_INTERRUPT_RX | MAC_INTERRUPT_RX_STARVED | MAC_INTERRUPT_RX_MISSED;
    mac_write(&driver.mac, MAC_ENABLE, causes);
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        mac_wait(&driver.mac, -1);
        driver.interrupts++;
        mac_write(&driver.mac, MAC_ENABLE, 0);
        do {
            while (poll_ring()) {}
            mac_write(&driver.mac, MAC_INTERRUPT, causes);
            // What came before the causes were cleared is told by nobody.
        } while (!(((volatile struct mac_descriptor *)driver.receive_ring)[driver.next].status & MAC_STATUS_OWN));
        mac_write(&driver.mac, MAC_ENABLE, causes);
    }
    return NULL;
}

struct application {
    unsigned char *message;
    size_t message_bytes;
    uint64_t received, begin, settled, end, reads, sleeps, counted, interest;
    uint32_t first, arrived;   // the next sequence number when the region of interest began, and when the rate began to be measured
    int is_of_interest;
    double began, ended;
};

// Whoever takes the socket waits for the softirq of another core; that of its own core is done when it runs.
static void own(void) {
    while (!take(&sock.owner, READER)) {}
}

// recv(2): what there is, up to the message; it sleeps while there is nothing. 0 at the end.
static size_t receive(struct application *app) {
    struct socket *s = &sock.socket;
    syscall(SYS_getppid);
    for (;;) {
        own();
        if (s->queued || s->finished || s->state == CLOSED) break;
        atomic_store(&sock.sleeps, 1);
        give_up(READER);
        app->sleeps++;
        syscall(SYS_futex, &sock.sleeps, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
    }
    atomic_store_explicit(&sock.sleeps, 0, memory_order_relaxed);
    size_t bytes = socket_read(s, app->message, app->message_bytes);
    give_up(READER);
    return bytes;
}

static void *reader(void *of) {
    struct application *app = of;
    for (;;) {
        // Opening, and the first windows, are not what this is about.
        if (!app->is_of_interest && app->received >= app->begin && sock.socket.state != LISTEN) {
            longma_roi_begin();
            app->is_of_interest = 1, app->interest = app->received, app->first = sock.socket.next;
        }
        if (app->is_of_interest && app->began == 0 && app->received >= app->settled)
            app->began = seconds(), app->counted = app->received, app->arrived = sock.socket.next;
        size_t bytes = receive(app);
        if (!bytes) break;
        app->received += bytes, app->reads++;
        if (app->end && app->received >= app->end) break;
    }
    app->ended = seconds();
    longma_roi_end();
    app->arrived = sock.socket.next - app->arrived, app->first = sock.socket.next - app->first;
    app->counted = app->received - app->counted, app->interest = app->received - app->interest;
    atomic_store(&over, 1);
    return NULL;
}

// --- Set-up --------------------------------------------------------------------------------------------------------------

static void *zeroed(size_t bytes) {
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!memory) {
        fprintf(stderr, "flow_receive: no memory for %zu bytes: give a smaller ring\n", bytes);
        exit(1);
    }
    return memset(memory, 0, bytes);
}

static void open_device(const char *device) {
    if (mac_open(&driver.mac, device)) {
        fprintf(stderr, "flow_receive: cannot open the MAC /dev/longma/%s: ", device);
        perror("name a device of the machine");
        exit(1);
    }
    uint64_t ring = setting("ring", 1024, 2, MOST_RING), room = setting("room", 3145728, MSS, 1u << 29);
    uint64_t all = ring + room / MSS + SPARE;
    unsigned char *data = zeroed(all * BUFFER_BYTES);
    driver.receive_ring = zeroed(ring * sizeof *driver.receive_ring), driver.send_ring = zeroed(SEND_RING * sizeof *driver.send_ring);
    buffs = zeroed(all * sizeof *buffs), metadata = zeroed(all * METADATA_BYTES);
    for (uint64_t i = all; i-- > 0;) {
        buffs[i].buffer = data + i * BUFFER_BYTES + 2;
        release(&buffs[i]);
    }
    driver.count = (uint32_t)ring, driver.budget = (uint32_t)setting("budget", 64, 1, MOST_RING);
    driver.path = setting("path", 0, 0, 1u << 20);
    for (uint32_t i = 0; i < ring; i++) give(i, allocate_buff());
    struct socket *s = &sock.socket;
    // The NIC has checked TCP's sums, as those of its rate do.
    s->room = (uint32_t)room, s->summed = 0, s->sent = 7000, s->send = send_frame, s->release = release;
    uint64_t address = 0;
    memcpy(&address, OUR_STATION, 6);
    mac_write(&driver.mac, MAC_ADDRESS, address);
    mac_write(&driver.mac, MAC_DCA,
              1 | 1 << MAC_DCA_HEADER_SHIFT | 1 << MAC_DCA_DESCRIPTOR_SHIFT | setting("ways", 0, 0, 64) << MAC_DCA_WAYS_SHIFT);
    mac_write(&driver.mac, MAC_RX_BASE, (uint64_t)(uintptr_t)driver.receive_ring);
    mac_write(&driver.mac, MAC_RX_COUNT, ring);
    mac_write(&driver.mac, MAC_TX_BASE, (uint64_t)(uintptr_t)driver.send_ring);
    mac_write(&driver.mac, MAC_TX_COUNT, SEND_RING);
    mac_write(&driver.mac, MAC_RX_DELAY, setting("delay_ns", 0, 0, 1000000000));
    mac_write(&driver.mac, MAC_RX_FRAMES, setting("frames", 0, 0, 65535));
    mac_write(&driver.mac, MAC_CONTROL, MAC_CONTROL_RX_ENABLE | MAC_CONTROL_TX_ENABLE);
}

int main(int argc, char **argv) {
    uint64_t flow = setting("flow", 0, 0, 1023), application = setting("application", 0, 0, 1023);
    if (argc < 2) {
        printf("flow_receive: name a device, such as eth0\n");
        return 0;
    }
    struct application app = {.message_bytes = setting("message", 131072, 1, 1u << 24),
                              .begin = setting("begin", 0, 0, 1u << 30), .end = setting("bytes", 0, 0, 1u << 30)};
    app.settled = app.begin + setting("settle", 0, 0, 1u << 30);
    app.message = zeroed(app.message_bytes);
    open_device(argv[1]);
    // The reader is bound before it runs: it is the first thread, and the softirq a second one.
    pthread_t handler;
    bind_to(application);
    if (pthread_create(&handler, NULL, softirq, (void *)(uintptr_t)flow)) {
        fprintf(stderr, "flow_receive: no second thread: raise the limit of processes\n");
        return 1;
    }
    reader(&app);
    double took = app.ended - app.began;
    // While what waits in the socket is read, more is read than arrives; while it fills, less. In the long run it is no more than either.
    double sustained = (double)(app.arrived < app.counted ? app.arrived : app.counted);
    fprintf(stderr, "%.3f Gb/s\n%.0f bytes in %.0f ns\n%llu bytes of interest, the mean of those that arrived and those that were read\n", took > 0 ? sustained * 8e-9 / took : 0,
            (double)app.counted, took * 1e9, (unsigned long long)(app.interest + app.first) / 2);
    fprintf(stderr, "%llu interrupts, %llu polls, %llu frames, %llu reads, %llu sleeps, %llu wake-ups, %llu acknowledgements\n",
            (unsigned long long)driver.interrupts, (unsigned long long)driver.polls, (unsigned long long)driver.frames,
            (unsigned long long)app.reads, (unsigned long long)app.sleeps, (unsigned long long)sock.wakes,
            (unsigned long long)sock.socket.counters.acknowledgements);
    fprintf(stderr, "lost: %llu without a buffer, %llu without room to send, %llu out of order, %llu in the NIC\n",
            (unsigned long long)driver.no_buffer, (unsigned long long)driver.no_send_room,
            (unsigned long long)sock.socket.counters.out_of_order,
            (unsigned long long)(mac_read(&driver.mac, MAC_COUNT_RX_MISSED) + mac_read(&driver.mac, MAC_COUNT_RX_STARVED)));
    printf("flow_receive: %llu bytes\n", (unsigned long long)app.received);
    // The handler sleeps in its read, and ends with the process.
    return 0;
}
