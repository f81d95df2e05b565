// A receiving TCP socket: IP and TCP header processing, the queue towards the application, acknowledgements.
// tcp_receive.c has the device. One connection, opened by the peer; no urgent data, no options except MSS and window scale.
// Source: RFC 791, RFC 1071, RFC 9293 (3.8.6.3 on acknowledgements, 3.10.7.4 on segments), RFC 7323.
#ifndef TCP_SOCKET_H
#define TCP_SOCKET_H

#include "guest.h"
#if defined(__loongarch_sx)
// With vectors, the copy to the application also uses vectors.
#include "copy_plain.h"
#define copy_out copy_plain
#else
#define copy_out memcpy
#endif

// The receive path's code is contiguous, so that one lock window covers it.
#define RECEIVE_PATH __attribute__((section("receive_path"), noinline))

enum { ETHERNET_BYTES = 14, IP_BYTES = 20, TCP_BYTES = 20, HEADER_BYTES = ETHERNET_BYTES + IP_BYTES + TCP_BYTES };
// The default maximum segment is that of packets of 1500 bytes.
#ifndef LARGEST_SEGMENT
#define LARGEST_SEGMENT 1460
#endif
// The window scale is Linux's for its largest receive buffer, 6 MiB (tcp_rmem in tcp(7)).
enum { MSS = LARGEST_SEGMENT, WINDOW_SCALE = 7, ACKNOWLEDGEMENT_BYTES = 62 };
enum { FIN = 1, SYN = 2, RST = 4, PSH = 8, ACK = 16 };

// The metadata of a received frame, as in sk_buff.
struct sk_buff {
    struct sk_buff *next;
    unsigned char *buffer;   // where the MAC writes the frame
    unsigned char *data;     // the segment's data
    uint32_t length;         // of the frame, later of the data
    uint32_t sequence;
    uint32_t taken;          // bytes that the application has read
    uint8_t flags;
    uint8_t queue;           // its receive queue, if there are several
    struct sk_buff *pieces;  // further buffers of a large frame, with nothing but data
    uint8_t padding[16];
};

enum state { LISTEN, SYN_RECEIVED, ESTABLISHED, CLOSED };

// Counters of dropped and answered frames.
struct socket_counters {
    uint64_t segments, not_ours, bad_ip, bad_checksum, out_of_order, duplicates, beyond_window, bad_acknowledgements, acknowledgements,
        late_acknowledgements;
};

struct socket {
    enum state state;
    uint32_t next, sent, edge;       // next expected sequence number, our next sequence number, right edge of the advertised window
    uint32_t room;                   // size of the receive buffer in bytes
    uint32_t queued;                 // bytes that the application has not read
    uint32_t unacknowledged;         // segments
    int push, finished, scaled;
    int summed;                      // 1 if the software computes the checksums, 0 if the NIC does
    int gathers;                     // 1 while more segments of a batch follow: one acknowledgement follows the last one
    struct sk_buff *first, *last;    // in order
    struct sk_buff *early, *latest;  // beyond a gap, by sequence number; the last of them, if there is any
    uint64_t peer_station;           // as on the wire
    uint32_t peer_address;
    uint16_t peer_port;
    struct socket_counters counters;
    void (*send)(const unsigned char *frame, size_t bytes);
    void (*release)(struct sk_buff *);
};

static const unsigned char OUR_STATION[6] = {2, 0, 0, 0, 0, 2};
enum { OUR_ADDRESS = 0x0a000002, OUR_PORT = 5001 };

