//! A LoongArch64 Linux process on the host: ELF loading, address space, system calls, signals, threads.
//! Not an executor of instructions: that is an [`Engine`], which other crates provide.
//! Source: Linux UAPI headers and man-pages sections 2, 5 and 7; LoongArch ELF psABI.

mod devices;
pub mod elf;
mod engine;
mod events;
mod files;
pub mod image;
mod network;
mod process;
mod root;
mod signals;
pub mod simulated;
mod stack;
mod surroundings;
mod syscalls;
mod threads;

pub use devices::DeviceFile;
pub use engine::{Engine, Outcome};
pub use process::{Areas, LoadError, Process, ProcessConfig, Sink};
pub use syscalls::{Copied, KeptLimit, SystemCall};
pub use threads::Thread;
