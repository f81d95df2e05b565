// Timers, descriptors that report events, sockets, descriptors of processes.
// Part of calls.c: not to be compiled alone.
static void test_timers(void) {
    handle(SIGRTMIN + 1, 0);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 1, .sigev_value.sival_int = 77};
    timer_t timer;
    printf("timer_create: %s\n", result(timer_create(CLOCK_MONOTONIC, &event, &timer)));
    struct itimerspec time = {.it_value = {1000, 0}}, now;
    timer_settime(timer, 0, &time, NULL);
    timer_gettime(timer, &now);
    printf("running %d\n", now.it_value.tv_sec > 900);
    time.it_value = (struct timespec){0, 20000000};
    timer_settime(timer, 0, &time, NULL);
    while (!handled) {}
    printf("expired: value %d, code %d\n", last_value, last_code == SI_TIMER);
    timer_delete(timer);
    int file = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    time.it_interval.tv_nsec = 1000000;
    timerfd_settime(file, 0, &time, NULL);
    pause_ms(60);
    uint64_t ticks = 0;
    int got = read(file, &ticks, 8);
    printf("timerfd: %d bytes, many %d\n", got, ticks > 5);
    int events = eventfd(3, EFD_NONBLOCK);
    uint64_t value = 4;
    write(events, &value, 8);
    read(events, &value, 8);
    printf("eventfd: %lu, then %s\n", (unsigned long)value, result(read(events, &value, 8)));
    sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, 0);
    raise(SIGUSR2);
    struct signalfd_siginfo info;
    got = read(signals, &info, sizeof info);
    printf("signalfd: %d bytes, signal %d\n", got, info.ssi_signo);
    int queue = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event watch = {EPOLLIN | EPOLLET, {.u64 = 0x123456789abcdef0}}, found[4];
    epoll_ctl(queue, EPOLL_CTL_ADD, events, &watch);
    watch.data.u64 = 5; watch.events = EPOLLIN;
    epoll_ctl(queue, EPOLL_CTL_ADD, file, &watch);
    value = 1;
    write(events, &value, 8);
    pause_ms(5);
    got = epoll_wait(queue, found, 4, 1000);
    printf("epoll: %d\n", got);
    for (int i = 0; i < got; i++) {
        struct epoll_event *event = &found[got == 2 && found[0].data.u64 == 5 ? 1 - i : i];
        printf("  %x %lx\n", event->events, (unsigned long)event->data.u64);
    }
    printf("epoll, bad address: %s\n", result(epoll_wait(queue, (void *)8, 4, 0)));
    printf("epoll, no room: %s\n", result(epoll_wait(queue, found, 0, 0)));
}