static inline uint16_t load16(const unsigned char *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static inline uint32_t load32(const unsigned char *p) { return (uint32_t)load16(p) << 16 | load16(p + 2); }
static inline void store16(unsigned char *p, uint32_t value) { p[0] = (unsigned char)(value >> 8), p[1] = (unsigned char)value; }
static inline void store32(unsigned char *p, uint32_t value) { store16(p, value >> 16), store16(p + 2, value); }

// The ones' complement sum of RFC 1071, in native byte order (which does not matter: its section 2B), 32 bytes per iteration.
RECEIVE_PATH static uint32_t internet_sum(const unsigned char *p, size_t n, uint64_t sum) {
    uint64_t w[4];
    for (; n >= 32; n -= 32, p += 32) {
        memcpy(w, p, 32);
        sum += (w[0] & 0xffffffff) + (w[0] >> 32) + (w[1] & 0xffffffff) + (w[1] >> 32);
        sum += (w[2] & 0xffffffff) + (w[2] >> 32) + (w[3] & 0xffffffff) + (w[3] >> 32);
    }
    for (; n >= 2; n -= 2, p += 2) {
        uint16_t pair;
        memcpy(&pair, p, 2);
        sum += pair;
    }
    if (n) {
        uint16_t pair = 0;
        memcpy(&pair, p, 1);
        sum += pair;
    }
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint32_t)sum;
}

// The checksum of the pseudo-header: both addresses, the protocol and the length.
static inline uint64_t pseudo_sum(const unsigned char *ip, size_t tcp_bytes) {
    unsigned char rest[4] = {0, 6, (unsigned char)(tcp_bytes >> 8), (unsigned char)tcp_bytes};
    return internet_sum(rest, 4, internet_sum(ip + 12, 8, 0));
}

// Writes IP and TCP headers before `data_bytes` bytes of data; `options` bytes of TCP options are already there.
RECEIVE_PATH static void fill_headers(unsigned char *frame, uint32_t from, uint32_t to, uint16_t from_port, uint16_t to_port,
                                      uint32_t sequence, uint32_t acknowledged, uint8_t flags, uint32_t window, size_t options,
                                      size_t data_bytes) {
    unsigned char *ip = frame + ETHERNET_BYTES, *tcp = ip + IP_BYTES;
    size_t tcp_bytes = TCP_BYTES + options + data_bytes;
    store16(frame + 12, 0x0800);
    memset(ip, 0, IP_BYTES + TCP_BYTES);
    ip[0] = 0x45, ip[6] = 0x40, ip[8] = 64, ip[9] = 6;
    store16(ip + 2, (uint32_t)(IP_BYTES + tcp_bytes));
    store32(ip + 12, from), store32(ip + 16, to);
    uint16_t sum = (uint16_t)~internet_sum(ip, IP_BYTES, 0);
    memcpy(ip + 10, &sum, 2);
    store16(tcp, from_port), store16(tcp + 2, to_port);
    store32(tcp + 4, sequence), store32(tcp + 8, acknowledged);
    tcp[12] = (unsigned char)((TCP_BYTES + options) / 4 << 4), tcp[13] = flags;
    store16(tcp + 14, window);
    sum = (uint16_t)~internet_sum(tcp, tcp_bytes, pseudo_sum(ip, tcp_bytes));
    memcpy(tcp + 16, &sum, 2);
}

// Sends an acknowledgement with the next expected number and the window. The right edge never moves back.
RECEIVE_PATH static void acknowledge(struct socket *s, int is_syn) {
    unsigned char frame[ACKNOWLEDGEMENT_BYTES] = {0};
    uint32_t free = s->room > s->queued ? s->room - s->queued : 0;
    // The offered window is not reduced; round up where the scale rounds down, as in Linux.
    uint32_t held = s->edge - s->next, unit = s->scaled ? 1u << WINDOW_SCALE : 1;
    uint32_t offered = free & -unit, least = (held + unit - 1) & -unit;
    if (!is_syn && (int32_t)(offered - held) < 0) free = least;
    if (free > 65535u << (s->scaled ? WINDOW_SCALE : 0)) free = 65535u << (s->scaled ? WINDOW_SCALE : 0);
    uint32_t window = is_syn ? free < 65535 ? free : 65535 : s->scaled ? free >> WINDOW_SCALE : free;
    s->edge = s->next + (is_syn || !s->scaled ? window : window << WINDOW_SCALE);
    memcpy(frame, &s->peer_station, 6), memcpy(frame + 6, OUR_STATION, 6);
    size_t options = 0;
    if (is_syn) {
        unsigned char *at = frame + HEADER_BYTES;
        at[0] = 2, at[1] = 4, store16(at + 2, MSS);
        at[4] = 1, at[5] = 3, at[6] = 3, at[7] = WINDOW_SCALE;
        options = s->scaled ? 8 : 4;
    }
    fill_headers(frame, OUR_ADDRESS, s->peer_address, OUR_PORT, s->peer_port, s->sent, s->next, (uint8_t)(ACK | (is_syn ? SYN : 0)),
                 window, options, 0);
    s->unacknowledged = 0, s->push = 0;
    s->counters.acknowledgements++;
    s->send(frame, HEADER_BYTES + options);
}

