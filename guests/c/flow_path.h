// The receive path of flow_receive.c up to the socket: buffers, rings, backlogs, and sending.
// flow_steer.h brings frames to their stream's core; flow_receive.c has the threads.
#ifndef FLOW_PATH_H
#define FLOW_PATH_H

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
// A NIC has at most 16 receive and 16 send queues.
enum { MOST_NICS = 2, MOST_OF_NIC = 16, MOST_QUEUES = MOST_NICS * MOST_OF_NIC, MOST_CORES = 1024, FIRST_PEER_PORT = 40000 };

// A NIC and its send rings.
static struct nic {
    struct mac mac;
    const char *name;
    struct sender {
        _Alignas(64) atomic_uint next;
        atomic_uint last_core;   // the core that used this ring last, plus 1; 0 if none has
        atomic_ullong taken_over;
        unsigned number;
        struct nic *nic;
        struct mac_descriptor *ring;
        unsigned char (*buffers)[64];
    } senders[MOST_OF_NIC];
} nics[MOST_NICS];

// A receive queue: its ring, and its buffers with their metadata.
static struct queue {
    _Alignas(64) struct mac mac;
    unsigned number, of_nic;   // index among all queues, index among its NIC's queues
    struct nic *nic;
    uint64_t core;
    struct mac_descriptor *ring;
    struct sk_buff *in_ring[MOST_RING];
    uint32_t next;
    uint32_t run;   // frames since the ring was last seen empty
    // A large frame of several buffers that is partly received.
    struct sk_buff *large, *large_last;
    uint32_t large_bytes;
    uint64_t interrupts, polls, frames, errors, no_buffer, busy_polls;
    unsigned char (*metadata)[METADATA_BYTES];
    struct sk_buff *buffs;
    // Free buffers: the softirq's list, most recently used first, and returned ones, which it takes all at once.
    struct sk_buff *own_free;
    // Segments held for merging: a list whose first element has the total number of bytes.
    struct sk_buff *held, *held_last;
    uint32_t held_bytes, held_segments;
    uint64_t raised;   // bit mask of the cores with queued segments that are not yet notified
    _Alignas(64) _Atomic(struct sk_buff *) given_back;
    // The thread that polls it, and whether its interrupts are off for busy polling.
    _Alignas(64) atomic_int polled;
    int quiet;
} queues[MOST_QUEUES];

static struct {
    uint32_t nics, queues, streams, ring, budget, segment, buffer_bytes, gro, lro, rfs, send_queues, xps, threaded, near;
    uint32_t all_queues, all_streams;
    uint64_t path, before, message_bytes, begin, settle, end, busy_ns, key;
} settings;

enum owner { NOBODY, SOFTIRQ, READER };

// A stream: its socket and owner, the backlog (written by softirqs, read by the owner), its send ring, and its reader.
static struct stream {
    _Alignas(64) atomic_int owner;
    _Alignas(64) atomic_uint pushed;
    _Alignas(64) atomic_uint popped;
    _Alignas(64) atomic_int sleeps;
    struct sk_buff *backlog[MOST_BACKLOG];
    struct socket socket;
    uint64_t wakes;
    uint64_t no_send_room;
    // Read-only fields.
    _Alignas(64) struct nic *nic;
    struct sender *sender;
    _Atomic(struct queue *) queue;   // the receive queue of its last segment
    struct steered *reader_core;     // with RFS: the steering target, which is its reader's core
    uint64_t core;                   // the reading program's core
    // The reading program.
    _Alignas(64) uint64_t received, reads, reader_sleeps;
    unsigned char *message;
    uint64_t counted;          // "received" at the start of the rate measurement; after its end, the bytes received during it
    uint32_t room;             // receive buffer of the socket in bytes, once its window is open
    int is_open;
} streams[MOST_QUEUES];

static atomic_int over;

// The core to which this thread is bound.
static _Thread_local uint64_t here;

