// Calls with nonsense for arguments.
// Part of calls.c: not to be compiled alone.
// Calls that could hurt somebody else, end this process as they should, or take its memory from under it.
static int is_harmless(int number) {
    static const short harmful[] = {
        24, 30, 51, 53, 54, 55, 81, 88, 93, 94, 97, 103, 104, 105, 106, 107, 110, 112, 118, 119, 122, 129, 130, 131, 132, 133, 134, 135, 136,
        137, 138, 139, 140, 142, 154, 157, 161, 162, 167, 171, 180, 181, 182, 183, 184, 185, 186, 187, 188, 189, 190, 191, 192,
        193, 194, 195, 196, 197, 214, 215, 216, 220, 222, 226, 233, 240, 261, 266, 267, 270, 271, 274, 424, 435, 52, 452};
    for (unsigned i = 0; i < sizeof harmful / sizeof *harmful; i++) if (harmful[i] == number) return 0;
    return 1;
}
static unsigned long long seed;
static unsigned draw(unsigned below) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(seed >> 33) % below;
}
static void nonsense(void) {
    char *scratch = mmap(NULL, 0x40000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *forbidden = mmap(NULL, 0x4000, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *fixed = mmap(NULL, 0x4000, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int files[8], null = open("/dev/null", O_RDWR);
    for (int i = 0; i < 3; i++) dup2(null, i);
    pipe(files);
    socketpair(AF_UNIX, SOCK_STREAM, 0, files + 2);
    files[4] = epoll_create1(0);
    files[5] = eventfd(0, 0);
    files[6] = socket(AF_INET, SOCK_DGRAM, 0);
    files[7] = timerfd_create(CLOCK_MONOTONIC, 0);
    handle(SIGALRM, 0);
    handle(SIGPIPE, 0);
    alarm_in(5);
    struct itimerval often = {{0, 2000}, {0, 2000}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int round = 0; round < 4000; round++) {
        int number = draw(8) ? (int)draw(294) : 424 + (int)draw(40);
        if (!is_harmless(number)) continue;
        long given[6];
        for (int i = 0; i < 6; i++) {
            long pointers[] = {(long)scratch + 0x10000, (long)scratch + 0x10001, (long)scratch + 0x40000 - 8, (long)forbidden,
                               (long)fixed, 8, -8, -1, 1L << 46, (1L << 46) - 8, (1L << 47) - 16, 1L << 63, 0};
            long numbers[] = {0, 1, 2, 8, 16, 24, 56, 64, 100, 128, 4096, 65536, 1L << 20, 1L << 31, (1L << 31) - 1, 1L << 32,
                              1L << 40, -1, -2, -100, (long)(~0UL >> 1), 1L << 62};
            switch (draw(3)) {
            case 0: given[i] = pointers[draw(sizeof pointers / sizeof *pointers)]; break;
            case 1: given[i] = numbers[draw(sizeof numbers / sizeof *numbers)]; break;
            default: given[i] = files[draw(8)];
            }
        }
        // What structures in memory hold is nonsense, too: numbers, and pointers good and bad.
        for (int i = 0; i < 16; i++) {
            long words[] = {(long)scratch + 0x20000, -8, 1L << 46, 16, -1, 0, 1, (long)forbidden};
            memcpy(scratch + 0x10000 + 8 * i, &words[draw(8)], 8);
        }
        syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
    }
}
static void test_nonsense(void) {
#ifndef __loongarch__
    // The numbers are asm-generic's: on other machines they mean other calls, harmful ones among them.
    printf("all nonsense was answered\n");
    return;
#endif
    for (int i = 0; i < 12; i++) {
        seed = 1000003ULL * i + 17;
        int status, pid = child(nonsense), over = 0;
        for (int ms = 0; ms < 5000 && !over; ms += 5) { over = waitpid(pid, &status, WNOHANG); pause_ms(5); }
        // A call that waits for ever with SIGALRM blocked is right to do so.
        if (!over) { kill(pid, SIGKILL); waitpid(pid, &status, 0); continue; }
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) print_status("nonsense", status);
    }
    printf("all nonsense was answered\n");
}
