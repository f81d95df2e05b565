// A preloaded library: rename() marks the standard output and takes a while, so that a thread that still runs writes behind the mark.
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int rename(const char *from, const char *to) {
    write(1, "storing", 7);
    usleep(200000);
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}
