// A function that returns the result of a comparison in flags has long been hot, for callers that ignore its flags, when the first caller reads
// them, and that caller runs once.
#include <stdio.h>

long ignoring(long a, long b);
long reading(long a, long b);
long reading_indirectly(long a, long b);

#ifdef __x86_64__
__asm__(".text; .globl ignoring, reading, reading_indirectly\n"
        "compared: cmp %rsi, %rdi; lea (%rdi,%rsi), %rax; ret\n"
        "ignoring: sub $8, %rsp; call compared; add $8, %rsp; ret\n"
        "reading: sub $8, %rsp; call compared; mov $0, %eax; setb %al; lea 8(%rsp), %rsp; ret\n"
        "reading_indirectly: sub $8, %rsp; lea compared(%rip), %rdx; call *%rdx; setb %al; movzbl %al, %eax; lea 8(%rsp), %rsp; ret\n");
#else
__asm__(".text; .globl ignoring, reading, reading_indirectly\n"
        "compared: cmp x0, x1; add x0, x0, x1; ret\n"
        "ignoring: stp x29, x30, [sp, -16]!; bl compared; ldp x29, x30, [sp], 16; ret\n"
        "reading: stp x29, x30, [sp, -16]!; bl compared; cset x0, lo; ldp x29, x30, [sp], 16; ret\n"
        "reading_indirectly: stp x29, x30, [sp, -16]!; adr x2, compared; blr x2; cset x0, lo; ldp x29, x30, [sp], 16; ret\n");
#endif

int main(int count, char **names) {
    long sum = 0;
    for (long i = 0; i < 20000; i++) sum += ignoring(i, 10000);
    long first = names[1] ? reading_indirectly(1, 2) : reading(1, 2);
    printf("%ld %ld %ld %ld\n", sum, first, reading(2, 1), reading_indirectly(1, 2));
    return 0;
}
