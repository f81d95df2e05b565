//! The bytes that the kernel copies between its memory and a program's in a system call, for timing models. Source: the
//! argument kinds in the table of calls; man-pages section 2 for calls that return a number of bytes.

use longma_guest::GuestMemory;
use longma_loongarch::State;

use super::{A0, A7, table};
use crate::Thread;
use crate::arguments::{Kind, MAX_VECTORS};

/// A system call with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCall {
    /// Its number.
    pub number: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
}

/// Bytes of a program's memory that the kernel read or wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferredMemory {
    /// The guest address of the first byte.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// Whether the kernel wrote them.
    pub written: bool,
}

impl SystemCall {
    /// The call that `state` is about to make.
    pub fn of(state: &State) -> Self {
        Self { number: state.r(A7), arguments: std::array::from_fn(|index| state.r(A0 + index as u8)) }
    }

    /// The bytes that the kernel copied for this call, whose result is in `state`. Empty if it failed. Excludes strings
    /// and structures that calls parse themselves (message headers, descriptor sets).
    pub fn copied(&self, thread: &Thread, state: &State) -> Vec<TransferredMemory> {
        let returned = state.r(A0);
        let Some(row) = table::row(self.number).filter(|_| returned as i64 >= 0) else { return Vec::new() };
        let mut copied = Vec::new();
        for (kind, address) in row.arguments.iter().zip(self.arguments).filter(|(_, address)| *address != 0) {
            let mut note =
                |bytes: u64, written: bool| copied.push(TransferredMemory { address, bytes, written });
            let length = |index: u8| {
                let argument = self.arguments[usize::from(index)];
                // The result of such a call is the number of bytes.
                if returned > 0 { argument.min(returned) } else { 0 }
            };
            match *kind {
                Kind::In(bytes) => note(bytes.into(), false),
                Kind::Out(bytes) => note(bytes.into(), true),
                Kind::InOut(bytes) => {
                    note(bytes.into(), false);
                    note(bytes.into(), true);
                }
                Kind::InBuffer(index) => note(length(index), false),
                Kind::OutBuffer(index) => note(length(index), true),
                Kind::InVectors(index) | Kind::OutVectors(index) => {
                    let written = matches!(kind, Kind::OutVectors(_));
                    let count = self.arguments[usize::from(index)];
                    add_vectors(thread.process().memory(), address, count, returned, written, &mut copied);
                }
                _ => {}
            }
        }
        copied.retain(|copied| copied.bytes > 0);
        copied
    }
}

/// Adds the first `left` bytes of the buffers in the iovec array at `address`.
fn add_vectors(
    memory: &GuestMemory,
    address: u64,
    count: u64,
    mut left: u64,
    written: bool,
    to: &mut Vec<TransferredMemory>,
) {
    for index in 0..count.min(MAX_VECTORS) {
        let at = address.wrapping_add(16 * index);
        let (Ok(base), Ok(length)) = (memory.load::<u64>(at), memory.load::<u64>(at.wrapping_add(8))) else {
            return;
        };
        let bytes = length.min(left);
        left -= bytes;
        to.push(TransferredMemory { address: base, bytes, written });
        if left == 0 {
            return;
        }
    }
}
