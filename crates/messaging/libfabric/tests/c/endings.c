// Peers that are killed, wrong arguments, and several endpoints of one process: `endings CASE`.

#include "side.h"

static void start(struct side *side) {
    open_side(side, ask(FI_MSG | FI_TAGGED | FI_RMA | FI_DIRECTED_RECV, 0, FI_FORMAT_UNSPEC));
    introduce(side);
}

// The other process is killed while operations of all kinds with it are in progress: each ends with a failure.
static void killed(struct side *side) {
    enum { BYTES = 1 << 20 };
    static char out[BYTES], in[8][BYTES];
    start(side);
    if (!side->is_first) {
        // It receives one message, which establishes the connection, and no others.
        OK(fi_recv(side->ep, in[0], BYTES, NULL, FI_ADDR_UNSPEC, NULL));
        completion(side);
        pid_t self = getpid();
        say(side, &self, sizeof self);
        for (;;) fi_cq_read(side->cq, NULL, 0), usleep(rand() % 3);
    }
    pid_t child;
    POSTED(side, fi_send(side->ep, out, 1, NULL, side->peer, NULL));
    completion(side);
    hear(side, &child, sizeof child);
    int expected = 0;
    for (int i = 0; i < 4; i++, expected++) OK(fi_trecv(side->ep, in[i], BYTES, NULL, side->peer, i, 0, in[i]));
    for (int i = 0; i < 4; i++, expected++) OK(fi_tsend(side->ep, out, BYTES, NULL, side->peer, i, out + i));
    OK(fi_read(side->ep, in[5], BYTES, NULL, side->peer, 0, 5, in[5]));
    // The key is unknown there, so this one may fail before the end.
    expected++;
    usleep(rand() % 2000);
    kill(child, SIGKILL);
    double begin = now();
    for (int i = 0; i < expected; i++) {
        struct fi_cq_err_entry error = failure(side);
        CHECK(error.err == FI_ECONNRESET || error.err == FI_ECONNABORTED || error.err == FI_EACCES);
    }
    if (now() - begin > 5) FAIL("the failures took %.1f s", now() - begin);
    // Later operations fail too.
    POSTED(side, fi_send(side->ep, out, 1, NULL, side->peer, NULL));
    struct fi_cq_err_entry error = failure(side);
    // Its socket may be open until the kernel has ended the process.
    if (error.err != FI_ECONNREFUSED && error.err != FI_ECONNRESET) FAIL("%s: %s", fi_strerror(error.err), fi_cq_strerror(side->cq, error.prov_errno, NULL, NULL, 0));
    struct fi_cq_tagged_entry entry;
    CHECK(fi_cq_read(side->cq, &entry, 1) == -FI_EAGAIN);
    close_side(side);
    exit(0);
}

// The other process is killed at a random time in an exchange of messages.
static void killed_in_exchange(struct side *side) {
    enum { BYTES = 50000 };
    static char out[BYTES], in[BYTES];
    start(side);
    pid_t child = getpid();
    if (side->is_first) hear(side, &child, sizeof child);
    else say(side, &child, sizeof child);
    double begin = now(), end = begin + (rand() % 20000) * 1e-6;
    int is_killed = 0;
    for (unsigned turn = 0;; turn++) {
        size_t length = turn % 3 ? 100 : BYTES;
        OK(fi_recv(side->ep, in, BYTES, NULL, side->peer, in));
        POSTED(side, fi_send(side->ep, out, length, NULL, side->peer, out));
        for (int done = 0; done < 2;) {
            struct fi_cq_tagged_entry entry;
            struct fi_cq_err_entry error = {0};
            ssize_t result = fi_cq_read(side->cq, &entry, 1);
            if (result == 1) done++;
            if (result == -FI_EAVAIL) {
                CHECK(side->is_first && is_killed && fi_cq_readerr(side->cq, &error, 0) == 1);
                close_side(side);
                exit(0);
            }
            if (side->is_first && !is_killed && now() > end) kill(child, SIGKILL), is_killed = 1;
            if (now() - begin > 20) FAIL("no failure in 20 s");
        }
    }
}

