/* A VIPL program: two processes play ping-pong with messages, immediate data and RDMA writes.
 * Usage: ping_pong server|client NAME ROUNDS [DEVICE [HOST]]. DEVICE is a device name for VipOpenNic; HOST is the server's host, in the
 * form of that NIC's addresses. Prints one line; exits with 0 only if every byte was correct. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vipl.h>

#define CHECK(call, want)                                                                     \
    do {                                                                                      \
        VIP_RETURN gave = (call);                                                             \
        if (gave != (want)) {                                                                 \
            fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, (int)gave);     \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

#define SIZE 4096

struct room {
    VIP_DESCRIPTOR send, receive;
    char out[SIZE], in[SIZE], window[64];
};

static VIP_NIC_HANDLE nic;
static VIP_VI_HANDLE vi;
static VIP_CQ_HANDLE cq;
static VIP_MEM_HANDLE memory;
static struct room *room;

/* An address with space for any address of this NIC. An empty host is our own. */
static VIP_NET_ADDRESS *address(const char *host, const char *name) {
    size_t hosts = strlen(host), names = strlen(name);
    VIP_NET_ADDRESS *made = calloc(1, sizeof *made + 512);
    made->HostAddressLen = (VIP_UINT16)hosts;
    made->DiscriminatorLen = (VIP_UINT16)names;
    memcpy(made->HostAddress, host, hosts);
    memcpy(made->HostAddress + hosts, name, names);
    return made;
}

static void post_receive(void) {
    VIP_DESCRIPTOR *d = &room->receive;
    memset(d, 0, sizeof *d);
    d->CS.SegCount = 1;
    d->CS.Control = VIP_CONTROL_OP_SENDRECV;
    d->CS.Length = SIZE;
    d->DS[0].Local.Data.Address = room->in;
    d->DS[0].Local.Handle = memory;
    d->DS[0].Local.Length = SIZE;
    CHECK(VipPostRecv(vi, d, memory), VIP_SUCCESS);
}

static void collect_send(void) {
    VIP_DESCRIPTOR *done = NULL;
    CHECK(VipSendWait(vi, 5000, &done), VIP_SUCCESS);
    if (done != &room->send || !(done->CS.Status & VIP_STATUS_DONE)) exit(2);
}

static void send_message(unsigned length, unsigned immediate) {
    VIP_DESCRIPTOR *d = &room->send;
    memset(d, 0, sizeof *d);
    d->CS.SegCount = 1;
    d->CS.Control = VIP_CONTROL_OP_SENDRECV | VIP_CONTROL_IMMEDIATE;
    d->CS.ImmediateData = immediate;
    d->CS.Length = length;
    d->DS[0].Local.Data.Address = room->out;
    d->DS[0].Local.Handle = memory;
    d->DS[0].Local.Length = length;
    CHECK(VipPostSend(vi, d, memory), VIP_SUCCESS);
    collect_send();
}

static void receive_message(unsigned length, unsigned immediate, char filled_with) {
    VIP_VI_HANDLE from = NULL;
    VIP_BOOLEAN receive = VIP_FALSE;
    VIP_DESCRIPTOR *done = NULL;
    CHECK(VipCQWait(cq, 5000, &from, &receive), VIP_SUCCESS);
    if (from != vi || !receive) exit(3);
    CHECK(VipRecvDone(vi, &done), VIP_SUCCESS);
    if (done != &room->receive || done->CS.Length != length || done->CS.ImmediateData != immediate) exit(4);
    if (!(done->CS.Status & VIP_STATUS_IMMEDIATE) || (done->CS.Status & VIP_STATUS_OP_MASK) != VIP_STATUS_OP_RECEIVE)
        exit(5);
    for (unsigned i = 0; i < length; i++)
        if (room->in[i] != filled_with) exit(6);
}

struct place {
    VIP_UINT64 address;
    VIP_MEM_HANDLE handle;
};

static void write_remote(struct place to, char value) {
    VIP_DESCRIPTOR *d = &room->send;
    memset(room->out, value, 64);
    memset(d, 0, sizeof *d);
    d->CS.SegCount = 2;
    d->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
    d->CS.Length = 64;
    d->DS[0].Remote.Data.AddressBits = to.address;
    d->DS[0].Remote.Handle = to.handle;
    d->DS[1].Local.Data.Address = room->out;
    d->DS[1].Local.Handle = memory;
    d->DS[1].Local.Length = 64;
    CHECK(VipPostSend(vi, d, memory), VIP_SUCCESS);
    collect_send();
}

