//! The LoongArch instruction set: decoding, encoding, printing, and reference semantics. The caller provides memory and
//! time through [`Environment`] and handles traps. Source: LoongArch Reference Manual, volume 1. All parts are
//! generated from or checked against the table `instructions.tsv`.

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

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