// A peer that closes its endpoint: what it sent arrives, and the rest fails.
static void closed(struct side *side) {
    static char bytes[100][100];
    start(side);
    if (!side->is_first) {
        for (int i = 0; i < 100; i++) POSTED(side, fi_inject(side->ep, bytes[i], 100, side->peer));
        close_side(side);
        side->cq = NULL;
        meet(side);
        return;
    }
    meet(side);
    for (int i = 0; i < 101; i++) OK(fi_recv(side->ep, bytes[i % 100], 100, NULL, side->peer, NULL));
    for (int i = 0; i < 100; i++) completion(side);
    CHECK(failure(side).err == FI_ECONNRESET);
    close_side(side);
}

// A forked child closes its copies of all objects, and its parent's continue to work.
static void forked(struct side *side) {
    char in;
    start(side);
    for (int round = 0; round < 3; round++) {
        OK(fi_recv(side->ep, &in, 1, NULL, side->peer, NULL));
        POSTED(side, fi_inject(side->ep, "abc" + round, 1, side->peer));
        completion(side);
        CHECK(in == "abc"[round]);
        if (round == 1) IN_A_CHILD(close_side(side));
    }
    meet(side);
    close_side(side);
}

static void one_process(void) {
    enum { COUNT = 4 };
    static struct side sides[COUNT];
    static char names[COUNT][64], in[COUNT][COUNT];
    static fi_addr_t peers[COUNT][COUNT];
    for (int i = 0; i < COUNT; i++) {
        size_t length = sizeof names[i];
        open_side(&sides[i], ask(FI_TAGGED, 0, i ? FI_FORMAT_UNSPEC : FI_ADDR_STR));
        OK(fi_getname(&sides[i].ep->fid, names[i], &length));
        CHECK(length == strlen(names[i]) + 1 && !strncmp(names[i], "longma://", 9));
    }
    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < COUNT; k++) CHECK(fi_av_insert(sides[i].av, names[k], 1, &peers[i][k], 0, NULL) == 1);
    // To all, and to itself.
    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < COUNT; k++) {
            OK(fi_trecv(sides[i].ep, &in[i][k], 1, NULL, FI_ADDR_UNSPEC, k, 0, NULL));
            POSTED(&sides[i], fi_tinject(sides[i].ep, "abcd" + i, 1, peers[i][k], i));
        }
    double begin = now();
    for (int done = 0; done < COUNT * COUNT;)
        for (int i = 0; i < COUNT; i++) {
            struct fi_cq_tagged_entry entry;
            if (fi_cq_read(sides[i].cq, &entry, 1) == 1) done++;
            CHECK(now() - begin < 20);
        }
    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < COUNT; k++) CHECK(in[i][k] == "abcd"[k]);
    for (int i = 0; i < COUNT; i++) close_side(&sides[i]);
}

