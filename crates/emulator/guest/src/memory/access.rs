//! Loads, stores and copies that return an error instead of faulting: the fault handler recognizes the program counters
//! of these routines. Callers pass host pointers inside a guest reservation. Source: the kernel's exception tables
//! (Documentation/arch/x86/exception-tables.rst).

use std::arch::global_asm;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "longma-guest supports x86-64 Linux hosts only: its memory accessors and signal entry are x86-64 assembly"
);

// Each routine returns its value in rax and 0 in rdx. After a fault, execution resumes at one of the two recovery
// points, which return 1 in rdx and the number of remaining bytes in rax (string instructions keep it in rcx).
global_asm!(
    ".pushsection .text.longma_guest_access,\"ax\",@progbits",
    ".p2align 4",
    ".globl longma_access_start",
    ".globl longma_load_1",
    ".globl longma_load_2",
    ".globl longma_load_4",
    ".globl longma_load_8",
    ".globl longma_load_16",
    ".globl longma_store_1",
    ".globl longma_store_2",
    ".globl longma_store_4",
    ".globl longma_store_8",
    ".globl longma_store_16",
    ".globl longma_exchange_1",
    ".globl longma_exchange_2",
    ".globl longma_exchange_4",
    ".globl longma_exchange_8",
    ".globl longma_copy",
    ".globl longma_fill",
    ".globl longma_access_wide",
    ".globl longma_exchange_16",
    ".globl longma_access_end",
    ".globl longma_recover_wide",
    ".globl longma_recover",
    "longma_access_start:",
    "longma_load_1: movzx eax, byte ptr [rdi]",
    "xor edx, edx",
    "ret",
    "longma_load_2: movzx eax, word ptr [rdi]",
    "xor edx, edx",
    "ret",
    "longma_load_4: mov eax, dword ptr [rdi]",
    "xor edx, edx",
    "ret",
    "longma_load_8: mov rax, qword ptr [rdi]",
    "xor edx, edx",
    "ret",
    "longma_load_16: movups xmm0, xmmword ptr [rdi]",
    "movups xmmword ptr [rsi], xmm0",
    "xor edx, edx",
    "ret",
    "longma_store_1: mov byte ptr [rdi], sil",
    "xor edx, edx",
    "ret",
    "longma_store_2: mov word ptr [rdi], si",
    "xor edx, edx",
    "ret",
    "longma_store_4: mov dword ptr [rdi], esi",
    "xor edx, edx",
    "ret",
    "longma_store_8: mov qword ptr [rdi], rsi",
    "xor edx, edx",
    "ret",
    "longma_store_16: movups xmm0, xmmword ptr [rsi]",
    "movups xmmword ptr [rdi], xmm0",
    "xor edx, edx",
    "ret",
    "longma_exchange_1: mov eax, esi",
    "lock cmpxchg byte ptr [rdi], dl",
    "xor edx, edx",
    "ret",
    "longma_exchange_2: mov eax, esi",
    "lock cmpxchg word ptr [rdi], dx",
    "xor edx, edx",
    "ret",
    "longma_exchange_4: mov eax, esi",
    "lock cmpxchg dword ptr [rdi], edx",
    "xor edx, edx",
    "ret",
    "longma_exchange_8: mov rax, rsi",
    "lock cmpxchg qword ptr [rdi], rdx",
    "xor edx, edx",
    "ret",
    "longma_copy: mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "xor edx, edx",
    "ret",
    "longma_fill: mov rcx, rdx",
    "mov eax, esi",
    "rep stosb",
    "xor eax, eax",
    "xor edx, edx",
    "ret",
    "longma_access_wide:",
    // rbx is callee-saved; it is kept in r9, which nothing else here uses.
    "longma_exchange_16: mov r9, rbx",
    "mov r8, rsi",
    "mov r10, rdx",
    "mov rax, qword ptr [r8]",
    "mov rdx, qword ptr [r8 + 8]",
    "mov rbx, qword ptr [r10]",
    "mov rcx, qword ptr [r10 + 8]",
    "lock cmpxchg16b xmmword ptr [rdi]",
    "mov qword ptr [r8], rax",
    "mov qword ptr [r8 + 8], rdx",
    "mov rbx, r9",
    "xor edx, edx",
    "ret",
    "longma_access_end:",
    "longma_recover_wide: mov rbx, r9",
    "longma_recover: mov rax, rcx",
    "mov edx, 1",
    "ret",
    ".popsection",
);

/// The result registers rax and rdx of an access routine.
#[repr(C)]
#[derive(Clone, Copy)]
struct Returned {
    value: u64,
    faulted: u64,
}

impl Returned {
    fn check(self) -> Result<u64, Refused> {
        if self.faulted == 0 { Ok(self.value) } else { Err(Refused { remaining: self.value as usize }) }
    }
}

/// An access that faulted on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// For copies and fills, the number of bytes not processed.
    pub remaining: usize,
}

