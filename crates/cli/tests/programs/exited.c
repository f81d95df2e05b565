// A thread writes in an endless loop; output after "end" was written after the program had exited.
#include <pthread.h>
#include <unistd.h>

static void *tell(void *nothing) {
    for (;;)
        write(1, ".", 1);
    return nothing;
}

int main(void) {
    pthread_t teller;
    pthread_create(&teller, 0, tell, 0);
    usleep(20000);
    write(1, "end", 3);
    _exit(0);
}
