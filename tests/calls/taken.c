// A thread takes away the buffer of a waiting call. Data that arrives then stays in pipes and streams, and is lost where Linux loses it.
// Source: read(2), recv(2), msgop(2), mq_receive(3), epoll(7), wait(2), accept(2), mprotect(2); which calls lose what: Linux fs/pipe.c,
// net/unix/af_unix.c, net/ipv4/tcp.c, net/core/datagram.c, fs/eventfd.c, ipc/msg.c.
// Levels: translated interpreted (in simulated time, a queue's absolute timeout is compared with the host's clock and expires at once)
#include "say.h"
#include "write_code.h"
#include <fcntl.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>

enum { BYTES = 1 << 16, DELAY_US = 12000, ALL = PROT_READ | PROT_WRITE | PROT_EXEC };

static char *page;
static int reader, writer, queue;
static mqd_t messages;
static pid_t child;
static long room;
static char text[2000];

// Changes to the page while the call waits.
static void forbid(void) { mprotect(page, BYTES, PROT_NONE); }
static void forbid_writing(void) { mprotect(page, BYTES, PROT_READ); }
static void unmap(void) { munmap(page, BYTES); }
static void replace(void) { mmap(page, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0); }
static void run(void) {
    int sum = 0;
    mprotect(page, BYTES, ALL);
    write_code((void *)(page + 2048), 1);
    for (int i = 0; i < 2000; i++) sum += ((int (*)(void))(page + 2048))();
    if (sum != 2000) puts("wrong code");
}
static void forks(void) {
    fflush(stdout);
    pid_t other = fork();
    if (other == 0) _exit(0);
    waitpid(other, NULL, 0);
}
static const struct { const char *name; void (*act)(void); } acts[] = {
    {"forbidden", forbid}, {"read-only", forbid_writing}, {"unmapped", unmap}, {"replaced", replace}, {"run", run}, {"after a fork", forks},
};

static void mend(void) {
    mmap(page, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

// `act` changes the page, then `come` sends the data.
static void (*act)(void), (*come)(void);
static void *later(void *unused) {
    usleep(DELAY_US);
    act();
    usleep(DELAY_US / 4);
    come();
    return NULL;
}

static void write_text(void) { write(writer, text, room < 8 ? room : room / 2); }
static void send_text(void) { send(writer, text, room / 2, 0); }
static void add_event(void) { eventfd_write(writer, 7); }
static void nothing(void) {}
static void signal_self(void) { kill(getpid(), SIGUSR1); }
static void kill_child(void) { kill(child, SIGKILL); }
static void make_file(void) {
    close(open("/tmp/longma-taken/file", O_CREAT | O_RDWR, 0600));
    unlink("/tmp/longma-taken/file");
}
static void send_queued(void) {
    struct { long type; char text[2000]; } message = {3};
    msgsnd(queue, &message, room / 2, 0);
}
static void send_posix(void) { mq_send(messages, text, room / 2, 5); }
static void pass_descriptor(void) {
    char space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec vector = {text, room / 2};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &reader, sizeof(int));
    sendmsg(writer, &message, 0);
}

// The waiting calls; with `again`, the same without waiting.
static long with_read(int again) {
    if (again) fcntl(reader, F_SETFL, O_NONBLOCK);
    return read(reader, page + 512, room);
}
static long with_readv(int again) {
    struct iovec vectors[] = {{page + 512, room / 4}, {page + 512 + room, room}};
    if (again) fcntl(reader, F_SETFL, O_NONBLOCK);
    return readv(reader, vectors, 2);
}
static long with_recv(int again) { return recv(reader, page + 512, room, again ? MSG_DONTWAIT : 0); }
static long with_recvfrom(int again) {
    struct sockaddr_in from;
    socklen_t bytes = sizeof from;
    return recvfrom(reader, page + 512, room, again ? MSG_DONTWAIT : 0, (void *)&from, &bytes);
}
static long with_recvmsg(int again) {
    struct iovec vector = {page + 512, room};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = page + 4096, .msg_controllen = 64};
    return recvmsg(reader, &message, again ? MSG_DONTWAIT : 0);
}
static long with_msgrcv(int again) { return msgrcv(queue, page + 512, room, 0, again ? IPC_NOWAIT : 0); }
static long with_mq(int again) {
    struct timespec limit = {time(NULL) + (again ? -1 : 5), 0};
    return mq_timedreceive(messages, page + 512, 2000, NULL, &limit);
}
static long with_wait(int again) { return wait4(child, (int *)(page + 512), again ? WNOHANG : 0, NULL) > 0; }
static long with_epoll(int again) { return epoll_wait(queue, (void *)(page + 512), room, again ? 0 : 5000); }

