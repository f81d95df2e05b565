// Connected endpoints (FI_EP_MSG) between two processes: the first listens.

#include "side.h"

static struct fid_eq *events;

static struct fi_info *ask_connected(const char *node, uint64_t flags) {
    struct fi_info *hints = fi_allocinfo(), *info;
    hints->caps = FI_MSG | FI_RMA | FI_TAGGED;
    hints->ep_attr->type = FI_EP_MSG;
    hints->fabric_attr->prov_name = strdup("longma");
    OK(fi_getinfo(FI_VERSION(1, 15), node, NULL, flags, hints, &info));
    fi_freeinfo(hints);
    CHECK(info->ep_attr->type == FI_EP_MSG);
    return info;
}

// fi_eq_cm_entry without its data.
struct connection_event {
    fid_t fid;
    struct fi_info *info;
};

static struct connection_event event(uint32_t expected) {
    struct connection_event entry = {0};
    struct fi_eq_err_entry error = {0};
    uint32_t number;
    ssize_t result = fi_eq_sread(events, &number, &entry, sizeof entry, 20000, 0);
    if (result == -FI_EAVAIL) {
        CHECK(fi_eq_readerr(events, &error, 0) == sizeof error);
        FAIL("a failure instead of event %u: %s", expected, fi_strerror(error.err));
    }
    if (result != sizeof entry || number != expected) FAIL("event %u instead of %u (%ld)", number, expected, (long)result);
    return entry;
}

static void open_fabric(struct side *side, struct fi_info *info) {
    struct fi_eq_attr attributes = {.wait_obj = FI_WAIT_UNSPEC};
    OK(fi_fabric(info->fabric_attr, &side->fabric, NULL));
    OK(fi_eq_open(side->fabric, &attributes, &events, NULL));
}

static struct fid_ep *open_endpoint(struct side *side, struct fi_info *info) {
    struct fid_ep *ep;
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED};
    if (!side->domain) {
        OK(fi_domain(side->fabric, info, &side->domain, NULL));
        OK(fi_cq_open(side->domain, &cq, &side->cq, NULL));
    }
    OK(fi_endpoint(side->domain, info, &ep, NULL));
    OK(fi_ep_bind(ep, &side->cq->fid, FI_TRANSMIT | FI_RECV));
    REFUSED(FI_ENOEQ, fi_enable(ep));
    OK(fi_ep_bind(ep, &events->fid, 0));
    OK(fi_enable(ep));
    return ep;
}

