/* Shared by the test programs: a check that reports its location, addresses, and a side with all objects that a VI needs. */
#ifndef COMMON_H
#define COMMON_H 1

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vipl.h>

#define CHECK(call, want)                                                                     \
    do {                                                                                      \
        int got = (int)(call), wanted = (int)(want);                                          \
        if (got != wanted) {                                                                  \
            fprintf(stderr, "%s:%d: %s gave %d, not %d\n", __FILE__, __LINE__, #call, got, wanted); \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

#define SIZE 4096

struct room {
    VIP_DESCRIPTOR send, receive, more[4];
    char out[SIZE], in[SIZE], window[64];
};

struct side {
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE tag;
    VIP_VI_HANDLE vi;
    VIP_MEM_HANDLE memory;
    struct room *room;
};

/* An address with space for any address. An empty host is this NIC's own. */
static inline VIP_NET_ADDRESS *address(const char *host, const char *name) {
    size_t hosts = strlen(host), names = strlen(name);
    VIP_NET_ADDRESS *made = calloc(1, sizeof *made + 1024);
    made->HostAddressLen = (VIP_UINT16)hosts;
    made->DiscriminatorLen = (VIP_UINT16)names;
    memcpy(made->HostAddress, host, hosts);
    memcpy(made->HostAddress + hosts, name, names);
    return made;
}

/* A name unique to this run of the tests. */
static inline const char *fresh(const char *name) {
    static char names[16][64];
    static int next;
    char *made = names[next++ % 16];
    snprintf(made, sizeof names[0], "%s-%d", name, (int)getpid());
    return made;
}

static inline VIP_VI_ATTRIBUTES attributes_at(const struct side *side, VIP_RELIABILITY_LEVEL level) {
    VIP_VI_ATTRIBUTES made = {level, 65536, NULL, side->tag, VIP_TRUE, level != VIP_SERVICE_UNRELIABLE};
    return made;
}

/* Opens a NIC and registers memory; creates a VI if `level` is not 0. */
static inline struct side open_side(const char *device, VIP_RELIABILITY_LEVEL level, VIP_CQ_HANDLE *cq) {
    struct side made = {0};
    CHECK(VipOpenNic(device, &made.nic), VIP_SUCCESS);
    CHECK(VipCreatePtag(made.nic, &made.tag), VIP_SUCCESS);
    if (posix_memalign((void **)&made.room, 64, sizeof *made.room)) exit(1);
    memset(made.room, 0, sizeof *made.room);
    VIP_MEM_ATTRIBUTES open = {made.tag, VIP_TRUE, VIP_TRUE};
    CHECK(VipRegisterMem(made.nic, made.room, sizeof *made.room, &open, &made.memory), VIP_SUCCESS);
    if (cq) CHECK(VipCreateCQ(made.nic, 64, cq), VIP_SUCCESS);
    VIP_VI_ATTRIBUTES attributes = attributes_at(&made, level);
    if (level) CHECK(VipCreateVi(made.nic, &attributes, NULL, cq ? *cq : NULL, &made.vi), VIP_SUCCESS);
    return made;
}

static inline void fill(struct side *side, VIP_DESCRIPTOR *d, char *data, unsigned length) {
    memset(d, 0, sizeof *d);
    d->CS.SegCount = 1;
    d->CS.Control = VIP_CONTROL_OP_SENDRECV;
    d->CS.Length = length;
    d->DS[0].Local.Data.Address = data;
    d->DS[0].Local.Handle = side->memory;
    d->DS[0].Local.Length = length;
}

static inline void post_receive(struct side *side) {
    fill(side, &side->room->receive, side->room->in, SIZE);
    CHECK(VipPostRecv(side->vi, &side->room->receive, side->memory), VIP_SUCCESS);
}

static inline void post_send(struct side *side, unsigned length) {
    fill(side, &side->room->send, side->room->out, length);
    CHECK(VipPostSend(side->vi, &side->room->send, side->memory), VIP_SUCCESS);
}

static inline void collect_send(struct side *side) {
    VIP_DESCRIPTOR *done = NULL;
    CHECK(VipSendWait(side->vi, 10000, &done), VIP_SUCCESS);
    if (done != &side->room->send || !(done->CS.Status & VIP_STATUS_DONE)) exit(2);
}

static inline VIP_VI_STATE state_of(VIP_VI_HANDLE vi) {
    VIP_VI_STATE state;
    CHECK(VipQueryVi(vi, &state, NULL, NULL, NULL), VIP_SUCCESS);
    return state;
}

/* Requests a connection until a VI is waiting at the address. */
static inline VIP_RETURN ask(VIP_VI_HANDLE vi, VIP_NET_ADDRESS *local, VIP_NET_ADDRESS *remote) {
    VIP_RETURN got;
    VIP_VI_ATTRIBUTES theirs;
    for (int tries = 0; (got = VipConnectRequest(vi, local, remote, 10000, &theirs)) == VIP_NO_MATCH && tries < 10000; tries++)
        usleep(1000);
    return got;
}

#endif
