//! The stack of return addresses that translated code keeps apart from the guest's: memory with a guard page below.
//! Not the guest's stack.
//! Source: mmap(2).

use std::{io, ops::Range};

use crate::cpu::{NO_TARGET, RETURN_STACK_BYTES};

const GUARD_BYTES: usize = 4096;

/// Memory for return addresses.
pub(crate) struct ReturnStack {
    start: *mut u8,
}

// SAFETY: the memory is this value's own; only the core that owns it works on it.
unsafe impl Send for ReturnStack {}

impl ReturnStack {
    /// # Errors
    /// The host has no memory to give.
    pub fn allocate() -> io::Result<Self> {
        let bytes = RETURN_STACK_BYTES + GUARD_BYTES;
        // SAFETY: an anonymous mapping at an address of the kernel's choice; its first page becomes the guard.
        let start = unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            if start == libc::MAP_FAILED || libc::mprotect(start, GUARD_BYTES, libc::PROT_NONE) != 0 {
                return Err(io::Error::last_os_error());
            }
            start.cast::<u8>()
        };
        let stack = Self { start };
        // SAFETY: both words lie in the mapping's last 16 bytes, above the empty stack's top.
        unsafe {
            let top = stack.top() as *mut u64;
            top.write(0);
            top.add(1).write(NO_TARGET);
        }
        Ok(stack)
    }

    /// The stack pointer of an empty stack; what lies above matches no return.
    pub fn top(&self) -> u64 {
        self.start as u64 + (GUARD_BYTES + RETURN_STACK_BYTES) as u64 - 16
    }

    /// The addresses of the guard page.
    pub fn guard(&self) -> Range<u64> {
        self.start as u64..self.start as u64 + GUARD_BYTES as u64
    }
}

impl Drop for ReturnStack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and the thread that used it no longer runs translated code.
        unsafe { libc::munmap(self.start.cast(), RETURN_STACK_BYTES + GUARD_BYTES) };
    }
}
