//! The stack of return addresses that translated code uses, separate from the guest's stack. It has a guard page below.

use std::{io, ops::Range};

use longma_guest::host::stacks::Stack;

use crate::cpu::RETURN_STACK_BYTES;

/// Memory for return addresses.
pub(crate) struct ReturnStack(Stack);

impl ReturnStack {
    /// Allocates a return stack.
    ///
    /// # Errors
    /// The host is out of memory.
    pub fn allocate() -> io::Result<Self> {
        Stack::allocate(RETURN_STACK_BYTES).map(Self)
    }

    /// Makes a return with an empty stack continue at the host address `miss`, which is stored in the bottom entry. No
    /// guest address can mark the bottom, because a guest may return to any address.
    pub fn set_bottom(&self, miss: u64) {
        // SAFETY: both words are the last 16 bytes of the mapping, to which the pointer of an empty stack points. No
        // core runs during this call.
        unsafe {
            let top = self.top() as *mut u64;
            top.write(miss);
            top.add(1).write(0);
        }
    }

    /// The pointer of an empty stack. A return may still pop the entry there, see [`ReturnStack::set_bottom`].
    pub fn top(&self) -> u64 {
        self.0.usable().end as u64 - 16
    }

    /// The address range of the guard page.
    pub fn guard(&self) -> Range<u64> {
        let guard = self.0.guard();
        guard.start as u64..guard.end as u64
    }
}
