//! The value of a register while it is on its way: when it can be used, and what makes it late.
//! Not the value itself.
//! Source: see `stack.rs` for the causes.

use crate::stack::Cause;

/// A register's value: when it can be used, and what makes it late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub ready: u64,
    pub cause: Cause,
    /// How much of the wait is address translation.
    pub translation_cycles: u32,
}

impl Value {
    /// There since the beginning of time.
    pub const EARLY: Self = Self::computed(0);

    /// What an operation other than a load computed until `ready`.
    #[inline]
    pub const fn computed(ready: u64) -> Self {
        Self::new(ready, Cause::Execution)
    }

    /// There at `ready`, and waited for because of `cause`.
    #[inline]
    pub const fn new(ready: u64, cause: Cause) -> Self {
        Self { ready, cause, translation_cycles: 0 }
    }
}