static void try_all(const char *what, void (*make)(void), long (*call)(int), void (*comes)(void)) {
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        pthread_t thread;
        reader = writer = -1;
        mend();
        make();
        act = acts[i].act, come = comes;
        pthread_create(&thread, NULL, later, NULL);
        errno = 0;
        long first = call(0);
        int error = errno;
        pthread_join(thread, NULL);
        mend();
        errno = 0;
        long second = call(1);
        printf("%s, %ld, %s: %ld %s, then %ld %s\n", what, room, acts[i].name, first, first < 0 ? error_name(error) : "", second,
               second < 0 ? error_name(errno) : "");
        close(reader);
        if (writer != reader) close(writer);
        if (call == with_msgrcv) msgctl(queue, IPC_RMID, NULL);
        if (call == with_epoll) close(queue);
        if (call == with_mq) mq_close(messages);
    }
}

static void ends_of(int both[2]) { reader = both[0], writer = both[1]; }
static void make_pipe(void) {
    int ends[2];
    pipe(ends), ends_of(ends);
}
static void make_stream(void) {
    int ends[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends), ends_of(ends);
}
static void make_datagram(void) {
    int ends[2];
    socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), ends_of(ends);
}
static void make_packets(void) {
    int ends[2];
    socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), ends_of(ends);
}
static void make_internet(int kind) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof address;
    int first = socket(AF_INET, kind, 0);
    bind(first, (void *)&address, bytes);
    getsockname(first, (void *)&address, &bytes);
    if (kind == SOCK_STREAM) listen(first, 1);
    writer = socket(AF_INET, kind, 0);
    connect(writer, (void *)&address, bytes);
    reader = kind == SOCK_STREAM ? accept(first, NULL, NULL) : first;
    if (kind == SOCK_STREAM) close(first);
}
static void make_tcp(void) { make_internet(SOCK_STREAM); }
static void make_udp(void) { make_internet(SOCK_DGRAM); }
static void make_event_count(void) { reader = writer = eventfd(0, 0); }
static void make_timer(void) {
    struct itimerspec once = {.it_value = {0, 12 * DELAY_US * 1000}};
    reader = writer = timerfd_create(CLOCK_MONOTONIC, 0);
    timerfd_settime(reader, 0, &once, NULL);
}
static void make_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    reader = writer = signalfd(-1, &set, 0);
}
static void make_watch(void) {
    reader = writer = inotify_init();
    inotify_add_watch(reader, "/tmp/longma-taken", IN_CREATE);
}
static void make_queue(void) { queue = msgget(IPC_PRIVATE, 0600 | IPC_CREAT); }
static void make_posix(void) {
    struct mq_attr attributes = {.mq_maxmsg = 2, .mq_msgsize = 2000};
    messages = mq_open("/longma-taken", O_RDWR | O_CREAT, 0600, &attributes);
    mq_unlink("/longma-taken");
}
static void make_child(void) {
    fflush(stdout);
    child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
}
static void make_set(int flags) {
    struct epoll_event event = {EPOLLIN | flags, {.u64 = 42}};
    make_pipe();
    queue = epoll_create1(0);
    epoll_ctl(queue, EPOLL_CTL_ADD, reader, &event);
}
static void make_edge(void) { make_set(EPOLLET); }
static void make_once(void) { make_set(EPOLLONESHOT); }

int main(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    // fork blocks all signals briefly. A child that ends meanwhile would interrupt the waiting thread, natively too.
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    alarm(100);
    mkdir("/tmp/longma-taken", 0700);
    page = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static const long rooms[] = {16, 1000};
    for (int i = 0; i < 2; i++) {
        room = rooms[i];
        try_all("pipe", make_pipe, with_read, write_text);
        try_all("pipe, vectors", make_pipe, with_readv, write_text);
        try_all("stream", make_stream, with_recv, send_text);
        try_all("stream, message", make_stream, with_recvmsg, send_text);
        try_all("TCP", make_tcp, with_read, write_text);
        try_all("datagram", make_datagram, with_recv, send_text);
        try_all("datagram, descriptor", make_datagram, with_recvmsg, pass_descriptor);
        try_all("packets", make_packets, with_read, send_text);
        try_all("UDP", make_udp, with_recvfrom, send_text);
        try_all("UDP, vectors", make_udp, with_readv, send_text);
        try_all("event count", make_event_count, with_read, add_event);
        try_all("signals", make_signals, with_read, signal_self);
        try_all("watch", make_watch, with_read, make_file);
        try_all("queue", make_queue, with_msgrcv, send_queued);
        try_all("POSIX queue", make_posix, with_mq, send_posix);
        try_all("edge", make_edge, with_epoll, write_text);
        try_all("once", make_once, with_epoll, write_text);
    }
    room = 8;
    try_all("timer", make_timer, with_read, nothing);
    try_all("child", make_child, with_wait, kill_child);
    rmdir("/tmp/longma-taken");
    return 0;
}
