//! The stack of return addresses that translated code keeps apart from the guest's: memory with a guard page below.
//! Not the guest's stack.

use std::{io, ops::Range};

use longma_guest::host::stacks::Stack;

use crate::cpu::RETURN_STACK_BYTES;

/// Memory for return addresses.
pub(crate) struct ReturnStack(Stack);

impl ReturnStack {
    /// # Errors
    /// The host has no memory to give.
    pub fn allocate() -> io::Result<Self> {
        Stack::allocate(RETURN_STACK_BYTES).map(Self)
    }

    /// Makes returns that an empty stack takes for expected go on at `miss`: a guest may return to any number at all, so that no
    /// word stands for no address.
    pub fn set_bottom(&self, miss: u64) {
        // SAFETY: both words are the mapping's last 16 bytes, which the empty stack's pointer points at; no core runs meanwhile.
        unsafe {
            let top = self.top() as *mut u64;
            top.write(miss);
            top.add(1).write(0);
        }
    }

    /// The stack pointer of an empty stack. An entry is popped there too, see [`ReturnStack::set_bottom`].
    pub fn top(&self) -> u64 {
        self.0.usable().end as u64 - 16
    }

    /// The addresses of the guard page.
    pub fn guard(&self) -> Range<u64> {
        let guard = self.0.guard();
        guard.start as u64..guard.end as u64
    }
}
