// Messages, tagged messages, remote memory and atomics between two processes: `transfers CASE`.

#include "side.h"

static const size_t sizes[] = {0, 1, 8, 36, 48, 100, 4096, 8000, 8087, 8088, 8192, 20000, 65536, 1000000, 5000000};
#define SIZES (sizeof sizes / sizeof *sizes)
#define MAX 5000000

static void fill(unsigned char *bytes, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++) bytes[i] = (unsigned char)(seed + i * 7 + (i >> 8));
}

static void check(const unsigned char *bytes, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != (unsigned char)(seed + i * 7 + (i >> 8))) FAIL("byte %zu of %zu is wrong", i, length);
}

static unsigned char *buffer(void) {
    unsigned char *bytes = malloc(MAX);
    CHECK(bytes);
    memset(bytes, 0xee, MAX);
    return bytes;
}

static void start(struct side *side) {
    open_side(side, ask(FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_SOURCE | FI_MULTI_RECV, 0, FI_FORMAT_UNSPEC));
    introduce(side);
}

static void messages(struct side *side) {
    start(side);
    unsigned char *out = buffer(), *in = buffer();
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < SIZES; i++) {
            struct fi_cq_tagged_entry entry;
            size_t length = sizes[i];
            if (side->is_first) {
                fill(out, length, i);
                POSTED(side, fi_senddata(side->ep, out, length, NULL, 77 + i, side->peer, out));
                entry = completion(side);
                CHECK(entry.op_context == out && entry.flags == (FI_SEND | FI_MSG));
            } else {
                // In the second round the message has arrived before it is expected.
                if (round == 1) usleep(2000);
                POSTED(side, fi_recv(side->ep, in, MAX, NULL, FI_ADDR_UNSPEC, in));
                // In the third round it sleeps until the message arrives.
                if (round == 2) CHECK(fi_cq_sread(side->cq, &entry, 1, NULL, 20000) == 1);
                else entry = completion(side);
                CHECK(entry.op_context == in && entry.flags == (FI_RECV | FI_MSG | FI_REMOTE_CQ_DATA));
                CHECK(entry.len == length && entry.data == 77 + i && entry.buf == in);
                check(in, length, i);
            }
        }
    // Segments: three here, two there.
    struct iovec parts[3] = {{out, 10}, {out + 10, 30000}, {out + 30010, 5}}, places[2] = {{in, 7}, {in + 7, 40000}};
    if (side->is_first) {
        fill(out, 30015, 3);
        POSTED(side, fi_sendv(side->ep, parts, NULL, 3, side->peer, NULL));
        parts[1].iov_len = 20;
        parts[2].iov_base = out + 30;
        POSTED(side, fi_sendv(side->ep, parts, NULL, 3, side->peer, NULL));
        completion(side), completion(side);
    } else {
        POSTED(side, fi_recvv(side->ep, places, NULL, 2, FI_ADDR_UNSPEC, NULL));
        CHECK(completion(side).len == 30015);
        check(in, 30015, 3);
        POSTED(side, fi_recvv(side->ep, places, NULL, 2, FI_ADDR_UNSPEC, NULL));
        CHECK(completion(side).len == 35);
        check(in, 35, 3);
    }
    meet(side);
    // An acknowledged message is complete only when a receive has it.
    struct fi_msg message = {.msg_iov = parts, .iov_count = 1, .addr = side->peer};
    if (side->is_first) {
        struct fi_cq_tagged_entry entry;
        POSTED(side, fi_sendmsg(side->ep, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION));
        for (double begin = now(); now() - begin < 0.1;) CHECK(fi_cq_read(side->cq, &entry, 1) == -FI_EAGAIN);
        meet(side);
        completion(side);
    } else {
        meet(side);
        POSTED(side, fi_recv(side->ep, in, MAX, NULL, side->peer, NULL));
        completion(side);
    }
    // Longer than the receive: an error there with the bytes that did not fit, none here.
    for (size_t length = 100; length < 200000; length *= 40) {
        if (side->is_first) {
            fill(out, length, 5);
            POSTED(side, fi_send(side->ep, out, length, NULL, side->peer, NULL));
            completion(side);
        } else {
            memset(in, 0xee, 100);
            POSTED(side, fi_recv(side->ep, in, 60, NULL, FI_ADDR_UNSPEC, in));
            struct fi_cq_err_entry error = failure(side);
            CHECK(error.err == FI_ETRUNC && error.len == 60 && error.olen == length - 60 && error.op_context == in);
            check(in, 60, 5);
            CHECK(in[60] == 0xee);
        }
        meet(side);
    }
    close_side(side);
}