static void wrong_arguments(void) {
    struct side side = {0};
    struct fi_info *info;
    struct fi_info *hints = fi_allocinfo();
    hints->fabric_attr->prov_name = strdup("longma");
    // Another host, an unknown node, a type of endpoint or capability that there is not.
    REFUSED(FI_ENODATA, fi_getinfo(FI_VERSION(1, 15), "192.0.2.7", "4711", 0, hints, &info));
    REFUSED(FI_ENODATA, fi_getinfo(FI_VERSION(1, 15), "longma://a name", NULL, 0, hints, &info));
    OK(fi_getinfo(FI_VERSION(1, 15), "longma://a-name", NULL, 0, hints, &info));
    CHECK(!strcmp(info->dest_addr, "longma://a-name"));
    fi_freeinfo(info);
    OK(fi_getinfo(FI_VERSION(1, 15), "localhost", "4711", 0, hints, &info));
    CHECK(!strcmp(info->dest_addr, "longma://4711"));
    fi_freeinfo(info);
    hints->caps = FI_COLLECTIVE;
    REFUSED(FI_ENODATA, fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &info));
    hints->caps = 0;
    hints->ep_attr->type = FI_EP_DGRAM;
    REFUSED(FI_ENODATA, fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);

    open_side(&side, ask(FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC, 0, FI_PROV_SPECIFIC));
    char name[64], small[4];
    size_t length = sizeof small;
    REFUSED(FI_ETOOSMALL, fi_getname(&side.ep->fid, small, &length));
    CHECK(length == 40);
    length = sizeof name;
    OK(fi_getname(&side.ep->fid, name, &length));
    REFUSED(FI_EINVAL, fi_getname(&side.ep->fid, name, NULL));
    char garbage[40] = "not an address";
    fi_addr_t numbers[2];
    CHECK(fi_av_insert(side.av, garbage, 1, numbers, 0, NULL) == 0 && numbers[0] == FI_ADDR_NOTAVAIL);
    REFUSED(FI_EINVAL, fi_av_insert(side.av, NULL, 1, numbers, 0, NULL));
    CHECK(fi_av_insert(side.av, name, 1, &side.peer, 0, NULL) == 1);
    char text[64];
    size_t text_length = sizeof text;
    CHECK(!strncmp(fi_av_straddr(side.av, name, text, &text_length), "longma://", 9));
    fi_addr_t unknown = 77;
    REFUSED(FI_EINVAL, fi_av_remove(side.av, &unknown, 1, 0));
    REFUSED(FI_EINVAL, fi_av_lookup(side.av, unknown, text, &text_length));

    char bytes[16];
    struct iovec many[9] = {0};
    for (int i = 0; i < 9; i++) many[i] = (struct iovec){bytes, 1};
    struct fi_msg message = {.msg_iov = many, .iov_count = 1, .addr = side.peer};
    struct fi_msg_tagged tagged = {.msg_iov = many, .iov_count = 1, .addr = side.peer};
    struct fi_msg_rma rma = {.msg_iov = many, .iov_count = 1, .addr = side.peer};
    REFUSED(FI_EINVAL, fi_send(side.ep, NULL, 5, NULL, side.peer, NULL));
    REFUSED(FI_EINVAL, fi_send(side.ep, bytes, 5, NULL, 99, NULL));
    REFUSED(FI_EINVAL, fi_send(side.ep, bytes, 5, NULL, FI_ADDR_UNSPEC, NULL));
    REFUSED(FI_EMSGSIZE, fi_send(side.ep, bytes, 1ull << 40, NULL, side.peer, NULL));
    REFUSED(FI_EMSGSIZE, fi_inject(side.ep, bytes, 1 << 20, side.peer));
    REFUSED(FI_EINVAL, fi_sendv(side.ep, many, NULL, 9, side.peer, NULL));
    REFUSED(FI_EINVAL, fi_sendv(side.ep, many, NULL, SIZE_MAX, side.peer, NULL));
    REFUSED(FI_EINVAL, fi_sendv(side.ep, NULL, NULL, 2, side.peer, NULL));
    REFUSED(FI_EINVAL, fi_recvv(side.ep, many, NULL, 9, FI_ADDR_UNSPEC, NULL));
    REFUSED(FI_EINVAL, fi_recv(side.ep, NULL, 1, NULL, FI_ADDR_UNSPEC, NULL));
    REFUSED(FI_EINVAL, fi_trecv(side.ep, NULL, 1, NULL, FI_ADDR_UNSPEC, 0, 0, NULL));
    REFUSED(FI_EINVAL, fi_sendmsg(side.ep, NULL, 0));
    REFUSED(FI_EBADFLAGS, fi_sendmsg(side.ep, &message, FI_TRIGGER));
    REFUSED(FI_EBADFLAGS, fi_recvmsg(side.ep, &message, FI_PEEK));
    REFUSED(FI_EBADFLAGS, fi_trecvmsg(side.ep, &tagged, FI_MULTI_RECV));
    REFUSED(FI_EINVAL, fi_trecvmsg(side.ep, &tagged, FI_DISCARD));
    REFUSED(FI_EINVAL, fi_writemsg(side.ep, &rma, 0));
    REFUSED(FI_EOPNOTSUPP, fi_atomic(side.ep, bytes, 1, NULL, side.peer, 0, 0, FI_DATATYPE_LAST, FI_SUM, NULL));
    REFUSED(FI_EOPNOTSUPP, fi_atomic(side.ep, bytes, 1, NULL, side.peer, 0, 0, FI_INT64, 99, NULL));
    REFUSED(FI_EINVAL, fi_atomic(side.ep, NULL, 1, NULL, side.peer, 0, 0, FI_INT64, FI_SUM, NULL));
    REFUSED(FI_EINVAL, fi_cq_read(side.cq, NULL, 1));
    REFUSED(FI_EAGAIN, fi_cq_sread(side.cq, bytes, 1, NULL, 1));
    REFUSED(FI_EINVAL, fi_cq_readerr(side.cq, NULL, 0));
    struct fid_mr *mr, *other;
    REFUSED(FI_EINVAL, fi_mr_reg(side.domain, NULL, 8, FI_REMOTE_READ, 0, 1, 0, &mr, NULL));
    REFUSED(FI_EINVAL, fi_mr_reg(side.domain, (void *)-8, 100, FI_REMOTE_READ, 0, 1, 0, &mr, NULL));
    REFUSED(FI_EINVAL, fi_mr_reg(side.domain, bytes, 8, FI_REMOTE_READ, 0, 1, 0, NULL, NULL));
    OK(fi_mr_reg(side.domain, bytes, 8, FI_REMOTE_READ, 0, 1, 0, &mr, NULL));
    REFUSED(FI_ENOKEY, fi_mr_reg(side.domain, bytes, 8, FI_REMOTE_READ, 0, 1, 0, &other, NULL));
    // Objects that are in use, or of another class.
    REFUSED(FI_EBUSY, fi_close(&side.domain->fid));
    REFUSED(FI_EBUSY, fi_close(&side.cq->fid));
    REFUSED(FI_EBUSY, fi_close(&side.av->fid));
    REFUSED(FI_EINVAL, fi_ep_bind((struct fid_ep *)side.domain, &side.cq->fid, FI_RECV) == -FI_ENOSYS ? -FI_EINVAL : 0);
    REFUSED(FI_EOPBADSTATE, fi_ep_bind(side.ep, &side.cq->fid, FI_RECV));
    OK(fi_close(&mr->fid));

    // Endpoints that lack something, and a name that is in use.
    struct fid_ep *ep;
    OK(fi_endpoint(side.domain, side.info, &ep, NULL));
    REFUSED(FI_ENOCQ, fi_enable(ep));
    OK(fi_ep_bind(ep, &side.cq->fid, FI_TRANSMIT | FI_RECV));
    REFUSED(FI_ENOAV, fi_enable(ep));
    OK(fi_ep_bind(ep, &side.av->fid, 0));
    OK(fi_setname(&ep->fid, name, length));
    CHECK(fi_enable(ep) < 0);
    OK(fi_close(&ep->fid));
    // A peer that does not exist.
    const char absent[] = "longma\0\1longma-test-no-such-peer-at-all";
    char address[40] = {0};
    memcpy(address, absent, sizeof absent - 1 > 40 ? 40 : sizeof absent - 1);
    CHECK(fi_av_insert(side.av, address, 1, numbers, 0, NULL) == 1);
    POSTED(&side, fi_send(side.ep, bytes, 5, NULL, numbers[0], bytes));
    struct fi_cq_err_entry error = failure(&side);
    CHECK(error.err == FI_ECONNREFUSED && error.op_context == bytes);
    close_side(&side);
}

int main(int count, char **arguments) {
    if (count < 2) FAIL("usage: endings CASE [SEED]");
    srand(count > 2 ? atoi(arguments[2]) : 1);
    // The one that is killed is the child.
    if (!strcmp(arguments[1], "killed")) return in_two_processes(killed);
    if (!strcmp(arguments[1], "killed_in_exchange")) return in_two_processes(killed_in_exchange);
    if (!strcmp(arguments[1], "closed")) return in_two_processes(closed);
    if (!strcmp(arguments[1], "forked")) return in_two_processes(forked);
    if (!strcmp(arguments[1], "one_process")) return one_process(), 0;
    if (!strcmp(arguments[1], "wrong_arguments")) return wrong_arguments(), 0;
    FAIL("no such case");
}
