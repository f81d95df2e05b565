//! One device in its place: its model, how it is attached, and its interrupt line.
//! Not its registers' meaning.
//! Source: our own.

use longma_devices::{
    Device,
    bus::{Attachment, AttachmentState},
    cache_lock::CacheLock,
    cam::Cam,
    ethernet::mac::Mac,
    idma::Idma,
};
use longma_sim::{Duration, Time};

use super::bus::Seat;
use super::line::Line;

/// A device's model.
pub(super) enum Model {
    Idma(Box<Idma>),
    Cam(Box<Cam>),
    Lock(CacheLock),
    Mac(Box<Mac>),
}

impl Model {
    /// What they have in common.
    pub fn device(&mut self) -> &mut dyn Device {
        match self {
            Self::Idma(idma) => &mut **idma,
            Self::Cam(cam) => &mut **cam,
            Self::Lock(lock) => lock,
            Self::Mac(mac) => &mut **mac,
        }
    }

    fn next_event(&self) -> Option<Time> {
        match self {
            Self::Idma(idma) => idma.next_event(),
            Self::Mac(mac) => mac.next_event(),
            Self::Cam(_) | Self::Lock(_) => None,
        }
    }

    /// The MAC, if it is one.
    pub fn mac(&mut self) -> Option<&mut Mac> {
        match self {
            Self::Mac(mac) => Some(mac),
            _ => None,
        }
    }
}

/// A device in its place.
pub(super) struct Part {
    pub name: String,
    pub model: Model,
    pub seat: Seat,
    /// The buses between it and the chip's port, if there are any.
    pub attachment: Option<(Attachment, AttachmentState)>,
    pub line: Line,
    /// Its file's number.
    pub file: usize,
    /// One way between each core and it: the chip's part of it.
    pub way: Vec<Duration>,
}

impl Part {
    /// When it does something by itself, or its interrupt arrives.
    pub fn next_event(&self) -> Option<Time> {
        [self.model.next_event(), self.line.due()].into_iter().flatten().min()
    }
}
