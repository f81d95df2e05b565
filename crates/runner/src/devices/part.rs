//! A device in a machine: its model, its attachment and its interrupt lines.

use longma_devices::{
    Device,
    bus::{Attachment, AttachmentState},
    ethernet::mac::Mac,
};
use longma_sim::{Duration, Time};

use longma_linux::DeviceFile;

use super::bus::DeviceLocation;
use super::line::Line;

/// The model of a device.
pub(super) enum Model {
    /// An Ethernet MAC, which can have a wire.
    Mac(Box<Mac>),
    /// Any other device.
    Other(Box<dyn Device>),
}

impl Model {
    /// Wraps a device that is not a MAC.
    pub fn other(device: impl Device + 'static) -> Self {
        Self::Other(Box::new(device))
    }

    /// The common interface.
    pub fn device(&self) -> &dyn Device {
        match self {
            Self::Mac(mac) => &**mac,
            Self::Other(device) => &**device,
        }
    }

    /// The common interface, mutable.
    pub fn device_mut(&mut self) -> &mut dyn Device {
        match self {
            Self::Mac(mac) => &mut **mac,
            Self::Other(device) => &mut **device,
        }
    }

    /// The MAC, if the device is one.
    pub fn mac(&mut self) -> Option<&mut Mac> {
        match self {
            Self::Mac(mac) => Some(mac),
            Self::Other(_) => None,
        }
    }
}

/// A device in a machine.
pub(super) struct Part {
    pub name: String,
    pub model: Model,
    pub location: DeviceLocation,
    /// The buses between the device and the chip's port, if any.
    pub attachment: Option<(Attachment, AttachmentState)>,
    /// The interrupt lines, at least one.
    pub lines: Vec<Line>,
    /// The file number of each interrupt line.
    pub files: Vec<usize>,
    /// The one-way latency over the chip between each core and the device.
    pub way: Vec<Duration>,
}

impl Part {
    /// The time of its next event or interrupt delivery.
    pub fn next_event(&self) -> Option<Time> {
        let lines = self.lines.iter().filter_map(Line::due);
        self.model.device().next_event().into_iter().chain(lines).min()
    }

    /// Makes the files of released lines not ready.
    pub fn clear_released(&mut self, files: &[DeviceFile]) {
        self.lines.iter_mut().zip(&self.files).for_each(|(line, file)| line.clear_if_released(&files[*file]));
    }
}
