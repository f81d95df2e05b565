//! The file format of checkpoints, and the errors of saving and restoring a machine.

mod format;

use std::io;

pub use format::FormatError;
pub(crate) use format::{MAX_RUN_BYTES, Reader, Run, Writer, check};

/// A checkpoint contains a state that no machine can be in.
#[derive(Debug)]
pub(crate) enum InvalidState {
    /// This part of the machine has an invalid value.
    Value(String),
    /// Another reason.
    Other(String),
}

impl InvalidState {
    /// The error that `part` has an invalid value.
    pub fn value(part: &str) -> Self {
        Self::Value(part.to_owned())
    }
}

impl From<InvalidState> for RestoreError {
    fn from(invalid: InvalidState) -> Self {
        Self::Format(FormatError::Layout(match invalid {
            InvalidState::Value(part) => format!("the value of {part} is invalid"),
            InvalidState::Other(reason) => reason,
        }))
    }
}

/// A machine cannot be saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The guest's writes change an image, which a checkpoint does not contain.
    #[error("cannot save disk {slot}: the guest's writes change its image; leave ,write out")]
    ChangedImage {
        /// The slot of the disk on the PCI bus, counted from 1.
        slot: usize,
    },
    /// An image cannot be read.
    #[error("cannot save disk {slot}: {error}")]
    Image {
        /// The slot of the disk on the PCI bus, counted from 1.
        slot: usize,
        /// The host's reason.
        error: io::Error,
    },
    /// The guest uses a folder of the host, whose open files a checkpoint does not contain.
    #[error(
        "cannot save the shared folder {tag:?}: the guest has mounted it; unmount it, save the machine, and mount it again"
    )]
    Mounted {
        /// The folder's tag.
        tag: String,
    },
    /// The file cannot be written.
    #[error("cannot write the checkpoint: {0}")]
    Write(#[from] io::Error),
}

/// A machine cannot continue from a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file is not a usable checkpoint.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The machine has other devices.
    #[error(
        "the saved machine has the devices: {wanted}; this one has: {actual}; give the same disks, network and folders in the same order"
    )]
    Devices {
        /// The devices in the checkpoint.
        wanted: String,
        /// The devices of the machine.
        actual: String,
    },
    /// A disk has changed since the checkpoint was saved.
    #[error("disk {slot} has changed since the checkpoint was saved: its length or contents differ")]
    OtherImage {
        /// The slot of the disk on the PCI bus, counted from 1.
        slot: usize,
    },
    /// The guest's writes would change an image.
    #[error(
        "disk {slot}: the guest's writes are in the checkpoint, so they cannot change its image; leave ,write out"
    )]
    ChangedImage {
        /// The slot of the disk on the PCI bus, counted from 1.
        slot: usize,
    },
    /// An image cannot be read.
    #[error("disk {slot}: {error}")]
    Image {
        /// The slot of the disk on the PCI bus, counted from 1.
        slot: usize,
        /// The host's reason.
        error: io::Error,
    },
    /// The blocks that the guest has written to a disk cannot be stored.
    #[error("cannot write a temporary file for the blocks of a disk: {0}")]
    Copy(io::Error),
    /// A folder has another tag.
    #[error("the saved machine has a shared folder with the tag {wanted:?}, this one has {actual:?}")]
    Tag {
        /// The tag in the checkpoint.
        wanted: String,
        /// The tag of the machine's folder.
        actual: String,
    },
}
