//! A LoongArch Linux process: ELF, address space, system calls, signals, threads.
