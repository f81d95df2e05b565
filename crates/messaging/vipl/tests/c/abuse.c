/* Careless programs: null pointers in every argument, objects destroyed by several threads at once or while in use, calls from within
 * callbacks, a forked child that closes its parent's objects, signals during every wait, registration of unusable memory.
 * Usage: abuse CASE. Exits with 0 and prints "CASE: kept" only if the library rejected or performed each call and kept working. */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

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

static void open_and_connect(VIP_CQ_HANDLE *cq) {
    static char name[] = "abuse-a";
    pthread_t thread;
    VIP_CONN_HANDLE request;
    one = open_side("shm", VIP_SERVICE_RELIABLE_DELIVERY, cq);
    two = open_side("shm", VIP_SERVICE_RELIABLE_DELIVERY, NULL);
    name[6]++;
    VIP_NET_ADDRESS *at = address("", fresh(name));
    struct asking asking = {two.vi, address("", "client"), at, VIP_SUCCESS};
    if (pthread_create(&thread, NULL, ask_in_thread, &asking)) exit(1);
    CHECK(VipConnectWait(one.nic, at, 10000, NULL, NULL, &request), VIP_SUCCESS);
    CHECK(VipConnectAccept(request, one.vi), VIP_SUCCESS);
    pthread_join(thread, NULL);
    CHECK(asking.got, VIP_SUCCESS);
}

static void talk(void) {
    VIP_DESCRIPTOR *done;
    post_receive(&one);
    post_send(&two, 8);
    CHECK(VipRecvWait(one.vi, 10000, &done), VIP_SUCCESS);
    collect_send(&two);
}

