/*
 * longma.h: what a guest program tells the model it runs on. On a real processor, LoongArch, x86-64, MIPS64 or AArch64, these instructions do
 * nothing, and compiled for another architecture there are none: the same source runs everywhere.
 *
 * They are not seen by a run that does not ask for them. What is between longma_roi_begin and longma_roi_end is the region of
 * interest: only it is simulated and counted. Each is a barrier to the compiler, so that the work does not move out of the region.
 *
 * Encoding: andi $zero, $zero, n (a result in the register that is always zero) with n from 0x4c1, on LoongArch and MIPS; n = 0 is
 * LoongArch's nop. On x86-64 a nop with an operand, nopl n(%rax), of whose address nothing is read; on AArch64 movz xzr, n.
 */
#ifndef LONGMA_H
#define LONGMA_H

#if defined(__loongarch__)
#define LONGMA_MAGIC(n) __asm__ volatile("andi $r0, $r0, " #n ::: "memory")
#elif defined(__mips64)
#define LONGMA_MAGIC(n) __asm__ volatile("andi $0, $0, " #n ::: "memory")
#elif defined(__x86_64__)
#define LONGMA_MAGIC(n) __asm__ volatile("nopl " #n "(%%rax)" ::: "memory")
#elif defined(__aarch64__)
#define LONGMA_MAGIC(n) __asm__ volatile("movz xzr, #" #n ::: "memory")
#else
#define LONGMA_MAGIC(n) __asm__ volatile("" ::: "memory")
#endif

/* The region of interest begins. */
static inline void longma_roi_begin(void) { LONGMA_MAGIC(0x4c1); }

/* The region of interest ends. */
static inline void longma_roi_end(void) { LONGMA_MAGIC(0x4c2); }

/* The program is worth a checkpoint here. */
static inline void longma_checkpoint(void) { LONGMA_MAGIC(0x4c3); }

/* An event of the program's own: a marker with a number in the trace of a run. */
static inline void longma_event(unsigned long number)
{
#if defined(__loongarch__)
	register unsigned long a0 __asm__("$r4") = number;
	__asm__ volatile("andi $r0, $r0, 0x4c4" : : "r"(a0) : "memory");
#elif defined(__mips64)
	register unsigned long a0 __asm__("$4") = number;
	__asm__ volatile("andi $0, $0, 0x4c4" : : "r"(a0) : "memory");
#elif defined(__x86_64__)
	__asm__ volatile("nopl 0x4c4(%%rax)" : : "D"(number) : "memory");
#elif defined(__aarch64__)
	register unsigned long x0 __asm__("x0") = number;
	__asm__ volatile("movz xzr, #0x4c4" : : "r"(x0) : "memory");
#else
	(void)number;
	LONGMA_MAGIC(0x4c4);
#endif
}

#endif
