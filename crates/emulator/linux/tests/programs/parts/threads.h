// Threads: locks, cancellation, and how threads and their process end.
// Part of calls.c: not to be compiled alone.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int counter, turn;
static _Thread_local int own;
static void *count(void *argument) {
    own = (int)(intptr_t)argument;
    for (int i = 0; i < 2000; i++) { pthread_mutex_lock(&lock); counter++; own++; pthread_mutex_unlock(&lock); }
    return (void *)(intptr_t)own;
}
static void *ping(void *argument) {
    int me = (int)(intptr_t)argument;
    for (int i = 0; i < 200; i++) {
        pthread_mutex_lock(&lock);
        while (turn % 2 != me) pthread_cond_wait(&changed, &lock);
        turn++;
        pthread_cond_signal(&changed);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}
static pthread_mutex_t robust;
static void *die_with_lock(void *argument) { pthread_mutex_lock(argument); return NULL; }
static int forever[2];
static void *read_forever(void *unused) { (void)unused; char c; read(forever[0], &c, 1); return NULL; }
static void *sleep_forever(void *unused) { (void)unused; for (;;) sleep(1000); return NULL; }
static void *spin(void *unused) {
    (void)unused;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (;;) {}
    return NULL;
}
static void test_threads(void) {
    pthread_t threads[8];
    long sum = 0;
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, count, (void *)(intptr_t)(i * 10000));
    for (int i = 0; i < 8; i++) { void *own; pthread_join(threads[i], &own); sum += (intptr_t)own; }
    printf("counter %d, own counters %ld\n", counter, sum);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, ping, (void *)(intptr_t)i);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    printf("turns %d\n", turn);
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 20000000; if (soon.tv_nsec >= 1000000000) { soon.tv_sec++; soon.tv_nsec -= 1000000000; }
    pthread_mutex_lock(&lock);
    printf("timed wait: %s\n", name_of(pthread_cond_timedwait(&changed, &lock, &soon)));
    pthread_mutex_unlock(&lock);
    for (int protocol = 0; protocol < 2; protocol++) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        if (protocol) pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
        pthread_mutex_init(&robust, &attributes);
        pthread_create(&threads[0], NULL, die_with_lock, &robust);
        pthread_join(threads[0], NULL);
        printf("lock of a dead thread: %s\n", name_of(pthread_mutex_lock(&robust)));
        pthread_mutex_consistent(&robust);
        pthread_mutex_unlock(&robust);
        printf("made consistent: %s\n", name_of(pthread_mutex_lock(&robust)));
        pthread_mutex_unlock(&robust);
    }
    pipe(forever);
    void *(*victims[])(void *) = {read_forever, sleep_forever, spin};
    for (int i = 0; i < 3; i++) {
        void *returned;
        pthread_create(&threads[0], NULL, victims[i], NULL);
        pause_ms(20);
        pthread_cancel(threads[0]);
        pthread_join(threads[0], &returned);
        printf("cancelled: %d\n", returned == PTHREAD_CANCELED);
    }
}
static void *exit_three(void *unused) { (void)unused; pause_ms(30); exit(3); }
static void main_leaves(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, exit_three, NULL);
    pthread_exit(NULL);
}
static void *leave(void *unused) { (void)unused; pause_ms(20); return NULL; }
static void last_thread_leaves(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, leave, NULL);
    syscall(SYS_exit, 9);
}
static void *null_in_thread(void *unused) { (void)unused; die_null(); return NULL; }
static void thread_dies(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, null_in_thread, NULL);
    pause();
}
static void *fork_here(void *unused) { (void)unused; run_child("fork in a thread", exit_seven); return NULL; }
static void *allocate(void *stop) { while (!*(volatile int *)stop) free(malloc(100)); return NULL; }
static void test_thread_exits(void) {
    run_child("main thread leaves", main_leaves);
    run_child("last thread leaves", last_thread_leaves);
    run_child("a thread dies", thread_dies);
    parent = getpid();
    pthread_t thread, busy;
    int stop = 0;
    pthread_create(&busy, NULL, allocate, &stop);
    pthread_create(&thread, NULL, fork_here, NULL);
    pthread_join(thread, NULL);
    for (int i = 0; i < 20; i++) { int status; waitpid(child(exit_seven), &status, 0); }
    stop = 1;
    pthread_join(busy, NULL);
    printf("forked while others ran\n");
}