static inline int take(atomic_int *held, int as) {
    int nobody = 0;
    return atomic_compare_exchange_strong_explicit(held, &nobody, as, memory_order_acquire, memory_order_relaxed);
}

// The flow hash in place of the kernel's: the finalizer of MurmurHash3 over port and key.
static inline uint32_t flow_hash(uint32_t port) {
    uint32_t hash = port ^ (uint32_t)settings.key * 0x9e3779b9u;
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    return hash ^ hash >> 16;
}

// --- Buffers -----------------------------------------------------------------------------------------------------------

// Only the queue's softirq allocates buffers.
__attribute__((noinline)) static struct sk_buff *allocate_buff(struct queue *q) {
    struct sk_buff *b = q->own_free ? q->own_free : atomic_exchange(&q->given_back, NULL);
    if (!b) return NULL;
    q->own_free = b->next;
    memset(q->metadata[b - q->buffs], 0, METADATA_BYTES);
    return b;
}

// Freeing reads the fragments and their reference counts.
__attribute__((noinline)) static void release(struct sk_buff *b) {
    struct queue *q = &queues[b->queue];
    q->metadata[b - q->buffs][METADATA_BYTES - 1]++;
    struct sk_buff *former = atomic_load_explicit(&q->given_back, memory_order_relaxed);
    do b->next = former;
    while (!atomic_compare_exchange_weak(&q->given_back, &former, b));
}

#define ADD __asm__ volatile("" : "+r"(sum)); sum++;
#define FOUR(what) what what what what

// Other kernel work per segment: hooks, accounting, timestamps. The compiler must not fold these additions.
__attribute__((noinline)) static void other_work(uint64_t cycles) {
    uint64_t sum = 0;
    for (uint64_t i = cycles / 16; i > 0; i--) { FOUR(FOUR(ADD)) }
    for (uint64_t i = cycles % 16; i > 0; i--) { ADD }
    __asm__ volatile("" : : "r"(sum));
}
// --- The driver --------------------------------------------------------------------------------------------------------

// A per-queue register; the first queue's is among the NIC's own.
#define QUEUE_REGISTER(n, name) ((n) ? MAC_QUEUE((n) - 1) + MAC_QUEUE_##name : MAC_##name)

static inline void give(struct queue *q, uint32_t index, struct sk_buff *b) {
    volatile struct mac_descriptor *at = &q->ring[index];
    q->in_ring[index] = b;
    at->address = (uint64_t)(uintptr_t)b->buffer;
    at->control = settings.buffer_bytes - 64;
    mac_barrier();
    at->status = MAC_STATUS_OWN;
}

// The stream of a segment from or to the peer's port, on a NIC.
static inline struct stream *stream_at(const struct nic *nic, const unsigned char *port) {
    uint32_t number = load16(port) - (uint32_t)FIRST_PEER_PORT;
    return &streams[(uint32_t)(nic - nics) * settings.streams + (number < settings.streams ? number : 0)];
}

// The send ring of a stream: its own, one selected by its hash, or this core's.
static inline struct sender *sender_of(struct stream *stream, uint32_t port) {
    if (!settings.send_queues) return stream->sender;
    uint32_t which = settings.xps ? (uint32_t)here : flow_hash(port);
    return &stream->nic->senders[which % settings.send_queues];
}

// Reserves a slot in a shared send ring; -1 if it is full. A lock could deadlock, because a softirq preempts its owner.
static inline int claim(struct sender *sender) {
    unsigned next = atomic_load_explicit(&sender->next, memory_order_relaxed);
    if (!settings.send_queues) {
        if (((volatile struct mac_descriptor *)sender->ring)[next % SEND_RING].status & MAC_STATUS_OWN) return -1;
        atomic_store_explicit(&sender->next, next + 1, memory_order_relaxed);
        return (int)(next % SEND_RING);
    }
    do if (((volatile struct mac_descriptor *)sender->ring)[next % SEND_RING].status & MAC_STATUS_OWN) return -1;
    while (!atomic_compare_exchange_weak(&sender->next, &next, next + 1));
    return (int)(next % SEND_RING);
}

