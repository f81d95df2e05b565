// Computes for a while, marks a region of interest if the first argument is "roi", and executes the remaining arguments.
// Programs that do not exist are tried first.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "longma.h"

extern char **environ;

__attribute__((noinline)) unsigned long first_program(unsigned long n) {
    unsigned long sum = 1;
    for (unsigned long i = 0; i < n; i++) sum = sum * 6364136223846793005ul + i;
    return sum;
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    if (!strcmp(arguments[1], "roi")) longma_roi_begin();
    unsigned long sum = first_program(100000);
    char *none[] = {"none", 0};
    if (execve("/there/is/nothing", none, environ) != -1) return 3;
    if (execve("/", none, environ) != -1) return 3;
    printf("first program %lu\n", sum);
    fflush(stdout);
    execve(arguments[2], arguments + 2, environ);
    perror("execve");
    return 1;
}
