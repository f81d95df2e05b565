//! The file of a checkpoint, and why a machine cannot be saved or continue from one.

mod format;

use std::io;

pub use format::FormatError;
pub(crate) use format::{MAX_RUN_BYTES, Reader, Run, Writer, check};

/// A value that no machine has.
#[derive(Debug)]
pub(crate) enum Impossible {
    /// Of this part.
    Value(String),
    /// For this reason.
    Other(String),
}

impl Impossible {
    /// A value of a part.
    pub fn value(part: &str) -> Self {
        Self::Value(part.to_owned())
    }
}

impl From<Impossible> for RestoreError {
    fn from(impossible: Impossible) -> Self {
        Self::Format(FormatError::Layout(match impossible {
            Impossible::Value(part) => format!("{part} has a value that it cannot have"),
            Impossible::Other(reason) => reason,
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
        "cannot save the shared folder {tag:?}: the guest has mounted it; unmount it before, and mount it after"
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
        /// The errors of the machine.
        actual: String,
    },
    /// A disk has another content than when the checkpoint was saved.
    #[error("disk {slot} is not the one that was saved: its length or content differs")]
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
    #[error("a temporary file for a disk: {0}")]
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
