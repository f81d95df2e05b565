// Writes a function's machine code to memory.
#pragma once
#include <stdint.h>

// Writes a function that returns `value`, below 2048.
static void write_code(volatile uint32_t *at, int value) {
#ifdef __loongarch__
    at[0] = 0x02800004u | (uint32_t)value << 10; // addi.w a0, zero, value
    at[1] = 0x4c000020;                          // ret
    __asm__ volatile("dbar 0\nibar 0" ::: "memory");
#else
    at[0] = 0xb8u | (uint32_t)value << 8; // mov eax, value
    at[1] = 0xc300u | (uint32_t)value >> 24;
#endif
}