/* Null for every pointer argument. */
static void nulls(void) {
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_MEM_HANDLE memory;
    VIP_MEM_ATTRIBUTES mem = {0};
    VIP_CONN_HANDLE connection;
    VIP_NET_ADDRESS *at = address("", "nulls");
    open_and_connect(&cq);
    mem.Ptag = one.tag;
    VIP_VI_ATTRIBUTES attributes = attributes_at(&one, VIP_SERVICE_RELIABLE_DELIVERY);
    CHECK(VipOpenNic("shm", NULL), VIP_INVALID_PARAMETER);
    CHECK(VipQueryNic(one.nic, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipCreatePtag(one.nic, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipDestroyPtag(one.nic, NULL), VIP_INVALID_PTAG);
    CHECK(VipRegisterMem(one.nic, NULL, SIZE, &mem, &memory), VIP_INVALID_PARAMETER);
    CHECK(VipRegisterMem(one.nic, one.room, 0, &mem, &memory), VIP_INVALID_PARAMETER);
    CHECK(VipRegisterMem(one.nic, one.room, (VIP_ULONG)-1, &mem, &memory), VIP_INVALID_PARAMETER);
    CHECK(VipRegisterMem(one.nic, one.room, SIZE, NULL, &memory), VIP_INVALID_PARAMETER);
    CHECK(VipRegisterMem(one.nic, one.room, SIZE, &mem, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipDeregisterMem(one.nic, NULL, one.memory), VIP_INVALID_PARAMETER);
    CHECK(VipSetMemAttributes(one.nic, one.room, one.memory, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipQueryMem(one.nic, one.room, one.memory, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipCreateVi(one.nic, NULL, NULL, NULL, &vi), VIP_INVALID_PARAMETER);
    CHECK(VipCreateVi(one.nic, &attributes, NULL, NULL, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipSetViAttributes(one.vi, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipQueryVi(one.vi, NULL, NULL, NULL, NULL), VIP_SUCCESS);
    CHECK(VipCreateCQ(one.nic, 4, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipCreateCQ(one.nic, 0, &vi), VIP_INVALID_PARAMETER);
    CHECK(VipCreateCQ(one.nic, (VIP_ULONG)-1, &vi), VIP_ERROR_RESOURCE);
    CHECK(VipResizeCQ(cq, 0), VIP_INVALID_PARAMETER);
    CHECK(VipResizeCQ(cq, (VIP_ULONG)-1), VIP_ERROR_RESOURCE);
    CHECK(VipConnectWait(one.nic, NULL, 0, NULL, NULL, &connection), VIP_INVALID_PARAMETER);
    CHECK(VipConnectWait(one.nic, at, 0, NULL, NULL, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipConnectRequest(one.vi, NULL, at, 0, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipConnectRequest(one.vi, at, NULL, 0, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipConnectPeerRequest(one.vi, NULL, at, 0), VIP_INVALID_PARAMETER);
    CHECK(VipConnectPeerRequest(one.vi, at, NULL, 0), VIP_INVALID_PARAMETER);
    CHECK(VipPostSend(one.vi, NULL, one.memory), VIP_INVALID_PARAMETER);
    CHECK(VipPostRecv(one.vi, NULL, one.memory), VIP_INVALID_PARAMETER);
    CHECK(VipSendNotify(one.vi, NULL, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipRecvNotify(one.vi, NULL, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipCQNotify(cq, NULL, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipNSGetHostByName(one.nic, NULL, at, 0), VIP_INVALID_PARAMETER);
    CHECK(VipNSGetHostByName(one.nic, "local", NULL, 0), VIP_INVALID_PARAMETER);
    CHECK(VipNSGetHostByAddr(one.nic, NULL, (char *)at, &(VIP_ULONG){0}), VIP_INVALID_PARAMETER);
    CHECK(VipNSGetHostByAddr(one.nic, at, NULL, &(VIP_ULONG){0}), VIP_INVALID_PARAMETER);
    CHECK(VipNSGetHostByAddr(one.nic, at, (char *)at, NULL), VIP_INVALID_PARAMETER);
    CHECK(VipErrorCallback(one.nic, NULL, NULL), VIP_SUCCESS);
    /* Arguments that may be null. */
    post_receive(&one);
    post_send(&two, 8);
    CHECK(VipCQWait(cq, 10000, NULL, NULL), VIP_SUCCESS);
    CHECK(VipRecvDone(one.vi, NULL), VIP_SUCCESS);
    CHECK(VipSendWait(two.vi, 10000, NULL), VIP_SUCCESS);
    CHECK(VipCQDone(cq, NULL, NULL), VIP_NOT_DONE);
    talk();
}

static VIP_VI_HANDLE target;
static VIP_NIC_HANDLE target_nic;
static pthread_barrier_t together;
static atomic_int succeeded;

static void *destroy_vi(void *unused) {
    (void)unused;
    pthread_barrier_wait(&together);
    VIP_RETURN answer = VipDestroyVi(target);
    if (answer == VIP_SUCCESS) succeeded++;
    else CHECK(answer, VIP_INVALID_PARAMETER);
    return NULL;
}

static void *close_nic(void *unused) {
    (void)unused;
    pthread_barrier_wait(&together);
    VIP_RETURN answer = VipCloseNic(target_nic);
    if (answer == VIP_SUCCESS) succeeded++;
    else CHECK(answer, VIP_INVALID_PARAMETER);
    return NULL;
}

/* If several threads destroy the same object, exactly one succeeds. */
static void destroyed_at_once(void) {
    pthread_t made[4];
    one = open_side("shm", 0, NULL);
    VIP_VI_ATTRIBUTES attributes = attributes_at(&one, VIP_SERVICE_RELIABLE_DELIVERY);
    pthread_barrier_init(&together, NULL, 4);
    for (int round = 0; round < 200; round++) {
        CHECK(VipCreateVi(one.nic, &attributes, NULL, NULL, &target), VIP_SUCCESS);
        succeeded = 0;
        for (int i = 0; i < 4; i++) pthread_create(&made[i], NULL, destroy_vi, NULL);
        for (int i = 0; i < 4; i++) pthread_join(made[i], NULL);
        CHECK(succeeded, 1);
    }
    for (int round = 0; round < 50; round++) {
        struct side side = open_side("shm", VIP_SERVICE_RELIABLE_DELIVERY, NULL);
        target_nic = side.nic;
        succeeded = 0;
        for (int i = 0; i < 4; i++) pthread_create(&made[i], NULL, close_nic, NULL);
        for (int i = 0; i < 4; i++) pthread_join(made[i], NULL);
        CHECK(succeeded, 1);
        CHECK(VipDestroyVi(side.vi), VIP_SUCCESS);
    }
}

static VIP_CQ_HANDLE waited_for;

static void *wait_for_queue(void *unused) {
    (void)unused;
    return (void *)(long)VipCQWait(waited_for, 1000, NULL, NULL);
}

static void *wait_for_vi(void *vi) {
    VIP_DESCRIPTOR *done;
    return (void *)(long)VipRecvWait(vi, 1000, &done);
}

/* An object that a thread waits for cannot be destroyed. Its NIC can be closed, and the wait ends at its timeout. Disconnecting a VI
 * ends a wait at once. */
static void destroyed_under_a_wait(void) {
    pthread_t waits[3];
    void *answer;
    open_and_connect(&waited_for);
    struct side idle = open_side("shm", VIP_SERVICE_RELIABLE_DELIVERY, NULL);
    pthread_create(&waits[0], NULL, wait_for_queue, NULL);
    pthread_create(&waits[1], NULL, wait_for_vi, idle.vi);
    pthread_create(&waits[2], NULL, wait_for_vi, one.vi);
    usleep(100000);
    CHECK(VipDestroyCQ(waited_for), VIP_ERROR_RESOURCE);
    CHECK(VipDestroyVi(idle.vi), VIP_ERROR_RESOURCE);
    CHECK(VipDestroyVi(one.vi), VIP_INVALID_STATE);
    CHECK(VipDisconnect(one.vi), VIP_SUCCESS);
    pthread_join(waits[2], &answer);
    CHECK((long)answer, VIP_INVALID_STATE);
    CHECK(VipCloseNic(idle.nic), VIP_SUCCESS);
    CHECK(VipCloseNic(one.nic), VIP_SUCCESS);
    CHECK(VipCloseNic(two.nic), VIP_SUCCESS);
    for (int i = 0; i < 2; i++) {
        pthread_join(waits[i], &answer);
        CHECK((long)answer, VIP_TIMEOUT);
    }
    CHECK(VipDestroyVi(idle.vi), VIP_SUCCESS);
    CHECK(VipDestroyVi(one.vi), VIP_SUCCESS);
    CHECK(VipDestroyCQ(waited_for), VIP_SUCCESS);
    CHECK(VipPostRecv(one.vi, &one.room->receive, one.memory), VIP_INVALID_PARAMETER);
}

static atomic_int called;

static void second_callback(void *context, VIP_ERROR_DESCRIPTOR *error) {
    (void)context, (void)error;
    called += 100;
}

/* Callbacks may make any call, including those that replace the callback and close its NIC. */
static void first_callback(void *context, VIP_ERROR_DESCRIPTOR *error) {
    VIP_DESCRIPTOR *done;
    (void)context;
    CHECK(state_of(error->ViHandle), VIP_STATE_ERROR);
    CHECK(VipErrorCallback(one.nic, NULL, second_callback), VIP_SUCCESS);
    while (VipRecvDone(one.vi, &done) != VIP_NOT_DONE) {}
    CHECK(VipDisconnect(one.vi), VIP_SUCCESS);
    CHECK(VipDestroyVi(one.vi), VIP_SUCCESS);
    CHECK(VipDeregisterMem(one.nic, one.room, one.memory), VIP_SUCCESS);
    CHECK(VipCloseNic(one.nic), VIP_SUCCESS);
    called++;
}

static void on_receive(void *context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *done) {
    (void)context;
    CHECK(nic == one.nic && vi == one.vi && done == &one.room->receive, 1);
    CHECK(VipRecvNotify(one.vi, NULL, on_receive), VIP_SUCCESS);
    called++;
}

static void within_callbacks(void) {
    open_and_connect(NULL);
    CHECK(VipRecvNotify(one.vi, NULL, on_receive), VIP_SUCCESS);
    for (int round = 1; round < 4; round++) {
        post_receive(&one);
        post_send(&two, 8);
        for (int tries = 0; tries < 10000 && called < round; tries++) usleep(1000);
        CHECK(called, round);
        collect_send(&two);
    }
    VipDisconnect(one.vi);
    VipDisconnect(two.vi);
    called = 0;
    open_and_connect(NULL);
    CHECK(VipErrorCallback(one.nic, NULL, first_callback), VIP_SUCCESS);
    CHECK(VipDisconnect(two.vi), VIP_SUCCESS);
    for (int tries = 0; tries < 10000 && !called; tries++) usleep(1000);
    CHECK(called, 1);
}

/* A forked child closes everything or just exits: the parent is not affected. */
static void forked(void) {
    open_and_connect(NULL);
    talk();
    for (int closes = 0; closes < 2; closes++) {
        pid_t child = fork();
        if (child == 0) {
            if (closes) {
                VipDisconnect(one.vi);
                VipDisconnect(two.vi);
                VipDestroyVi(one.vi);
                VipDeregisterMem(one.nic, one.room, one.memory);
                VipCloseNic(one.nic);
                VipCloseNic(two.nic);
            }
            _exit(0);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0, 1);
        usleep(50000);
        CHECK(state_of(one.vi), VIP_STATE_CONNECTED);
        CHECK(state_of(two.vi), VIP_STATE_CONNECTED);
        talk();
    }
}

static void ignore(int signal) { (void)signal; }

static pthread_t disturbed;
static atomic_int stop;

static void *disturb(void *unused) {
    (void)unused;
    while (!stop) {
        pthread_kill(disturbed, SIGUSR1);
        usleep(500);
    }
    return NULL;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Signals arrive during every wait: no wait ends early or late. */
static void signals(void) {
    VIP_CQ_HANDLE cq;
    VIP_CONN_HANDLE request;
    VIP_DESCRIPTOR *done;
    pthread_t thread;
    struct sigaction action = {.sa_handler = ignore};
    open_and_connect(&cq);
    sigaction(SIGUSR1, &action, NULL);
    disturbed = pthread_self();
    pthread_create(&thread, NULL, disturb, NULL);
    VIP_NET_ADDRESS *at = address("", fresh("signals")), *b = address("", fresh("t"));
    for (int which = 0; which < 5; which++) {
        double begin = now();
        switch (which) {
        case 0: CHECK(VipCQWait(cq, 200, NULL, NULL), VIP_TIMEOUT); break;
        case 1: CHECK(VipRecvWait(one.vi, 200, &done), VIP_TIMEOUT); break;
        case 2: CHECK(VipSendWait(one.vi, 200, &done), VIP_TIMEOUT); break;
        case 3: CHECK(VipConnectWait(one.nic, at, 200, NULL, NULL, &request), VIP_TIMEOUT); break;
        case 4: {
            struct side third = open_side("shm", VIP_SERVICE_RELIABLE_DELIVERY, NULL);
            CHECK(VipConnectPeerRequest(third.vi, b, at, 200), VIP_SUCCESS);
            CHECK(VipConnectPeerWait(third.vi, NULL), VIP_TIMEOUT);
            break;
        }
        }
        double took = now() - begin;
        if (took < 0.199) fprintf(stderr, "wait %d ended after %.3f s\n", which, took), exit(1);
    }
    talk();
    stop = 1;
    pthread_join(thread, NULL);
}

/* Memory that messages could not be stored to is refused when it is registered. */
static void unusable_memory(void) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    VIP_MEM_HANDLE memory;
    VIP_MEM_ATTRIBUTES mem = {0};
    open_and_connect(NULL);
    mem.Ptag = one.tag;
    char *pages = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + page, page, PROT_READ) || munmap(pages + 3 * page, page)) exit(1);
    CHECK(VipRegisterMem(one.nic, pages + 3 * page, 1, &mem, &memory), VIP_INVALID_PARAMETER);
    CHECK(VipRegisterMem(one.nic, pages + 2 * page, page + 1, &mem, &memory), VIP_INVALID_PARAMETER);
    CHECK(VipRegisterMem(one.nic, pages + page + 8, 8, &mem, &memory), VIP_INVALID_PARAMETER);
    CHECK(VipRegisterMem(one.nic, pages + page - 1, 2, &mem, &memory), VIP_INVALID_PARAMETER);
    CHECK(VipRegisterMem(one.nic, pages + 2 * page + 1, page - 1, &mem, &memory), VIP_SUCCESS);
    CHECK(VipDeregisterMem(one.nic, pages + 2 * page + 1, memory), VIP_SUCCESS);
    CHECK(VipRegisterMem(one.nic, pages, page, &mem, &memory), VIP_SUCCESS);
    CHECK(VipDeregisterMem(one.nic, pages, memory), VIP_SUCCESS);
    talk();
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"nulls", nulls}, {"destroyed_at_once", destroyed_at_once}, {"destroyed_under_a_wait", destroyed_under_a_wait},
        {"within_callbacks", within_callbacks}, {"forked", forked}, {"signals", signals}, {"unusable_memory", unusable_memory},
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
