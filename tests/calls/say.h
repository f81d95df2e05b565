// Printing for the programs of this folder: each line has a call and its result.
// Values that may differ between two runs are never printed: addresses, IDs, times.
#pragma once
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *error_name(int error) {
    static const struct { int error; const char *name; } names[] = {
#define E(name) {name, #name}
        E(EPERM), E(ENOENT), E(ESRCH), E(EINTR), E(EIO), E(ENXIO), E(E2BIG), E(ENOEXEC), E(EBADF), E(ECHILD), E(EAGAIN), E(ENOMEM),
        E(EACCES), E(EFAULT), E(EBUSY), E(EEXIST), E(EXDEV), E(ENODEV), E(ENOTDIR), E(EISDIR), E(EINVAL), E(ENFILE), E(EMFILE),
        E(ENOTTY), E(ETXTBSY), E(EFBIG), E(ENOSPC), E(ESPIPE), E(EROFS), E(EMLINK), E(EPIPE), E(ERANGE), E(EDEADLK),
        E(ENAMETOOLONG), E(ENOLCK), E(ENOSYS), E(ENOTEMPTY), E(ELOOP), E(EOVERFLOW), E(EOWNERDEAD), E(ENOTRECOVERABLE),
        E(ENOTSOCK), E(EDESTADDRREQ), E(EMSGSIZE), E(EPROTOTYPE), E(ENOPROTOOPT), E(EPROTONOSUPPORT), E(EOPNOTSUPP),
        E(EAFNOSUPPORT), E(EADDRINUSE), E(EADDRNOTAVAIL), E(ECONNRESET), E(EISCONN), E(ENOTCONN), E(ETIMEDOUT), E(ECONNREFUSED),
        E(EALREADY), E(EINPROGRESS), E(ECANCELED), E(ECONNABORTED), E(ENODATA),
#undef E
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) return names[i].name;
    return "another error";
}

/// Prints a call and its result, or the name of the error instead of -1.
static inline long told(const char *call, long returned) {
    int error = errno;
    if (returned == -1) printf("%s: %s\n", call, error_name(error));
    else printf("%s: %ld\n", call, returned);
    return returned;
}
#define SAY(call) (errno = 0, told(#call, (long)(call)))
/// Prints only success or the error, for results that differ between runs.
#define WELL(call) (errno = 0, told(#call, (long)(call) == -1 ? -1 : 0))
/// For calls that return the error number.
#define ERROR(call) do { int error_ = (call); printf("%s: %s\n", #call, error_ ? error_name(error_) : "0"); } while (0)

/// Runs `work` in a child and prints how it ended. Flushes the output first, so that the child does not print it again.
static inline void in_child(const char *what, void (*work)(void)) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        work();
        fflush(stdout);
        _exit(0);
    }
    int status = 0;
    while (waitpid(child, &status, 0) == -1 && errno == EINTR) {}
    if (WIFEXITED(status)) printf("%s: exit %d\n", what, WEXITSTATUS(status));
    else printf("%s: signal %d\n", what, WTERMSIG(status));
}

/// Flushes each line, so that output before a crash or a kill is not lost.
__attribute__((constructor)) static void print_by_lines(void) { setvbuf(stdout, NULL, _IOLBF, 0); }