// ---- sockets
static void test_sockets(void) {
    int pair[2], got;
    char buffer[100] = "";
    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair);
    int tube[2];
    pipe(tube);
    struct iovec vector[2] = {{"pass", 4}, {"word", 4}};
    union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
    struct msghdr message = {.msg_iov = vector, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), &tube[1], sizeof(int));
    printf("sendmsg: %ld\n", (long)sendmsg(pair[0], &message, 0));
    memset(&control, 0, sizeof control);
    struct iovec room = {buffer, sizeof buffer};
    message.msg_iov = &room; message.msg_iovlen = 1; message.msg_controllen = sizeof control;
    got = recvmsg(pair[1], &message, 0);
    int passed;
    memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof passed);
    write(passed, "!", 1);
    char c = 0;
    read(tube[0], &c, 1);
    printf("recvmsg: %d %s, the descriptor works: %c\n", got, buffer, c);

    struct sockaddr_un local = {.sun_family = AF_UNIX}, found;
    snprintf(local.sun_path, sizeof local.sun_path, "/tmp/longma-calls-socket");
    unlink(local.sun_path);
    int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    printf("bind: %s\n", result(bind(server, (void *)&local, sizeof local)));
    printf("connect too early: %s\n", result(connect(client, (void *)&local, sizeof local)));
    listen(server, 1);
    printf("connect: %s\n", result(connect(client, (void *)&local, sizeof local)));
    socklen_t length = sizeof found;
    getpeername(client, (void *)&found, &length);
    printf("peer: %s, %u bytes\n", found.sun_path, length);
    int served = accept4(server, NULL, NULL, SOCK_NONBLOCK);
    printf("accepted, nothing to read: %s\n", result(read(served, buffer, 1)));
    struct ucred who;
    length = sizeof who;
    getsockopt(served, SOL_SOCKET, SO_PEERCRED, &who, &length);
    printf("peer is this process: %d\n", who.pid == getpid());
    unlink(local.sun_path);

    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in inet = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, from;
    bind(listener, (void *)&inet, sizeof inet);
    listen(listener, 5);
    length = sizeof inet;
    getsockname(listener, (void *)&inet, &length);
    int caller = socket(AF_INET, SOCK_STREAM, 0);
    printf("tcp connect: %s\n", result(connect(caller, (void *)&inet, sizeof inet)));
    length = sizeof from;
    served = accept(listener, (void *)&from, &length);
    printf("tcp accept: %u bytes, family %d\n", length, from.sin_family);
    send(caller, "hello", 5, 0);
    got = recv(served, buffer, sizeof buffer, 0);
    printf("tcp: %.*s\n", got, buffer);
    shutdown(caller, SHUT_WR);
    printf("tcp end: %d\n", (int)recv(served, buffer, sizeof buffer, 0));

    int a = socket(AF_INET, SOCK_DGRAM, 0), b = socket(AF_INET, SOCK_DGRAM, 0);
    inet.sin_port = 0;
    bind(a, (void *)&inet, sizeof inet);
    length = sizeof inet;
    getsockname(a, (void *)&inet, &length);
    struct iovec parts[3] = {{"one", 3}, {"three", 5}, {"", 0}};
    struct mmsghdr many[3] = {0};
    for (int i = 0; i < 3; i++)
        many[i].msg_hdr = (struct msghdr){.msg_name = &inet, .msg_namelen = sizeof inet, .msg_iov = &parts[i], .msg_iovlen = 1};
    printf("sendmmsg: %d\n", sendmmsg(b, many, 2, 0));
    char places[3][10];
    struct sockaddr_in names[3];
    for (int i = 0; i < 3; i++) {
        parts[i] = (struct iovec){places[i], 10};
        many[i].msg_hdr = (struct msghdr){.msg_name = &names[i], .msg_namelen = sizeof names[i], .msg_iov = &parts[i], .msg_iovlen = 1};
    }
    got = recvmmsg(a, many, 3, MSG_WAITFORONE, NULL);
    printf("recvmmsg: %d, %u %u, from %d\n", got, many[0].msg_len, many[1].msg_len, names[0].sin_family);
    sendto(b, "last", 4, 0, (void *)&inet, sizeof inet);
    length = sizeof from;
    got = recvfrom(a, buffer, sizeof buffer, 0, (void *)&from, &length);
    printf("recvfrom: %d, %u bytes of address\n", got, length);
    printf("bad address: %s\n", result(connect(a, (void *)8, 16)));
    printf("bad length: %s\n", result(bind(a, (void *)&inet, 200)));
    signal(SIGPIPE, SIG_IGN);
    close(pair[1]);
    printf("closed peer: %s\n", result(send(pair[0], "x", 1, 0)));
}

// ---- pidfd
static void test_pidfd(void) {
    int pid = child(stop_self), status;
    waitpid(pid, &status, WUNTRACED);
    int file = syscall(SYS_pidfd_open, pid, 0);
    printf("send: %s\n", result(syscall(SYS_pidfd_send_signal, file, SIGTERM, NULL, 0)));
    syscall(SYS_pidfd_send_signal, file, SIGCONT, NULL, 0);
    siginfo_t info;
    printf("waitid: %s", result(syscall(SYS_waitid, 3, file, &info, WEXITED, NULL)));
    printf(", status %d\n", info.si_status);
    int descriptor = -1;
    fflush(stdout);
    pid = syscall(SYS_clone, CLONE_PIDFD | CLONE_VFORK | SIGCHLD, 0, &descriptor, 0, 0);
    if (pid == 0) syscall(SYS_exit, 6);
    struct pollfd poller = {descriptor, POLLIN, 0};
    printf("the descriptor says it is over: %d\n", poll(&poller, 1, 1000));
    waitpid(pid, &status, 0);
    print_status("clone with a descriptor", status);
    struct { uint64_t flags, pidfd, child, parent, signal, stack, stack_size, tls, set, set_size, cgroup; } arguments = {
        .flags = CLONE_PIDFD, .pidfd = (uintptr_t)&descriptor, .signal = SIGCHLD};
    fflush(stdout);
    pid = syscall(435, &arguments, sizeof arguments);
    if (pid == 0) syscall(SYS_exit, 2);
    waitpid(pid, &status, 0);
    print_status("clone3", status);
    printf("clone3, too short: %s\n", result(syscall(435, &arguments, 8)));
}