static void exchange(struct side *side, struct fid_ep *ep) {
    static unsigned char out[300000], in[300000];
    const size_t lengths[] = {0, 5, 4096, 8087, 8088, 300000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memset(out, side->is_first + i, lengths[i]);
        POSTED(side, fi_recv(ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
        POSTED(side, fi_send(ep, out, lengths[i], NULL, FI_ADDR_UNSPEC, out));
        for (int done = 0; done < 2; done++) {
            struct fi_cq_tagged_entry entry = completion(side);
            CHECK(entry.op_context != in || entry.len == lengths[i]);
        }
        for (size_t k = 0; k < lengths[i]; k++) CHECK(in[k] == !side->is_first + i);
    }
}

// The receive fails because the connection has ended.
static void fails(struct side *side, void *context) {
    struct fi_cq_err_entry error = failure(side);
    if (error.op_context != context || error.err != FI_ECONNRESET || !(error.flags & FI_RECV))
        FAIL("%s, flags %lx", fi_strerror(error.err), (long)error.flags);
}

// Receives that are posted after the end of the connection.
static void receives_fail(struct side *side, struct fid_ep *ep) {
    static char in[2];
    OK(fi_recv(ep, in, 1, NULL, FI_ADDR_UNSPEC, in));
    fails(side, in);
    OK(fi_trecv(ep, in + 1, 1, NULL, FI_ADDR_UNSPEC, 1, 0, in + 1));
    fails(side, in + 1);
}

static void close_rest(struct side *side) {
    OK(fi_close(&side->cq->fid));
    OK(fi_close(&side->domain->fid));
    OK(fi_close(&events->fid));
    OK(fi_close(&side->fabric->fid));
    fi_freeinfo(side->info);
}

static void listener(struct side *side) {
    char name[64] = {0}, in[3];
    size_t length = sizeof name;
    struct fid_pep *pep, *other;
    side->info = ask_connected(NULL, 0);
    open_fabric(side, side->info);
    OK(fi_passive_ep(side->fabric, side->info, &pep, NULL));
    REFUSED(FI_ENOEQ, fi_listen(pep));
    OK(fi_pep_bind(pep, &events->fid, 0));
    OK(fi_listen(pep));
    OK(fi_getname(&pep->fid, name, &length));
    OK(fi_passive_ep(side->fabric, side->info, &other, NULL));
    OK(fi_pep_bind(other, &events->fid, 0));
    OK(fi_setname(&other->fid, name, length));
    REFUSED(FI_EADDRINUSE, fi_listen(other));
    OK(fi_close(&other->fid));
    // A child drops its copy: this process still listens.
    IN_A_CHILD(OK(fi_close(&pep->fid)));
    say(side, name, sizeof name);
    // The first request is rejected, the second accepted.
    struct connection_event entry = event(FI_CONNREQ);
    CHECK(entry.fid == &pep->fid && entry.info && entry.info->handle);
    OK(fi_reject(pep, entry.info->handle, NULL, 0));
    fi_freeinfo(entry.info);
    entry = event(FI_CONNREQ);
    struct fid_ep *ep = open_endpoint(side, entry.info);
    REFUSED(FI_EINVAL, fi_accept(ep, name, 5));
    OK(fi_accept(ep, NULL, 0));
    REFUSED(FI_EOPBADSTATE, fi_accept(ep, NULL, 0));
    fi_freeinfo(entry.info);
    CHECK(event(FI_CONNECTED).fid == &ep->fid);
    IN_A_CHILD(OK(fi_close(&pep->fid)); OK(fi_close(&ep->fid)); close_rest(side));
    exchange(side, ep);
    // The other sends two messages and ends the connection: receives get the messages, the others fail.
    OK(fi_recv(ep, in, 1, NULL, FI_ADDR_UNSPEC, in));
    OK(fi_trecv(ep, in + 1, 1, NULL, FI_ADDR_UNSPEC, 0, -1, in + 1));
    meet(side);
    CHECK(event(FI_SHUTDOWN).fid == &ep->fid);
    CHECK(completion(side).op_context == in && in[0] == 'a');
    fails(side, in + 1);
    OK(fi_recv(ep, in + 2, 1, NULL, FI_ADDR_UNSPEC, in + 2));
    CHECK(completion(side).op_context == in + 2 && in[2] == 'b');
    receives_fail(side, ep);
    REFUSED(FI_ENOTCONN, fi_send(ep, name, 1, NULL, FI_ADDR_UNSPEC, NULL));
    OK(fi_close(&ep->fid));
    OK(fi_close(&pep->fid));
}

static void connector(struct side *side) {
    char name[64], found[64];
    size_t length = sizeof found;
    hear(side, name, sizeof name);
    side->info = ask_connected(name, 0);
    CHECK(!strcmp(side->info->dest_addr, name));
    open_fabric(side, side->info);
    for (int round = 0; round < 3; round++) {
        struct fid_ep *ep = open_endpoint(side, side->info);
        REFUSED(FI_ENOTCONN, fi_send(ep, name, 1, NULL, FI_ADDR_UNSPEC, NULL));
        REFUSED(FI_EINVAL, fi_connect(ep, "nonsense", NULL, 0));
        if (round < 2) OK(fi_recv(ep, found, 1, NULL, FI_ADDR_UNSPEC, found));
        OK(fi_connect(ep, round == 0 ? "longma://without-listener" : name, NULL, 0));
        REFUSED(FI_EISCONN, fi_connect(ep, name, NULL, 0));
        if (round < 2) {
            struct fi_eq_cm_entry entry;
            struct fi_eq_err_entry error = {0};
            uint32_t number;
            REFUSED(FI_EAVAIL, fi_eq_sread(events, &number, &entry, sizeof entry, 20000, 0));
            CHECK(fi_eq_readerr(events, &error, 0) == sizeof error && error.err == FI_ECONNREFUSED && error.fid == &ep->fid);
            CHECK(failure(side).err == FI_ECONNREFUSED);
        } else {
            CHECK(event(FI_CONNECTED).fid == &ep->fid);
            OK(fi_getpeer(ep, found, &length));
            CHECK(!strcmp(found, name));
            exchange(side, ep);
            OK(fi_recv(ep, found, 1, NULL, FI_ADDR_UNSPEC, found));
            meet(side);
            POSTED(side, fi_inject(ep, "a", 1, FI_ADDR_UNSPEC));
            POSTED(side, fi_inject(ep, "b", 1, FI_ADDR_UNSPEC));
            OK(fi_shutdown(ep, 0));
            CHECK(event(FI_SHUTDOWN).fid == &ep->fid);
            fails(side, found);
            receives_fail(side, ep);
        }
        OK(fi_close(&ep->fid));
    }
}

static void act(struct side *side) {
    if (side->is_first) listener(side);
    else connector(side);
    close_rest(side);
}

// The connected process is killed.
static void killed(struct side *side) {
    char name[64] = {0}, in[2];
    size_t length = sizeof name;
    struct fid_pep *pep;
    struct fid_ep *ep;
    pid_t child = getpid();
    if (!side->is_first) {
        hear(side, name, sizeof name);
        side->info = ask_connected(name, 0);
        open_fabric(side, side->info);
        ep = open_endpoint(side, side->info);
        OK(fi_connect(ep, name, NULL, 0));
        event(FI_CONNECTED);
        say(side, &child, sizeof child);
        for (;;) pause();
    }
    side->info = ask_connected(NULL, 0);
    open_fabric(side, side->info);
    OK(fi_passive_ep(side->fabric, side->info, &pep, NULL));
    OK(fi_pep_bind(pep, &events->fid, 0));
    OK(fi_listen(pep));
    OK(fi_getname(&pep->fid, name, &length));
    say(side, name, sizeof name);
    struct connection_event entry = event(FI_CONNREQ);
    ep = open_endpoint(side, entry.info);
    // A receive may be posted before there is a connection.
    OK(fi_recv(ep, in, 1, NULL, FI_ADDR_UNSPEC, in));
    OK(fi_accept(ep, NULL, 0));
    fi_freeinfo(entry.info);
    event(FI_CONNECTED);
    OK(fi_trecv(ep, in + 1, 1, NULL, FI_ADDR_UNSPEC, 0, -1, in + 1));
    hear(side, &child, sizeof child);
    kill(child, SIGKILL);
    event(FI_SHUTDOWN);
    // Tagged ones come first.
    fails(side, in + 1);
    fails(side, in);
    receives_fail(side, ep);
    OK(fi_close(&ep->fid));
    exit(0);
}

int main(int count, char **arguments) {
    if (count != 2) FAIL("usage: connected CASE");
    if (!strcmp(arguments[1], "all")) return in_two_processes(act);
    if (!strcmp(arguments[1], "killed")) return in_two_processes(killed);
    FAIL("no such case");
}
