//! The availability of a register's value.

use crate::stack::Cause;

/// When a register's value is available, and the cause of its delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub ready: u64,
    pub cause: Cause,
    /// Cycles of the delay that are due to address translation.
    pub translation_cycles: u32,
}

impl Value {
    /// Available since time zero.
    pub const EARLY: Self = Self::computed(0);

    /// The result of an operation other than a load, available at `ready`.
    #[inline]
    pub const fn computed(ready: u64) -> Self {
        Self::new(ready, Cause::Execution)
    }

    /// Available at `ready`, delayed for `cause`.
    #[inline]
    pub const fn new(ready: u64, cause: Cause) -> Self {
        Self { ready, cause, translation_cycles: 0 }
    }
}
