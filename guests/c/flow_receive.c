// Receives TCP streams like a kernel: some cores handle the NIC's interrupts, others run the reading programs.
// Models the cores of flow and application: a thread per NIC queue does the work of interrupt, softirq, driver and protocol, and one
// per stream that of a program in recv(2). Between them is a socket with an owner and a backlog, as in Linux: a segment that arrives while the
// program owns the socket waits in the backlog, which the owner processes when it releases the socket. No timestamps.
// Arguments: one or two devices in /dev/longma, such as eth0. Options are numbers in environment variables. A list of cores is as 1,2,8; its
// last core is used for all further entries. With two devices, each has this many queues and flows; the first one's come first in lists:
//   flow      cores of interrupts and protocol, one per queue (0)      application  cores of the reading programs, one per stream (0)
//   flows     streams, from port 40000 on (1)               queues   of the NIC, selected by a hash (1)
//   ring      receive descriptors per queue (1024)          message  bytes per read of the application (131072)
//   room      bytes per receive buffer (3145728)            ways     of the shared cache for packets; 0: the machine's (0)
//   segment   bytes of the largest segment, which determines the buffer size (8960)
//   begin     bytes of all streams before the region of interest (0)    settle  bytes from there to the rate measurement (0)
//   bytes     total bytes to receive (0: to the streams' end)
//   key       seed of the queue hash's key and of the flow hash (1)
//   delay_ns, frames   interrupt moderation (0, 0)            budget   maximum frames per poll (64)
//   gro       1: merge consecutive segments of a stream in a poll, and acknowledge them together (0)
//   lro       1: the NIC merges consecutive segments into one frame of several buffers; needs moderation (0)
//   rps       cores for protocol processing, selected by the flow hash and notified by IPI (none: the interrupt's core)
//   rfs       1: protocol processing on the reading program's core (0)
//   send_queues   send rings for acknowledgements, selected by the flow hash (0: one per stream)
//   xps       1: select the sending core's ring instead (0)
//   busy_us   microseconds that a program polls for packets before it sleeps (0)
//   threaded  1: an ordinary thread, woken by interrupts, takes frames (0)     napi  cores of these threads (the flow's)
//   near      1: a queue's core touches its rings and buffers first, and a program its own, so that they are in their local memory;
//             0: the first program's core touches all of them first (0)
//   path      extra cycles per frame (a chain of dependent additions) for kernel work that is left out here,
//             spent by the socket's owner, once per merged group (0)             before   the same in the softirq, before the socket (0)
#include "flow_rate.h"
#include "flow_steer.h"

// The calling thread handles the device's interrupts with priority on its core; or interrupts of its core wake it like other threads.
enum { HANDLE_INTERRUPTS = 0x4c01, INTERRUPT_HERE = 0x4c02 };
static const uint64_t CAUSES = MAC_INTERRUPT_RX | MAC_INTERRUPT_RX_STARVED | MAC_INTERRUPT_RX_MISSED;

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

// The n-th core of a list, or the last one if it is shorter; `none` if there is no list.
static uint64_t core_or(const char *name, unsigned n, uint64_t none) {
    const char *text = getenv(name);
    if (!text || !*text) return none;
    for (;;) {
        char *end;
        uint64_t core = number(name, text, ',', &end, 0, MOST_CORES - 1);
        if (n-- == 0 || !*end) return core;
        text = end + 1;
    }
}

static uint64_t core_of(const char *name, unsigned n) { return core_or(name, n, 0); }

// --- Taking frames -----------------------------------------------------------------------------------------------------

static inline int is_empty(struct queue *q) { return (((volatile struct mac_descriptor *)q->ring)[q->next].status & MAC_STATUS_OWN) != 0; }

// Takes a buffer with a frame or a part of a large one; returns the frame once it is complete.
static struct sk_buff *gather(struct queue *q, struct sk_buff *b, uint32_t status) {
    b->length = status & MAC_STATUS_LENGTH, b->next = NULL, b->pieces = NULL;
    if ((status & (MAC_STATUS_FIRST | MAC_STATUS_LAST)) == (MAC_STATUS_FIRST | MAC_STATUS_LAST)) return b;
    if (status & MAC_STATUS_FIRST) {
        q->large = q->large_last = b, q->large_bytes = b->length;
        return NULL;
    }
    if (!q->large) {
        // Its first part is missing.
        release(b);
        return NULL;
    }
    // The last part has the descriptor of the whole frame.
    if (status & MAC_STATUS_LAST) b->length -= q->large_bytes;
    q->large_bytes += b->length;
    if (q->large_last == q->large) q->large->pieces = b;
    else q->large_last->next = b;
    q->large_last = b;
    if (!(status & MAC_STATUS_LAST)) return NULL;
    struct sk_buff *whole = q->large;
    whole->length = q->large_bytes, q->large = NULL;
    return whole;
}

