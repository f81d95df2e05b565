//! Makes blocking host system calls for the guest without losing a signal that arrives just before the call blocks.
//! Source: Linux arch/x86/entry/entry_64.S (calling convention), signal.c (restart: the program counter is set back to
//! `syscall`).

use std::arch::global_asm;

use super::attention::{Attention, with_attention};
use crate::Errno;

// A host signal handler finds the program counter between `start` and `end` in two cases: the call has not begun, or
// the kernel set the program counter back to restart it (all our handlers have SA_RESTART). In both cases the call had
// no effect, and the handler redirects the thread to `interrupted`. At `end` the call is complete and its result is
// valid.
global_asm!(
    ".pushsection .text.longma_interruptible_call,\"ax\",@progbits",
    ".balign 16",
    ".globl longma_interruptible_call",
    ".globl longma_interruptible_call_start",
    ".globl longma_interruptible_call_end",
    ".globl longma_interruptible_call_interrupted",
    ".type longma_interruptible_call,@function",
    "longma_interruptible_call:",
    "mov r11, rdi",
    "mov rax, [rsi]",
    "mov rdi, [rsi + 8]",
    "mov rdx, [rsi + 24]",
    "mov r10, [rsi + 32]",
    "mov r8,  [rsi + 40]",
    "mov r9,  [rsi + 48]",
    "mov rsi, [rsi + 16]",
    "longma_interruptible_call_start:",
    "cmp dword ptr [r11], 0",
    "jne longma_interruptible_call_interrupted",
    "syscall",
    "longma_interruptible_call_end:",
    "ret",
    "longma_interruptible_call_interrupted:",
    "mov rax, -512",
    "ret",
    ".size longma_interruptible_call, . - longma_interruptible_call",
    ".popsection",
);

// SAFETY: the routine and the labels are those of the assembly above, which follows this signature.
unsafe extern "C" {
    fn longma_interruptible_call(attention: *const Attention, call: *const [u64; 7]) -> i64;
    static longma_interruptible_call_start: u8;
    static longma_interruptible_call_end: u8;
    static longma_interruptible_call_interrupted: u8;
}

/// If a signal at `pc` interrupted an interruptible call before it had any effect, returns the address to which the
/// handler must redirect the thread. The call then returns [`Errno::RESTART`].
pub fn interrupted_at(pc: u64) -> Option<u64> {
    let (start, end) = (&raw const longma_interruptible_call_start, &raw const longma_interruptible_call_end);
    (start as u64..end as u64)
        .contains(&pc)
        .then_some(&raw const longma_interruptible_call_interrupted as u64)
}

/// Makes host system call `number`, unless the [`Attention`] flag of this thread is set before the call begins.
///
/// # Errors
/// The error of the call, or [`Errno::RESTART`] if the call had no effect; it may be made again after signal delivery.
///
/// # Safety
/// The call must not break this process: it must not close descriptors or change mappings of the emulator. Pointers in
/// `arguments` are null, point into guest memory, or point to memory that the call may access.
pub unsafe fn interruptible_on_host(number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
    let [a, b, c, d, e, f] = arguments;
    let call = [number as u64, a, b, c, d, e, f];
    // SAFETY: both pointers are valid during the call; the caller guarantees the rest.
    let returned = with_attention(|attention| unsafe { longma_interruptible_call(attention, &call) });
    Errno::check(returned)
}
