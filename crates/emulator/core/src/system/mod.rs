//! Translation of the code of a system, where addresses are translated by a TLB and privileged instructions and
//! interrupts exist. The owner of the core executes everything that translated code cannot.

mod frame;
mod translator;

pub(crate) use frame::JUMP_ENTRIES;
pub use frame::{Frame, PageEntry};
pub use translator::{CallOut, Entry, Exit, InnerBlock, PageCode, SystemTranslator, Translated};
