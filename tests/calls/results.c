// Calls write their results to memory from which another thread runs code. No result may be lost.
// Levels: translated interpreted (a thread runs all the time; the other levels translate in the same way)
// Source: wait(2), recv(2), msgop(2), eventfd(2), timerfd_create(2), signalfd(2), inotify(7), poll(2), select(2), nanosleep(2) and others.
#include "say.h"
#include "write_code.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>

enum { BYTES = 1 << 16, DELAY_US = 40000 };

// The page begins with the code. Results are written after it in the same page, or through another view of the page.
static char *page, *data;
static int has_views;
#define RESULT (data + 512)
static int ends[2], pair[2], event_count, queue;
static pid_t child;

static void *run(void *unused) {
    for (;;) {
        for (int i = 0; i < 50; i++) ((int (*)(void))page)();
        usleep(200);
    }
}

static void *later(void *act) {
    usleep(DELAY_US);
    ((void (*)(void))act)();
    return NULL;
}

static void after(void (*act)(void)) {
    pthread_t thread;
    pthread_create(&thread, NULL, later, (void *)act);
    pthread_detach(thread);
}

static void write_pipe(void) { write(ends[1], "hello", 5); }
static void add_event(void) { eventfd_write(event_count, 7); }
static void send_message(void) { send(pair[0], "datagram", 8, 0); }
static void kill_child(void) { kill(child, SIGKILL); }
static void signal_self(void) { kill(getpid(), SIGUSR1); }
static pthread_t self;
static void interrupt(void) { pthread_kill(self, SIGUSR2); }
static void on_signal(int signal) {}

static void pass_descriptor(void) {
    char text[] = "fd", space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec vector = {text, 2};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &ends[1], sizeof(int));
    sendmsg(pair[0], &message, 0);
}

static void send_queued(void) {
    struct { long type; char text[8]; } message = {3, "message"};
    msgsnd(queue, &message, 8, 0);
}

static void make_file(void) {
    close(open("/tmp/longma-results/file", O_CREAT | O_RDWR, 0600));
    unlink("/tmp/longma-results/file");
}

static struct sockaddr_in address = {.sin_family = AF_INET};
static void connect_to(void) { connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&address, sizeof address); }

static void start_child(void) {
    child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
}

static void of_pipe(void) {
    after(write_pipe);
    SAY(read(ends[0], RESULT, 5));
    SAY(memcmp(RESULT, "hello", 6));
    struct iovec vectors[] = {{RESULT + 100, 2}, {RESULT + 200, 9}};
    after(write_pipe);
    SAY(readv(ends[0], vectors, 2));
    SAY(memcmp(RESULT + 100, "he", 3));
    SAY(memcmp(RESULT + 200, "llo", 4));
}

static void of_event_count(void) {
    after(add_event);
    SAY(read(event_count, RESULT, 8));
    SAY(*(long *)RESULT);
}

static void of_timer(void) {
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec once = {.it_value = {0, DELAY_US * 1000}};
    timerfd_settime(timer, 0, &once, NULL);
    SAY(read(timer, RESULT, 8));
    SAY(*(long *)RESULT);
}

static void of_recv(void) {
    after(send_message);
    SAY(recv(pair[1], RESULT, 16, 0));
    SAY(memcmp(RESULT, "datagram", 9));
}

static void of_recvfrom(void) {
    *(socklen_t *)(RESULT + 200) = 64;
    after(send_message);
    SAY(recvfrom(pair[1], RESULT, 16, 0, (void *)(RESULT + 100), (void *)(RESULT + 200)));
    SAY(memcmp(RESULT, "datagram", 9));
    SAY(*(socklen_t *)(RESULT + 200));
}

static void of_large_recv(void) {
    after(send_message);
    SAY(recv(pair[1], RESULT, BYTES - 1024, 0));
    SAY(memcmp(RESULT, "datagram", 9));
}

static void of_read_of_datagram(void) {
    after(send_message);
    SAY(read(pair[1], RESULT, 3000));
    SAY(memcmp(RESULT, "datagram", 9));
}

static void of_recvmsg(void) {
    struct iovec vectors[] = {{RESULT, 3}, {RESULT + 100, 8}};
    struct msghdr *message = (void *)(RESULT + 300);
    *message = (struct msghdr){.msg_iov = vectors, .msg_iovlen = 2};
    after(send_message);
    SAY(recvmsg(pair[1], message, 0));
    SAY(memcmp(RESULT, "dat", 4));
    SAY(memcmp(RESULT + 100, "agram", 6));
}

static void of_control_data(void) {
    struct iovec vector = {RESULT, 8};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = RESULT + 64, .msg_controllen = 64};
    after(pass_descriptor);
    SAY(recvmsg(pair[1], &message, 0));
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    SAY(head && head->cmsg_type == SCM_RIGHTS);
    SAY(head && write(*(int *)CMSG_DATA(head), "x", 1));
}