// Many messages in flight both ways, with injected ones; more than there are credits and slots.
static void floods(struct side *side) {
    enum { COUNT = 5000 };
    start(side);
    static unsigned char out[COUNT][64], in[COUNT][64];
    int sent = 0, received = 0, expected = 0;
    for (int i = 0; i < COUNT; i++) {
        fill(out[i], 64, i);
        POSTED(side, fi_recv(side->ep, in[i], 64, NULL, FI_ADDR_UNSPEC, in[i]));
    }
    for (int i = 0; i < COUNT; i++) {
        if (i % 3 == 0) {
            unsigned char copy[64];
            memcpy(copy, out[i], 64);
            POSTED(side, fi_inject(side->ep, copy, 64, side->peer));
            memset(copy, 0, 64);
        } else {
            POSTED(side, fi_send(side->ep, out[i], 64, NULL, side->peer, NULL));
            expected++;
        }
    }
    while (sent < expected || received < COUNT) {
        struct fi_cq_tagged_entry entry = completion(side);
        if (entry.flags & FI_SEND) sent++;
        else CHECK(entry.op_context == in[received]), check(in[received], 64, received), received++;
    }
    meet(side);
    close_side(side);
}

static void tags(struct side *side) {
    enum { COUNT = 3000 };
    start(side);
    unsigned char *out = buffer(), *in = buffer();
    // More unexpected messages than there are slots, received in the reverse order.
    if (side->is_first) {
        for (unsigned i = 0; i < COUNT; i++) {
            fill(out, 200, i);
            POSTED(side, fi_tinject(side->ep, out, 200, side->peer, i));
        }
        meet(side);
    } else {
        for (unsigned i = COUNT; i-- > 0;) {
            POSTED(side, fi_trecv(side->ep, in, MAX, NULL, side->peer, i, 0, NULL));
            struct fi_cq_tagged_entry entry = completion(side);
            CHECK(entry.tag == i && entry.len == 200 && entry.flags == (FI_RECV | FI_TAGGED));
            check(in, 200, i);
        }
        meet(side);
    }
    // Ignored bits; a receive for another source or tag stays.
    if (side->is_first) {
        POSTED(side, fi_tsenddata(side->ep, "a", 1, NULL, 5, side->peer, 0x1234, NULL));
        POSTED(side, fi_tsend(side->ep, "b", 1, NULL, side->peer, 0x9900, NULL));
        completion(side), completion(side);
        meet(side);
    } else {
        fi_addr_t source;
        struct fi_cq_tagged_entry entry;
        POSTED(side, fi_trecv(side->ep, in, 1, NULL, FI_ADDR_UNSPEC, 0x5600, 0xff, in));
        POSTED(side, fi_trecv(side->ep, in + 1, 1, NULL, FI_ADDR_UNSPEC, 0x1200, 0xff, in + 1));
        ssize_t result;
        while ((result = fi_cq_readfrom(side->cq, &entry, 1, &source)) == -FI_EAGAIN) continue;
        CHECK(result == 1 && entry.op_context == in + 1 && entry.tag == 0x1234 && entry.data == 5 && source == side->peer && in[1] == 'a');
        POSTED(side, fi_trecv(side->ep, in + 2, 1, NULL, FI_ADDR_UNSPEC, 0, ~0ull, in + 2));
        CHECK(completion(side).op_context == in + 2 && in[2] == 'b');
        OK(fi_cancel(&side->ep->fid, in));
        struct fi_cq_err_entry error = failure(side);
        CHECK(error.err == FI_ECANCELED && error.op_context == in);
        REFUSED(FI_ENOENT, fi_cancel(&side->ep->fid, in));
        meet(side);
    }
    // Peek, claim, discard, with a short and a long message.
    for (size_t length = 10; length < 200000; length *= 10000) {
        if (side->is_first) {
            fill(out, length, 1);
            POSTED(side, fi_tsend(side->ep, out, length, NULL, side->peer, 1, NULL));
            POSTED(side, fi_tsend(side->ep, out, length, NULL, side->peer, 2, NULL));
            completion(side), completion(side);
        } else {
            struct fi_context context;
            struct iovec place = {in, MAX};
            struct fi_msg_tagged message = {.msg_iov = &place, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 9, .context = &context};
            OK(fi_trecvmsg(side->ep, &message, FI_PEEK));
            CHECK(failure(side).err == FI_ENOMSG);
            message.tag = 1;
            struct fi_cq_tagged_entry entry;
            for (double begin = now();;) {
                OK(fi_trecvmsg(side->ep, &message, FI_PEEK | FI_CLAIM));
                ssize_t result = fi_cq_read(side->cq, &entry, 1);
                if (result == 1) break;
                struct fi_cq_err_entry error = {0};
                CHECK(result == -FI_EAVAIL && fi_cq_readerr(side->cq, &error, 0) == 1 && error.err == FI_ENOMSG && now() - begin < 20);
            }
            CHECK(entry.len == length && entry.tag == 1 && entry.op_context == &context);
            OK(fi_trecvmsg(side->ep, &message, FI_CLAIM));
            CHECK(completion(side).len == length);
            check(in, length, 1);
            message.tag = 2;
            for (double begin = now();;) {
                OK(fi_trecvmsg(side->ep, &message, FI_PEEK | FI_DISCARD));
                ssize_t result = fi_cq_read(side->cq, &entry, 1);
                if (result == 1) break;
                struct fi_cq_err_entry error = {0};
                CHECK(result == -FI_EAVAIL && fi_cq_readerr(side->cq, &error, 0) == 1 && error.err == FI_ENOMSG && now() - begin < 20);
            }
        }
        meet(side);
    }
    close_side(side);
}

