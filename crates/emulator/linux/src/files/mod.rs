//! Files: path resolution for the guest, the /proc files about itself, and the system calls. Source:
//! path_resolution(7), openat2(2), proc(5).

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
