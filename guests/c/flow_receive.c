// Receives TCP streams as a kernel does: some cores take the NIC's interrupts, others run the programs that read.
// Here for the flow's and the application's cores: a thread for each queue of the NIC stands for interrupt, softirq, driver and protocol, one
// for each stream for a program in recv(2). Between them lies a socket with an owner and a backlog, as in Linux: a segment that comes while the
// program has the socket waits in the backlog, and whoever has the socket last sees to it. No timestamps.
// Arguments: a device of /dev/longma, such as eth0. All else by the environment, as numbers; a list of cores is as 1,2,8, of which the last
// stands for all further ones:
//   flow      cores of interrupts and protocol, a queue each (0)       application  cores of the programs that read, a stream each (0)
//   flows     streams, from ports 40000 on (1)              queues   of the NIC that a hash chooses from (1)
//   ring      receive descriptors of each queue (1024)      message  bytes that an application reads at once (131072)
//   room      bytes of each receive buffer (3145728)        ways     of the shared cache for packets; 0: the machine's (0)
//   segment   bytes of the largest segment that comes, for which buffers are made (8960)
//   begin     the region of interest begins after so many bytes of all streams (0)    settle  and the rate is measured so many further on (0)
//   bytes     after so many all is over (0: at the streams' end)
//   key       what the key of the queues' hash is drawn from (1)
//   delay_ns, frames   interrupt moderation (0, 0)            budget   frames that a poll takes (64)
//   gro       1: segments of a stream that follow one another in a poll go to the socket together, and are acknowledged together (0)
//   path      additions, each of the result of the one before, so a cycle each, that a frame takes besides: for what a kernel does and
//             this does not, by whoever has the socket, of those that go together once (0)             before   the same in the softirq, before the socket (0)
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
enum { MOST_RING = 4096, SEND_RING = 256, BUFFER_UNIT = 1024, SPARE = 256, METADATA_BYTES = 576, MOST_BACKLOG = 8192 };
// A stream has a send ring of its own, and the NIC no more than 16 of them.
enum { MOST_QUEUES = 16, MOST_CORES = 1024, FIRST_PEER_PORT = 40000 };
// The calling thread takes the device's interrupts, and goes first on its core.
enum { HANDLE_INTERRUPTS = 0x4c01 };

// A receive queue: its ring, and its buffers with their metadata.
static struct queue {
    _Alignas(64) struct mac mac;
    unsigned number;
    uint64_t core;
    struct mac_descriptor *ring;
    struct sk_buff *in_ring[MOST_RING];
    uint32_t next;
    uint64_t interrupts, polls, frames, errors, no_buffer;
    unsigned char (*metadata)[METADATA_BYTES];
    struct sk_buff *buffs;
    // Free buffers: the softirq's own, most recently used first, and those that were given back, which it takes all at once.
    struct sk_buff *own_free;
    // Segments that wait for those that follow: linked, the first with the number of bytes of all.
    struct sk_buff *held, *held_last;
    uint32_t held_bytes, held_segments;
    _Alignas(64) _Atomic(struct sk_buff *) given_back;
} queues[MOST_QUEUES];

static struct {
    uint32_t queues, streams, ring, budget, segment, buffer_bytes, gro;
    uint64_t path, before, message_bytes, begin, settled, end;
} settings;

enum owner { NOBODY, SOFTIRQ, READER };

// A stream: its socket, who has it, and the backlog, written by softirqs and read by whoever has the socket; what it sends by, and who reads.
static struct stream {
    _Alignas(64) atomic_int owner;
    _Alignas(64) atomic_uint pushed;
    _Alignas(64) atomic_uint popped;
    _Alignas(64) atomic_int sleeps;
    struct sk_buff *backlog[MOST_BACKLOG];
    struct socket socket;
    uint64_t wakes;
    struct mac_descriptor *send_ring;
    unsigned char (*send_buffers)[64];
    uint32_t send_next;
    uint64_t no_send_room;
    // The program that reads.
    uint64_t core, received, reads, reader_sleeps;
    unsigned char *message;
    uint32_t first, arrived;   // the next sequence number when the region of interest began, and when the rate began to be measured
} streams[MOST_QUEUES];

