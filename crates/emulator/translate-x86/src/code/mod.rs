//! Translation of a unit's instructions to LoongArch code. Source: Intel SDM, volumes 1 and 2; LoongArch Reference
//! Manual, volume 1.

mod alignment;
mod atomic;
mod avx;
mod bits;
mod compared;
mod crypto;
mod extended;
mod extension;
mod flags;
mod fma;
mod forms;
mod integer;
mod jumps;
mod known;
mod lower;
mod marks;
mod masked;
mod moves;
mod operands;
mod products;
pub(crate) mod reading;
pub(crate) mod returned_flags;
mod rounding;
mod scalar;
mod strings;
mod table;
mod texts;
pub mod unit;
mod upper;
mod uses;
mod vector;
mod vex;

pub(crate) use alignment::must_be_aligned;
pub use known::RegisterStates;
pub(crate) use vex::{first, is_newer, is_vex, last, old};
