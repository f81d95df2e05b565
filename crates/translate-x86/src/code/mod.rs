//! What a unit's instructions become.
//! Not what the engine executes in their place: that is `service`'s.
//! Source: Intel SDM, volumes 1 and 2; LoongArch Reference Manual, volume 1.

mod atomic;
mod bits;
mod flags;
mod forms;
mod integer;
mod known;
mod lower;
mod marks;
mod moves;
mod operands;
mod products;
mod scalar;
mod strings;
mod table;
pub mod unit;
mod uses;
mod vector;

pub use known::Known;
