//! Translation of the code of a system, where addresses are translated by a TLB and privileged instructions and
//! interrupts exist. The owner of the core executes all instructions that translated code cannot.

mod translator;

pub use crate::frame::{Frame, PageEntry};
pub use translator::{CallOut, Entry, Exit, InnerBlock, PageCode, SystemTranslator, Translated};
