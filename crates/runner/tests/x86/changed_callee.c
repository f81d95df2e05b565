// A caller runs once and reads CF after a call. Then its callee, on another page, is rewritten to return a comparison in the flags, and becomes hot
// through a caller that ignores them.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef int function(long, long);

// Writes `call callee` and the code that follows it.
static function *caller(unsigned char *at, unsigned char *callee, const char *code, int bytes) {
    int distance = callee - (at + 5);
    at[0] = 0xe8;
    memcpy(at + 1, &distance, 4);
    memcpy(at + 5, code, bytes);
    return (function *)at;
}

int main(void) {
    unsigned char *pages = mmap(NULL, 0x10000, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(pages, "\xb8\1\0\0\0\xc3", 6); // mov eax, 1; ret
    // setb al; movzx eax, al; ret
    function *reading = caller(pages + 0x4000, pages, "\x0f\x92\xc0\x0f\xb6\xc0\xc3", 7);
    // xor eax, eax; ret
    function *ignoring = caller(pages + 0x8000, pages, "\x31\xc0\xc3", 3);
    reading(1, 2);
    memcpy(pages, "\x48\x39\xf7\xc3", 4); // cmp rdi, rsi; ret
    for (int i = 0; i < 2000; i++) ignoring(2, 1);
    int results = 0;
    for (int i = 0; i < 10; i++) results = 2 * results + reading(i & 1 ? 1 : 5, 3);
    printf("%x\n", results);
    return 0;
}
