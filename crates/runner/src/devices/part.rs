//! One device in its place: its model, how it is attached, and its interrupt lines.
//! Not its registers' meaning.

use longma_devices::{
    Device,
    bus::{Attachment, AttachmentState},
    ethernet::mac::Mac,
};
use longma_sim::{Duration, Time};

use longma_linux::DeviceFile;

use super::bus::Seat;
use super::line::Line;

/// A device's model.
pub(super) enum Model {
    /// What a wire can be plugged into.
    Mac(Box<Mac>),
    /// Any other.
    Other(Box<dyn Device>),
}

impl Model {
    /// A device that is no MAC.
    pub fn other(device: impl Device + 'static) -> Self {
        Self::Other(Box::new(device))
    }

    /// What they have in common.
    pub fn device(&self) -> &dyn Device {
        match self {
            Self::Mac(mac) => &**mac,
            Self::Other(device) => &**device,
        }
    }

    /// The same, to be changed.
    pub fn device_mut(&mut self) -> &mut dyn Device {
        match self {
            Self::Mac(mac) => &mut **mac,
            Self::Other(device) => &mut **device,
        }
    }

    /// The MAC, if it is one.
    pub fn mac(&mut self) -> Option<&mut Mac> {
        match self {
            Self::Mac(mac) => Some(mac),
            Self::Other(_) => None,
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
    /// Its interrupt lines, at least one.
    pub lines: Vec<Line>,
    /// The number of each line's file.
    pub files: Vec<usize>,
    /// One way between each core and it: the chip's part of it.
    pub way: Vec<Duration>,
}

impl Part {
    /// When it does something by itself, or its interrupt arrives.
    pub fn next_event(&self) -> Option<Time> {
        let lines = self.lines.iter().filter_map(Line::due);
        self.model.device().next_event().into_iter().chain(lines).min()
    }

    /// Its files are unready whose lines were released.
    pub fn withdraw(&mut self, files: &[DeviceFile]) {
        self.lines.iter_mut().zip(&self.files).for_each(|(line, file)| line.withdraw(&files[*file]));
    }
}