// SAFETY: the routines and labels are those of the assembly above, which follows these signatures.
unsafe extern "sysv64" {
    safe static longma_access_start: u8;
    safe static longma_access_wide: u8;
    safe static longma_access_end: u8;
    safe static longma_recover: u8;
    safe static longma_recover_wide: u8;
    fn longma_load_1(pointer: *const u8) -> Returned;
    fn longma_load_2(pointer: *const u8) -> Returned;
    fn longma_load_4(pointer: *const u8) -> Returned;
    fn longma_load_8(pointer: *const u8) -> Returned;
    fn longma_load_16(pointer: *const u8, value: *mut u8) -> Returned;
    fn longma_store_1(pointer: *mut u8, value: u64) -> Returned;
    fn longma_store_2(pointer: *mut u8, value: u64) -> Returned;
    fn longma_store_4(pointer: *mut u8, value: u64) -> Returned;
    fn longma_store_8(pointer: *mut u8, value: u64) -> Returned;
    fn longma_store_16(pointer: *mut u8, value: *const u8) -> Returned;
    fn longma_exchange_1(pointer: *mut u8, expected: u64, new: u64) -> Returned;
    fn longma_exchange_2(pointer: *mut u8, expected: u64, new: u64) -> Returned;
    fn longma_exchange_4(pointer: *mut u8, expected: u64, new: u64) -> Returned;
    fn longma_exchange_8(pointer: *mut u8, expected: u64, new: u64) -> Returned;
    fn longma_exchange_16(pointer: *mut u8, expected: *mut u128, new: *const u128) -> Returned;
    fn longma_copy(to: *mut u8, from: *const u8, count: usize) -> Returned;
    fn longma_fill(to: *mut u8, value: u64, count: usize) -> Returned;
}

/// Loads `N` bytes (1, 2, 4, 8 or 16), zero-extended.
///
/// # Safety
/// All `N` bytes at `pointer` must be inside a guest reservation; they need not be mapped.
pub(super) unsafe fn load<const N: usize>(pointer: *const u8) -> Result<u128, Refused> {
    let mut wide = [0u8; 16];
    // SAFETY: the caller upholds the contract; `wide` has 16 bytes.
    let returned = unsafe {
        match N {
            1 => longma_load_1(pointer),
            2 => longma_load_2(pointer),
            4 => longma_load_4(pointer),
            8 => longma_load_8(pointer),
            _ => longma_load_16(pointer, wide.as_mut_ptr()),
        }
    };
    let narrow = returned.check()?;
    Ok(if N == 16 { u128::from_le_bytes(wide) } else { narrow.into() })
}

/// Stores the low `N` bytes (1, 2, 4, 8 or 16) of `value`, either all or none.
///
/// # Safety
/// As for [`load`].
pub(super) unsafe fn store<const N: usize>(pointer: *mut u8, value: u128) -> Result<(), Refused> {
    let bytes = value.to_le_bytes();
    // SAFETY: the caller upholds the contract; `bytes` has 16 bytes.
    let returned = unsafe {
        match N {
            1 => longma_store_1(pointer, value as u64),
            2 => longma_store_2(pointer, value as u64),
            4 => longma_store_4(pointer, value as u64),
            8 => longma_store_8(pointer, value as u64),
            _ => longma_store_16(pointer, bytes.as_ptr()),
        }
    };
    returned.check().map(drop)
}

/// Atomically replaces `expected` with `new` and returns the old value.
///
/// # Safety
/// As for [`load`], and `pointer` must be a multiple of 16 if `N` is.
pub(super) unsafe fn compare_exchange<const N: usize>(
    pointer: *mut u8,
    expected: u128,
    new: u128,
) -> Result<u128, Refused> {
    let (old, new_value) = (expected as u64, new as u64);
    let mut wide = expected;
    // SAFETY: the caller upholds the contract; `wide` and `new` are live.
    let returned = unsafe {
        match N {
            1 => longma_exchange_1(pointer, old, new_value),
            2 => longma_exchange_2(pointer, old, new_value),
            4 => longma_exchange_4(pointer, old, new_value),
            8 => longma_exchange_8(pointer, old, new_value),
            _ => longma_exchange_16(pointer, &raw mut wide, &raw const new),
        }
    };
    let narrow = returned.check()?;
    Ok(match N {
        1 => (narrow as u8).into(),
        2 => (narrow as u16).into(),
        4 => (narrow as u32).into(),
        8 => narrow.into(),
        _ => wide,
    })
}

/// Copies `count` bytes. The error holds the number of bytes not copied.
///
/// # Safety
/// At least one side is inside a guest reservation. The other pointer is also in the reservation, or is to ordinary
/// memory valid for `count` bytes. The two sides do not overlap.
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, count: usize) -> Result<(), Refused> {
    // SAFETY: the caller upholds the contract.
    unsafe { longma_copy(to, from, count) }.check().map(drop)
}

/// Sets `count` bytes to `value`.
///
/// # Safety
/// The bytes must be inside a guest reservation.
pub(super) unsafe fn fill(to: *mut u8, value: u8, count: usize) -> Result<(), Refused> {
    // SAFETY: the caller upholds the contract.
    unsafe { longma_fill(to, value.into(), count) }.check().map(drop)
}

/// A fault recovery: if the fault occurred in an access routine, makes the routine return its error. Async-signal-safe.
pub fn recover(signal: libc::c_int, _info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> bool {
    if signal != libc::SIGSEGV && signal != libc::SIGBUS {
        return false;
    }
    let address = |symbol: &'static u8| std::ptr::from_ref(symbol) as usize;
    let pc = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    let at = *pc as usize;
    if !(address(&longma_access_start)..address(&longma_access_end)).contains(&at) {
        return false;
    }
    let wide = at >= address(&longma_access_wide);
    let target = if wide { &longma_recover_wide } else { &longma_recover };
    *pc = address(target) as libc::greg_t;
    true
}
