//! Files: path resolution for the guest, the /proc files about itself, and the system calls. Source:
//! path_resolution(7), openat2(2), proc(5).

mod access_policy;
pub(crate) mod calls;
pub(crate) mod control;
mod in_memory_file;
mod memory_usage;
mod proc_files;
mod processors;
mod resolved_path;
mod simulated_proc;
pub(crate) mod status;

pub(crate) use access_policy::Changeable;
pub(crate) use in_memory_file::InMemoryFile;
pub(crate) use proc_files::ProcFile;
pub(crate) use resolved_path::{Follow, PathUse, ResolvedPath, guest_path};
