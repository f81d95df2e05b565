// Runs a loop; with an argument, a signal interrupts it.
// Source: sigaction(2), setitimer(2).
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

static volatile int signals;
static unsigned long numbers[4096];
static unsigned char bytes[1 << 16];

static void handle(int signal) { signals++; }

int main(int count, char **arguments) {
    struct sigaction action = {.sa_handler = handle};
    struct itimerval soon = {.it_value = {0, 60}};
    unsigned long sum = 0;
    for (int i = 0; i < 4096; i++) numbers[i] = i * 7;
    sigaction(SIGALRM, &action, NULL);
    if (count > 1) setitimer(ITIMER_REAL, &soon, NULL);
    for (int k = 0; k < 20; k++)
        for (int i = 0; i < 4096; i++) {
            sum += numbers[(i * 97 + k) & 4095];
            bytes[(i * 61) & 65535] += sum;
        }
    printf("%lu, signals %d\n", sum, signals);
}
