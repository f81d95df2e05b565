// Executes its arguments in a second thread, while a third one reads standard input and a fourth one sleeps. Neither may
// go on in the new program.
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

extern char **environ;
static char **program;

static void *reads(void *unused) {
    char byte;
    read(0, &byte, 1);
    write(1, "read\n", 5);
    return unused;
}

static void *sleeps(void *unused) {
    sleep(1000);
    write(1, "slept\n", 6);
    return unused;
}

static void *executes(void *unused) {
    execve("/there/is/nothing", program, environ);
    perror("execve");
    fflush(stdout);
    execve(program[0], program, environ);
    perror("execve");
    return unused;
}

int main(int count, char **arguments) {
    (void)count;
    program = arguments + 1;
    pthread_t thread;
    pthread_create(&thread, 0, reads, 0);
    pthread_create(&thread, 0, sleeps, 0);
    usleep(1000);
    pthread_create(&thread, 0, executes, 0);
    for (;;) sleep(1000);
}