// Long messages without a receive do not block a short one that is sent after them.
static void passing(struct side *side) {
    enum { COUNT = 300, BYTES = 20000 };
    start(side);
    unsigned char *out = buffer(), *in = buffer();
    if (side->is_first) {
        for (unsigned i = 0; i < COUNT; i++) {
            fill(out + i * 100, 100, i);
            POSTED(side, fi_tsend(side->ep, out + i * 100, BYTES, NULL, side->peer, i, NULL));
        }
        POSTED(side, fi_tsend(side->ep, "short", 5, NULL, side->peer, COUNT, NULL));
        for (unsigned i = 0; i <= COUNT; i++) completion(side);
    } else {
        for (unsigned i = COUNT + 1; i-- > 0;) {
            POSTED(side, fi_trecv(side->ep, in, BYTES, NULL, side->peer, i, 0, NULL));
            CHECK(completion(side).len == (i == COUNT ? 5 : BYTES));
            if (i == COUNT) CHECK(!memcmp(in, "short", 5));
            else check(in, 100, i);
        }
    }
    meet(side);
    close_side(side);
}

// One buffer for several messages.
static void multiple(struct side *side) {
    start(side);
    unsigned char *out = buffer(), *in = buffer();
    size_t minimum = 500, length = sizeof minimum;
    OK(fi_setopt(&side->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &minimum, length));
    if (side->is_first) {
        meet(side);
        for (unsigned i = 0; i < 100; i++) {
            fill(out, 300, i);
            POSTED(side, fi_inject(side->ep, out, 300, side->peer));
        }
        meet(side);
    } else {
        struct iovec place = {in, 2000};
        struct fi_msg message = {.msg_iov = &place, .iov_count = 1, .addr = FI_ADDR_UNSPEC};
        OK(fi_recvmsg(side->ep, &message, FI_MULTI_RECV));
        meet(side);
        size_t used = 0;
        for (unsigned i = 0; i < 100; i++) {
            struct fi_cq_tagged_entry entry = completion(side);
            CHECK(entry.len == 300 && entry.buf == in + used);
            check(entry.buf, 300, i);
            used += 300;
            CHECK(!(entry.flags & FI_MULTI_RECV) == (2000 - used >= minimum));
            if (entry.flags & FI_MULTI_RECV) {
                used = 0;
                OK(fi_recvmsg(side->ep, &message, FI_MULTI_RECV));
            }
        }
        meet(side);
    }
    close_side(side);
}