// Drops a frame or part that is malformed or cannot be replaced with a new buffer, with the rest of its frame.
static void lose(struct queue *q) {
    if (q->large) release_all(q->large);
    q->large = NULL;
}

// Takes frames from the ring up to the budget; returns 1 if there may be more.
__attribute__((noinline)) static int poll_frames(struct queue *q) {
    q->polls++;
    for (uint32_t taken = 0; taken < settings.budget; taken++) {
        volatile struct mac_descriptor *at = &q->ring[q->next];
        uint32_t status = at->status;
        if (status & MAC_STATUS_OWN) return 0;
        mac_barrier();
        struct sk_buff *full = q->in_ring[q->next], *fresh = allocate_buff(q);
        q->frames++, q->run++;
        int sound = !(status & (MAC_STATUS_ERROR | MAC_STATUS_SUM_WRONG));
        q->errors += !sound;
        q->no_buffer += sound && !fresh;
        give(q, q->next, fresh ? fresh : full);
        q->next = q->next + 1 < settings.ring ? q->next + 1 : 0;
        if (!fresh || !sound) {
            if (fresh) release(full);
            lose(q);
            continue;
        }
        struct sk_buff *whole = gather(q, full, status);
        if (!whole) continue;
        other_work(settings.before);
        if (settings.gro) merge(q, whole);
        else hand_on(q, whole);
    }
    return 1;
}

static int poll_ring(struct queue *q) {
    int more = poll_frames(q);
    flush_held(q);
    if (q->raised) tell_cores(q);
    // After this many frames in a row, the ring may have been full, and a NIC with a paused link gets no further frame as a trigger.
    if (q->run >= settings.ring) mac_write(&q->mac, (unsigned)QUEUE_REGISTER(q->of_nic, RX_POLL), 1);
    if (!more) q->run = 0;
    return more;
}

// Takes available frames, then enables interrupts for new ones.
static void poll_all(struct queue *q) {
    do {
        while (poll_ring(q))
            if (settings.threaded) sched_yield();
        mac_write(&q->mac, (unsigned)QUEUE_REGISTER(q->of_nic, INTERRUPT), CAUSES);
        // Frames that came before the causes were cleared raise no interrupt.
    } while (!is_empty(q));
    mac_write(&q->mac, (unsigned)QUEUE_REGISTER(q->of_nic, ENABLE), CAUSES);
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
    here = core;
}

// Interrupt and softirq of a queue: interrupts are off while there are frames, as in NAPI.
static void *softirq(void *of) {
    struct queue *q = of;
    bind_to(q->core);
    if (ioctl(q->mac.file, settings.threaded ? INTERRUPT_HERE : HANDLE_INTERRUPTS)) perror("flow_receive: interrupts stay where they are");
    if (settings.threaded) bind_to(core_or("napi", q->number, q->core));
    mac_write(&q->mac, (unsigned)QUEUE_REGISTER(q->of_nic, ENABLE), CAUSES);
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        mac_wait(&q->mac, -1);
        q->interrupts++;
        // A reading program may have started busy polling.
        if (!take(&q->polled, SOFTIRQ)) continue;
        mac_write(&q->mac, (unsigned)QUEUE_REGISTER(q->of_nic, ENABLE), 0);
        poll_all(q);
        atomic_store_explicit(&q->polled, NOBODY, memory_order_release);
    }
    return NULL;
}

// A core that processes packets steered to it.
static void *steering(void *of) {
    struct steered *me = of;
    bind_to(me->core);
    if (ioctl(queues[0].mac.file, GO_FIRST)) perror("flow_receive: put-off work does not go first");
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        if (process_handed(me)) continue;
        atomic_store(&me->sleeps, 1);
        if (process_handed(me)) {
            atomic_store(&me->sleeps, 0);
            continue;
        }
        syscall(SYS_futex, &me->sleeps, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
    }
    return NULL;
}

