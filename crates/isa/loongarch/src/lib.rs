//! The LoongArch instruction set: decode, encode, print, and the reference semantics of every instruction.
//! Not an emulator of a system: memory, time and traps belong to the caller, through [`Environment`].
//! Source: LoongArch Reference Manual, volume 1; `instructions.tsv` is the one table all of it comes from.

mod decode;
mod encode;
mod environment;
pub mod float;
mod instruction;
mod print;
pub mod semantics;
mod state;
mod table;
mod trap;

pub use decode::decode;
pub use encode::{EncodeError, encode};
pub use environment::{Access, Environment, Fault, FaultCause, Scalar};
pub use instruction::{Instruction, Op};
pub use print::Register;
pub use state::{ExtendedFlags, Fcsr, Reservation, State, Vector};
pub use table::{Class, Extension, Immediate, Location, Operand, RegisterKind, Row};
pub use trap::Trap;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
