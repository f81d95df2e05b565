//! Timing of a machine that runs an operating system. The core and cache models of a machine file time the kernel and
//! user programs; results are reported separately for both, and by function of the kernel.

pub mod kallsyms;
mod models;
mod port;
mod profile;
mod result;
mod split;
pub mod symbols;

pub use models::{ModelsError, SystemModels};
pub use result::SystemResult;
pub use split::{Privilege, Share};