static atomic_int over;

static uint64_t number(const char *name, const char *text, char until, char **end, uint64_t least, uint64_t most) {
    uint64_t value = strtoull(text, end, 10);
    if (*text == '-' || *end == text || (**end && **end != until) || value < least || value > most) {
        fprintf(stderr, "flow_receive: %s is '%s': give a whole number from %llu to %llu\n", name, getenv(name), (unsigned long long)least,
                (unsigned long long)most);
        exit(2);
    }
    return value;
}

static uint64_t setting(const char *name, uint64_t fallback, uint64_t least, uint64_t most) {
    const char *text = getenv(name);
    char *end;
    return text && *text ? number(name, text, 0, &end, least, most) : fallback;
}

// The n-th core of a list, or the last one if it is shorter.
static uint64_t core_of(const char *name, unsigned n) {
    const char *text = getenv(name);
    if (!text || !*text) return 0;
    for (;;) {
        char *end;
        uint64_t core = number(name, text, ',', &end, 0, MOST_CORES - 1);
        if (n-- == 0 || !*end) return core;
        text = end + 1;
    }
}

static inline int take(atomic_int *held, int as) {
    int nobody = 0;
    return atomic_compare_exchange_strong_explicit(held, &nobody, as, memory_order_acquire, memory_order_relaxed);
}

// --- Buffers -----------------------------------------------------------------------------------------------------------

// Only the queue's softirq allocates.
__attribute__((noinline)) static struct sk_buff *allocate_buff(struct queue *q) {
    struct sk_buff *b = q->own_free ? q->own_free : atomic_exchange(&q->given_back, NULL);
    if (!b) return NULL;
    q->own_free = b->next;
    memset(q->metadata[b - q->buffs], 0, METADATA_BYTES);
    return b;
}

