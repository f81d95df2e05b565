// One of two processes that are connected by a socket pair, with an endpoint. Errors end the program with a line that names them.

#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FAIL(...) (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define CHECK(condition) ((condition) ? (void)0 : FAIL("%s", #condition))
// The call returns 0.
#define OK(call)                                                                     \
    do {                                                                             \
        long result_ = (call);                                                       \
        if (result_) FAIL("%s: %s (%ld)", #call, fi_strerror((int)-result_), result_); \
    } while (0)
// The call returns this error.
#define REFUSED(error, call)                                                                \
    do {                                                                                    \
        long result_ = (call);                                                              \
        if (result_ != -(error)) FAIL("%s: %ld instead of %d", #call, result_, -(error)); \
    } while (0)

struct side {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_cq *cq;
    struct fid_cntr *counter;
    struct fid_av *av;
    struct fid_ep *ep;
    fi_addr_t peer;
    int socket;   // to the other process
    int is_first; // the first of the two
};

static inline double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static inline void say(struct side *side, const void *bytes, size_t length) { CHECK(write(side->socket, bytes, length) == (ssize_t)length); }

// Reads from the other process, and makes progress in the meantime.
static inline void hear(struct side *side, void *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t got = recv(side->socket, (char *)bytes + done, length - done, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) FAIL("the other process has ended");
        if (got > 0) done += got;
        else if (side->cq) fi_cq_read(side->cq, NULL, 0);
    }
}

// Both processes are here.
static inline void meet(struct side *side) {
    char byte = 0;
    say(side, &byte, 1);
    hear(side, &byte, 1);
}

static inline struct fi_info *ask(uint64_t caps, int mr_mode, uint32_t format) {
    struct fi_info *hints = fi_allocinfo(), *info;
    hints->caps = caps;
    hints->addr_format = format;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = mr_mode;
    hints->fabric_attr->prov_name = strdup("longma");
    OK(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);
    return info;
}

// An endpoint, without a peer.
static inline void open_side(struct side *side, struct fi_info *info) {
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC};
    struct fi_av_attr av = {.type = FI_AV_TABLE};
    struct fi_cntr_attr counter = {.wait_obj = FI_WAIT_UNSPEC};
    side->info = info;
    OK(fi_fabric(info->fabric_attr, &side->fabric, NULL));
    OK(fi_domain(side->fabric, info, &side->domain, NULL));
    OK(fi_cq_open(side->domain, &cq, &side->cq, NULL));
    OK(fi_cntr_open(side->domain, &counter, &side->counter, NULL));
    OK(fi_av_open(side->domain, &av, &side->av, NULL));
    OK(fi_endpoint(side->domain, info, &side->ep, NULL));
    REFUSED(FI_EOPBADSTATE, fi_send(side->ep, NULL, 0, NULL, 0, NULL));
    OK(fi_ep_bind(side->ep, &side->av->fid, 0));
    OK(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_ep_bind(side->ep, &side->counter->fid, FI_REMOTE_WRITE | FI_REMOTE_READ));
    OK(fi_enable(side->ep));
}

// Exchanges addresses with the other process.
static inline void introduce(struct side *side) {
    char name[64] = {0};
    size_t length = sizeof name;
    OK(fi_getname(&side->ep->fid, name, &length));
    say(side, name, sizeof name);
    hear(side, name, sizeof name);
    CHECK(fi_av_insert(side->av, name, 1, &side->peer, 0, NULL) == 1);
}

static inline void close_side(struct side *side) {
    OK(fi_close(&side->ep->fid));
    OK(fi_close(&side->av->fid));
    OK(fi_close(&side->counter->fid));
    OK(fi_close(&side->cq->fid));
    OK(fi_close(&side->domain->fid));
    OK(fi_close(&side->fabric->fid));
    fi_freeinfo(side->info);
}

// Retries a call while it asks for that.
#define POSTED(side, call)                                                             \
    do {                                                                               \
        long result_;                                                                  \
        double begin_ = now();                                                         \
        while ((result_ = (call)) == -FI_EAGAIN && now() - begin_ < 20)                 \
            fi_cq_read((side)->cq, NULL, 0);                                            \
        if (result_) FAIL("%s: %s (%ld)", #call, fi_strerror((int)-result_), result_); \
    } while (0)

// The next completion. A failure is an error of the test.
static inline struct fi_cq_tagged_entry completion(struct side *side) {
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = {0};
    double begin = now();
    ssize_t result;
    while ((result = fi_cq_read(side->cq, &entry, 1)) == -FI_EAGAIN)
        if (now() - begin > 20) FAIL("no completion in 20 s");
    if (result == -FI_EAVAIL) {
        CHECK(fi_cq_readerr(side->cq, &error, 0) == 1);
        FAIL("a failure: %s: %s", fi_strerror(error.err), fi_cq_strerror(side->cq, error.prov_errno, NULL, NULL, 0));
    }
    CHECK(result == 1);
    return entry;
}

// The next completion, which is a failure.
static inline struct fi_cq_err_entry failure(struct side *side) {
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = {0};
    double begin = now();
    ssize_t result;
    while ((result = fi_cq_read(side->cq, &entry, 1)) == -FI_EAGAIN)
        if (now() - begin > 20) FAIL("no completion in 20 s");
    if (result != -FI_EAVAIL) FAIL("a completion instead of a failure: %ld, flags %lx", (long)result, (long)entry.flags);
    CHECK(fi_cq_readerr(side->cq, &error, 0) == 1);
    return error;
}

// Does something in a forked child.
#define IN_A_CHILD(act)                                                 \
    do {                                                                \
        int status_;                                                    \
        pid_t child_ = fork();                                          \
        CHECK(child_ >= 0);                                             \
        if (child_ == 0) {                                              \
            act;                                                        \
            _exit(0);                                                   \
        }                                                               \
        CHECK(waitpid(child_, &status_, 0) == child_);                  \
        if (status_) FAIL("the forked child ended with %x", status_);   \
    } while (0)

// Runs `act` in two processes.
static inline int in_two_processes(void (*act)(struct side *)) {
    int sockets[2], status;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    struct side side = {.socket = sockets[child != 0], .is_first = child != 0};
    close(sockets[child == 0]);
    act(&side);
    if (child == 0) exit(0);
    close(side.socket);
    CHECK(waitpid(child, &status, 0) == child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
