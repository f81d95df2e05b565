/* The behaviour of VIPL calls for invalid use, and corner cases of valid use.
 * Usage: rules CASE. Exits with 0 and prints "CASE: kept" only if the library behaved correctly. */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

static struct side one, two;

struct asking {
    VIP_VI_HANDLE vi;
    VIP_NET_ADDRESS *local, *remote;
    VIP_RETURN got;
};

static void *ask_in_thread(void *given) {
    struct asking *asking = given;
    asking->got = ask(asking->vi, asking->local, asking->remote);
    return NULL;
}

/* `two` requests a connection to `one` under `name`. Returns the request received by `one`. */
static VIP_CONN_HANDLE request_of_two(const char *name, struct asking *asking, pthread_t *thread) {
    VIP_NET_ADDRESS *remote = address("", "");
    VIP_CONN_HANDLE request = NULL;
    *asking = (struct asking){two.vi, address("", "client"), address("", name), VIP_SUCCESS};
    if (pthread_create(thread, NULL, ask_in_thread, asking)) exit(1);
    CHECK(VipConnectWait(one.nic, address("", name), 10000, remote, NULL, &request), VIP_SUCCESS);
    CHECK(remote->DiscriminatorLen, 6);
    return request;
}

static void connect_both(void) {
    struct asking asking;
    pthread_t thread;
    VIP_CONN_HANDLE request = request_of_two(fresh("both"), &asking, &thread);
    CHECK(VipConnectAccept(request, one.vi), VIP_SUCCESS);
    pthread_join(thread, NULL);
    CHECK(asking.got, VIP_SUCCESS);
}

static void open_both(VIP_CQ_HANDLE *cq) {
    one = open_side("shm", VIP_SERVICE_RELIABLE_DELIVERY, cq);
    two = open_side("shm", VIP_SERVICE_RELIABLE_DELIVERY, NULL);
}

