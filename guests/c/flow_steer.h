// Brings frames of flow_receive.c from a NIC's queue to the core that processes their stream, merged or not.
// flow_path.h processes the frames there; the NIC chooses the queue.
// Source: Linux's Documentation/networking/scaling.rst (RPS, RFS), net/core/gro.c and net/core/dev.c (get_rps_cpu, enqueue_to_backlog,
// process_backlog, net_rps_send_ipi).
#ifndef FLOW_STEER_H
#define FLOW_STEER_H

#include "flow_path.h"

// Maximum number of segments queued for a core (net.core.netdev_max_backlog) and dequeued at once (net.core.dev_weight).
enum { MOST_STEERED = 64, MOST_WAITING = 1024, WEIGHT = 64 };
// The ioctl that gives the calling thread, which does the kernel's deferred work, priority on its core.
enum { GO_FIRST = 0x4c03 };

// A core that receives steered segments; each queue has one producer at a time.
static struct steered {
    _Alignas(64) atomic_int sleeps;
    uint64_t core;
    uint64_t segments, dropped, told;
    struct handed {
        _Alignas(64) atomic_uint pushed;
        _Alignas(64) atomic_uint popped;
        struct sk_buff *waiting[MOST_WAITING];
    } *from;   // one FIFO per receive queue
} steered[MOST_STEERED];
static uint32_t steered_cores, steering_cores;   // all targets; the first steering_cores are RPS targets, chosen by hash

// The core that must process a frame: its reader's, or one selected by its hash; otherwise the current one.
static inline struct steered *core_for(const struct sk_buff *b) {
    if (b->length < HEADER_BYTES) return NULL;
    if (settings.rfs) return stream_of(b)->reader_core;
    if (!steering_cores) return NULL;
    uint32_t hash = flow_hash(load16(b->buffer + ETHERNET_BYTES + IP_BYTES));
    return &steered[(uint64_t)hash * steering_cores >> 32];
}

// Queues a frame for the core that must process it, which is notified at the end of the poll.
__attribute__((noinline)) static void steer(struct queue *q, struct sk_buff *b) {
    struct steered *to = core_for(b);
    if (!to || to->core == here) {
        deliver(b);
        return;
    }
    struct handed *handed = &to->from[q->number];
    unsigned pushed = atomic_load_explicit(&handed->pushed, memory_order_relaxed);
    if (pushed - atomic_load_explicit(&handed->popped, memory_order_acquire) == MOST_WAITING) {
        to->dropped++;
        release_all(b);
        return;
    }
    handed->waiting[pushed % MOST_WAITING] = b;
    atomic_store_explicit(&handed->pushed, pushed + 1, memory_order_seq_cst);
    q->raised |= 1ull << (to - steered);
}

static inline void hand_on(struct queue *q, struct sk_buff *b) {
    if (steered_cores) steer(q, b);
    else deliver(b);
}

// Notifies the cores with queued segments, unless they are processing.
static void tell_cores(struct queue *q) {
    for (; q->raised; q->raised &= q->raised - 1) {
        struct steered *to = &steered[__builtin_ctzll(q->raised)];
        if (!atomic_exchange(&to->sleeps, 0)) continue;
        to->told++;
        syscall(SYS_futex, &to->sleeps, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
    }
}

// Processes a core's queued segments; returns 1 if there were any.
static int process_handed(struct steered *me) {
    int any = 0;
    for (uint32_t i = 0; i < settings.all_queues; i++) {
        struct handed *handed = &me->from[i];
        unsigned popped = atomic_load_explicit(&handed->popped, memory_order_relaxed);
        for (int n = 0; n < WEIGHT && popped != atomic_load_explicit(&handed->pushed, memory_order_seq_cst); n++) {
            struct sk_buff *b = handed->waiting[popped++ % MOST_WAITING];
            atomic_store_explicit(&handed->popped, popped, memory_order_release);
            any = 1, me->segments++;
            deliver(b);
        }
    }
    return any;
}

// Linux merges up to 64 KiB in 17 fragments (MAX_SKB_FRAGS) with the same addresses, in order, with data only.
enum { MOST_HELD = 17, MOST_HELD_BYTES = 65535 - IP_BYTES - TCP_BYTES };

static void flush_held(struct queue *q) {
    struct sk_buff *held = q->held;
    q->held = NULL;
    if (held) hand_on(q, held);
}

// The number of data bytes in a frame that contains only data; 0 otherwise.
static inline uint32_t plain_data(const struct sk_buff *b) {
    const unsigned char *ip = b->buffer + ETHERNET_BYTES, *tcp = ip + IP_BYTES;
    if (b->length < HEADER_BYTES || load16(ip - 2) != 0x0800 || ip[0] != 0x45 || ip[9] != 6 || tcp[12] != 0x50 || (tcp[13] & ~PSH) != ACK)
        return 0;
    uint32_t total = load16(ip + 2);
    return total > IP_BYTES + TCP_BYTES && total <= b->length - ETHERNET_BYTES ? total - IP_BYTES - TCP_BYTES : 0;
}

// Holds a frame for merging, or merges it into a held one.
__attribute__((noinline)) static void merge(struct queue *q, struct sk_buff *b) {
    uint32_t data = b->pieces ? 0 : plain_data(b);
    const unsigned char *ip = b->buffer + ETHERNET_BYTES;
    if (q->held) {
        const unsigned char *first = q->held->buffer + ETHERNET_BYTES;
        int follows = data && q->held_segments < MOST_HELD && q->held_bytes + data <= MOST_HELD_BYTES && !memcmp(ip + 12, first + 12, 12) &&
                      load32(ip + IP_BYTES + 4) == load32(first + IP_BYTES + 4) + q->held_bytes;
        if (!follows) flush_held(q);
    }
    b->next = NULL;
    if (!data) {
        hand_on(q, b);
        return;
    }
    if (q->held) q->held_last->next = b;
    else q->held = b, q->held_bytes = q->held_segments = 0;
    q->held_last = b, q->held_bytes += data, q->held_segments++;
    // Frames that must be delivered at once are not held.
    if (ip[IP_BYTES + 13] & PSH) flush_held(q);
}

#endif
