//! Lowers A64 instructions to LoongArch code. Source: Arm Architecture Reference Manual (Arm DDI 0487), chapters C6 and
//! C7; LoongArch Reference Manual, volumes 1 and 2.

mod assignment;
mod atomic;
mod bits;
mod branch;
mod compare;
mod control;
mod conversion;
mod copies;
mod exact;
mod flags;
mod float;
mod integer;
mod known;
mod loops;
mod lower;
mod memory;
pub(crate) mod operands;
pub(crate) mod reachable;
pub mod unit;
mod uses;
pub(crate) mod vector;

pub use known::PendingState;