int main(int argc, char **argv) {
    if (argc < 4 || argc > 6) return 64;
    int is_server = !strcmp(argv[1], "server");
    unsigned rounds = (unsigned)atoi(argv[3]);
    const char *device = argc > 4 ? argv[4] : "shm", *host = argc > 5 ? argv[5] : "";
    VIP_PROTECTION_HANDLE tag;
    VIP_NIC_ATTRIBUTES facts;
    alarm(60);
    CHECK(VipOpenNic(device, &nic), VIP_SUCCESS);
    CHECK(VipQueryNic(nic, &facts), VIP_SUCCESS);
    CHECK(VipCreatePtag(nic, &tag), VIP_SUCCESS);
    CHECK(VipCreateCQ(nic, 64, &cq), VIP_SUCCESS);
    VIP_MEM_ATTRIBUTES mem = {tag, VIP_TRUE, VIP_TRUE};
    if (posix_memalign((void **)&room, 64, sizeof *room)) return 1;
    memset(room, 0, sizeof *room);
    CHECK(VipRegisterMem(nic, room, sizeof *room, &mem, &memory), VIP_SUCCESS);
    VIP_VI_ATTRIBUTES attributes = {VIP_SERVICE_RELIABLE_DELIVERY, 65536, NULL, tag, VIP_TRUE, VIP_TRUE}, theirs;
    CHECK(VipCreateVi(nic, &attributes, NULL, cq, &vi), VIP_SUCCESS);
    post_receive();
    if (is_server) {
        VIP_CONN_HANDLE request;
        VIP_NET_ADDRESS *remote = address("", "");
        CHECK(VipConnectWait(nic, address("", argv[2]), 10000, remote, &theirs, &request), VIP_SUCCESS);
        CHECK(VipConnectAccept(request, vi), VIP_SUCCESS);
    } else {
        VIP_RETURN got;
        while ((got = VipConnectRequest(vi, address("", "client"), address(host, argv[2]), 10000, &theirs)) == VIP_NO_MATCH)
            usleep(1000);
        CHECK(got, VIP_SUCCESS);
    }
    if (theirs.ReliabilityLevel != VIP_SERVICE_RELIABLE_DELIVERY) return 1;
    for (unsigned round = 0; round < rounds; round++) {
        unsigned length = round % SIZE;
        char fill = (char)round;
        if (is_server) {
            receive_message(length, round, fill);
            post_receive();
        }
        memset(room->out, fill, length);
        send_message(length, round);
        if (!is_server) {
            receive_message(length, round, fill);
            post_receive();
        }
    }
    /* Each side sends the address of its window, writes to the peer's window, and polls its own. The client sends first, after it has
     * posted its receive. */
    struct place own = {(VIP_UINT64)(uintptr_t)room->window, memory}, other;
    memcpy(room->out, &own, sizeof own);
    if (!is_server) send_message(sizeof own, 7);
    VIP_DESCRIPTOR *done;
    CHECK(VipRecvWait(vi, 5000, &done), VIP_SUCCESS);
    memcpy(&other, room->in, sizeof other);
    if (is_server) send_message(sizeof own, 7);
    write_remote(other, is_server ? 'S' : 'C');
    volatile char *last = &room->window[63];
    while (*last != (is_server ? 'C' : 'S')) usleep(100);
    VIP_VI_STATE state;
    CHECK(VipQueryVi(vi, &state, NULL, NULL, NULL), VIP_SUCCESS);
    /* The faster side may have disconnected already. */
    if (state != VIP_STATE_CONNECTED && state != VIP_STATE_ERROR) return 1;
    usleep(20000);
    CHECK(VipDisconnect(vi), VIP_SUCCESS);
    CHECK(VipDestroyVi(vi), VIP_SUCCESS);
    CHECK(VipDestroyCQ(cq), VIP_SUCCESS);
    CHECK(VipDeregisterMem(nic, room, memory), VIP_SUCCESS);
    CHECK(VipDestroyPtag(nic, tag), VIP_SUCCESS);
    CHECK(VipCloseNic(nic), VIP_SUCCESS);
    printf("%s: %u rounds\n", argv[1], rounds);
    return 0;
}