// Only the socket's owner sends.
static void send_segment(struct stream *stream, const unsigned char *frame, size_t bytes) {
    struct sender *sender = sender_of(stream, load16(frame + ETHERNET_BYTES + IP_BYTES + 2));
    int place = claim(sender);
    if (place < 0) {
        stream->no_send_room++;
        return;
    }
    unsigned former = atomic_load_explicit(&sender->last_core, memory_order_relaxed);
    if (former != here + 1) {
        atomic_store_explicit(&sender->last_core, (unsigned)here + 1, memory_order_relaxed);
        if (former) atomic_fetch_add_explicit(&sender->taken_over, 1, memory_order_relaxed);
    }
    volatile struct mac_descriptor *at = &sender->ring[place];
    memcpy(sender->buffers[place], frame, bytes);
    at->address = (uint64_t)(uintptr_t)sender->buffers[place];
    at->control = (uint32_t)(bytes < 60 ? 60 : bytes) | MAC_SEND_FIRST | MAC_SEND_LAST;
    mac_barrier();
    at->status = MAC_STATUS_OWN;
    mac_barrier();
    mac_write(&sender->nic->mac, (unsigned)QUEUE_REGISTER(sender->number, TX_POLL), 1);
}

// The caller sets the NIC for the socket's send function, because streams of different NICs have the same ports.
static void send_first(const unsigned char *frame, size_t bytes) {
    send_segment(stream_at(&nics[0], frame + ETHERNET_BYTES + IP_BYTES + 2), frame, bytes);
}

static void send_second(const unsigned char *frame, size_t bytes) {
    send_segment(stream_at(&nics[1], frame + ETHERNET_BYTES + IP_BYTES + 2), frame, bytes);
}

// --- The socket --------------------------------------------------------------------------------------------------------

