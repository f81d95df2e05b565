// Executes an instruction that AT_HWCAP does not announce: fjcvtzs w0, d0.
int main(void) {
    __asm__ volatile(".inst 0x1e7e0000" ::: "x0");
    return 0;
}
