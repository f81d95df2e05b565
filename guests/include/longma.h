/*
 * longma.h: markers for the model on which a guest program runs. On a real LoongArch, x86-64, MIPS64 or AArch64 processor the instructions are
 * no-ops, and for other architectures there are none, so that the same source runs everywhere.
 *
 * Runs without the corresponding options ignore them. The region of interest, from longma_roi_begin to longma_roi_end, is the only
 * part that is simulated and counted. Each marker is a compiler barrier, so that no work moves out of the region.
 *
 * Encoding: andi $zero, $zero, n (a result in the register that is always zero) with n from 0x4c1, on LoongArch and MIPS; n = 0 is
 * LoongArch's nop. On x86-64 a nop with an operand, nopl n(%rax), which does not access memory; on AArch64 movz xzr, n.
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

/* Begins the region of interest. */
static inline void longma_roi_begin(void) { LONGMA_MAGIC(0x4c1); }

/* Ends the region of interest. */
static inline void longma_roi_end(void) { LONGMA_MAGIC(0x4c2); }

/* Requests a checkpoint. */
static inline void longma_checkpoint(void) { LONGMA_MAGIC(0x4c3); }

/* Adds an event with a number to the trace of the run. */
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