__attribute__((noinline)) static void wake_reader(struct stream *stream) {
    stream->wakes++;
    syscall(SYS_futex, &stream->sleeps, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
}

// The peer's maximum segment size: the one it accepts according to its SYN, or 536.
static uint32_t offered_segment(const struct sk_buff *b) {
    const unsigned char *tcp = b->buffer + ETHERNET_BYTES + IP_BYTES, *end = tcp + (tcp[12] >> 4) * 4;
    if (b->length < HEADER_BYTES || end > b->buffer + b->length) return 536;
    for (const unsigned char *option = tcp + TCP_BYTES; option < end && *option;) {
        if (*option == 1) {
            option++;
            continue;
        }
        if (end - option < 2 || option[1] < 2 || option[1] > end - option) break;
        if (*option == 2 && option[1] == 4) return load16(option + 2);
        option += option[1];
    }
    return 536;
}

// The window before the region of interest: large enough that the program hardly waits.
static inline uint32_t small_room(uint32_t room) {
    uint64_t small = 2 * settings.message_bytes > 16 * MSS ? 2 * settings.message_bytes : 16 * MSS;
    return small < room ? (uint32_t)small : room;
}

// There are buffers for a window of the largest segments. Smaller segments take a whole buffer too, so their window is smaller.
static void limit_room(struct stream *stream, const struct sk_buff *b) {
    uint64_t segment = offered_segment(b), room = stream->room / settings.segment * segment;
    if (segment < settings.segment && room < stream->room) stream->room = (uint32_t)room;
    stream->socket.room = small_room(stream->room);
}

static void release_all(struct sk_buff *b) {
    while (b) {
        struct sk_buff *more = b->next, *piece = b->pieces;
        b->pieces = NULL;
        release(b);
        while (piece) {
            struct sk_buff *further = piece->next;
            release(piece);
            piece = further;
        }
        b = more;
    }
}

// A large frame from the NIC: headers and data in the first buffer, data in the others. Headers are processed once; then the data is
// queued buffer by buffer. Out-of-order data is dropped and retransmitted.
__attribute__((noinline)) static void receive_large(struct socket *s, struct sk_buff *b) {
    struct sk_buff *pieces = b->pieces;
    const unsigned char *tcp = b->buffer + ETHERNET_BYTES + IP_BYTES;
    uint32_t before = s->next, own = b->length - HEADER_BYTES;
    for (struct sk_buff *piece = pieces; piece; piece = piece->next) own -= piece->length;
    b->next = NULL;
    if (s->state != ESTABLISHED || load32(tcp + 4) != before) {
        release_all(b);
        s->counters.out_of_order++;
        if (s->state == ESTABLISHED) acknowledge(s, 0);
        return;
    }
    b->pieces = NULL;
    socket_receive(s, b);
    if (s->next == before) {
        release_all(pieces);
        return;
    }
    struct sk_buff *behind = b->next, *last = b;
    b->length = own, b->next = pieces;
    while (last->next) last = last->next, last->taken = 0, last->flags = 0, last->data = last->buffer;
    last->next = behind;
    if (s->last == b) s->last = last;
    // More than one segment is acknowledged at once, in whatever frames it came (Linux's __tcp_ack_snd_check).
    if (s->unacknowledged) acknowledge(s, 0);
}

// Processes the backlog. Only the socket's owner may call it.
__attribute__((noinline)) static void process_backlog(struct stream *stream) {
    unsigned popped = atomic_load_explicit(&stream->popped, memory_order_relaxed);
    while (popped != atomic_load_explicit(&stream->pushed, memory_order_acquire)) {
        struct sk_buff *b = stream->backlog[popped++ % MOST_BACKLOG];
        atomic_store_explicit(&stream->popped, popped, memory_order_release);
        other_work(settings.path);
        if (stream->socket.state == LISTEN) limit_room(stream, b);
        while (b) {
            struct sk_buff *more = b->next;
            stream->socket.gathers = more != NULL;
            if (b->pieces) receive_large(&stream->socket, b);
            else socket_receive(&stream->socket, b);
            b = more;
        }
    }
}

// Processes the backlog and releases the socket.
static void give_up(struct stream *stream, int me) {
    for (;;) {
        atomic_store_explicit(&stream->owner, NOBODY, memory_order_seq_cst);
        unsigned popped = atomic_load_explicit(&stream->popped, memory_order_relaxed);
        if (popped == atomic_load_explicit(&stream->pushed, memory_order_seq_cst) || !take(&stream->owner, me)) return;
        process_backlog(stream);
    }
}

// The stream of a frame.
static inline struct stream *stream_of(const struct sk_buff *b) {
    const struct nic *nic = queues[b->queue].nic;
    return b->length < HEADER_BYTES ? &streams[(uint32_t)(nic - nics) * settings.streams] : stream_at(nic, b->buffer + ETHERNET_BYTES + IP_BYTES);
}

// Delivers a frame to its stream's socket, or to the backlog if the reader owns it. One core at a time delivers a stream's frames.
static void deliver(struct sk_buff *b) {
    struct stream *stream = stream_of(b);
    unsigned pushed = atomic_load_explicit(&stream->pushed, memory_order_relaxed);
    if (pushed - atomic_load_explicit(&stream->popped, memory_order_acquire) == MOST_BACKLOG) {
        release_all(b);
        return;
    }
    if (settings.busy_ns) atomic_store_explicit(&stream->queue, &queues[b->queue], memory_order_relaxed);
    stream->backlog[pushed % MOST_BACKLOG] = b;
    atomic_store_explicit(&stream->pushed, pushed + 1, memory_order_seq_cst);
    if (!take(&stream->owner, SOFTIRQ)) return;
    process_backlog(stream);
    struct socket *s = &stream->socket;
    int wakes = (s->queued || s->finished || s->state == CLOSED) && atomic_exchange(&stream->sleeps, 0);
    give_up(stream, SOFTIRQ);
    if (wakes) wake_reader(stream);
}

#endif
