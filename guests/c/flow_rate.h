// Chooses the part of a stream over which flow_receive.c measures its rate, and measures it.
// The steady-state rate is wanted. The amount buffered between wire and program is then constant, so the window begins and ends with the same
// amount, and as much arrives in between as is read. If the program is slower than the line, its buffer is full in steady state: if the
// buffered amount grows, the program stops reading until no more data arrives, and the window restarts.
// Costs are measured over the region of interest, which is everything simulated in detail.
#ifndef FLOW_RATE_H
#define FLOW_RATE_H

#include "flow_path.h"

// Bytes of a frame's headers and checksum; by how many bytes a window may be extended; 1 / GROWN_PART of the buffer counts as growth.
enum { AROUND_BYTES = HEADER_BYTES + 4, LATER_BYTES = 2000000, GROWN_PART = 8, NAP_US = 50, MOST_SAMPLES = 8 };
// The most time for a sample: two NIC register reads of less than a microsecond each.
#define SAMPLE_S 2.5e-6

struct sample {
    double at;
    uint64_t arrived, read;
};

// Progress of all streams with times. The reader that passes a threshold records it.
static struct {
    _Alignas(64) _Atomic uint64_t received;
    _Atomic uint64_t settled, end;         // stream bytes between which the rate is measured; the window may end later
    struct sample interest, first, last;   // at the start of the region of interest; at the start and end of the window
    uint64_t counted_of_interest;
    unsigned fills;
    atomic_int is_of_interest, is_counted, is_looking, is_over;
} all;

// Data in frames that a NIC has received completely but not yet delivered.
static inline uint64_t in_fifo(const struct nic *nic) {
    return (mac_read(&nic->mac, MAC_STATUS) >> MAC_STATUS_FIFO_SHIFT) * settings.segment / (settings.segment + AROUND_BYTES);
}

static inline uint64_t around(const struct nic *nic) { return mac_read(&nic->mac, MAC_COUNT_RX_GOOD) * AROUND_BYTES; }

// Data that the NICs have received from the wire. Clock and counters are read in such an order that no more is counted between two samples
// than arrived in the time between them, including a frame per NIC that was in progress at the first.
static struct sample sample_once(uint64_t read, int is_first, double *took) {
    struct sample s = {.read = read, .arrived = is_first ? settings.nics * settings.segment : 0};
    for (uint32_t i = 0; is_first && i < settings.nics; i++) s.arrived -= around(&nics[i]);
    double began = seconds();
    for (uint32_t i = 0; i < settings.nics; i++) {
        uint64_t held = is_first ? in_fifo(&nics[i]) : 0;
        s.arrived += mac_read(&nics[i].mac, MAC_COUNT_RX_BYTES) + held;
        if (!is_first) s.arrived += in_fifo(&nics[i]);
    }
    double ended = seconds();
    for (uint32_t i = 0; !is_first && i < settings.nics; i++) s.arrived -= around(&nics[i]);
    s.at = is_first ? began : ended, *took = ended - began;
    return s;
}

// A softirq on this core may run between clock and counters: keep the shortest sample.
static struct sample take_sample(uint64_t read, int is_first) {
    double least, took;
    struct sample best = sample_once(read, is_first, &least);
    for (int more = MOST_SAMPLES; more > 0 && least > SAMPLE_S * settings.nics; more--) {
        struct sample again = sample_once(read, is_first, &took);
        if (took < least) best = again, least = took;
    }
    return best;
}

// The increase of buffered data from `from` to `to`.
static inline int64_t growth(const struct sample *from, const struct sample *to) {
    return (int64_t)(to->arrived - from->arrived) - (int64_t)(to->read - from->read);
}

// Whether a stream's program is slower than the line, so that its buffer must be filled. Frames in the ring that wait for a slower softirq
// accumulate anyway and are no reason to stop reading.
static int fills(struct stream *stream, const struct sample *from, const struct sample *to) {
    int64_t grown = stream->room / GROWN_PART;
    if (all.fills || settings.all_streams > 1 || growth(from, to) < grown || stream->socket.queued < grown) return 0;
    all.fills++;
    const volatile uint32_t *next = &stream->socket.next;
    uint32_t before;
    do before = *next, usleep(NAP_US);
    while (*next != before);
    return 1;
}

static void settle_anew(uint64_t received) {
    uint64_t from = received + settings.settle;
    if (settings.end) atomic_store(&all.end, from + settings.end - settings.begin - settings.settle);
    atomic_store(&all.settled, from);
    atomic_store(&all.is_counted, 0);
}

static void begin_window(struct stream *stream, uint64_t received) {
    all.first = take_sample(received, 1);
    if (fills(stream, &all.interest, &all.first)) {
        settle_anew(received);
        return;
    }
    for (uint32_t i = 0; i < settings.all_streams; i++) streams[i].counted = streams[i].received;
}

// Whether the window may end here: as much is buffered as when it began, or that has not happened for long.
static int is_window_over(struct stream *stream, uint64_t received) {
    if (!take(&all.is_looking, READER)) return 0;
    struct sample now = take_sample(received, 0);
    int is_first = all.last.at == 0, ends = 0;
    if (is_first && fills(stream, &all.first, &now)) {
        settle_anew(received);
    } else {
        int64_t apart = llabs(growth(&all.first, &now));
        if (is_first || apart < llabs(growth(&all.first, &all.last))) all.last = now;
        // Equal to within one frame with its headers, because the counters include headers.
        ends = apart <= settings.segment + 4 * AROUND_BYTES || received >= atomic_load(&all.end) + LATER_BYTES;
    }
    atomic_store(&all.is_looking, NOBODY);
    return ends;
}

// Ends the region of interest, and the window if it has not ended before.
static void end_window(const struct sample *last) {
    if (all.last.at == 0) all.last = *last;
    for (uint32_t i = 0; i < settings.all_streams; i++) streams[i].counted = streams[i].received - streams[i].counted;
    all.counted_of_interest = (last->arrived - all.interest.arrived + last->read - all.interest.read) / 2;
}

static void print_rate(void) {
    uint64_t arrived = all.last.arrived - all.first.arrived, read = all.last.read - all.first.read;
    double took = all.last.at - all.first.at;
    // The steady-state rate is at most the arrival rate and at most the read rate.
    double sustained = (double)(arrived < read ? arrived : read);
    fprintf(stderr, "%.6f Gb/s\n%llu bytes arrived and %llu were read in %.0f ns\n", took > 0 ? sustained * 8e-9 / took : 0,
            (unsigned long long)arrived, (unsigned long long)read, took * 1e9);
    fprintf(stderr, "%llu bytes of interest, the mean of those that arrived and those that were read\n%u times the buffer was filled first\n",
            (unsigned long long)all.counted_of_interest, all.fills);
    for (uint32_t i = 0; settings.all_streams > 1 && i < settings.all_streams; i++)
        fprintf(stderr, "stream %u: %.3f Gb/s\n", i, took > 0 ? (double)streams[i].counted * 8e-9 / took : 0);
}

#endif