static void memory(struct side *side, int mr_mode) {
    open_side(side, ask(FI_MSG | FI_RMA | FI_ATOMIC, mr_mode, FI_FORMAT_UNSPEC));
    introduce(side);
    unsigned char *out = buffer(), *region = buffer(), *read_only = buffer();
    struct fid_mr *mr, *readable;
    OK(fi_mr_reg(side->domain, region, MAX, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 11, 0, &mr, NULL));
    OK(fi_mr_reg(side->domain, read_only, MAX, FI_REMOTE_READ, 0, 12, 0, &readable, NULL));
    struct {
        uint64_t key, base, readable_key, readable_base;
    } there, here = {fi_mr_key(mr), 0, fi_mr_key(readable), 0};
    if (mr_mode == FI_MR_BASIC) here.base = (uintptr_t)region, here.readable_base = (uintptr_t)read_only;
    else CHECK(here.key == 11 && here.readable_key == 12);
    fill(read_only, MAX, 9);
    say(side, &here, sizeof here);
    hear(side, &there, sizeof there);
    uint64_t counted = 0;
    for (size_t i = 0; i < SIZES; i++) {
        size_t length = sizes[i], at = i * 3;
        if (length + at > MAX) length = MAX - at;
        if (side->is_first) {
            fill(out, length, i);
            POSTED(side, fi_write(side->ep, out, length, NULL, side->peer, there.base + at, there.key, out));
            struct fi_cq_tagged_entry entry = completion(side);
            CHECK(entry.op_context == out && entry.flags == (FI_RMA | FI_WRITE));
            memset(out, 0, length);
            POSTED(side, fi_read(side->ep, out, length, NULL, side->peer, there.base + at, there.key, out));
            CHECK(completion(side).flags == (FI_RMA | FI_READ));
            check(out, length, i);
        } else {
            counted += 2;
            OK(fi_cntr_wait(side->counter, counted, 20000));
            check(region + at, length, i);
        }
        meet(side);
    }
    if (side->is_first) {
        memset(out, 0, MAX);
        POSTED(side, fi_read(side->ep, out, MAX, NULL, side->peer, there.readable_base, there.readable_key, NULL));
        completion(side);
        check(out, MAX, 9);
        // Beyond the region, without the right, with another key: by message and by offer.
        for (size_t length = 8; length < 100000; length *= 5000) {
            POSTED(side, fi_write(side->ep, out, length, NULL, side->peer, there.base + MAX - 1, there.key, out));
            CHECK(failure(side).err == FI_EACCES);
            POSTED(side, fi_write(side->ep, out, length, NULL, side->peer, there.readable_base, there.readable_key, out));
            CHECK(failure(side).err == FI_EACCES);
            POSTED(side, fi_read(side->ep, out, length, NULL, side->peer, there.base, 987654, out));
            CHECK(failure(side).err == FI_EACCES);
        }
        POSTED(side, fi_writedata(side->ep, "data", 4, NULL, 4711, side->peer, there.base, there.key, NULL));
        completion(side);
        meet(side);
    } else {
        struct fi_cq_tagged_entry entry = completion(side);
        CHECK(entry.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA) && entry.data == 4711 && !memcmp(region, "data", 4));
        check(read_only, MAX, 9);
        meet(side);
    }
    OK(fi_close(&mr->fid));
    OK(fi_close(&readable->fid));
    meet(side);
    if (side->is_first) {
        POSTED(side, fi_inject_write(side->ep, out, 4, side->peer, there.base, there.key));
        CHECK(failure(side).err == FI_EACCES);
        meet(side);
    } else {
        meet(side);
    }
    close_side(side);
}

