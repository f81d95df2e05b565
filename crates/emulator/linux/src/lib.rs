//! A LoongArch64 Linux process on the host: programs and their stacks, system calls, signals, threads. Other crates
//! execute instructions and implement [`Engine`]. Source: Linux UAPI headers and man-pages sections 2, 5 and 7;
//! LoongArch ELF psABI.

mod arguments;
mod devices;
mod events;
mod execve;
mod files;
mod fixed_identity;
pub mod image;
mod load;
mod network;
mod open_files;
mod process;
mod root;
mod signals;
pub mod simulated;
mod syscalls;
mod threads;

pub use devices::DeviceFile;
pub use load::{HostOperation, LoadError};
pub use process::{Areas, Engine, NextProgram, Outcome, Process, ProcessConfig, Sink, StoredLimit, Thread};
pub use syscalls::{SystemCall, TransferredMemory};