// Freeing looks at the fragments and their counts.
__attribute__((noinline)) static void release(struct sk_buff *b) {
    struct queue *q = &queues[b->queue];
    q->metadata[b - q->buffs][METADATA_BYTES - 1]++;
    struct sk_buff *former = atomic_load_explicit(&q->given_back, memory_order_relaxed);
    do b->next = former;
    while (!atomic_compare_exchange_weak(&q->given_back, &former, b));
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

// --- The driver --------------------------------------------------------------------------------------------------------

// A register that each queue has: the first one's is among the NIC's own.
#define QUEUE_REGISTER(n, name) ((n) ? MAC_QUEUE((n) - 1) + MAC_QUEUE_##name : MAC_##name)

static inline void give(struct queue *q, uint32_t index, struct sk_buff *b) {
    volatile struct mac_descriptor *at = &q->ring[index];
    q->in_ring[index] = b;
    at->address = (uint64_t)(uintptr_t)b->buffer;
    at->control = settings.buffer_bytes - 64;
    mac_barrier();
    at->status = MAC_STATUS_OWN;
}

// The stream of a segment from or to the peer's port.
static inline struct stream *stream_at(const unsigned char *port) {
    uint32_t number = load16(port) - (uint32_t)FIRST_PEER_PORT;
    return &streams[number < settings.streams ? number : 0];
}

// Whoever has the socket sends, by the stream's own ring.
static void send_frame(const unsigned char *frame, size_t bytes) {
    struct stream *stream = stream_at(frame + ETHERNET_BYTES + IP_BYTES + 2);
    volatile struct mac_descriptor *at = &stream->send_ring[stream->send_next];
    if (at->status & MAC_STATUS_OWN) {
        stream->no_send_room++;
        return;
    }
    memcpy(stream->send_buffers[stream->send_next], frame, bytes);
    at->address = (uint64_t)(uintptr_t)stream->send_buffers[stream->send_next];
    at->control = (uint32_t)(bytes < 60 ? 60 : bytes) | MAC_SEND_FIRST | MAC_SEND_LAST;
    mac_barrier();
    at->status = MAC_STATUS_OWN;
    mac_barrier();
    stream->send_next = (stream->send_next + 1) % SEND_RING;
    mac_write(&queues[0].mac, (unsigned)QUEUE_REGISTER((unsigned)(stream - streams), TX_POLL), 1);
}

// --- The socket --------------------------------------------------------------------------------------------------------

__attribute__((noinline)) static void wake_reader(struct stream *stream) {
    stream->wakes++;
    syscall(SYS_futex, &stream->sleeps, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
}

// Sees to the backlog. Only who has the socket may call it.
__attribute__((noinline)) static void process_backlog(struct stream *stream) {
    unsigned popped = atomic_load_explicit(&stream->popped, memory_order_relaxed);
    while (popped != atomic_load_explicit(&stream->pushed, memory_order_acquire)) {
        struct sk_buff *b = stream->backlog[popped++ % MOST_BACKLOG];
        atomic_store_explicit(&stream->popped, popped, memory_order_release);
        other_work(settings.path);
        while (b) {
            struct sk_buff *more = b->next;
            stream->socket.gathers = more != NULL;
            socket_receive(&stream->socket, b);
            b = more;
        }
    }
}

// Gives the socket up; what came meanwhile is seen to first.
static void give_up(struct stream *stream, int me) {
    for (;;) {
        atomic_store_explicit(&stream->owner, NOBODY, memory_order_seq_cst);
        unsigned popped = atomic_load_explicit(&stream->popped, memory_order_relaxed);
        if (popped == atomic_load_explicit(&stream->pushed, memory_order_seq_cst) || !take(&stream->owner, me)) return;
        process_backlog(stream);
    }
}

// A frame goes to its stream's socket, or to the backlog if the reader has it. A stream's frames come by one queue.
static void deliver(struct sk_buff *b) {
    struct stream *stream = b->length < HEADER_BYTES ? streams : stream_at(b->buffer + ETHERNET_BYTES + IP_BYTES);
    unsigned pushed = atomic_load_explicit(&stream->pushed, memory_order_relaxed);
    if (pushed - atomic_load_explicit(&stream->popped, memory_order_acquire) == MOST_BACKLOG) {
        while (b) {
            struct sk_buff *more = b->next;
            release(b);
            b = more;
        }
        return;
    }
    stream->backlog[pushed % MOST_BACKLOG] = b;
    atomic_store_explicit(&stream->pushed, pushed + 1, memory_order_seq_cst);
    if (!take(&stream->owner, SOFTIRQ)) return;
    process_backlog(stream);
    struct socket *s = &stream->socket;
    int wakes = (s->queued || s->finished || s->state == CLOSED) && atomic_exchange(&stream->sleeps, 0);
    give_up(stream, SOFTIRQ);
    if (wakes) wake_reader(stream);
}

// Linux merges up to 64 KiB of 17 fragments (MAX_SKB_FRAGS), which have the same addresses and nothing but data in order.
enum { MOST_HELD = 17, MOST_HELD_BYTES = 65535 - IP_BYTES - TCP_BYTES };

static void flush_held(struct queue *q) {
    struct sk_buff *held = q->held;
    q->held = NULL;
    if (held) deliver(held);
}

// Whether nothing but data stands in a frame; then how many bytes of them.
static inline uint32_t plain_data(const struct sk_buff *b) {
    const unsigned char *ip = b->buffer + ETHERNET_BYTES, *tcp = ip + IP_BYTES;
    if (b->length < HEADER_BYTES || load16(ip - 2) != 0x0800 || ip[0] != 0x45 || ip[9] != 6 || tcp[12] != 0x50 || (tcp[13] & ~PSH) != ACK)
        return 0;
    uint32_t total = load16(ip + 2);
    return total > IP_BYTES + TCP_BYTES && total <= b->length - ETHERNET_BYTES ? total - IP_BYTES - TCP_BYTES : 0;
}

// A frame waits for those that follow it, or goes with those that it follows.
__attribute__((noinline)) static void merge(struct queue *q, struct sk_buff *b) {
    uint32_t data = plain_data(b);
    const unsigned char *ip = b->buffer + ETHERNET_BYTES;
    if (q->held) {
        const unsigned char *first = q->held->buffer + ETHERNET_BYTES;
        int follows = data && q->held_segments < MOST_HELD && q->held_bytes + data <= MOST_HELD_BYTES && !memcmp(ip + 12, first + 12, 12) &&
                      load32(ip + IP_BYTES + 4) == load32(first + IP_BYTES + 4) + q->held_bytes;
        if (!follows) flush_held(q);
    }
    b->next = NULL;
    if (!data) {
        deliver(b);
        return;
    }
    if (q->held) q->held_last->next = b;
    else q->held = b, q->held_bytes = q->held_segments = 0;
    q->held_last = b, q->held_bytes += data, q->held_segments++;
    // What is to be handed on at once is not held.
    if (ip[IP_BYTES + 13] & PSH) flush_held(q);
}

// Takes frames of the ring up to the budget: 1 if there may be more.
__attribute__((noinline)) static int poll_frames(struct queue *q) {
    q->polls++;
    for (uint32_t taken = 0; taken < settings.budget; taken++) {
        volatile struct mac_descriptor *at = &q->ring[q->next];
        uint32_t status = at->status;
        if (status & MAC_STATUS_OWN) return 0;
        mac_barrier();
        struct sk_buff *full = q->in_ring[q->next], *fresh = allocate_buff(q);
        q->frames++;
        uint32_t whole = MAC_STATUS_FIRST | MAC_STATUS_LAST;
        int sound = (status & (MAC_STATUS_ERROR | MAC_STATUS_SUM_WRONG | whole)) == whole;
        q->errors += !sound;
        q->no_buffer += sound && !fresh;
        give(q, q->next, fresh ? fresh : full);
        q->next = q->next + 1 < settings.ring ? q->next + 1 : 0;
        if (!fresh) continue;
        other_work(settings.before);
        full->length = status & MAC_STATUS_LENGTH;
        full->next = NULL;
        if (!sound) release(full);
        else if (settings.gro) merge(q, full);
        else deliver(full);
    }
    return 1;
}

static int poll_ring(struct queue *q) {
    int more = poll_frames(q);
    flush_held(q);
    return more;
}

// --- The threads -----------------------------------------------------------------------------------------------------------

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

// Interrupt and softirq of a queue: interrupts are off while there are frames, as NAPI has it.
static void *softirq(void *of) {
    struct queue *q = of;
    const unsigned enable = (unsigned)QUEUE_REGISTER(q->number, ENABLE), interrupt = (unsigned)QUEUE_REGISTER(q->number, INTERRUPT);
    bind_to(q->core);
    if (ioctl(q->mac.file, HANDLE_INTERRUPTS)) perror("flow_receive: interrupts stay where they are");
    const uint64_t causes = MAC_INTERRUPT_RX | MAC_INTERRUPT_RX_STARVED | MAC_INTERRUPT_RX_MISSED;
    mac_write(&q->mac, enable, causes);
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        mac_wait(&q->mac, -1);
        q->interrupts++;
        mac_write(&q->mac, enable, 0);
        do {
            while (poll_ring(q)) {}
            mac_write(&q->mac, interrupt, causes);
            // What came before the causes were cleared is told by nobody.
        } while (!(((volatile struct mac_descriptor *)q->ring)[q->next].status & MAC_STATUS_OWN));
        mac_write(&q->mac, enable, causes);
    }
    return NULL;
}

// What all streams have come to, and when. Who reads past a threshold notes it.
static struct {
    _Alignas(64) _Atomic uint64_t received;
    uint64_t interest, counted;
    double began;
    _Atomic double ended;
    atomic_int is_of_interest, is_counted;
} all;

// Whoever takes the socket waits for the softirq of another core; that of its own core is done when it runs.
static void own(struct stream *stream) {
    while (!take(&stream->owner, READER)) {}
}

// recv(2): what there is, up to the message; it sleeps while there is nothing. 0 at the end.
static size_t receive(struct stream *stream) {
    struct socket *s = &stream->socket;
    syscall(SYS_getppid);
    for (;;) {
        own(stream);
        if (s->queued || s->finished || s->state == CLOSED) break;
        atomic_store(&stream->sleeps, 1);
        give_up(stream, READER);
        stream->reader_sleeps++;
        if (atomic_load(&over)) return 0;
        syscall(SYS_futex, &stream->sleeps, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
    }
    atomic_store_explicit(&stream->sleeps, 0, memory_order_relaxed);
    size_t bytes = socket_read(s, stream->message, settings.message_bytes);
    give_up(stream, READER);
    return bytes;
}

// Opening, and the first windows, are not what this is about.
static void note_begin(uint64_t received) {
    if (received >= settings.begin && streams[0].socket.state != LISTEN && !atomic_exchange(&all.is_of_interest, 1)) {
        longma_roi_begin();
        all.interest = received;
        for (uint32_t i = 0; i < settings.streams; i++) streams[i].first = streams[i].socket.next;
    }
    if (atomic_load(&all.is_of_interest) && received >= settings.settled && !atomic_exchange(&all.is_counted, 1)) {
        all.counted = received;
        for (uint32_t i = 0; i < settings.streams; i++) streams[i].arrived = streams[i].socket.next;
        all.began = seconds();
    }
}

// The first who is done ends it for all.
static void note_end(void) {
    if (atomic_exchange(&over, 1)) return;
    double ended = seconds();
    longma_roi_end();
    uint64_t received = atomic_load(&all.received);
    for (uint32_t i = 0; i < settings.streams; i++) {
        streams[i].arrived = streams[i].socket.next - streams[i].arrived;
        streams[i].first = streams[i].socket.next - streams[i].first;
    }
    all.counted = received - all.counted, all.interest = received - all.interest;
    // Nobody wakes the other readers any more.
    for (uint32_t i = 0; i < settings.streams; i++)
        if (atomic_exchange(&streams[i].sleeps, 0)) wake_reader(&streams[i]);
    all.ended = ended;
}

static void *reader(void *of) {
    struct stream *stream = of;
    bind_to(stream->core);
    uint64_t received = 0;
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        note_begin(received);
        size_t bytes = receive(stream);
        // A stream that has ended leaves the others to go on, unless they are to be counted.
        if (!bytes) break;
        stream->received += bytes, stream->reads++;
        received = atomic_fetch_add(&all.received, bytes) + bytes;
        if (settings.end && received >= settings.end) note_end();
    }
    if (settings.streams == 1 || settings.end) note_end();
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

static void no_device(const char *device) {
    fprintf(stderr, "flow_receive: cannot open the MAC /dev/longma/%s: ", device);
    perror("name a device of the machine");
    exit(1);
}

// The file of a queue beside the first, which has the same registers.
static void open_queue(struct queue *q, const char *device) {
    char name[64];
    snprintf(name, sizeof name, "/dev/longma/%s.%u", device, q->number);
    q->mac = queues[0].mac;
    q->mac.file = open(name, O_RDWR | O_CLOEXEC);
    if (q->mac.file < 0) no_device(name + sizeof "/dev/longma/" - 1);
}

static void set_up_queue(struct queue *q, uint64_t room) {
    // Any queue may have to hold what all sockets do.
    uint64_t buffers = settings.ring + room / settings.segment * settings.streams + SPARE;
    unsigned char *data = zeroed(buffers * settings.buffer_bytes);
    q->ring = zeroed(settings.ring * sizeof *q->ring);
    q->buffs = zeroed(buffers * sizeof *q->buffs), q->metadata = zeroed(buffers * METADATA_BYTES);
    for (uint64_t i = buffers; i-- > 0;) {
        q->buffs[i].buffer = data + i * settings.buffer_bytes + 2;
        q->buffs[i].queue = (uint8_t)q->number;
        release(&q->buffs[i]);
    }
    for (uint32_t i = 0; i < settings.ring; i++) give(q, i, allocate_buff(q));
    mac_write(&q->mac, (unsigned)QUEUE_REGISTER(q->number, RX_BASE), (uint64_t)(uintptr_t)q->ring);
    mac_write(&q->mac, (unsigned)QUEUE_REGISTER(q->number, RX_COUNT), settings.ring);
    mac_write(&q->mac, (unsigned)QUEUE_REGISTER(q->number, RX_DELAY), setting("delay_ns", 0, 0, 1000000000));
    mac_write(&q->mac, (unsigned)QUEUE_REGISTER(q->number, RX_FRAMES), setting("frames", 0, 0, 65535));
}

static void set_up_stream(struct stream *stream, uint64_t room) {
    unsigned n = (unsigned)(stream - streams);
    struct socket *s = &stream->socket;
    // The NIC has checked TCP's sums.
    s->room = (uint32_t)room, s->summed = 0, s->sent = 7000, s->send = send_frame, s->release = release;
    stream->core = core_of("application", n);
    stream->message = zeroed(settings.message_bytes);
    stream->send_ring = zeroed(SEND_RING * sizeof *stream->send_ring), stream->send_buffers = zeroed(SEND_RING * 64);
    mac_write(&queues[0].mac, (unsigned)QUEUE_REGISTER(n, TX_BASE), (uint64_t)(uintptr_t)stream->send_ring);
    mac_write(&queues[0].mac, (unsigned)QUEUE_REGISTER(n, TX_COUNT), SEND_RING);
}

// The queues in turn for the hashes in turn, with a key that is drawn, as Linux draws one when it starts (netdev_rss_key_fill).
static void spread(void) {
    uint64_t seed = setting("key", 1, 0, UINT64_MAX);
    for (unsigned word = 0; word < 5; word++) mac_write(&queues[0].mac, MAC_KEY(word) + MAC_KEY_WORD, random_next(&seed));
    for (unsigned word = 0; word < 16; word++) {
        unsigned char entries[8];
        for (unsigned at = 0; at < 8; at++) entries[at] = (unsigned char)((word * 8 + at) % settings.queues);
        uint64_t bytes;
        memcpy(&bytes, entries, 8);
        mac_write(&queues[0].mac, MAC_TABLE(word) + MAC_TABLE_WORD, bytes);
    }
}

static void open_device(const char *device) {
    struct mac *mac = &queues[0].mac;
    if (mac_open(mac, device)) no_device(device);
    uint64_t has = mac_read(mac, MAC_QUEUES), room = setting("room", 3145728, MSS, 1u << 29);
    if (settings.queues > has || settings.streams > has) {
        fprintf(stderr, "flow_receive: %s has %llu queues: give no more queues nor flows\n", device, (unsigned long long)has);
        exit(1);
    }
    uint64_t address = 0;
    memcpy(&address, OUR_STATION, 6);
    mac_write(mac, MAC_ADDRESS, address);
    mac_write(mac, MAC_DCA, 1 | 1 << MAC_DCA_HEADER_SHIFT | 1 << MAC_DCA_DESCRIPTOR_SHIFT | setting("ways", 0, 0, 64) << MAC_DCA_WAYS_SHIFT);
    for (uint32_t i = 0; i < settings.queues; i++) {
        queues[i].number = i, queues[i].core = core_of("flow", i);
        if (i) open_queue(&queues[i], device);
        set_up_queue(&queues[i], room);
    }
    for (uint32_t i = 0; i < settings.streams; i++) set_up_stream(&streams[i], room);
    if (settings.queues > 1) spread();
    mac_write(mac, MAC_CONTROL,
              MAC_CONTROL_RX_ENABLE | MAC_CONTROL_TX_ENABLE | MAC_CONTROL_RX_SUMS | (settings.queues > 1 ? MAC_CONTROL_SPREAD : 0));
}

static void begin(void *(*does)(void *), void *with) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, does, with)) {
        fprintf(stderr, "flow_receive: no further thread: raise the limit of processes\n");
        exit(1);
    }
}

