// A MAC and a sender in software, to run the receive path without a device.
// Has no timing. Loses, damages, duplicates, delays and malforms frames pseudorandomly.
// Source: the MAC's rings in docs/src/reference/devices.md. The sender goes back to the oldest segment after any irregularity.
#ifndef TCP_WIRE_H
#define TCP_WIRE_H

#include "../include/mac.h"
#include "tcp_socket.h"

enum { WIRE_FRAME = 1518, PEER_ADDRESS = 0x0a000001, PEER_PORT = 40000, FIRST_SEQUENCE = (int)0xfffff000 };

static struct {
    uint64_t registers[0x1000 / 8];
    uint64_t total, oldest, next, window, seed, quiet;
    uint32_t rx, tx, peer_next;
    int opened, closed, duplicates;
    unsigned char held[WIRE_FRAME];
    size_t held_bytes;
} wire;

// Byte `offset` of the stream, the same as the modelled sender's.
static inline unsigned char stream_byte(uint64_t offset) { return (unsigned char)(offset * 0x9e3779b97f4a7c15u >> 56); }

// Adds a frame to the receive ring, or drops it if the ring is full.
static void wire_put(const unsigned char *frame, size_t bytes) {
    volatile struct mac_descriptor *ring = (volatile struct mac_descriptor *)(uintptr_t)wire.registers[MAC_RX_BASE / 8];
    volatile struct mac_descriptor *at = &ring[wire.rx];
    if (!(at->status & MAC_STATUS_OWN)) {
        wire.registers[MAC_COUNT_RX_STARVED / 8]++;
        return;
    }
    wire.rx = (wire.rx + 1) % (uint32_t)wire.registers[MAC_RX_COUNT / 8];
    if ((at->control & 0xffff) < bytes) {
        wire.registers[MAC_COUNT_RX_BAD_DESCRIPTOR / 8]++;
        at->status = MAC_STATUS_ERROR | MAC_STATUS_FIRST | MAC_STATUS_LAST;
        return;
    }
    memcpy((void *)(uintptr_t)at->address, frame, bytes);
    at->status = MAC_STATUS_FIRST | MAC_STATUS_LAST | (uint32_t)bytes;
}

// Disturbs a frame. The frame check sequence does not detect the damage; TCP must.
static void wire_send(unsigned char *frame, size_t bytes) {
    uint64_t luck = random_next(&wire.seed) % 64;
    if (luck == 0) return;
    if (luck == 1) frame[ETHERNET_BYTES + random_next(&wire.seed) % (bytes - ETHERNET_BYTES)] ^= 0x10;
    if (luck == 2) store16(frame + 16, 3000);
    if (luck == 3) frame[14] = 0x65;
    if (luck == 4) frame[37]++;
    if (luck == 5) bytes = 30;
    if (luck == 6 && !wire.held_bytes) {
        memcpy(wire.held, frame, bytes);
        wire.held_bytes = bytes;
        return;
    }
    wire_put(frame, bytes);
    if (luck == 7) wire_put(frame, bytes);
    if (wire.held_bytes && luck > 40) {
        wire_put(wire.held, wire.held_bytes);
        wire.held_bytes = 0;
    }
}

static void wire_segment(uint32_t sequence, uint8_t flags, uint64_t offset, size_t bytes) {
    unsigned char frame[WIRE_FRAME] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1};
    for (size_t i = 0; i < bytes; i++) frame[HEADER_BYTES + i] = stream_byte(offset + i);
    fill_headers(frame, PEER_ADDRESS, OUR_ADDRESS, PEER_PORT, OUR_PORT, sequence, wire.peer_next, flags, 65535, 0, bytes);
    size_t whole = HEADER_BYTES + bytes;
    wire_send(frame, whole < 60 ? 60 : whole);
}

static uint32_t wire_sequence(uint64_t offset) { return (uint32_t)FIRST_SEQUENCE + 1 + (uint32_t)offset; }

// Processes an answer of the receiver.
static void wire_take(const unsigned char *frame) {
    const unsigned char *tcp = frame + ETHERNET_BYTES + IP_BYTES;
    uint64_t window = load16(tcp + 14);
    if (!wire.opened) {
        wire.opened = (tcp[13] & SYN) != 0;
        wire.peer_next = load32(tcp + 4) + 1;
        wire.window = window;
        wire_segment(wire_sequence(0), ACK, 0, 0);
        return;
    }
    uint32_t ahead = load32(tcp + 8) - wire_sequence(wire.oldest);
    if ((int32_t)ahead < 0) return;
    wire.duplicates = ahead ? 0 : wire.duplicates + 1;
    wire.oldest += ahead, wire.window = window;
    if (wire.next < wire.oldest) wire.next = wire.oldest;
    if (wire.duplicates >= 3) wire.next = wire.oldest, wire.duplicates = 0;
    if (wire.oldest > wire.total) wire.closed = 1;
}

// Runs the sender until the receiver has work.
static int wire_step(int impatient) {
    volatile struct mac_descriptor *ring = (volatile struct mac_descriptor *)(uintptr_t)wire.registers[MAC_TX_BASE / 8];
    while (ring[wire.tx].status & MAC_STATUS_OWN) {
        wire_take((const unsigned char *)(uintptr_t)ring[wire.tx].address);
        ring[wire.tx].status = 0;
        wire.tx = (wire.tx + 1) % (uint32_t)wire.registers[MAC_TX_COUNT / 8];
    }
    if (wire.closed || (impatient && wire.quiet++ % 4)) return 0;
    uint32_t before = wire.rx;
    if (!wire.opened) wire_segment((uint32_t)FIRST_SEQUENCE, SYN, 0, 0);
    else if (wire.next > wire.oldest && before == wire.rx && wire.quiet++ % 8 == 7) wire.next = wire.oldest;
    for (int burst = 0; wire.opened && burst < 8 && wire.next <= wire.total; burst++) {
        uint64_t left = wire.total - wire.next, flight = wire.next - wire.oldest;
        uint64_t bytes = left < MSS ? left : MSS;
        if (flight + bytes > wire.window && wire.window) break;
        if (!wire.window) bytes = left ? 1 : 0;
        wire_segment(wire_sequence(wire.next), (uint8_t)(ACK | (left ? PSH : FIN)), wire.next, bytes);
        wire.next += left ? bytes : 1;
        if (!wire.window) break;
    }
    return wire.rx != before;
}

// Handles a register access or a wait.
static uint64_t wire_access(unsigned offset, int is_write, uint64_t value) {
    if (offset == ~0u) {
        for (int turns = 0; turns < 64; turns++)
            if (wire_step((int)value >= 0)) return 1;
        return 0;
    }
    if (is_write) wire.registers[offset / 8] = value;
    return is_write ? 0 : wire.registers[offset / 8];
}

#endif