// Whether the peer's SYN has a window scale option.
static inline int offers_scale(const unsigned char *option, const unsigned char *end) {
    while (option < end && *option != 0) {
        if (*option == 1) {
            option++;
            continue;
        }
        if (end - option < 2 || option[1] < 2 || option[1] > end - option) return 0;
        if (*option == 3) return 1;
        option += option[1];
    }
    return 0;
}

// Whether the frame is a valid TCP segment to us; sets the position of its data.
RECEIVE_PATH static int take_headers(struct socket *s, struct sk_buff *b) {
    const unsigned char *frame = b->buffer, *ip = frame + ETHERNET_BYTES;
    if (b->length < HEADER_BYTES || load16(frame + 12) != 0x0800 || memcmp(frame, OUR_STATION, 6) != 0) {
        s->counters.not_ours++;
        return 0;
    }
    size_t header = (size_t)(ip[0] & 15) * 4, total = load16(ip + 2);
    if (ip[0] >> 4 != 4 || header < IP_BYTES || total < header + TCP_BYTES || total > b->length - ETHERNET_BYTES ||
        (load16(ip + 6) & 0x3fff) != 0 || internet_sum(ip, header, 0) != 0xffff) {
        s->counters.bad_ip++;
        return 0;
    }
    const unsigned char *tcp = ip + header;
    size_t tcp_bytes = total - header, tcp_header = (size_t)(tcp[12] >> 4) * 4;
    if (ip[9] != 6 || load32(ip + 16) != OUR_ADDRESS || load16(tcp + 2) != OUR_PORT ||
        (s->state != LISTEN && (load32(ip + 12) != s->peer_address || load16(tcp) != s->peer_port))) {
        s->counters.not_ours++;
        return 0;
    }
    if (tcp_header < TCP_BYTES || tcp_header > tcp_bytes || (s->summed && internet_sum(tcp, tcp_bytes, pseudo_sum(ip, tcp_bytes)) != 0xffff)) {
        s->counters.bad_checksum++;
        return 0;
    }
    b->sequence = load32(tcp + 4), b->flags = tcp[13], b->taken = 0;
    b->data = b->buffer + (tcp - frame) + tcp_header;
    b->length = (uint32_t)(tcp_bytes - tcp_header);
    s->counters.segments++;
    if (s->state == LISTEN && (b->flags & (SYN | ACK | RST)) == SYN) {
        memcpy(&s->peer_station, frame + 6, 6);
        s->peer_address = load32(ip + 12), s->peer_port = load16(tcp);
        s->scaled = offers_scale(tcp + TCP_BYTES, tcp + tcp_header);
    }
    return 1;
}

// Appends data that are in order.
static inline void append(struct socket *s, struct sk_buff *b) {
    s->next += b->length + ((b->flags & FIN) != 0);
    s->finished |= (b->flags & FIN) != 0;
    s->push |= (b->flags & PSH) != 0;
    s->queued += b->length;
    if (!b->length) {
        s->release(b);
        return;
    }
    b->next = NULL;
    if (s->last) s->last->next = b;
    else s->first = b;
    s->last = b;
}

// Stores data after a gap, ordered by sequence number; drops duplicates.
RECEIVE_PATH static void keep_early(struct socket *s, struct sk_buff *b) {
    // Data after a gap mostly arrives in order, so search from the end, as in Linux.
    struct sk_buff **at = s->early && (int32_t)(b->sequence - s->latest->sequence) > 0 ? &s->latest->next : &s->early;
    while (*at && (int32_t)((*at)->sequence - b->sequence) < 0) at = &(*at)->next;
    if (*at && (*at)->sequence == b->sequence && (*at)->length >= b->length) {
        s->counters.duplicates++;
        s->release(b);
        return;
    }
    b->next = *at;
    *at = b;
    if (!b->next) s->latest = b;
}

