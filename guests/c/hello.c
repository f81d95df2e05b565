// The smallest program with a C library; its cost is the cost of starting.
// With arguments it prints them, so that argv can be checked.
// Arguments: any.
#include <stdio.h>

int main(int argc, char **argv) {
    puts("hello, world");
    for (int i = 1; i < argc; i++) printf("%d %s\n", i, argv[i]);
    return 0;
}
