//! Instructions executed by the host's own processor.

/// What the processor begins and ends with.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(16))]
pub struct Registers {
    pub general: [u64; 16],
    pub flags: u64,
    pub unused: u64,
    pub vectors: [u128; 16],
}

std::arch::global_asm!(
    ".globl longma_test_run_natively",
    "longma_test_run_natively:",
    "push rbx; push rbp; push r12; push r13; push r14; push r15",
    "push rdi; push rsi",
    "movdqu xmm0, [rdi+144]; movdqu xmm1, [rdi+160]; movdqu xmm2, [rdi+176]; movdqu xmm3, [rdi+192]",
    "movdqu xmm4, [rdi+208]; movdqu xmm5, [rdi+224]; movdqu xmm6, [rdi+240]; movdqu xmm7, [rdi+256]",
    "movdqu xmm8, [rdi+272]; movdqu xmm9, [rdi+288]; movdqu xmm10, [rdi+304]; movdqu xmm11, [rdi+320]",
    "movdqu xmm12, [rdi+336]; movdqu xmm13, [rdi+352]; movdqu xmm14, [rdi+368]; movdqu xmm15, [rdi+384]",
    "push qword ptr [rdi+128]; popfq",
    "mov rax, [rdi]; mov rcx, [rdi+8]; mov rdx, [rdi+16]; mov rbx, [rdi+24]; mov rbp, [rdi+40]",
    "mov rsi, [rdi+48]; mov r8, [rdi+64]; mov r9, [rdi+72]; mov r10, [rdi+80]; mov r11, [rdi+88]",
    "mov r12, [rdi+96]; mov r13, [rdi+104]; mov r14, [rdi+112]; mov r15, [rdi+120]; mov rdi, [rdi+56]",
    "call qword ptr [rsp]",
    "pushfq",
    "push rdi; mov rdi, [rsp+24]",
    "mov [rdi], rax; mov [rdi+8], rcx; mov [rdi+16], rdx; mov [rdi+24], rbx; mov [rdi+40], rbp",
    "mov [rdi+48], rsi; mov [rdi+64], r8; mov [rdi+72], r9; mov [rdi+80], r10; mov [rdi+88], r11",
    "mov [rdi+96], r12; mov [rdi+104], r13; mov [rdi+112], r14; mov [rdi+120], r15",
    "pop rax; mov [rdi+56], rax; pop rax; mov [rdi+128], rax",
    "movdqu [rdi+144], xmm0; movdqu [rdi+160], xmm1; movdqu [rdi+176], xmm2; movdqu [rdi+192], xmm3",
    "movdqu [rdi+208], xmm4; movdqu [rdi+224], xmm5; movdqu [rdi+240], xmm6; movdqu [rdi+256], xmm7",
    "movdqu [rdi+272], xmm8; movdqu [rdi+288], xmm9; movdqu [rdi+304], xmm10; movdqu [rdi+320], xmm11",
    "movdqu [rdi+336], xmm12; movdqu [rdi+352], xmm13; movdqu [rdi+368], xmm14; movdqu [rdi+384], xmm15",
    "pop rsi; pop rdi",
    "cld",
    "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
    "ret",
);

// SAFETY: the assembler text above defines it with this signature and keeps what the calling convention says is the caller's.
unsafe extern "C" {
    fn longma_test_run_natively(registers: *mut Registers, code: *const u8);
}

/// Memory that the host can execute.
pub struct Buffer(*mut u8);

impl Buffer {
    pub fn new() -> Self {
        // SAFETY: a new mapping of one page.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        Self(page.cast())
    }

    /// Executes one instruction, which accesses nothing but registers and the data that they point to.
    pub fn run(&self, instruction: &[u8], registers: &mut Registers) {
        // SAFETY: the page is ours; the instruction is followed by a return, leaves the stack alone, and accesses memory at addresses
        // that the caller has made sure of.
        unsafe {
            std::ptr::copy_nonoverlapping(instruction.as_ptr(), self.0, instruction.len());
            self.0.add(instruction.len()).write(0xc3);
            longma_test_run_natively(registers, self.0);
        }
    }
}
