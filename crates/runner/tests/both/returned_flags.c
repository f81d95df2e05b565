// Functions that return the result of a comparison in flags, as the run-time systems of SBCL and Erlang do. The callee has long been
// translated, for callers that ignore its flags, when the first caller reads them.
#include <stdio.h>

typedef void function(void);
function compared, jumped;
long ignoring(long a, long b, function *callee);
long reading(long a, long b, function *callee);

#ifdef __x86_64__
__asm__(".text\n"
        "compared: cmp %rsi, %rdi; lea (%rdi,%rsi), %rax; ret\n"
        "jumped: jmp compared\n"
        "ignoring: sub $8, %rsp; call *%rdx; add $8, %rsp; ret\n"
        "reading: sub $8, %rsp; call *%rdx; mov $0, %eax; setb %al; lea 8(%rsp), %rsp; ret\n");
#else
__asm__(".text\n"
        "compared: cmp x0, x1; add x0, x0, x1; ret\n"
        "jumped: b compared\n"
        "ignoring: stp x29, x30, [sp, -16]!; blr x2; ldp x29, x30, [sp], 16; ret\n"
        "reading: stp x29, x30, [sp, -16]!; blr x2; cset x0, lo; ldp x29, x30, [sp], 16; ret\n");
#endif

int main(void) {
    function *volatile callees[] = {compared, jumped};
    long sum = 0, below = 0;
    for (long i = 0; i < 20000; i++) sum += ignoring(i, 10000, callees[i % 2]);
    for (long i = 0; i < 20000; i++) below += reading(i, 10000, callees[i % 2]);
    printf("%ld %ld\n", sum, below);
    return 0;
}
