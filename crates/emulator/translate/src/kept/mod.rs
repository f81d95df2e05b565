//! Translations that another process of the same program takes up. `keep` writes them down, `wake` makes code of them again.
//! Not where they are kept, nor whether it is the same program: a unit is used if the words that it
//! was made of are those that are there.

mod keep;
mod wake;

use std::sync::Arc;

pub use crate::positions::Written;
use bytes::Bytes;

/// What is kept of a process's translations.
#[derive(Clone)]
pub struct Kept {
    /// Which units there are.
    pub index: Bytes,
    /// What is known of each.
    pub units: Bytes,
    /// Their words.
    pub words: Bytes,
    /// Their positions.
    pub positions: Arc<Written>,
}

/// How much there is to keep, in words of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// In all units.
    pub all: u64,
    /// In those that have not been taken up, and that somebody may come to.
    pub new: u64,
    /// In those of which the source has changed.
    pub useless: u64,
}