static void of_recvmmsg(void) {
    struct iovec vectors[] = {{RESULT, 16}, {RESULT + 100, 16}};
    struct mmsghdr *messages = (void *)(RESULT + 300);
    for (int i = 0; i < 2; i++) messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &vectors[i], .msg_iovlen = 1}};
    after(send_message);
    SAY(recvmmsg(pair[1], messages, 2, MSG_WAITFORONE, NULL));
    SAY(messages[0].msg_len);
    SAY(memcmp(RESULT, "datagram", 9));
}

static void of_wait4(void) {
    start_child();
    after(kill_child);
    *(int *)RESULT = -1;
    SAY(wait4(child, (int *)RESULT, 0, (struct rusage *)(RESULT + 64)) == child);
    SAY(*(int *)RESULT);
    SAY(wait4(-1, (int *)RESULT, WNOHANG, NULL));
}

static void of_waitid(void) {
    start_child();
    after(kill_child);
    SAY(waitid(P_PID, child, (siginfo_t *)RESULT, WEXITED));
    SAY(((siginfo_t *)RESULT)->si_status);
    SAY(((siginfo_t *)RESULT)->si_code);
}

static void of_accept(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t bytes = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(listener, (void *)&address, bytes);
    getsockname(listener, (void *)&address, &bytes);
    listen(listener, 1);
    *(socklen_t *)(RESULT + 64) = 16;
    after(connect_to);
    WELL(accept(listener, (void *)RESULT, (void *)(RESULT + 64)));
    SAY(((struct sockaddr_in *)RESULT)->sin_family);
}

static void of_epoll(void) {
    int set = epoll_create1(0);
    struct epoll_event event = {EPOLLIN | EPOLLET, {.u64 = 42}};
    epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event);
    after(write_pipe);
    SAY(epoll_wait(set, (void *)RESULT, 4, 3000));
    SAY(((struct epoll_event *)RESULT)->data.u64);
}

static void of_poll(void) {
    struct pollfd *files = (void *)RESULT;
    files[0] = (struct pollfd){.fd = event_count, .events = POLLIN};
    files[1] = (struct pollfd){.fd = ends[0], .events = POLLIN};
    after(write_pipe);
    SAY(poll(files, 2, 3000));
    SAY(files[0].revents);
    SAY(files[1].revents);
}

static void of_select(void) {
    fd_set *set = (void *)RESULT;
    FD_ZERO(set);
    FD_SET(event_count, set);
    FD_SET(ends[0], set);
    struct timeval *timeout = (void *)(RESULT + 200);
    *timeout = (struct timeval){100, 0};
    after(write_pipe);
    SAY(select(ends[0] + event_count, set, NULL, NULL, timeout));
    SAY(FD_ISSET(event_count, set) != 0);
    SAY(FD_ISSET(ends[0], set) != 0);
    SAY(timeout->tv_sec);
    // The same set twice: the result for the second one remains.
    FD_ZERO(set);
    FD_SET(ends[1], set);
    SAY(select(ends[1] + 1, set, set, NULL, NULL));
    SAY(FD_ISSET(ends[1], set) != 0);
}

static void of_msgrcv(void) {
    queue = msgget(IPC_PRIVATE, 0600 | IPC_CREAT);
    after(send_queued);
    SAY(msgrcv(queue, RESULT, 64, 0, 0));
    SAY(*(long *)RESULT);
    SAY(memcmp(RESULT + 8, "message", 8));
    msgctl(queue, IPC_RMID, NULL);
}

static mqd_t messages;
static void send_posix(void) { mq_send(messages, "posix", 6, 5); }

static void of_posix_queue(void) {
    struct mq_attr attributes = {.mq_maxmsg = 2, .mq_msgsize = 16};
    messages = mq_open("/longma-results", O_RDWR | O_CREAT, 0600, &attributes);
    mq_unlink("/longma-results");
    after(send_posix);
    struct timespec limit = {time(NULL) + 4, 0};
    SAY(mq_timedreceive(messages, RESULT, 1000, (unsigned *)(RESULT + 2000), &limit));
    SAY(strncmp(RESULT, "posix", 7));
    SAY(*(unsigned *)(RESULT + 2000));
}

static void of_inotify(void) {
    mkdir("/tmp/longma-results", 0700);
    // Left by an earlier run, which ended as soon as it saw the file.
    unlink("/tmp/longma-results/file");
    int watch = inotify_init();
    inotify_add_watch(watch, "/tmp/longma-results", IN_CREATE);
    after(make_file);
    SAY(read(watch, RESULT, 2048));
    SAY(strcmp(((struct inotify_event *)RESULT)->name, "file"));
    rmdir("/tmp/longma-results");
}

static void of_sigtimedwait(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    struct timespec timeout = {3, 0};
    after(signal_self);
    SAY(sigtimedwait(&set, (void *)RESULT, &timeout));
    SAY(((siginfo_t *)RESULT)->si_signo);
}

static void of_signalfd(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    int signals = signalfd(-1, &set, 0);
    after(signal_self);
    SAY(read(signals, RESULT, 1024));
    SAY(((struct signalfd_siginfo *)RESULT)->ssi_signo);
}

