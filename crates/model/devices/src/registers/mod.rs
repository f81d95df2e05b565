//! Register maps: the one table a device's decoding, its chapter in the book and its C header come from.
//! Not what registers do: that is each device's.
//! Source: access kinds as data sheets name them.

mod map;
mod print;
mod table;

pub use map::{Access, Block, Field, Register, RegisterMap, Slot};
pub(crate) use table::registers;