static void memory_by_offset(struct side *side) { memory(side, 0); }
static void memory_by_address(struct side *side) { memory(side, FI_MR_BASIC); }

static void atomics(struct side *side) {
    start(side);
    static int64_t values[8], results[8], operands[8], compares[8];
    struct fid_mr *mr;
    OK(fi_mr_reg(side->domain, values, sizeof values, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
    size_t count;
    OK(fi_atomicvalid(side->ep, FI_INT64, FI_SUM, &count));
    CHECK(count >= 8);
    REFUSED(FI_EOPNOTSUPP, fi_atomicvalid(side->ep, FI_DOUBLE, FI_BOR, &count));
    REFUSED(FI_EOPNOTSUPP, fi_atomicvalid(side->ep, FI_LONG_DOUBLE, FI_SUM, &count));
    meet(side);
    if (side->is_first) {
        for (int i = 0; i < 8; i++) operands[i] = i + 1;
        for (int round = 0; round < 100; round++) {
            POSTED(side, fi_atomic(side->ep, operands, 8, NULL, side->peer, 0, 1, FI_INT64, FI_SUM, NULL));
            CHECK(completion(side).flags == (FI_ATOMIC | FI_WRITE));
        }
        POSTED(side, fi_fetch_atomic(side->ep, operands, 8, NULL, results, NULL, side->peer, 0, 1, FI_INT64, FI_MAX, NULL));
        completion(side);
        for (int i = 0; i < 8; i++) CHECK(results[i] == 100 * (i + 1));
        for (int i = 0; i < 8; i++) compares[i] = i % 2 ? results[i] : -1, operands[i] = -7;
        POSTED(side, fi_compare_atomic(side->ep, operands, 8, NULL, compares, NULL, results, NULL, side->peer, 0, 1, FI_INT64, FI_CSWAP, NULL));
        completion(side);
        POSTED(side, fi_fetch_atomic(side->ep, NULL, 8, NULL, results, NULL, side->peer, 0, 1, FI_INT64, FI_ATOMIC_READ, NULL));
        completion(side);
        for (int i = 0; i < 8; i++) CHECK(results[i] == (i % 2 ? -7 : 100 * (i + 1)));
        POSTED(side, fi_atomic(side->ep, operands, 8, NULL, side->peer, 8, 1, FI_INT64, FI_SUM, NULL));
        CHECK(failure(side).err == FI_EACCES);
        meet(side);
    } else {
        meet(side);
    }
    OK(fi_close(&mr->fid));
    close_side(side);
}

int main(int count, char **arguments) {
    const struct {
        const char *name;
        void (*act)(struct side *);
    } cases[] = {{"messages", messages}, {"floods", floods},   {"tags", tags}, {"passing", passing},
                 {"multiple", multiple}, {"memory_by_offset", memory_by_offset}, {"memory_by_address", memory_by_address},
                 {"atomics", atomics}};
    for (size_t i = 0; count == 2 && i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(arguments[1], cases[i].name)) return in_two_processes(cases[i].act);
    FAIL("usage: transfers CASE");
}