static void of_nanosleep(void) {
    struct timespec *left = (void *)RESULT, wanted = {100, 0};
    left->tv_sec = 7;
    after(interrupt);
    SAY(nanosleep(&wanted, left));
    SAY(left->tv_sec);
    left->tv_sec = 7;
    after(interrupt);
    ERROR(clock_nanosleep(CLOCK_MONOTONIC, 0, &wanted, left));
    SAY(left->tv_sec);
}

static void of_timer_setting(void) {
    struct itimerval first = {{0, 0}, {100, 0}}, none = {0};
    setitimer(ITIMER_REAL, &first, NULL);
    usleep(5000);
    SAY(setitimer(ITIMER_REAL, &none, (void *)RESULT));
    SAY(((struct itimerval *)RESULT)->it_value.tv_sec);
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec once = {.it_value = {100, 0}}, never = {0};
    timerfd_settime(timer, 0, &once, NULL);
    usleep(5000);
    SAY(timerfd_settime(timer, 0, &never, (void *)RESULT));
    SAY(((struct itimerspec *)RESULT)->it_value.tv_sec);
}

static void of_socket_error(void) {
    int closed = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_port = htons(1), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    connect(closed, (void *)&nobody, sizeof nobody);
    usleep(DELAY_US);
    *(socklen_t *)(RESULT + 64) = 4;
    SAY(getsockopt(closed, SOL_SOCKET, SO_ERROR, RESULT, (void *)(RESULT + 64)));
    SAY(*(int *)RESULT == ECONNREFUSED);
}

static void of_many_small_ones(void) {
    int wrong = 0;
    for (int i = 0; i < 300; i++) {
        eventfd_write(event_count, i + 1);
        wrong += read(event_count, RESULT, 8) != 8 || *(long *)RESULT != i + 1;
        wrong += write(ends[1], &i, 4) != 4 || read(ends[0], RESULT, 4000) != 4 || *(int *)RESULT != i;
        wrong += ioctl(ends[0], FIONREAD, RESULT) != 0 || *(int *)RESULT != 0;
        wrong += clock_gettime(CLOCK_REALTIME, (void *)RESULT) != 0 || getrusage(RUSAGE_SELF, (void *)RESULT) != 0;
        wrong += pipe((int *)RESULT) != 0 || close(((int *)RESULT)[0]) != 0 || close(((int *)RESULT)[1]) != 0;
        wrong += syscall(SYS_futex, RESULT + 8, FUTEX_WAKE_OP, 1, 1, RESULT + 12, FUTEX_OP(FUTEX_OP_SET, i, FUTEX_OP_CMP_EQ, -1)) != 0;
        wrong += *(int *)(RESULT + 12) != i;
    }
    SAY(wrong);
}

static void of_bad_addresses(void) {
    // Data that cannot be written to the buffer is not consumed.
    eventfd_write(event_count, 1);
    write(ends[1], "kept", 4);
    SAY(read(ends[0], (void *)8, 4));
    SAY(read(ends[0], (void *)of_pipe, 4));
    SAY(read(ends[0], RESULT, 16));
    SAY(getrusage(RUSAGE_SELF, (void *)8));
    SAY(poll((void *)8, 1, 0));
}

static void (*test)(void);
static void beside_running_code(void) {
    alarm(20);
    if (has_views) {
        int file = memfd_create("code", 0);
        ftruncate(file, BYTES);
        page = mmap(NULL, BYTES, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
        data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    } else {
        page = data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    write_code((void *)data, 1);
    pipe(ends);
    event_count = eventfd(0, 0);
    socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
    self = pthread_self();
    signal(SIGUSR2, on_signal);
    sigset_t set, others;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, &others);
    pthread_t thread;
    pthread_create(&thread, NULL, run, NULL);
    sigprocmask(SIG_SETMASK, &others, NULL);
    usleep(10000);
    test();
    fflush(stdout);
    _exit(0);
}

#define RESULTS(name) (test = name, in_child(#name, beside_running_code))

int main(void) {
    RESULTS(of_pipe);
    RESULTS(of_event_count);
    RESULTS(of_timer);
    RESULTS(of_recv);
    RESULTS(of_recvfrom);
    RESULTS(of_large_recv);
    RESULTS(of_read_of_datagram);
    RESULTS(of_recvmsg);
    RESULTS(of_control_data);
    RESULTS(of_recvmmsg);
    RESULTS(of_wait4);
    RESULTS(of_waitid);
    RESULTS(of_accept);
    RESULTS(of_epoll);
    RESULTS(of_poll);
    RESULTS(of_select);
    RESULTS(of_msgrcv);
    RESULTS(of_posix_queue);
    RESULTS(of_inotify);
    RESULTS(of_sigtimedwait);
    RESULTS(of_signalfd);
    RESULTS(of_nanosleep);
    RESULTS(of_timer_setting);
    RESULTS(of_socket_error);
    RESULTS(of_many_small_ones);
    RESULTS(of_bad_addresses);
    has_views = 1;
    RESULTS(of_event_count);
    RESULTS(of_large_recv);
    RESULTS(of_read_of_datagram);
    RESULTS(of_wait4);
    RESULTS(of_many_small_ones);
    return 0;
}
