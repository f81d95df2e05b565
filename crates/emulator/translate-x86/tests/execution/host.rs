//! Executes instructions on the host's processor.

/// The processor state before and after.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(16))]
pub struct Registers {
    pub general: [u64; 16],
    pub flags: u64,
    /// Nonzero if the upper halves of the vector registers are in use.
    pub wide: u64,
    pub vectors: [u128; 16],
    pub uppers: [u128; 16],
}

/// Whether the host supports AVX2 and the extensions that come with it.
pub fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("movbe")
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
    "cmp qword ptr [rdi+136], 0; je 2f",
    "vinsertf128 ymm0, ymm0, xmmword ptr [rdi+400], 1; vinsertf128 ymm1, ymm1, xmmword ptr [rdi+416], 1; vinsertf128 ymm2, ymm2, xmmword ptr [rdi+432], 1; vinsertf128 ymm3, ymm3, xmmword ptr [rdi+448], 1",
    "vinsertf128 ymm4, ymm4, xmmword ptr [rdi+464], 1; vinsertf128 ymm5, ymm5, xmmword ptr [rdi+480], 1; vinsertf128 ymm6, ymm6, xmmword ptr [rdi+496], 1; vinsertf128 ymm7, ymm7, xmmword ptr [rdi+512], 1",
    "vinsertf128 ymm8, ymm8, xmmword ptr [rdi+528], 1; vinsertf128 ymm9, ymm9, xmmword ptr [rdi+544], 1; vinsertf128 ymm10, ymm10, xmmword ptr [rdi+560], 1; vinsertf128 ymm11, ymm11, xmmword ptr [rdi+576], 1",
    "vinsertf128 ymm12, ymm12, xmmword ptr [rdi+592], 1; vinsertf128 ymm13, ymm13, xmmword ptr [rdi+608], 1; vinsertf128 ymm14, ymm14, xmmword ptr [rdi+624], 1; vinsertf128 ymm15, ymm15, xmmword ptr [rdi+640], 1",
    "2:",
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
    "cmp qword ptr [rdi+136], 0; je 3f",
    "vextractf128 xmmword ptr [rdi+400], ymm0, 1; vextractf128 xmmword ptr [rdi+416], ymm1, 1; vextractf128 xmmword ptr [rdi+432], ymm2, 1; vextractf128 xmmword ptr [rdi+448], ymm3, 1",
    "vextractf128 xmmword ptr [rdi+464], ymm4, 1; vextractf128 xmmword ptr [rdi+480], ymm5, 1; vextractf128 xmmword ptr [rdi+496], ymm6, 1; vextractf128 xmmword ptr [rdi+512], ymm7, 1",
    "vextractf128 xmmword ptr [rdi+528], ymm8, 1; vextractf128 xmmword ptr [rdi+544], ymm9, 1; vextractf128 xmmword ptr [rdi+560], ymm10, 1; vextractf128 xmmword ptr [rdi+576], ymm11, 1",
    "vextractf128 xmmword ptr [rdi+592], ymm12, 1; vextractf128 xmmword ptr [rdi+608], ymm13, 1; vextractf128 xmmword ptr [rdi+624], ymm14, 1; vextractf128 xmmword ptr [rdi+640], ymm15, 1",
    "vzeroupper",
    "3:",
    "pop rsi; pop rdi",
    "cld",
    "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
    "ret",
);

// SAFETY: the assembler text above defines the function with this signature and preserves the callee-saved registers.
unsafe extern "C" {
    fn longma_test_run_natively(registers: *mut Registers, code: *const u8);
}

/// A page of executable memory.
pub struct Buffer(*mut u8);

impl Buffer {
    pub fn new() -> Self {
        // SAFETY: creates a new mapping of one page.
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

    /// Executes one instruction, which may access only registers and the data that they point to.
    pub fn run(&self, instruction: &[u8], registers: &mut Registers) {
        // SAFETY: the page belongs to this buffer. A return follows the instruction, which does not touch the stack and
        // accesses only memory that the caller provides.
        unsafe {
            std::ptr::copy_nonoverlapping(instruction.as_ptr(), self.0, instruction.len());
            self.0.add(instruction.len()).write(0xc3);
            longma_test_run_natively(registers, self.0);
        }
    }
}