static void print_results(void) {
    uint64_t interrupts = 0, polls = 0, frames = 0, no_buffer = 0, reads = 0, sleeps = 0, wakes = 0, acknowledgements = 0, no_room = 0,
             out_of_order = 0, arrived = 0, first = 0;
    for (uint32_t i = 0; i < settings.queues; i++) {
        interrupts += queues[i].interrupts, polls += queues[i].polls, frames += queues[i].frames, no_buffer += queues[i].no_buffer;
    }
    for (uint32_t i = 0; i < settings.streams; i++) {
        struct stream *stream = &streams[i];
        reads += stream->reads, sleeps += stream->reader_sleeps, wakes += stream->wakes, no_room += stream->no_send_room;
        acknowledgements += stream->socket.counters.acknowledgements, out_of_order += stream->socket.counters.out_of_order;
        arrived += stream->arrived, first += stream->first;
    }
    double took = all.ended - all.began;
    // While what waits in the sockets is read, more is read than arrives; while they fill, less. In the long run it is no more than either.
    double sustained = (double)(arrived < all.counted ? arrived : all.counted);
    fprintf(stderr, "%.3f Gb/s\n%.0f bytes in %.0f ns\n%llu bytes of interest, the mean of those that arrived and those that were read\n",
            took > 0 ? sustained * 8e-9 / took : 0, (double)all.counted, took * 1e9, (unsigned long long)(all.interest + first) / 2);
    fprintf(stderr, "%llu interrupts, %llu polls, %llu frames, %llu reads, %llu sleeps, %llu wake-ups, %llu acknowledgements\n",
            (unsigned long long)interrupts, (unsigned long long)polls, (unsigned long long)frames, (unsigned long long)reads,
            (unsigned long long)sleeps, (unsigned long long)wakes, (unsigned long long)acknowledgements);
    fprintf(stderr, "lost: %llu without a buffer, %llu without room to send, %llu out of order, %llu in the NIC\n", (unsigned long long)no_buffer,
            (unsigned long long)no_room, (unsigned long long)out_of_order,
            (unsigned long long)(mac_read(&queues[0].mac, MAC_COUNT_RX_MISSED) + mac_read(&queues[0].mac, MAC_COUNT_RX_STARVED)));
    for (uint32_t i = 0; settings.streams > 1 && i < settings.streams; i++)
        fprintf(stderr, "stream %u: %.3f Gb/s\n", i, took > 0 ? (double)streams[i].arrived * 8e-9 / took : 0);
    printf("flow_receive: %llu bytes\n", (unsigned long long)atomic_load(&all.received));
}

