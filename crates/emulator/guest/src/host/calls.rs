//! Host system calls on behalf of the guest, made so that no signal gets lost just before one blocks.
//! Not a table of calls, nor what one waits for in simulated time.
//! Source: Linux arch/x86/entry/entry_64.S (calling convention), signal.c (restart: the program counter is set back to `syscall`).

use std::arch::global_asm;

use super::attention::{Attention, with_attention};
use crate::Errno;

// The handler of a host signal finds the program counter between `start` and `end` in two cases: the call has not begun, or the
// kernel wants it restarted (all our handlers have SA_RESTART). Either way it has had no effect, and the handler continues
// at `interrupted`. At `end` the call is over and its result stands.
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

/// Where a host thread that a signal found at `pc` continues so that its call returns [`Errno::RESTART`]; `None` if it is not
/// about to make an interruptible call.
pub fn interrupted_at(pc: u64) -> Option<u64> {
    let (start, end) = (&raw const longma_interruptible_call_start, &raw const longma_interruptible_call_end);
    (start as u64..end as u64)
        .contains(&pc)
        .then_some(&raw const longma_interruptible_call_interrupted as u64)
}

/// Makes host call `number`, unless this thread's [`Attention`] is requested before it begins.
///
/// # Errors
/// What the call returns, or [`Errno::RESTART`] if it had no effect and may be made again after the signal.
///
/// # Safety
/// The call must not break this program: pointers among `arguments` are null, point into the guest's memory, or to what the call
/// may read or write; it does not close or map anything that is the program's own.
pub unsafe fn interruptible_on_host(number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
    let [a, b, c, d, e, f] = arguments;
    let call = [number as u64, a, b, c, d, e, f];
    // SAFETY: both pointers are valid during the call; the caller answers for the rest.
    let returned = with_attention(|attention| unsafe { longma_interruptible_call(attention, &call) });
    Errno::check(returned)
}