/* A failed accept leaves the request valid for another VI. */
static void accept_again(void) {
    struct asking asking;
    pthread_t thread;
    VIP_VI_HANDLE other;
    open_both(NULL);
    VIP_VI_ATTRIBUTES reception = attributes_at(&one, VIP_SERVICE_RELIABLE_RECEPTION);
    CHECK(VipCreateVi(one.nic, &reception, NULL, NULL, &other), VIP_SUCCESS);
    VIP_CONN_HANDLE request = request_of_two(fresh("again"), &asking, &thread);
    CHECK(VipConnectAccept(request, other), VIP_INVALID_RELIABILITY_LEVEL);
    CHECK(VipConnectAccept(request, other), VIP_INVALID_RELIABILITY_LEVEL);
    CHECK(VipConnectAccept(request, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipConnectAccept(request, request), VIP_INVALID_PARAMETER);
    CHECK(VipConnectAccept(request, two.vi), VIP_INVALID_PARAMETER);
    CHECK(state_of(other), VIP_STATE_IDLE);
    CHECK(VipConnectAccept(request, one.vi), VIP_SUCCESS);
    pthread_join(thread, NULL);
    CHECK(asking.got, VIP_SUCCESS);
    CHECK(state_of(one.vi), VIP_STATE_CONNECTED);
    CHECK(VipConnectAccept(request, other), VIP_INVALID_PARAMETER);
    CHECK(VipConnectReject(request), VIP_INVALID_PARAMETER);
    /* Rejected after a failed accept: the other side is informed once. */
    CHECK(VipDisconnect(two.vi), VIP_SUCCESS);
    request = request_of_two(fresh("rejected"), &asking, &thread);
    CHECK(VipConnectAccept(request, one.vi), VIP_INVALID_STATE);
    CHECK(VipConnectReject(request), VIP_SUCCESS);
    CHECK(VipConnectReject(request), VIP_INVALID_PARAMETER);
    pthread_join(thread, NULL);
    CHECK(asking.got, VIP_REJECT);
}

/* Connect pending from the request on, until it succeeds, times out or is aborted. */
static void peers(void) {
    VIP_VI_ATTRIBUTES theirs;
    VIP_NET_ADDRESS *a = address("", fresh("peer-a")), *b = address("", fresh("peer-b"));
    open_both(NULL);
    CHECK(VipConnectPeerDone(one.vi, &theirs), VIP_INVALID_STATE);
    CHECK(VipConnectPeerRequest(one.vi, a, b, VIP_INFINITE), VIP_SUCCESS);
    CHECK(state_of(one.vi), VIP_STATE_CONNECT_PENDING);
    CHECK(VipConnectPeerDone(one.vi, &theirs), VIP_NOT_DONE);
    CHECK(VipConnectPeerRequest(one.vi, a, b, VIP_INFINITE), VIP_INVALID_STATE);
    CHECK(VipDestroyVi(one.vi), VIP_INVALID_STATE);
    CHECK(VipConnectPeerRequest(two.vi, b, a, 10000), VIP_SUCCESS);
    CHECK(state_of(two.vi) == VIP_STATE_CONNECT_PENDING || state_of(two.vi) == VIP_STATE_CONNECTED, 1);
    CHECK(VipConnectPeerWait(two.vi, &theirs), VIP_SUCCESS);
    CHECK(VipConnectPeerWait(one.vi, &theirs), VIP_SUCCESS);
    CHECK(theirs.ReliabilityLevel, VIP_SERVICE_RELIABLE_DELIVERY);
    CHECK(state_of(one.vi), VIP_STATE_CONNECTED);
    CHECK(VipConnectPeerRequest(one.vi, a, b, 10), VIP_INVALID_STATE);
    CHECK(VipDisconnect(one.vi), VIP_SUCCESS);
    CHECK(VipDisconnect(two.vi), VIP_SUCCESS);
    /* No peer connects, whichever side would wait. */
    CHECK(VipConnectPeerRequest(one.vi, a, address("", fresh("peer-z")), 100), VIP_SUCCESS);
    CHECK(VipConnectPeerRequest(two.vi, b, address("", fresh("peer-a")), 100), VIP_SUCCESS);
    CHECK(VipConnectPeerWait(one.vi, &theirs), VIP_TIMEOUT);
    CHECK(VipConnectPeerWait(two.vi, &theirs), VIP_TIMEOUT);
    CHECK(state_of(one.vi), VIP_STATE_IDLE);
    CHECK(state_of(two.vi), VIP_STATE_IDLE);
    /* Aborted. */
    CHECK(VipConnectPeerRequest(one.vi, a, b, VIP_INFINITE), VIP_SUCCESS);
    CHECK(VipDisconnect(one.vi), VIP_SUCCESS);
    CHECK(state_of(one.vi), VIP_STATE_IDLE);
    CHECK(VipConnectPeerWait(one.vi, &theirs), VIP_INVALID_STATE);
    /* A VI cannot be its own peer. */
    CHECK(VipConnectPeerRequest(one.vi, a, a, 10), VIP_INVALID_PARAMETER);
    CHECK(VipConnectPeerRequest(one.vi, a, address("local", fresh("peer-a")), 10), VIP_INVALID_PARAMETER);
    CHECK(state_of(one.vi), VIP_STATE_IDLE);
}

/* A request to a VI that waits for its peer is rejected if it is from another address; the peer connects later. */
static void stranger(void) {
    VIP_VI_ATTRIBUTES theirs;
    struct side third = open_side("shm", VIP_SERVICE_RELIABLE_DELIVERY, NULL);
    VIP_NET_ADDRESS *a = address("", fresh("host-a")), *b = address("", fresh("host-b"));
    open_both(NULL);
    CHECK(VipConnectPeerRequest(one.vi, a, b, 20000), VIP_SUCCESS);
    CHECK(ask(third.vi, address("", "stranger"), a), VIP_REJECT);
    CHECK(state_of(third.vi), VIP_STATE_IDLE);
    CHECK(state_of(one.vi), VIP_STATE_CONNECT_PENDING);
    CHECK(VipConnectPeerRequest(two.vi, b, a, 10000), VIP_SUCCESS);
    CHECK(VipConnectPeerWait(one.vi, &theirs), VIP_SUCCESS);
    CHECK(VipConnectPeerWait(two.vi, &theirs), VIP_SUCCESS);
}

/* Peers with the same discriminator on two hosts, here two sockets. */
static void same_name(void) {
    VIP_VI_ATTRIBUTES theirs;
    VIP_NIC_ATTRIBUTES facts[2];
    struct side *sides[2] = {&one, &two};
    VIP_NET_ADDRESS *addresses[2];
    for (int i = 0; i < 2; i++) {
        *sides[i] = open_side("udp:127.0.0.1:0", VIP_SERVICE_RELIABLE_DELIVERY, NULL);
        CHECK(VipQueryNic(sides[i]->nic, &facts[i]), VIP_SUCCESS);
        addresses[i] = address("", "");
        addresses[i]->HostAddressLen = facts[i].NicAddressLen;
        addresses[i]->DiscriminatorLen = 4;
        memcpy(addresses[i]->HostAddress, facts[i].LocalNicAddress, facts[i].NicAddressLen);
        memcpy(addresses[i]->HostAddress + facts[i].NicAddressLen, "same", 4);
    }
    CHECK(VipConnectPeerRequest(one.vi, address("", "same"), addresses[1], 20000), VIP_SUCCESS);
    CHECK(VipConnectPeerRequest(two.vi, addresses[1], addresses[0], 20000), VIP_SUCCESS);
    CHECK(VipConnectPeerWait(one.vi, &theirs), VIP_SUCCESS);
    CHECK(VipConnectPeerWait(two.vi, &theirs), VIP_SUCCESS);
    post_receive(&one);
    memcpy(two.room->out, "hello", 5);
    post_send(&two, 5);
    collect_send(&two);
    VIP_DESCRIPTOR *done;
    CHECK(VipRecvWait(one.vi, 10000, &done), VIP_SUCCESS);
    CHECK(memcmp(one.room->in, "hello", 5), 0);
}

/* Polls the status of a descriptor without any call, for up to ten seconds. */
static VIP_UINT32 await_status(VIP_DESCRIPTOR *d) {
    volatile VIP_UINT32 *status = &d->CS.Status;
    for (int tries = 0; tries < 100000 && !(*status & VIP_STATUS_DONE); tries++) usleep(100);
    return *status;
}

/* A program may poll only the status in its descriptor. */
static void status_word(const char *device, const char *host) {
    struct asking asking;
    pthread_t thread;
    VIP_DESCRIPTOR *done;
    one = open_side(device, VIP_SERVICE_RELIABLE_RECEPTION, NULL);
    two = open_side(device, VIP_SERVICE_RELIABLE_RECEPTION, NULL);
    post_receive(&one);
    VIP_NET_ADDRESS *remote = address(host, fresh("status"));
    if (*host == '?') {
        VIP_NIC_ATTRIBUTES facts;
        CHECK(VipQueryNic(one.nic, &facts), VIP_SUCCESS);
        remote = address((const char *)facts.LocalNicAddress, fresh("status"));
    }
    asking = (struct asking){two.vi, address("", "client"), remote, VIP_SUCCESS};
    VIP_CONN_HANDLE request;
    if (pthread_create(&thread, NULL, ask_in_thread, &asking)) exit(1);
    CHECK(VipConnectWait(one.nic, address("", fresh("status")), 10000, NULL, NULL, &request), VIP_SUCCESS);
    CHECK(VipConnectAccept(request, one.vi), VIP_SUCCESS);
    pthread_join(thread, NULL);
    CHECK(asking.got, VIP_SUCCESS);
    for (unsigned round = 1; round <= 20; round++) {
        memset(two.room->out, (int)round, round);
        fill(&two, &two.room->send, two.room->out, round);
        two.room->send.CS.Control |= VIP_CONTROL_IMMEDIATE;
        two.room->send.CS.ImmediateData = round;
        CHECK(VipPostSend(two.vi, &two.room->send, two.memory), VIP_SUCCESS);
        /* Neither side makes a call: the receiver does not, nor the sender, whose send completes when the message has been received. */
        CHECK(await_status(&one.room->receive), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | VIP_STATUS_IMMEDIATE);
        CHECK(one.room->receive.CS.Length, round);
        CHECK(one.room->receive.CS.ImmediateData, round);
        CHECK(one.room->in[round - 1], round);
        CHECK(await_status(&two.room->send), VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
        CHECK(VipRecvDone(one.vi, &done), VIP_SUCCESS);
        CHECK(VipSendDone(two.vi, &done), VIP_SUCCESS);
        post_receive(&one);
    }
    /* A flushed descriptor gets its status too. */
    CHECK(VipDisconnect(two.vi), VIP_SUCCESS);
    CHECK(await_status(&one.room->receive), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR);
}

/* Objects in use cannot be destroyed. */
static void destroy(void) {
    VIP_CQ_HANDLE cq, other;
    VIP_DESCRIPTOR *done;
    VIP_VI_HANDLE from;
    open_both(&cq);
    CHECK(VipDestroyCQ(cq), VIP_ERROR_RESOURCE);
    VIP_VI_ATTRIBUTES attributes = attributes_at(&two, VIP_SERVICE_RELIABLE_DELIVERY);
    CHECK(VipCreateVi(two.nic, &attributes, NULL, cq, &from), VIP_INVALID_PARAMETER);
    CHECK(VipCreateCQ(one.nic, 4, &other), VIP_SUCCESS);
    CHECK(VipDestroyCQ(other), VIP_SUCCESS);
    CHECK(VipDestroyCQ(other), VIP_INVALID_PARAMETER);
    connect_both();
    CHECK(VipDestroyVi(one.vi), VIP_INVALID_STATE);
    post_receive(&one);
    CHECK(VipDisconnect(two.vi), VIP_SUCCESS);
    CHECK(VipRecvWait(one.vi, 10000, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(state_of(one.vi), VIP_STATE_ERROR);
    CHECK(VipDestroyVi(one.vi), VIP_INVALID_STATE);
    CHECK(VipDisconnect(one.vi), VIP_SUCCESS);
    post_receive(&one);
    CHECK(VipDestroyVi(one.vi), VIP_ERROR_RESOURCE);
    CHECK(VipDisconnect(one.vi), VIP_SUCCESS);
    CHECK(VipDestroyVi(one.vi), VIP_ERROR_RESOURCE);
    CHECK(VipRecvDone(one.vi, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(VipDestroyVi(one.vi), VIP_SUCCESS);
    CHECK(VipDestroyVi(one.vi), VIP_INVALID_PARAMETER);
    CHECK(VipDestroyCQ(cq), VIP_SUCCESS);
    CHECK(VipDestroyVi(two.vi), VIP_SUCCESS);
}

/* An invalid descriptor completes in order with a format error, and breaks a reliable connection. */
static void malformed(void) {
    VIP_DESCRIPTOR *done, *bad = &one.room->more[0];
    open_both(NULL);
    bad = &one.room->more[0];
    connect_both();
    post_receive(&one);
    fill(&one, bad, one.room->in, SIZE);
    bad->CS.Control = VIP_CONTROL_OP_RDMAREAD;
    CHECK(VipPostRecv(one.vi, bad, one.memory), VIP_SUCCESS);
    CHECK(VipRecvDone(one.vi, &done), VIP_NOT_DONE);
    post_send(&two, 8);
    CHECK(VipRecvWait(one.vi, 10000, &done), VIP_SUCCESS);
    CHECK(done == &one.room->receive, 1);
    CHECK(VipRecvWait(one.vi, 10000, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == bad, 1);
    CHECK(bad->CS.Status, VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | VIP_STATUS_FORMAT_ERROR);
    CHECK(state_of(one.vi), VIP_STATE_ERROR);
    CHECK(VipDisconnect(one.vi), VIP_SUCCESS);
    CHECK(VipDisconnect(two.vi), VIP_SUCCESS);
    while (VipSendDone(two.vi, &done) != VIP_NOT_DONE) {}
    /* Reserved bits, too many segments, and an idle VI, which checks nothing until it is connected. */
    fill(&one, bad, one.room->in, SIZE);
    bad->CS.Control = VIP_CONTROL_RESERVED;
    CHECK(VipPostRecv(one.vi, bad, one.memory), VIP_SUCCESS);
    CHECK(VipRecvDone(one.vi, &done), VIP_NOT_DONE);
    connect_both();
    CHECK(VipRecvWait(one.vi, 10000, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(bad->CS.Status & VIP_STATUS_FORMAT_ERROR, VIP_STATUS_FORMAT_ERROR);
    CHECK(VipDisconnect(one.vi), VIP_SUCCESS);
    CHECK(VipDisconnect(two.vi), VIP_SUCCESS);
    connect_both();
    fill(&two, &two.room->send, two.room->out, 8);
    two.room->send.CS.Length = 9;
    CHECK(VipPostSend(two.vi, &two.room->send, two.memory), VIP_SUCCESS);
    CHECK(VipSendWait(two.vi, 10000, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done->CS.Status, VIP_STATUS_DONE | VIP_STATUS_OP_SEND | VIP_STATUS_FORMAT_ERROR);
    /* Not in registered memory, only partly in it, not aligned. */
    VIP_DESCRIPTOR *elsewhere;
    if (posix_memalign((void **)&elsewhere, 64, sizeof *elsewhere)) exit(1);
    memset(elsewhere, 0, sizeof *elsewhere);
    CHECK(VipPostRecv(one.vi, elsewhere, one.memory), VIP_INVALID_PARAMETER);
    CHECK(VipPostRecv(one.vi, (VIP_DESCRIPTOR *)0x40, one.memory), VIP_INVALID_PARAMETER);
    CHECK(VipPostRecv(one.vi, (VIP_DESCRIPTOR *)((char *)bad + 4), one.memory), VIP_INVALID_PARAMETER);
    CHECK(VipPostRecv(one.vi, bad, one.memory + 1), VIP_INVALID_PARAMETER);
    memset(bad, 0, sizeof *bad);
    bad->CS.SegCount = 0xffff;
    CHECK(VipPostRecv(one.vi, bad, one.memory), VIP_INVALID_PARAMETER);
}

static atomic_int lost_completions;

static void on_error(void *context, VIP_ERROR_DESCRIPTOR *error) {
    if (context == &one && error->ErrorCode == VIP_ERROR_COMP_PROT) lost_completions++;
}

/* A descriptor whose memory is no longer registered is not written to; the error callback is called. */
static void gone_memory(void) {
    VIP_DESCRIPTOR *done;
    open_both(NULL);
    CHECK(VipErrorCallback(one.nic, &one, on_error), VIP_SUCCESS);
    connect_both();
    post_receive(&one);
    CHECK(VipDeregisterMem(one.nic, one.room, one.memory), VIP_SUCCESS);
    CHECK(VipDeregisterMem(one.nic, one.room, one.memory), VIP_INVALID_PARAMETER);
    CHECK(VipDisconnect(two.vi), VIP_SUCCESS);
    CHECK(VipRecvWait(one.vi, 10000, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(one.room->receive.CS.Status, 0);
    for (int tries = 0; tries < 10000 && !lost_completions; tries++) usleep(1000);
    CHECK(lost_completions, 1);
}

static void management(void) {
    struct { const char *device; unsigned hosts; } known[] = {{"shm", 1}, {"udp:127.0.0.1:0", 1}, {"myrinet:bvia:3", 16}};
    for (unsigned i = 0; i < 3; i++) {
        VIP_NIC_HANDLE nic;
        VIP_NIC_ATTRIBUTES facts;
        CHECK(VipOpenNic(known[i].device, &nic), VIP_SUCCESS);
        CHECK(VipQueryNic(nic, &facts), VIP_SUCCESS);
        VIP_AUTODISCOVERY_LIST list = {0, NULL, 0};
        CHECK(VipQuerySystemManagementInfo(nic, VIP_SMI_AUTODISCOVERY, &list), VIP_SUCCESS);
        CHECK(list.NumAdAddrs, known[i].hosts);
        VIP_NET_ADDRESS *found[16] = {address("", ""), NULL, address("", "")};
        list = (VIP_AUTODISCOVERY_LIST){9, found, 3};
        CHECK(VipQuerySystemManagementInfo(nic, VIP_SMI_AUTODISCOVERY, &list), VIP_SUCCESS);
        CHECK(list.NumAdAddrs, known[i].hosts);
        CHECK(list.NumberOfHops, known[i].hosts > 1);
        CHECK(found[0]->HostAddressLen, facts.NicAddressLen);
        CHECK(memcmp(found[0]->HostAddress, facts.LocalNicAddress, facts.NicAddressLen), 0);
        if (known[i].hosts > 1) CHECK(strcmp((char *)found[2]->HostAddress, "1"), 0);
        CHECK(VipQuerySystemManagementInfo(nic, 2, &list), VIP_INVALID_PARAMETER);
        CHECK(VipQuerySystemManagementInfo(nic, VIP_SMI_AUTODISCOVERY, NULL), VIP_INVALID_PARAMETER);
        CHECK(VipCloseNic(nic), VIP_SUCCESS);
    }
}

static void memory_address(void) {
    one = open_side("shm", 0, NULL);
    VIP_MEM_ATTRIBUTES mem = {one.tag, VIP_TRUE, VIP_FALSE}, found;
    char *room = (char *)one.room;
    char *outside[] = {room - 1, room + sizeof *one.room, NULL, (char *)~0ul};
    for (unsigned i = 0; i < 4; i++) {
        CHECK(VipSetMemAttributes(one.nic, outside[i], one.memory, &mem), VIP_INVALID_PARAMETER);
        CHECK(VipQueryMem(one.nic, outside[i], one.memory, &found), VIP_INVALID_PARAMETER);
    }
    for (unsigned i = 0; i < 2; i++) {
        CHECK(VipSetMemAttributes(one.nic, room + i * (sizeof *one.room - 1), one.memory, &mem), VIP_SUCCESS);
        CHECK(VipQueryMem(one.nic, room + i * (sizeof *one.room - 1), one.memory, &found), VIP_SUCCESS);
        CHECK(found.EnableRdmaWrite, VIP_TRUE);
    }
}

static void names(void) {
    VIP_NIC_HANDLE nic = NULL;
    VIP_NIC_ATTRIBUTES facts;
    const char *wrong[] = {"eth0", "udp:nowhere", "af_xdp:", "af_xdp:none0", "myrinet:gm", "myrinet:bvia:99", "shm:x", "\xff"};
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) CHECK(VipOpenNic(wrong[i], &nic), VIP_INVALID_PARAMETER);
    CHECK(nic == NULL, 1);
    CHECK(VipOpenNic("shm", NULL), VIP_INVALID_PARAMETER);
    CHECK(VipOpenNic(NULL, &nic), VIP_SUCCESS);
    CHECK(VipQueryNic(nic, &facts), VIP_SUCCESS);
    CHECK(strcmp(facts.Name, "shm"), 0);
    VIP_NET_ADDRESS *found = address("", "");
    CHECK(VipNSGetHostByName(nic, "localhost", found, 0), VIP_SUCCESS);
    CHECK(memcmp(found->HostAddress, "local", 5), 0);
    CHECK(VipNSGetHostByName(nic, "no such host", found, 0), VIP_ERROR_NAMESERVICE);
    CHECK(VipCloseNic(nic), VIP_SUCCESS);
    CHECK(VipOpenNic("udp:127.0.0.1:0", &nic), VIP_SUCCESS);
    CHECK(VipQueryNic(nic, &facts), VIP_SUCCESS);
    CHECK(memcmp(facts.LocalNicAddress, "127.0.0.1:", 10), 0);
    CHECK(VipNSGetHostByName(nic, "127.0.0.1:7471", found, 0), VIP_SUCCESS);
    CHECK(strcmp((char *)found->HostAddress, "127.0.0.1:7471"), 0);
    CHECK(found->HostAddressLen, facts.NicAddressLen);
    CHECK(VipNSGetHostByName(nic, "no such host", found, 0), VIP_ERROR_NAMESERVICE);
    CHECK(VipCloseNic(nic), VIP_SUCCESS);
}

/* Every call with invalid handles: null, garbage, another type, destroyed. */
static void wrong_handles(void) {
    VIP_CQ_HANDLE cq;
    open_both(&cq);
    struct side old = open_side("shm", VIP_SERVICE_RELIABLE_DELIVERY, NULL);
    CHECK(VipDestroyVi(old.vi), VIP_SUCCESS);
    CHECK(VipCloseNic(old.nic), VIP_SUCCESS);
    CHECK(VipCloseNic(old.nic), VIP_INVALID_PARAMETER);
    void *wrong[] = {NULL, (void *)1, (void *)-1L, &cq, (void *)fresh, old.vi, old.nic, (char *)one.vi + 1, (char *)one.nic + (1 << 24), cq};
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        void *w = wrong[i];
        VIP_DESCRIPTOR *d = &one.room->send;
        VIP_VI_HANDLE vi;
        VIP_BOOLEAN receive;
        VIP_NIC_ATTRIBUTES nic_facts;
        VIP_MEM_ATTRIBUTES mem = {one.tag, 0, 0};
        VIP_VI_ATTRIBUTES attributes = attributes_at(&one, VIP_SERVICE_RELIABLE_DELIVERY);
        VIP_MEM_HANDLE memory;
        VIP_NET_ADDRESS *a = address("", "a");
        VIP_CONN_HANDLE connection;
        VIP_PROTECTION_HANDLE tag;
        VIP_ULONG length = 8;
        char name[8];
        CHECK(VipQueryNic(w, &nic_facts), VIP_INVALID_PARAMETER);
        CHECK(VipErrorCallback(w, NULL, on_error), VIP_INVALID_PARAMETER);
        CHECK(VipCreatePtag(w, &tag), VIP_INVALID_PARAMETER);
        CHECK(VipDestroyPtag(w, one.tag), VIP_INVALID_PARAMETER);
        CHECK(VipRegisterMem(w, one.room, SIZE, &mem, &memory), VIP_INVALID_PARAMETER);
        CHECK(VipDeregisterMem(w, one.room, one.memory), VIP_INVALID_PARAMETER);
        CHECK(VipSetMemAttributes(w, one.room, one.memory, &mem), VIP_INVALID_PARAMETER);
        CHECK(VipQueryMem(w, one.room, one.memory, &mem), VIP_INVALID_PARAMETER);
        CHECK(VipCreateVi(w, &attributes, NULL, NULL, &vi), VIP_INVALID_PARAMETER);
        CHECK(VipCreateCQ(w, 4, &vi), VIP_INVALID_PARAMETER);
        CHECK(VipConnectWait(w, a, 0, NULL, NULL, &connection), VIP_INVALID_PARAMETER);
        CHECK(VipNSInit(w, NULL), VIP_INVALID_PARAMETER);
        CHECK(VipNSShutdown(w), VIP_INVALID_PARAMETER);
        CHECK(VipNSGetHostByName(w, "local", a, 0), VIP_INVALID_PARAMETER);
        CHECK(VipNSGetHostByAddr(w, a, name, &length), VIP_INVALID_PARAMETER);
        CHECK(VipCloseNic(w), VIP_INVALID_PARAMETER);
        CHECK(VipDestroyVi(w), VIP_INVALID_PARAMETER);
        CHECK(VipSetViAttributes(w, &attributes), VIP_INVALID_PARAMETER);
        CHECK(VipQueryVi(w, NULL, NULL, NULL, NULL), VIP_INVALID_PARAMETER);
        CHECK(VipConnectRequest(w, a, a, 0, NULL), VIP_INVALID_PARAMETER);
        CHECK(VipConnectPeerRequest(w, a, address("", "b"), 0), VIP_INVALID_PARAMETER);
        CHECK(VipConnectPeerDone(w, NULL), VIP_INVALID_PARAMETER);
        CHECK(VipConnectPeerWait(w, NULL), VIP_INVALID_PARAMETER);
        CHECK(VipDisconnect(w), VIP_INVALID_PARAMETER);
        CHECK(VipConnectAccept(w, one.vi), VIP_INVALID_PARAMETER);
        CHECK(VipConnectReject(w), VIP_INVALID_PARAMETER);
        CHECK(VipPostSend(w, d, one.memory), VIP_INVALID_PARAMETER);
        CHECK(VipPostRecv(w, d, one.memory), VIP_INVALID_PARAMETER);
        CHECK(VipSendDone(w, &d), VIP_INVALID_PARAMETER);
        CHECK(VipRecvDone(w, &d), VIP_INVALID_PARAMETER);
        CHECK(VipSendWait(w, 0, &d), VIP_INVALID_PARAMETER);
        CHECK(VipRecvWait(w, 0, &d), VIP_INVALID_PARAMETER);
        CHECK(VipSendNotify(w, NULL, (void *)on_error), VIP_INVALID_PARAMETER);
        if (w == cq) continue;
        CHECK(VipDestroyCQ(w), VIP_INVALID_PARAMETER);
        CHECK(VipResizeCQ(w, 8), VIP_INVALID_PARAMETER);
        CHECK(VipCQDone(w, &vi, &receive), VIP_INVALID_PARAMETER);
        CHECK(VipCQWait(w, 0, &vi, &receive), VIP_INVALID_PARAMETER);
    }
    VIP_DESCRIPTOR *d;
    CHECK(VipSetMemAttributes(one.nic, one.room, one.memory + 9, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipDestroyPtag(one.nic, (void *)99L), VIP_INVALID_PTAG);
    CHECK(VipRecvWait(one.vi, 1, &d), VIP_TIMEOUT);
    /* The NIC is closed but its VI is not: the VI can still be destroyed. */
    CHECK(VipCloseNic(two.nic), VIP_SUCCESS);
    CHECK(state_of(two.vi), VIP_STATE_IDLE);
    CHECK(VipDestroyVi(two.vi), VIP_SUCCESS);
}

/* A client whose address is longer than the NIC's maximum does not overflow the server's buffer. */
static void long_name(void) {
    char name[201] = {0};
    VIP_NIC_ATTRIBUTES facts;
    VIP_CONN_HANDLE request;
    struct asking asking;
    pthread_t thread;
    open_both(NULL);
    CHECK(VipQueryNic(one.nic, &facts), VIP_SUCCESS);
    memset(name, 'n', 200);
    size_t room = sizeof(VIP_NET_ADDRESS) + facts.NicAddressLen + facts.MaxDiscriminatorLen;
    unsigned char *bytes = malloc(room + 256);
    memset(bytes, 0x5a, room + 256);
    asking = (struct asking){two.vi, address("", name), address("", fresh("long")), VIP_SUCCESS};
    if (pthread_create(&thread, NULL, ask_in_thread, &asking)) exit(1);
    VIP_RETURN got = VipConnectWait(one.nic, address("", fresh("long")), 1000, (void *)bytes, NULL, &request);
    if (got == VIP_SUCCESS) CHECK(VipConnectReject(request), VIP_SUCCESS);
    pthread_join(thread, NULL);
    for (size_t i = room; i < room + 256; i++) CHECK(bytes[i], 0x5a);
    CHECK(asking.got != VIP_SUCCESS, 1);
}

static atomic_int stop;
static void *_Atomic shared_vi;
static atomic_int used, refused;

static void *use(void *unused) {
    (void)unused;
    while (!stop) {
        VIP_DESCRIPTOR *done;
        VIP_VI_HANDLE vi = shared_vi;
        VIP_RETURN got = VipRecvDone(vi, &done);
        if (got == VIP_NOT_DONE || got == VIP_DESCRIPTOR_ERROR) used++;
        else if (got == VIP_INVALID_PARAMETER) refused++;
        else exit(7);
        got = VipRecvWait(vi, 0, &done);
        if (got != VIP_TIMEOUT && got != VIP_DESCRIPTOR_ERROR && got != VIP_INVALID_PARAMETER) exit(8);
        VipDisconnect(vi);
        if (used % 64 == 0) VipDestroyVi(vi);
    }
    return NULL;
}

/* Some threads use a VI while others destroy it and create new ones. */
static void threads(void) {
    pthread_t made[4];
    int turns = 0;
    open_both(NULL);
    VIP_VI_ATTRIBUTES attributes = attributes_at(&one, VIP_SERVICE_RELIABLE_DELIVERY);
    for (int i = 0; i < 4; i++)
        if (pthread_create(&made[i], NULL, use, NULL)) exit(1);
    for (int round = 0; round < 1000 || used < 1000; round++) {
        VIP_VI_HANDLE vi;
        VIP_RETURN got;
        CHECK(VipCreateVi(one.nic, &attributes, NULL, NULL, &vi), VIP_SUCCESS);
        shared_vi = vi;
        fill(&one, &one.room->more[0], one.room->in, 8);
        VipPostRecv(vi, &one.room->more[0], one.memory);
        if (round % 16 == 0) usleep(100);
        VIP_DESCRIPTOR *done;
        VipDisconnect(vi);
        while ((got = VipDestroyVi(vi)) == VIP_ERROR_RESOURCE) {
            VipDisconnect(vi);
            VipRecvDone(vi, &done);
        }
        if (got != VIP_SUCCESS && got != VIP_INVALID_PARAMETER) exit(9);
        turns++;
    }
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(made[i], NULL);
    CHECK(used > 0 && turns >= 1000, 1);
}

/* Polls both queues of both sides, because on a modelled NIC time advances only while programs poll. */
static void move_on(int *sent, int *received) {
    VIP_DESCRIPTOR *done;
    VIP_RETURN got = VipSendDone(two.vi, &done);
    if (got != VIP_NOT_DONE) CHECK(got, VIP_SUCCESS);
    *sent += got == VIP_SUCCESS;
    got = VipRecvDone(one.vi, &done);
    if (got != VIP_NOT_DONE) CHECK(got, VIP_SUCCESS);
    *received += got == VIP_SUCCESS;
    VipRecvDone(two.vi, &done);
}

/* The same program on each type of NIC: a message, and an RDMA write with immediate data. */
static void devices(void) {
    const char *names[] = {"shm", "udp:127.0.0.1:0", "myrinet:bvia", "myrinet:myvia"};
    for (unsigned i = 0; i < 4; i++) {
        struct asking asking;
        pthread_t thread;
        VIP_NIC_ATTRIBUTES facts;
        VIP_CONN_HANDLE request;
        VIP_NET_ADDRESS *remote = address("", "");
        int sent = 0, received = 0;
        one = open_side(names[i], VIP_SERVICE_RELIABLE_DELIVERY, NULL);
        two = open_side(names[i], VIP_SERVICE_RELIABLE_DELIVERY, NULL);
        CHECK(VipQueryNic(one.nic, &facts), VIP_SUCCESS);
        char *host = calloc(1, facts.NicAddressLen + 1);
        memcpy(host, facts.LocalNicAddress, facts.NicAddressLen);
        asking = (struct asking){two.vi, address("", "client"), address(host, fresh("device")), VIP_SUCCESS};
        if (pthread_create(&thread, NULL, ask_in_thread, &asking)) exit(1);
        CHECK(VipConnectWait(one.nic, address("", fresh("device")), 10000, remote, NULL, &request), VIP_SUCCESS);
        CHECK(remote->DiscriminatorLen, 6);
        CHECK(VipConnectAccept(request, one.vi), VIP_SUCCESS);
        pthread_join(thread, NULL);
        CHECK(asking.got, VIP_SUCCESS);
        post_receive(&one);
        memset(two.room->out, 'm', SIZE);
        post_send(&two, 3000);
        while (!sent || !received) move_on(&sent, &received);
        CHECK(one.room->receive.CS.Length, 3000);
        CHECK(one.room->in[2999], 'm');
        post_receive(&one);
        VIP_DESCRIPTOR *d = &two.room->send;
        fill(&two, d, two.room->out, 64);
        d->DS[1] = d->DS[0];
        d->CS.SegCount = 2;
        d->CS.Control = VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE;
        d->CS.ImmediateData = 77;
        d->DS[0].Remote.Data.Address = one.room->window;
        d->DS[0].Remote.Handle = one.memory;
        CHECK(VipPostSend(two.vi, d, two.memory), VIP_SUCCESS);
        while (sent < 2 || received < 2) move_on(&sent, &received);
        CHECK(one.room->receive.CS.ImmediateData, 77);
        CHECK(one.room->receive.CS.Status & VIP_STATUS_OP_MASK, VIP_STATUS_OP_REMOTE_RDMA_WRITE);
        CHECK(one.room->window[63], 'm');
        CHECK(VipDisconnect(one.vi), VIP_SUCCESS);
        CHECK(VipDisconnect(two.vi), VIP_SUCCESS);
    }
}

static void status_shm(void) { status_word("shm", ""); }
static void status_udp(void) { status_word("udp:127.0.0.1:0", "?"); }

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"accept_again", accept_again}, {"peers", peers}, {"stranger", stranger}, {"same_name", same_name},
        {"status_shm", status_shm}, {"status_udp", status_udp}, {"destroy", destroy}, {"malformed", malformed},
        {"gone_memory", gone_memory}, {"management", management}, {"memory_address", memory_address}, {"names", names}, {"wrong_handles", wrong_handles},
        {"long_name", long_name}, {"threads", threads}, {"devices", devices},
    };
    alarm(60);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc == 2 && !strcmp(argv[1], "--list")) {
            puts(cases[i].name);
        } else if (argc == 2 && !strcmp(argv[1], cases[i].name)) {
            cases[i].run();
            printf("%s: kept\n", argv[1]);
            return 0;
        }
    }
    return argc == 2 && !strcmp(argv[1], "--list") ? 0 : 64;
}
