// Pipes, poll, select, epoll, eventfd, signalfd, inotify.
// Source: pipe(7), poll(2), select(2), epoll(7), eventfd(2), signalfd(2), inotify(7).
#include "say.h"
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

static void pipes(void) {
    char bytes[70000] = {0};
    int ends[2];
    SAY(pipe2(ends, 0x1));
    SAY(pipe2((int *)8, 0));
    SAY(pipe2(ends, O_NONBLOCK | O_CLOEXEC));
    SAY(fcntl(ends[0], F_GETFD));
    SAY(read(ends[0], bytes, 1));
    SAY(write(ends[0], bytes, 1));
    SAY(read(ends[1], bytes, 1));
    SAY(fcntl(ends[1], F_GETPIPE_SZ));
    SAY(write(ends[1], bytes, sizeof bytes));
    SAY(write(ends[1], bytes, 1));
    struct pollfd both[2] = {{ends[0], POLLIN, 0}, {ends[1], POLLOUT, 0}};
    SAY(poll(both, 2, 0));
    printf("%x %x\n", both[0].revents, both[1].revents);
    SAY(read(ends[0], bytes, 4095));
    SAY(poll(both, 2, 0));
    SAY(read(ends[0], bytes, 1));
    SAY(poll(both, 2, 0));
    SAY(write(ends[1], bytes, PIPE_BUF + 1));
    SAY(fcntl(ends[1], F_SETPIPE_SZ, 4096));
    SAY(fcntl(ends[1], F_SETPIPE_SZ, -1));
    while (read(ends[0], bytes, sizeof bytes) > 0) {}
    SAY(read(ends[0], NULL, 0));
    SAY(write(ends[1], NULL, 0));
    SAY(write(ends[1], (char *)8, 1));
    SAY(close(ends[0]));
    SAY(poll(both + 1, 1, 0));
    printf("%x\n", both[1].revents);
    signal(SIGPIPE, SIG_IGN);
    SAY(write(ends[1], bytes, 1));
    SAY(write(ends[1], bytes, 0));
    SAY(pipe(ends));
    SAY(close(ends[1]));
    SAY(read(ends[0], bytes, 1));
    both[0].fd = ends[0];
    SAY(poll(both, 1, -1));
    printf("%x\n", both[0].revents);
}

static void dies_writing(void) {
    int ends[2];
    signal(SIGPIPE, SIG_DFL);
    if (pipe(ends) == 0) close(ends[0]);
    SAY(write(ends[1], "x", 1));
}

static void on_signal(int signal) { (void)signal; }

static void poll_and_select(void) {
    int ends[2];
    SAY(pipe(ends));
    struct pollfd files[3] = {{999, POLLIN, 0}, {-1, POLLIN, 7}, {ends[0], POLLIN, 7}};
    SAY(poll(files, 3, 0));
    printf("%x %x %x\n", files[0].revents, files[1].revents, files[2].revents);
    SAY(poll(files + 1, 2, 5));
    SAY(poll(NULL, 0, 1));
    SAY(poll((struct pollfd *)8, 1, 0));
    SAY(poll(files, 1u << 31, 0));
    struct timespec limit = {0, 1000000000};
    SAY(ppoll(files, 1, &limit, NULL));
    limit.tv_sec = -1, limit.tv_nsec = 0;
    SAY(ppoll(files, 1, &limit, NULL));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(50, &set);
    struct timeval soon = {0, 1000}, wrong = {-1, 0};
    SAY(select(51, &set, NULL, NULL, &soon));
    SAY(select(-1, &set, NULL, NULL, &soon));
    SAY(select(0, NULL, NULL, NULL, &wrong));
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    SAY(select(ends[0] + 1, &set, NULL, NULL, &soon));
    SAY(FD_ISSET(ends[0], &set) != 0);
    FD_SET(ends[1], &set);
    SAY(select(ends[1] + 1, NULL, &set, NULL, NULL));
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    ualarm(20000, 0);
    SAY(poll(files + 2, 1, -1));
    ualarm(20000, 0);
    FD_ZERO(&set);
    SAY(select(0, NULL, NULL, NULL, NULL));
    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGALRM);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    raise(SIGALRM);
    SAY(ppoll(files + 2, 1, NULL, &none));
    raise(SIGALRM);
    SAY(write(ends[1], "x", 1));
    SAY(ppoll(files + 2, 1, NULL, NULL));
    SAY(pselect(0, NULL, NULL, NULL, NULL, &none));
    sigprocmask(SIG_UNBLOCK, &blocked, NULL);
}

