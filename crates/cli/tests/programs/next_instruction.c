// Stores that change the next instruction, in a loop and outside, with plain stores and string instructions; prints the results.
#include <stdio.h>
#include <sys/mman.h>

long loop(long rounds, long from);
long once(long from);
long copy(long from, const void *number);

__asm__(".globl loop\n"
        "loop: mov %rdi, %rcx\n mov %rsi, %rax\n"
        "1: cmp $5, %rcx\n jne 2f\n addl $1, 3f+3(%rip)\n"
        "2:\n"
        "3: .byte 0x48, 0x81, 0xc0\n .long 383722537\n"
        " dec %rcx\n jnz 1b\n ret\n"
        ".globl once\n"
        "once: mov %rdi, %rax\n addl $1, 4f+3(%rip)\n"
        "4: .byte 0x48, 0x81, 0xc0\n .long 383722537\n"
        " ret\n"
        ".globl copy\n"
        "copy: mov %rdi, %rax\n lea 5f+3(%rip), %rdi\n mov $4, %ecx\n rep movsb\n"
        "5: .byte 0x48, 0x81, 0xc0\n .long 383722537\n"
        " ret\n");

int main(void) {
    mprotect((void *)((long)loop & ~4095L), 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
    for (int round = 0; round < 12; round++)
        printf("%lx\n", loop(round < 6 ? 30 : 3000, round));
    for (int round = 0; round < 100; round++)
        printf("%lx\n", once(round));
    for (int round = 0; round < 100; round++) {
        int number = 1000 + round * round;
        printf("%lx\n", copy(round, &number));
    }
    return 0;
}
