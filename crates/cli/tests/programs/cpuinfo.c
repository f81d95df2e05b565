// Prints /proc/cpuinfo, and whether its features are those that the processor announces. Source: proc_cpuinfo(5), getauxval(3).
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

// For hosts with many processors.
static char text[1 << 21];

static int has(const char *flag) {
    char padded[64];
    snprintf(padded, sizeof padded, " %s ", flag);
    const char *line = strstr(text, "flags\t\t:");
    if (!line) line = strstr(text, "Features\t");
    return line && strstr(line, padded) && strstr(line, padded) < strchr(line, '\n');
}

static void compare(const char *flag, unsigned long bits, int bit) {
    if (has(flag) != (int)(bits >> bit & 1)) printf("%s: listed %d\n", flag, has(flag));
}

int main(void) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    size_t length = fread(text, 1, sizeof text / 2, file);
    // A blank before the end of each line, so that the last flag has one on both sides.
    for (char *at = text; (at = strchr(at, '\n')); at += 2) memmove(at + 1, at, strlen(at) + 1), *at = ' ';
    fputs(text, stdout);
#if defined(__x86_64__)
    unsigned a, b, c, d;
    __get_cpuid(1, &a, &b, &c, &d);
    const char *of_c[] = {"pni", "pclmulqdq", "ssse3", "fma", "cx16", "sse4_1", "sse4_2", "movbe", "popcnt", "aes", "xsave", "avx", "f16c", "rdrand"};
    const int bits_c[] = {0, 1, 9, 12, 13, 19, 20, 22, 23, 25, 26, 28, 29, 30};
    for (int i = 0; i < 14; i++) compare(of_c[i], c, bits_c[i]);
    compare("sse2", d, 26), compare("cmov", d, 15), compare("tsc", d, 4);
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) b = 0;
    const char *of_b[] = {"fsgsbase", "bmi1", "avx2", "bmi2", "rdseed", "adx", "clflushopt", "clwb", "sha_ni"};
    const int bits_b[] = {0, 3, 5, 8, 18, 19, 23, 24, 29};
    for (int i = 0; i < 9; i++) compare(of_b[i], b, bits_b[i]);
    __get_cpuid(0x80000001, &a, &b, &c, &d);
    compare("lahf_lm", c, 0), compare("abm", c, 5), compare("rdtscp", d, 27), compare("lm", d, 29);
#elif defined(__aarch64__)
    const char *names[] = {"fp", "asimd", "evtstrm", "aes", "pmull", "sha1", "sha2", "crc32", "atomics", "fphp", "asimdhp", "cpuid", "asimdrdm", "jscvt", "fcma", "lrcpc", "dcpop", "sha3", "sm3", "sm4", "asimddp"};
    for (int i = 0; i < 21; i++) compare(names[i], getauxval(AT_HWCAP), i);
#endif
    puts("compared");
    return 0;
}