static void events_of(const char *what, int epoll, int timeout) {
    struct epoll_event events[4];
    int count = epoll_wait(epoll, events, 4, timeout);
    printf("%s: %d", what, count);
    for (int i = 0; i < count; i++) printf(" %x:%lx", events[i].events, (long)events[i].data.u64);
    puts("");
}

static void epolls(void) {
    int ends[2], epoll = epoll_create1(0), outer = epoll_create1(EPOLL_CLOEXEC);
    SAY(epoll >= 0 && outer >= 0);
    SAY(epoll_create(0));
    SAY(epoll_create1(1));
    SAY(pipe(ends));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x1234567890abcdef};
    SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
    SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
    SAY(epoll_ctl(epoll, EPOLL_CTL_MOD, ends[1], &event));
    SAY(epoll_ctl(epoll, EPOLL_CTL_DEL, ends[1], NULL));
    SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, epoll, &event));
    SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, 999, &event));
    SAY(epoll_ctl(999, EPOLL_CTL_ADD, ends[0], &event));
    SAY(epoll_ctl(ends[0], EPOLL_CTL_ADD, ends[1], &event));
    SAY(epoll_ctl(epoll, 9, ends[0], &event));
    SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], (struct epoll_event *)8));
    char name[] = "/tmp/longma-epoll-XXXXXX";
    int file = mkstemp(name);
    SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, file, &event));
    SAY(epoll_wait(epoll, &event, 0, 0));
    SAY(epoll_wait(epoll, &event, -1, 0));
    SAY(epoll_wait(ends[0], &event, 1, 0));
    events_of("nothing", epoll, 5);
    SAY(epoll_ctl(outer, EPOLL_CTL_ADD, epoll, &event));
    SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, outer, &event));
    SAY(write(ends[1], "ab", 2));
    events_of("level", epoll, -1);
    events_of("level again", epoll, 0);
    event.data.u64 = 5, event.events = EPOLLIN | EPOLLONESHOT;
    SAY(epoll_ctl(epoll, EPOLL_CTL_MOD, ends[0], &event));
    events_of("one shot", epoll, -1);
    events_of("one shot again", epoll, 0);
    event.events = EPOLLIN | EPOLLET;
    SAY(epoll_ctl(epoll, EPOLL_CTL_MOD, ends[0], &event));
    events_of("edge", epoll, -1);
    events_of("edge again", epoll, 0);
    SAY(write(ends[1], "c", 1));
    events_of("edge after more", epoll, -1);
    event.events = EPOLLIN | EPOLLEXCLUSIVE;
    SAY(epoll_ctl(epoll, EPOLL_CTL_MOD, ends[0], &event));
    SAY(epoll_ctl(epoll, EPOLL_CTL_DEL, ends[0], NULL));
    event.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT;
    SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
    event.events = EPOLLIN | EPOLLEXCLUSIVE, event.data.u64 = 6;
    SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
    SAY(close(ends[1]));
    events_of("closed", epoll, -1);
    SAY(close(ends[0]));
    events_of("gone", epoll, 0);
    struct timespec limit = {0, 1000000};
    SAY(syscall(SYS_epoll_pwait2, epoll, &event, 1, &limit, NULL, 8));
    limit.tv_nsec = -1;
    SAY(syscall(SYS_epoll_pwait2, epoll, &event, 1, &limit, NULL, 8));
    SAY(syscall(SYS_epoll_pwait, epoll, &event, 1, 0, &limit, 4));
    unlink(name);
}

