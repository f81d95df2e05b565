// Functions that return the result of a comparison in flags, as the run-time systems of SBCL and Erlang do, and functions that leave flags
// as they are, as Go's routines do that clear and copy memory, and dav1d's. The callee of `reading` has long been translated, for callers that ignore
// its flags, when the first caller reads them.
#include <stdio.h>

typedef void function(void);
function compared, jumped;
long ignoring(long a, long b, function *callee);
long reading(long a, long b, function *callee);
long reading_directly(long a, long b, function *callee);
long keeping(long a, long b, function *callee);
long keeping_apart(long a, long b, function *callee);

#ifdef __x86_64__
__asm__(".text; .globl compared, jumped, ignoring, reading, reading_directly, keeping, keeping_apart\n"
        "compared: cmp %rsi, %rdi; lea (%rdi,%rsi), %rax; ret\n"
        "jumped: jmp compared\n"
        "unchanging: lea (%rdi,%rsi), %rcx; ret\n"
        "ignoring: sub $8, %rsp; call *%rdx; add $8, %rsp; ret\n"
        "reading: sub $8, %rsp; call *%rdx; setb %al; movzbl %al, %eax; lea 8(%rsp), %rsp; ret\n"
        "reading_directly: sub $8, %rsp; call jumped; mov $0, %eax; setb %al; lea 8(%rsp), %rsp; ret\n"
        "keeping: sub $8, %rsp; cmp %rsi, %rdi; call unchanging; mov $0, %eax; setb %al; lea 8(%rsp), %rsp; ret\n"
        "keeping_apart: sub $8, %rsp; cmp %rdi, %rsi; pushf; pop %rcx; cmp %rsi, %rdi; je 1f; lea (%rdi,%rsi), %rcx\n"
        "1: call unchanging; mov $0, %eax; setb %al; lea 8(%rsp), %rsp; ret\n");
#else
__asm__(".text; .globl compared, jumped, ignoring, reading, reading_directly, keeping, keeping_apart\n"
        "compared: cmp x0, x1; add x0, x0, x1; ret\n"
        "jumped: b compared\n"
        "unchanging: add x2, x0, x1; ret\n"
        "ignoring: stp x29, x30, [sp, -16]!; blr x2; ldp x29, x30, [sp], 16; ret\n"
        "reading: stp x29, x30, [sp, -16]!; blr x2; cset x0, lo; ldp x29, x30, [sp], 16; ret\n"
        "reading_directly: stp x29, x30, [sp, -16]!; bl jumped; cset x0, lo; ldp x29, x30, [sp], 16; ret\n"
        "keeping: stp x29, x30, [sp, -16]!; cmp x0, x1; bl unchanging; cset x0, lo; ldp x29, x30, [sp], 16; ret\n"
        "keeping_apart: stp x29, x30, [sp, -16]!; cmp x1, x0; mrs x2, nzcv; cmp x0, x1; b.eq 1f; add x2, x0, x1\n"
        "1: bl unchanging; cset x0, lo; ldp x29, x30, [sp], 16; ret\n");
#endif

static long count(long (*caller)(long, long, function *)) {
    function *volatile callees[] = {compared, jumped};
    long sum = 0;
    for (long i = 0; i < 20000; i++) sum += caller(i, 10000, callees[i % 2]);
    return sum;
}

int main(void) {
    // Before anything shows that flags are returned.
    long apart = keeping_apart(0, 1, compared);
    long kept = count(keeping);
    long sum = count(ignoring);
    long directly = count(reading_directly);
    printf("%ld %ld %ld %ld %ld\n", apart, kept, sum, directly, count(reading));
    return 0;
}
