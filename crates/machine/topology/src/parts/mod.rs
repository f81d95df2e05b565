//! The parts a machine file is written in, one small file a kind of part.
//! Not the machine put together: that is `layout`, which counts the copies out.
//! Source: what the data sheets of the machines under `machines/` state.

mod cache;
mod chip;
mod core;
mod device;
mod file;
mod host;
mod memory;
mod source;

pub use cache::*;
pub use chip::*;
pub use core::*;
pub use device::*;
pub use file::*;
pub use host::*;
pub use memory::*;
pub use source::*;