static void eventfds(void) {
    unsigned long value = 0;
    int file = eventfd(3, EFD_NONBLOCK), semaphore = eventfd(2, EFD_NONBLOCK | EFD_SEMAPHORE);
    SAY(eventfd(0, 0x10));
    SAY(read(file, &value, 7));
    SAY(read(file, &value, 8));
    SAY(value);
    SAY(read(file, &value, 8));
    value = ~0ul;
    SAY(write(file, &value, 8));
    value = ~0ul - 1;
    SAY(write(file, &value, 8));
    value = 1;
    SAY(write(file, &value, 8));
    SAY(write(file, &value, 4));
    SAY(read(semaphore, &value, 8));
    SAY(value);
    SAY(read(semaphore, &value, 8));
    SAY(read(semaphore, &value, 8));
    SAY(lseek(file, 0, SEEK_SET));
    SAY(pread(file, &value, 8, 0));
}

static void signalfds(void) {
    sigset_t set;
    struct signalfd_siginfo info[2];
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGRTMIN + 3);
    int file = signalfd(-1, &set, SFD_NONBLOCK);
    SAY(signalfd(-1, &set, 1));
    SAY(signalfd(999, &set, 0));
    SAY(signalfd(1, &set, 0));
    sigprocmask(SIG_BLOCK, &set, NULL);
    SAY(read(file, info, sizeof info));
    raise(SIGUSR1);
    union sigval value = {.sival_int = 77};
    SAY(sigqueue(getpid(), SIGRTMIN + 3, value));
    SAY(read(file, info, 8));
    SAY(read(file, info, sizeof info) / (long)sizeof *info);
    SAY(info[0].ssi_signo);
    SAY(info[1].ssi_signo == (unsigned)SIGRTMIN + 3 && info[1].ssi_int == 77 && info[1].ssi_code == SI_QUEUE);
    SAY(info[1].ssi_pid == (unsigned)getpid());
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static void inotifies(void) {
    char folder[] = "/tmp/longma-inotify-XXXXXX", path[100];
    char bytes[1024] __attribute__((aligned(8)));
    SAY(mkdtemp(folder) == NULL);
    int file = inotify_init1(IN_NONBLOCK);
    SAY(inotify_init1(1));
    SAY(inotify_add_watch(file, "/nothing-here", IN_CREATE));
    SAY(inotify_add_watch(file, folder, 0));
    SAY(inotify_add_watch(file, folder, IN_CREATE | IN_DELETE | IN_CLOSE_WRITE));
    SAY(inotify_add_watch(1, folder, IN_CREATE));
    SAY(inotify_rm_watch(file, 5));
    SAY(read(file, bytes, sizeof bytes));
    sprintf(path, "%s/new", folder);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    unlink(path);
    SAY(read(file, bytes, 4));
    long got = read(file, bytes, sizeof bytes);
    for (long at = 0; at < got;) {
        struct inotify_event *event = (struct inotify_event *)(bytes + at);
        printf("event %x %s\n", event->mask, event->name);
        at += sizeof *event + event->len;
    }
    rmdir(folder);
    got = read(file, bytes, sizeof bytes);
    SAY(got / (long)sizeof(struct inotify_event));
}

// Events that do not fit stay in the set, even if the memory ends in the middle of one.
static void events_at_the_end(void) {
    char *area = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *end = area + 32768;
    struct epoll_event found[8];
    int set = epoll_create1(0);
    munmap(end, 32768);
    for (int i = 0; i < 5; i++) {
        struct epoll_event wanted = {EPOLLIN | EPOLLET, {.u64 = i}};
        epoll_ctl(set, EPOLL_CTL_ADD, eventfd(1, 0), &wanted);
    }
    SAY(epoll_wait(set, (void *)end, 8, 0));
    SAY(epoll_wait(set, (void *)(end - sizeof found[0] + 2), 8, 0));
    SAY(epoll_wait(set, (void *)(end - 3 * sizeof found[0]), 8, 0));
    SAY(epoll_wait(set, found, 8, 0));
    munmap(area, 32768);
}

int main(void) {
    pipes();
    in_child("writes to nobody", dies_writing);
    poll_and_select();
    epolls();
    events_at_the_end();
    eventfds();
    signalfds();
    inotifies();
    return 0;
}
