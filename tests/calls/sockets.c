// Local sockets: errors, messages with descriptors, names, options.
// Source: socket(2), unix(7), tcp(7), udp(7), sendmsg(2), recv(2), recvmmsg(2), signal(7).
#include "say.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>

static void making(void) {
    int pair[2];
    SAY(socket(99, SOCK_STREAM, 0));
    SAY(socket(AF_UNIX, 99, 0));
    SAY(socket(AF_INET, SOCK_STREAM, 99));
    SAY(socket(AF_UNIX, SOCK_STREAM, 99));
    SAY(socketpair(AF_INET, SOCK_STREAM, 0, pair));
    SAY(socketpair(AF_UNIX, SOCK_STREAM, 0, (int *)8));
    SAY(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
    SAY(fcntl(pair[0], F_GETFD));
    SAY(fcntl(pair[1], F_GETFL) & O_NONBLOCK);
    SAY(accept(pair[0], NULL, NULL));
    SAY(listen(pair[0], 1));
    SAY(bind(1, NULL, 0));
    SAY(bind(999, NULL, 0));
    SAY(listen(1, 1));
    SAY(shutdown(pair[0], 9));
    SAY(send(1, "x", 1, 0));
    SAY(lseek(pair[0], 0, SEEK_SET));
    SAY(ftruncate(pair[0], 0));
}

static void messages(void) {
    int pair[2], packets[2], ends[2];
    char bytes[64] = {0}, control[256];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets);
    SAY(recv(pair[0], bytes, 4, MSG_DONTWAIT));
    SAY(send(pair[1], "hello", 5, 0));
    SAY(recv(pair[0], bytes, 3, MSG_PEEK));
    SAY(recv(pair[0], bytes, 64, MSG_DONTWAIT));
    SAY(send(pair[1], "", 0, 0));
    SAY(recv(pair[0], bytes, 4, MSG_DONTWAIT));
    SAY(send(packets[1], "hello", 5, 0));
    SAY(send(packets[1], "again", 5, 0));
    SAY(recv(packets[0], bytes, 2, MSG_TRUNC));
    SAY(recv(packets[0], bytes, 2, 0));
    SAY(recv(packets[0], bytes, 2, MSG_DONTWAIT));
    SAY(recv(packets[0], (char *)8, 2, MSG_DONTWAIT));
    SAY(send(pair[0], (char *)8, 2, 0));
    SAY(send(pair[0], "x", 1, MSG_OOB) == -1 || 1);
    SAY(recv(pair[0], bytes, 2, MSG_OOB | MSG_DONTWAIT) == -1);
    SAY(sendto(pair[0], "x", 1, 0, (struct sockaddr *)&(struct sockaddr_un){AF_UNIX, "x"}, sizeof(struct sockaddr_un)));
    pipe(ends);
    struct iovec part = {"file", 4};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(2 * sizeof(int))};
    memset(control, 0, sizeof control);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(2 * sizeof(int));
    memcpy(CMSG_DATA(header), ends, sizeof ends);
    SAY(sendmsg(packets[1], &message, 0));
    SAY(sendmsg(packets[1], &message, 0));
    ((int *)CMSG_DATA(header))[1] = 999;
    SAY(sendmsg(packets[1], &message, 0));
    header->cmsg_type = 77;
    SAY(sendmsg(packets[1], &message, 0));
    header->cmsg_len = 4;
    SAY(sendmsg(packets[1], &message, 0));
    part.iov_base = bytes, part.iov_len = 64, message.msg_controllen = sizeof control;
    SAY(recvmsg(packets[0], &message, MSG_CMSG_CLOEXEC));
    header = CMSG_FIRSTHDR(&message);
    SAY(header != NULL && header->cmsg_type == SCM_RIGHTS);
    SAY(header->cmsg_len);
    SAY(fcntl(((int *)CMSG_DATA(header))[0], F_GETFD));
    SAY(write(((int *)CMSG_DATA(header))[1], "through", 7));
    SAY(read(ends[0], bytes, 64));
    message.msg_controllen = CMSG_SPACE(sizeof(int)) - 4;
    SAY(recvmsg(packets[0], &message, 0));
    SAY((message.msg_flags & MSG_CTRUNC) != 0);
    SAY(message.msg_controllen);
    message.msg_iovlen = 2000;
    SAY(sendmsg(packets[1], &message, 0));
    SAY(syscall(SYS_recvmsg, packets[0], 8, 0));
    int on = 1;
    SAY(setsockopt(packets[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
    SAY(send(packets[1], "who", 3, 0));
    message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    SAY(recvmsg(packets[0], &message, 0));
    header = CMSG_FIRSTHDR(&message);
    SAY(header->cmsg_type == SCM_CREDENTIALS);
    SAY(header->cmsg_len);
    SAY(shutdown(pair[0], SHUT_WR));
    SAY(send(pair[0], "x", 1, MSG_NOSIGNAL));
    SAY(read(pair[1], bytes, 64) >= 0);
    SAY(read(pair[1], bytes, 64));
    SAY(close(pair[1]));
    SAY(read(pair[0], bytes, 1));
    SAY(close(packets[1]));
    SAY(recv(packets[0], bytes, 1, 0));
}

static void names(void) {
    struct sockaddr_un name = {AF_UNIX, "/tmp/longma-socket-XXXXXX"}, got;
    struct stat status;
    mkdtemp(name.sun_path);
    strcat(name.sun_path, "/s");
    socklen_t length = offsetof(struct sockaddr_un, sun_path) + strlen(name.sun_path) + 1, room;
    int server = socket(AF_UNIX, SOCK_STREAM, 0), other = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    SAY(connect(client, (void *)&name, length));
    SAY(listen(server, 1));
    SAY(bind(server, (void *)&name, 1));
    SAY(bind(server, (void *)&name, 200));
    SAY(bind(server, (void *)&name, length));
    SAY(bind(server, (void *)&name, length));
    SAY(bind(other, (void *)&name, length));
    SAY(stat(name.sun_path, &status));
    SAY(S_ISSOCK(status.st_mode));
    SAY(connect(client, (void *)&name, length));
    SAY(accept(server, NULL, NULL));
    SAY(listen(server, 4));
    SAY(connect(client, (void *)&name, length));
    SAY(connect(client, (void *)&name, length));
    room = sizeof got;
    int accepted = accept4(server, (void *)&got, &room, SOCK_CLOEXEC);
    SAY(fcntl(accepted, F_GETFD));
    SAY(room);
    SAY(accept4(server, NULL, NULL, 1));
    room = 4;
    SAY(getsockname(server, (void *)&got, &room));
    SAY(room == length);
    room = sizeof got;
    SAY(getpeername(client, (void *)&got, &room));
    SAY(strcmp(got.sun_path, name.sun_path));
    SAY(getpeername(server, (void *)&got, &room));
    room = -1;
    SAY(getsockname(server, (void *)&got, &room));
    SAY(unlink(name.sun_path));
    SAY(connect(other, (void *)&name, length));
    struct sockaddr_un hidden = {AF_UNIX, "\0longma calls"};
    room = offsetof(struct sockaddr_un, sun_path) + 13;
    SAY(bind(other, (void *)&hidden, room));
    SAY(listen(other, 1));
    client = socket(AF_UNIX, SOCK_STREAM, 0);
    SAY(connect(client, (void *)&hidden, room - 1));
    SAY(connect(client, (void *)&hidden, room));
    int automatic = socket(AF_UNIX, SOCK_DGRAM, 0);
    SAY(bind(automatic, (void *)&hidden, sizeof(sa_family_t)));
    room = sizeof got;
    SAY(getsockname(automatic, (void *)&got, &room));
    SAY(room);
    SAY(send(socket(AF_UNIX, SOCK_DGRAM, 0), "x", 1, 0));
}

static void options(void) {
    int tcp = socket(AF_INET, SOCK_STREAM, 0), value = 0;
    socklen_t room = sizeof value;
    SAY(getsockopt(tcp, SOL_SOCKET, 9999, &value, &room));
    SAY(getsockopt(tcp, 9999, 1, &value, &room));
    SAY(setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &value, 1));
    SAY(setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, (void *)8, 4));
    SAY(getsockopt(tcp, SOL_SOCKET, SO_TYPE, &value, &room));
    SAY(value);
    room = 2;
    SAY(getsockopt(tcp, SOL_SOCKET, SO_DOMAIN, &value, &room));
    SAY(room);
    room = -1;
    SAY(getsockopt(tcp, SOL_SOCKET, SO_TYPE, &value, &room));
    room = sizeof value, value = 1;
    SAY(setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &value, room));
    SAY(getsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &value, &room));
    SAY(value);
    SAY(setsockopt(tcp, IPPROTO_TCP, TCP_KEEPIDLE, &(int){0}, sizeof(int)));
    struct timeval wrong = {0, 1000000}, soon = {0, 1000};
    SAY(setsockopt(tcp, SOL_SOCKET, SO_RCVTIMEO, &wrong, sizeof wrong));
    int udp = socket(AF_INET, SOCK_DGRAM, 0);
    SAY(setsockopt(udp, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon));
    SAY(recv(udp, &value, 4, 0));
    struct linger linger = {1, 0};
    SAY(setsockopt(tcp, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
}

static void nothing(int signal) {}

// A call with a timeout (SO_RCVTIMEO, SO_SNDTIMEO) is not restarted after a signal, even with SA_RESTART.
static void limited(void) {
    struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_RESTART};
    struct timeval limit = {2, 0};
    int pair[2];
    char byte, *many = calloc(1, 1 << 22);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    sigaction(SIGALRM, &action, NULL);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(pair[1], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    ualarm(20000, 0);
    SAY(recv(pair[0], &byte, 1, 0));
    ualarm(20000, 0);
    SAY(read(pair[0], &byte, 1));
    ualarm(20000, 0);
    long sent = send(pair[1], many, 1 << 22, 0);
    SAY(sent > 0 && sent < 1 << 22);
    ualarm(20000, 0);
    SAY(send(pair[1], many, 1 << 22, 0));
    free(many);
}

static void internet(void) {
    struct sockaddr_in name = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {0}}, from;
    socklen_t room = sizeof name;
    char bytes[64];
    int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    SAY(send(client, "x", 1, MSG_NOSIGNAL));
    SAY(recv(client, bytes, 1, 0));
    SAY(shutdown(client, SHUT_RDWR));
    SAY(bind(server, (void *)&name, 8));
    SAY(bind(server, (void *)&name, room));
    SAY(getsockname(server, (void *)&name, &room));
    SAY(connect(client, (void *)&name, room));
    SAY(bind(client, (void *)&(struct sockaddr_in){AF_INET, 0, {htonl(0xc0000201)}, {0}}, room));
    SAY(listen(server, 4));
    close(client);
    client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int connected = connect(client, (void *)&name, room);
    SAY(connected == 0 || errno == EINPROGRESS);
    struct pollfd one = {client, POLLOUT, 0};
    SAY(poll(&one, 1, 1000));
    int error = 5;
    SAY(getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){4}));
    SAY(error);
    SAY(connect(client, (void *)&name, room));
    int accepted = accept(server, (void *)&from, &room);
    SAY(from.sin_family == AF_INET && from.sin_addr.s_addr == name.sin_addr.s_addr);
    SAY(recv(client, bytes, 1, 0));
    SAY(send(accepted, "0123456789", 10, MSG_MORE));
    SAY(shutdown(accepted, SHUT_WR));
    fcntl(client, F_SETFL, 0);
    SAY(recv(client, bytes, 64, MSG_WAITALL));
    SAY(recv(client, bytes, 64, 0));
    SAY(send(accepted, "x", 1, MSG_NOSIGNAL));
    struct linger now = {1, 0};
    setsockopt(client, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    SAY(close(client));
    SAY(recv(accepted, bytes, 1, 0));
    SAY(connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&(struct sockaddr_in){AF_INET, htons(1), {htonl(INADDR_LOOPBACK)}, {0}}, sizeof name));
    int a = socket(AF_INET, SOCK_DGRAM, 0), b = socket(AF_INET, SOCK_DGRAM, 0);
    name.sin_port = 0, room = sizeof name;
    SAY(bind(a, (void *)&name, room));
    getsockname(a, (void *)&name, &room);
    SAY(send(b, "x", 1, 0));
    SAY(sendto(b, "datagram", 8, 0, (void *)&name, room));
    SAY(sendto(b, bytes, 70000, 0, (void *)&name, room));
    SAY(sendto(b, "d", 1, 0, (void *)&name, 3));
    SAY(recvfrom(a, bytes, 3, 0, (void *)&from, &room));
    SAY(room);
    SAY(connect(b, (void *)&name, room));
    struct iovec parts[3] = {{"one", 3}, {"three", 5}, {"", 0}};
    struct mmsghdr many[3] = {{{.msg_iov = parts, .msg_iovlen = 1}}, {{.msg_iov = parts + 1, .msg_iovlen = 1}}, {{.msg_iov = parts + 2, .msg_iovlen = 1}}};
    SAY(sendmmsg(b, many, 3, 0));
    printf("%u %u %u\n", many[0].msg_len, many[1].msg_len, many[2].msg_len);
    char texts[3][8];
    for (int i = 0; i < 3; i++) parts[i] = (struct iovec){texts[i], 8};
    struct timespec limit = {1, 0};
    SAY(recvmmsg(a, many, 3, MSG_WAITFORONE, &limit));
    printf("%u %u\n", many[0].msg_len, many[1].msg_len);
    limit.tv_nsec = -5;
    SAY(recvmmsg(a, many, 3, MSG_DONTWAIT, &limit));
}

int main(void) {
    making();
    messages();
    names();
    options();
    limited();
    internet();
    return 0;
}