int main(int argc, char **argv) {
    if (argc < 2) {
        printf("flow_receive: name a device, such as eth0\n");
        return 0;
    }
    settings.queues = (uint32_t)setting("queues", 1, 1, MOST_QUEUES), settings.streams = (uint32_t)setting("flows", 1, 1, MOST_QUEUES);
    settings.ring = (uint32_t)setting("ring", 1024, 2, MOST_RING), settings.budget = (uint32_t)setting("budget", 64, 1, MOST_RING);
    settings.segment = (uint32_t)setting("segment", MSS, 536, MSS);
    // Headers, what aligns them, and the rest of a unit, as allocators have it.
    settings.buffer_bytes = (settings.segment + HEADER_BYTES + 64 + BUFFER_UNIT - 1) / BUFFER_UNIT * BUFFER_UNIT;
    settings.gro = (uint32_t)setting("gro", 0, 0, 1);
    settings.before = setting("before", 0, 0, 1u << 20);
    settings.path = setting("path", 0, 0, 1u << 20), settings.message_bytes = setting("message", 131072, 1, 1u << 24);
    settings.begin = setting("begin", 0, 0, 1u << 30), settings.end = setting("bytes", 0, 0, 1u << 30);
    settings.settled = settings.begin + setting("settle", 0, 0, 1u << 30);
    // The first reader is the first thread; it is bound before anything runs.
    bind_to(core_of("application", 0));
    open_device(argv[1]);
    for (uint32_t i = 0; i < settings.queues; i++) begin(softirq, &queues[i]);
    for (uint32_t i = 1; i < settings.streams; i++) begin(reader, &streams[i]);
    reader(&streams[0]);
    // Whoever ended it has noted all; others may still be about it.
    while (!all.ended) sched_yield();
    print_results();
    // The softirqs sleep in their reads, and end with the process.
    return 0;
}