// Removes data received before; returns 0 if nothing is left.
static inline int trim(struct socket *s, struct sk_buff *b) {
    uint32_t old = s->next - b->sequence;
    if ((int32_t)old <= 0) return 1;
    if (old >= b->length + ((b->flags & FIN) != 0)) return 0;
    if (old > b->length) old = b->length;
    b->data += old, b->sequence += old, b->length -= old;
    return 1;
}

// Segments with data or FIN of an open connection.
RECEIVE_PATH static void take_data(struct socket *s, struct sk_buff *b) {
    if (!trim(s, b)) {
        s->counters.duplicates++;
        s->release(b);
        acknowledge(s, 0);
        return;
    }
    if ((int32_t)(b->sequence + b->length - s->edge) > 0) {
        // A window probe, and anything beyond the window, is answered with an acknowledgement.
        s->counters.beyond_window++;
        s->release(b);
        acknowledge(s, 0);
        return;
    }
    if (b->sequence != s->next) {
        s->counters.out_of_order++;
        keep_early(s, b);
        acknowledge(s, 0);
        return;
    }
    int filled = s->early != NULL;
    append(s, b);
    while (s->early && (int32_t)(s->early->sequence - s->next) <= 0) {
        struct sk_buff *early = s->early;
        s->early = early->next;
        if (trim(s, early)) append(s, early);
        else s->release(early);
    }
    // Acknowledge at least every second segment, and immediately after a gap and at the end.
    if ((++s->unacknowledged >= 2 && !s->gathers) || filled || s->finished) acknowledge(s, 0);
}

// Processes a received frame, which is released or queued.
RECEIVE_PATH static void socket_receive(struct socket *s, struct sk_buff *b) {
    if (!take_headers(s, b)) {
        s->release(b);
        return;
    }
    if (b->flags & RST) {
        if (s->state != LISTEN && b->sequence == s->next) s->state = CLOSED;
        s->release(b);
        return;
    }
    if (b->flags & SYN) {
        int fresh = s->state == LISTEN && !(b->flags & ACK);
        if (fresh) s->state = SYN_RECEIVED, s->next = b->sequence + 1;
        if (fresh || (s->state == SYN_RECEIVED && b->sequence + 1 == s->next)) acknowledge(s, 1);
        else if (s->state == ESTABLISHED) acknowledge(s, 0);
        s->release(b);
        return;
    }
    const unsigned char *tcp = b->buffer + ETHERNET_BYTES + (size_t)(b->buffer[ETHERNET_BYTES] & 15) * 4;
    if (!(b->flags & ACK) || s->state == LISTEN || s->state == CLOSED || load32(tcp + 8) != s->sent + 1 - (s->state == ESTABLISHED)) {
        s->counters.bad_acknowledgements++;
        s->release(b);
        return;
    }
    if (s->state == SYN_RECEIVED) s->state = ESTABLISHED, s->sent++;
    if (b->length || b->flags & FIN) take_data(s, b);
    else s->release(b);
}

// Copies at most `bytes` from the queue to the application.
RECEIVE_PATH static size_t socket_read(struct socket *s, unsigned char *to, size_t bytes) {
    size_t copied = 0;
    while (s->first && copied < bytes) {
        struct sk_buff *b = s->first;
        size_t part = b->length - b->taken < bytes - copied ? b->length - b->taken : bytes - copied;
        copy_out(to + copied, b->data + b->taken, part);
        copied += part, b->taken += (uint32_t)part;
        if (b->taken == b->length) {
            s->first = b->next;
            if (!s->first) s->last = NULL;
            s->release(b);
        }
    }
    s->queued -= (uint32_t)copied;
    // The window has opened by two segments or half the buffer (RFC 9293 3.8.6.2.2), or all pushed data is taken.
    uint32_t opened = s->next + (s->room - s->queued) - s->edge;
    int wide = (int32_t)opened >= 2 * MSS || (int32_t)opened >= (int32_t)(s->room / 2);
    if (copied && !s->finished && (wide || (!s->queued && s->unacknowledged && s->push))) acknowledge(s, 0);
    return copied;
}

#endif
