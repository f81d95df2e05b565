// A misaligned atomic access, which AArch64 does not permit.
int main(void) {
    static char memory[16] __attribute__((aligned(16)));
    long value = 0;
    __asm__ volatile("ldxr %0, [%1]" : "=r"(value) : "r"(memory + 1) : "memory");
    return (int)value;
}
