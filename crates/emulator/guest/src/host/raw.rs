//! Raw system calls of the host, without libc's errno.
//! Not for calls that wait: a signal that arrives just before those must not be lost, see `calls`.
//! Source: syscall(2), x86-64.

use std::arch::asm;

use crate::Errno;

/// Makes a host system call.
///
/// # Safety
/// As the call's manual page says; pointers must be the host's.
pub unsafe fn host_call(number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
    let returned: i64;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's promise; the kernel changes rax, rcx and r11 only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => returned,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    Errno::check(returned)
}