// Nanoseconds from a clock that needs no system call.
static inline uint64_t clock_ns(void) {
#if defined(__loongarch__)
    uint64_t ticks;
    // The constant timer, of 100 MHz (CPUCFG words 4 and 5).
    __asm__ volatile("rdtime.d %0, $zero" : "=r"(ticks));
    return ticks * 10;
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
#endif
}

// Re-enables a queue's interrupts after busy polling.
static void end_quiet(struct queue *q) {
    if (!q->quiet) return;
    q->quiet = 0;
    poll_all(q);
}

// Polls for packets instead of the softirq, with interrupts off, until there is data to read (1) or its time is over (0, with
// interrupts on again). They stay off in between, as with SO_PREFER_BUSY_POLL and napi_defer_hard_irqs.
__attribute__((noinline)) static int busy_poll(struct stream *stream) {
    struct queue *q = atomic_load_explicit(&stream->queue, memory_order_relaxed);
    if (!q || !take(&q->polled, READER)) return 0;
    if (!q->quiet) mac_write(&q->mac, (unsigned)QUEUE_REGISTER(q->of_nic, ENABLE), 0);
    q->quiet = 1;
    const volatile uint32_t *queued = &stream->socket.queued;
    uint64_t until = clock_ns() + settings.busy_ns;
    int found = 0;
    do {
        q->busy_polls++;
        if (!is_empty(q)) poll_ring(q);
        found = *queued != 0 || *(volatile int *)&stream->socket.finished || atomic_load_explicit(&over, memory_order_relaxed);
    } while (!found && clock_ns() < until);
    if (!found) end_quiet(q);
    atomic_store_explicit(&q->polled, NOBODY, memory_order_release);
    return found;
}

// Takes the socket; waits for the softirq of another core. The softirq of its own core is done when it runs.
static void own(struct stream *stream) {
    while (!take(&stream->owner, READER))
        // A thread on this core may own it.
        if (settings.threaded) sched_yield();
}

static inline int is_ready(const struct socket *s) { return s->queued || s->finished || s->state == CLOSED; }

