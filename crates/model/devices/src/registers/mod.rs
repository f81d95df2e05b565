//! Register maps. A device's access decoding, its chapter in the book and its C header are all derived from one table.
//! Access kinds are named as in data sheets.

mod map;
mod print;
mod table;

pub use map::{Access, Block, Field, Register, RegisterMap, Slot};
pub(crate) use table::registers;
