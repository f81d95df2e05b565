//! Raw host system calls without the C library's errno. A signal that arrives just before such a call blocks does not
//! interrupt it; for blocking calls use `calls`. Source: syscall(2), x86-64.

use std::arch::asm;

use crate::Errno;

/// Makes a host system call.
///
/// # Errors
/// The error that the kernel returns.
///
/// # Safety
/// The arguments must meet the requirements of the call's manual page. Pointers are host pointers.
pub unsafe fn host_call(number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
    let returned: i64;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller upholds the contract; the kernel changes only rax, rcx and r11.
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