// recv(2): takes available data up to the message size; sleeps while there is none. 0 at the end.
static size_t receive(struct stream *stream) {
    struct socket *s = &stream->socket;
    syscall(SYS_getppid);
    for (;;) {
        own(stream);
        if (is_ready(s)) break;
        if (settings.busy_ns) {
            give_up(stream, READER);
            if (busy_poll(stream) && !atomic_load(&over)) continue;
            own(stream);
            if (is_ready(s)) break;
        }
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

// A stream's window is small until the region of interest begins: without timing, no core is slower than the line, and data queued by
// then would stay for long. After that it is as large as the buffer.
static void open_window(struct stream *stream) {
    own(stream);
    stream->socket.room = stream->room;
    if (stream->socket.state == ESTABLISHED) acknowledge(&stream->socket, 0);
    give_up(stream, READER);
    stream->is_open = 1;
}

// Exclude connection setup and the first windows.
static void note_begin(struct stream *stream, uint64_t received) {
    if (received >= settings.begin && streams[0].socket.state != LISTEN && !atomic_exchange(&all.is_of_interest, 1)) {
        all.interest = take_sample(received, 1);
        longma_roi_begin();
    }
    if (!atomic_load(&all.is_of_interest)) return;
    if (!stream->is_open) open_window(stream);
    if (received >= atomic_load(&all.settled) && !atomic_exchange(&all.is_counted, 1)) begin_window(stream, received);
}

// The first thread that is done ends the run.
static void note_end(void) {
    if (atomic_exchange(&over, 1)) return;
    struct sample last = take_sample(atomic_load(&all.received), 0);
    longma_roi_end();
    end_window(&last);
    // No other event wakes the other readers.
    for (uint32_t i = 0; i < settings.all_streams; i++)
        if (atomic_exchange(&streams[i].sleeps, 0)) wake_reader(&streams[i]);
    atomic_store(&all.is_over, 1);
}

static void *reader(void *of) {
    struct stream *stream = of;
    bind_to(stream->core);
    uint64_t received = 0;
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        note_begin(stream, received);
        size_t bytes = receive(stream);
        // The other streams continue when one ends, unless a byte count is given.
        if (!bytes) break;
        stream->received += bytes, stream->reads++;
        received = atomic_fetch_add(&all.received, bytes) + bytes;
        if (settings.end && atomic_load(&all.is_counted) && received >= atomic_load(&all.end) && is_window_over(stream, received)) note_end();
    }
    // The queue may carry other streams.
    struct queue *q = atomic_load_explicit(&stream->queue, memory_order_relaxed);
    if (q && !atomic_load(&over) && take(&q->polled, READER)) {
        end_quiet(q);
        atomic_store_explicit(&q->polled, NOBODY, memory_order_release);
    }
    if (settings.all_streams == 1 || settings.end) note_end();
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

// The device file of a queue other than its NIC's first one; it has the same registers.
static void open_queue(struct queue *q) {
    q->mac = q->nic->mac;
    if (!q->of_nic) return;
    char name[64];
    snprintf(name, sizeof name, "/dev/longma/%s.%u", q->nic->name, q->of_nic);
    q->mac.file = open(name, O_RDWR | O_CLOEXEC);
    if (q->mac.file < 0) no_device(name + sizeof "/dev/longma/" - 1);
}

static void set_up_queue(struct queue *q, uint64_t room) {
    // A queue may have to hold the data of all sockets of its NIC.
    uint64_t buffers = settings.ring + room / settings.segment * settings.streams + SPARE;
    unsigned char *data = zeroed(buffers * settings.buffer_bytes);
    open_queue(q);
    q->ring = zeroed(settings.ring * sizeof *q->ring);
    q->buffs = zeroed(buffers * sizeof *q->buffs), q->metadata = zeroed(buffers * METADATA_BYTES);
    for (uint64_t i = buffers; i-- > 0;) {
        q->buffs[i].buffer = data + i * settings.buffer_bytes + 2;
        q->buffs[i].queue = (uint8_t)q->number;
        release(&q->buffs[i]);
    }
    for (uint32_t i = 0; i < settings.ring; i++) give(q, i, allocate_buff(q));
    mac_write(&q->mac, (unsigned)QUEUE_REGISTER(q->of_nic, RX_BASE), (uint64_t)(uintptr_t)q->ring);
    mac_write(&q->mac, (unsigned)QUEUE_REGISTER(q->of_nic, RX_COUNT), settings.ring);
    mac_write(&q->mac, (unsigned)QUEUE_REGISTER(q->of_nic, RX_DELAY), setting("delay_ns", 0, 0, 1000000000));
    mac_write(&q->mac, (unsigned)QUEUE_REGISTER(q->of_nic, RX_FRAMES), setting("frames", 0, 0, 65535));
}

static void set_up_sender(struct nic *nic, unsigned n) {
    struct sender *sender = &nic->senders[n];
    sender->nic = nic, sender->number = n;
    sender->ring = zeroed(SEND_RING * sizeof *sender->ring), sender->buffers = zeroed(SEND_RING * 64);
    mac_write(&nic->mac, (unsigned)QUEUE_REGISTER(n, TX_BASE), (uint64_t)(uintptr_t)sender->ring);
    mac_write(&nic->mac, (unsigned)QUEUE_REGISTER(n, TX_COUNT), SEND_RING);
}

static void set_up_stream(struct stream *stream, struct nic *nic, unsigned of_nic, uint64_t room) {
    struct socket *s = &stream->socket;
    // The NIC has checked the TCP checksums.
    stream->room = (uint32_t)room;
    s->room = small_room(stream->room), s->summed = 0, s->sent = 7000, s->send = nic == nics ? send_first : send_second, s->release = release;
    stream->core = core_of("application", (unsigned)(stream - streams));
    if (settings.near) bind_to(stream->core);
    stream->message = zeroed(settings.message_bytes);
    stream->nic = nic, stream->sender = &nic->senders[of_nic];
}

// Fills the indirection table round robin and draws a random key, as Linux does at boot (netdev_rss_key_fill).
static void spread(struct mac *mac) {
    uint64_t seed = settings.key;
    for (unsigned word = 0; word < 5; word++) mac_write(mac, MAC_KEY(word) + MAC_KEY_WORD, random_next(&seed));
    for (unsigned word = 0; word < 16; word++) {
        unsigned char entries[8];
        for (unsigned at = 0; at < 8; at++) entries[at] = (unsigned char)((word * 8 + at) % settings.queues);
        uint64_t bytes;
        memcpy(&bytes, entries, 8);
        mac_write(mac, MAC_TABLE(word) + MAC_TABLE_WORD, bytes);
    }
}

static void open_nic(struct nic *nic, const char *device) {
    struct mac *mac = &nic->mac;
    unsigned number = (unsigned)(nic - nics);
    nic->name = device;
    if (mac_open(mac, device)) no_device(device);
    uint64_t has = mac_read(mac, MAC_QUEUES), room = setting("room", 3145728, MSS, 1u << 29);
    if (settings.queues > has || settings.streams > has || settings.send_queues > has) {
        fprintf(stderr, "flow_receive: %s has %llu queues: give no more queues nor flows\n", device, (unsigned long long)has);
        exit(1);
    }
    uint64_t address = 0;
    memcpy(&address, OUR_STATION, 6);
    mac_write(mac, MAC_ADDRESS, address);
    mac_write(mac, MAC_DCA, 1 | 1 << MAC_DCA_HEADER_SHIFT | 1 << MAC_DCA_DESCRIPTOR_SHIFT | setting("ways", 0, 0, 64) << MAC_DCA_WAYS_SHIFT);
    for (uint32_t i = 0; i < settings.queues; i++) {
        struct queue *q = &queues[number * settings.queues + i];
        q->number = (unsigned)(q - queues), q->of_nic = i, q->nic = nic, q->core = core_of("flow", q->number);
        // Drivers fill rings on the polling core.
        if (settings.near) bind_to(q->core);
        set_up_queue(q, room);
    }
    uint32_t senders = settings.send_queues ? settings.send_queues : settings.streams;
    for (uint32_t i = 0; i < senders; i++) set_up_sender(nic, i);
    for (uint32_t i = 0; i < settings.streams; i++) set_up_stream(&streams[number * settings.streams + i], nic, i, room);
    if (settings.queues > 1) spread(mac);
    mac_write(mac, MAC_CONTROL,
              MAC_CONTROL_RX_ENABLE | MAC_CONTROL_TX_ENABLE | MAC_CONTROL_RX_SUMS | (settings.queues > 1 ? MAC_CONTROL_SPREAD : 0) |
                  (settings.lro ? MAC_CONTROL_LRO : 0));
}

// The entry of a core that receives steered segments.
static struct steered *steered_at(uint64_t core) {
    for (uint32_t i = 0; i < steered_cores; i++)
        if (steered[i].core == core) return &steered[i];
    if (steered_cores == MOST_STEERED) {
        fprintf(stderr, "flow_receive: packets are steered to more than %d cores: give fewer\n", MOST_STEERED);
        exit(2);
    }
    struct steered *fresh = &steered[steered_cores++];
    fresh->core = core, fresh->from = zeroed(settings.all_queues * sizeof *fresh->from);
    return fresh;
}

static void set_up_steering(void) {
    const char *list = getenv("rps");
    for (unsigned n = 0, last = 1; list && *list; n++) {
        // The last core of a list applies to all further entries.
        for (const char *c = list; *c; c++) last += n == 0 && *c == ',';
        if (n == last) break;
        steered_at(core_of("rps", n));
    }
    steering_cores = steered_cores;
    for (uint32_t i = 0; settings.rfs && i < settings.all_streams; i++) streams[i].reader_core = steered_at(streams[i].core);
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
             out_of_order = 0;
    uint64_t lost = 0;
    uint64_t starved = 0, merged = 0, pauses = 0;
    for (uint32_t i = 0; i < settings.nics; i++) {
        struct mac *mac = &nics[i].mac;
        lost += mac_read(mac, MAC_COUNT_RX_MISSED), starved += mac_read(mac, MAC_COUNT_RX_STARVED);
        merged += mac_read(mac, MAC_COUNT_RX_MERGED), pauses += mac_read(mac, MAC_COUNT_TX_PAUSE);
    }
    for (uint32_t i = 0; i < settings.all_queues; i++) {
        interrupts += queues[i].interrupts, polls += queues[i].polls, frames += queues[i].frames, no_buffer += queues[i].no_buffer;
    }
    for (uint32_t i = 0; i < settings.all_streams; i++) {
        struct stream *stream = &streams[i];
        reads += stream->reads, sleeps += stream->reader_sleeps, wakes += stream->wakes, no_room += stream->no_send_room;
        acknowledgements += stream->socket.counters.acknowledgements, out_of_order += stream->socket.counters.out_of_order;
    }
    print_rate();
    fprintf(stderr, "%llu interrupts, %llu polls, %llu frames, %llu reads, %llu sleeps, %llu wake-ups, %llu acknowledgements\n",
            (unsigned long long)interrupts, (unsigned long long)polls, (unsigned long long)frames, (unsigned long long)reads,
            (unsigned long long)sleeps, (unsigned long long)wakes, (unsigned long long)acknowledgements);
    fprintf(stderr, "lost: %llu without a buffer, %llu without room to send, %llu out of order, %llu in the NIC\n", (unsigned long long)no_buffer,
            (unsigned long long)no_room, (unsigned long long)out_of_order,
            (unsigned long long)lost);
    uint64_t segments = 0, told = 0, dropped = 0, busy = 0, taken_over = 0;
    for (uint32_t i = 0; i < steered_cores; i++) segments += steered[i].segments, told += steered[i].told, dropped += steered[i].dropped;
    for (uint32_t i = 0; i < settings.all_queues; i++) busy += queues[i].busy_polls;
    for (uint32_t i = 0; i < settings.nics * MOST_OF_NIC; i++) taken_over += nics[i / MOST_OF_NIC].senders[i % MOST_OF_NIC].taken_over;
    fprintf(stderr, "the NIC: %llu times without a descriptor, %llu segments merged, %llu pauses begun or ended\n", (unsigned long long)starved,
            (unsigned long long)merged, (unsigned long long)pauses);
    fprintf(stderr, "handed on: %llu to other cores, %llu cores told, %llu dropped; %llu looks by programs that read, %llu send rings taken over\n",
            (unsigned long long)segments, (unsigned long long)told, (unsigned long long)dropped, (unsigned long long)busy,
            (unsigned long long)taken_over);
    printf("flow_receive: %llu bytes\n", (unsigned long long)atomic_load(&all.received));
}

static void read_settings(void) {
    settings.queues = (uint32_t)setting("queues", 1, 1, MOST_OF_NIC), settings.streams = (uint32_t)setting("flows", 1, 1, MOST_OF_NIC);
    settings.all_queues = settings.queues * settings.nics, settings.all_streams = settings.streams * settings.nics;
    settings.ring = (uint32_t)setting("ring", 1024, 2, MOST_RING), settings.budget = (uint32_t)setting("budget", 64, 1, MOST_RING);
    settings.segment = (uint32_t)setting("segment", MSS, 536, MSS);
    // Headers, alignment, and rounding up, as in allocators.
    settings.buffer_bytes = (settings.segment + HEADER_BYTES + 64 + BUFFER_UNIT - 1) / BUFFER_UNIT * BUFFER_UNIT;
    settings.gro = (uint32_t)setting("gro", 0, 0, 1), settings.lro = (uint32_t)setting("lro", 0, 0, 1);
    settings.rfs = (uint32_t)setting("rfs", 0, 0, 1), settings.threaded = (uint32_t)setting("threaded", 0, 0, 1);
    settings.send_queues = (uint32_t)setting("send_queues", 0, 0, MOST_OF_NIC), settings.xps = (uint32_t)setting("xps", 0, 0, 1);
    settings.near = (uint32_t)setting("near", 0, 0, 1);
    settings.busy_ns = setting("busy_us", 0, 0, 1000000) * 1000;
    settings.key = setting("key", 1, 0, UINT64_MAX);
    settings.before = setting("before", 0, 0, 1u << 20);
    settings.path = setting("path", 0, 0, 1u << 20), settings.message_bytes = setting("message", 131072, 1, 1u << 24);
    settings.begin = setting("begin", 0, 0, 1u << 30), settings.end = setting("bytes", 0, 0, 1u << 30);
    settings.settle = setting("settle", 0, 0, 1u << 30);
    all.settled = settings.begin + settings.settle, all.end = settings.end;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        printf("flow_receive: name a device, such as eth0\n");
        return 0;
    }
    if (argc > 1 + MOST_NICS) {
        fprintf(stderr, "flow_receive: name no more than %d devices\n", MOST_NICS);
        return 2;
    }
    settings.nics = (uint32_t)argc - 1;
    read_settings();
    // The first reader is the main thread; bind it before anything runs.
    bind_to(core_of("application", 0));
    for (uint32_t i = 0; i < settings.nics; i++) open_nic(&nics[i], argv[1 + i]);
    bind_to(core_of("application", 0));
    set_up_steering();
    for (uint32_t i = 0; i < steered_cores; i++) begin(steering, &steered[i]);
    for (uint32_t i = 0; i < settings.all_queues; i++) begin(softirq, &queues[i]);
    for (uint32_t i = 1; i < settings.all_streams; i++) begin(reader, &streams[i]);
    reader(&streams[0]);
    // The thread that ended the run has recorded all results; others may still be working.
    while (!atomic_load(&all.is_over)) sched_yield();
    print_results();
    // The softirq threads sleep in reads and end with the process.
    return 0;
}
