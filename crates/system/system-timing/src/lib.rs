//! Times a machine that runs an operating system: its cores execute through the core and cache models of a machine file,
//! kernel and user programs alike, and the results are apart for both and by function of the kernel.

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
