//! Files: where a guest's paths lead, the /proc files it sees of itself, and the system calls.
//! Not the root that paths are resolved in; not sockets and event descriptors.
//! Source: path_resolution(7), openat2(2), proc(5).

pub(crate) mod calls;
pub(crate) mod control;
mod handed;
mod place;
mod proc_files;
mod reach;
pub(crate) mod status;
mod told;

pub(crate) use handed::Handed;
pub(crate) use place::{Follow, Place, Use, guest_path};
pub(crate) use proc_files::ProcFile;
pub(crate) use reach::Changeable;
