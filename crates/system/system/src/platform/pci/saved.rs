//! The devices of the PCI bus in a checkpoint.

use std::io;

use serde::{Deserialize, Serialize};

use super::config::BYTES;
use super::{Function, PciHost, Vectors};
use crate::checkpoint_file::{InvalidState, RestoreError, SaveError};
use crate::platform::virtio::{Kind, SavedTransport};

/// The state of a device.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedFunction {
    configuration: Vec<u8>,
    vectors: Vectors,
    device: SavedTransport,
}

impl SavedFunction {
    /// Whether the device is a NIC.
    pub fn is_nic(&self) -> bool {
        self.device.kind() == Kind::Network
    }
}

impl Function {
    fn restore(&mut self, slot: usize, saved: SavedFunction) -> Result<(), RestoreError> {
        let configuration: &[u8; BYTES] =
            saved.configuration.as_slice().try_into().map_err(|_| InvalidState::value("a PCI device"))?;
        if !saved.vectors.fits(&self.vectors) {
            return Err(InvalidState::value("the MSI-X table of a PCI device").into());
        }
        self.config.set_content(configuration);
        self.vectors = saved.vectors;
        self.device.restore(slot, saved.device)
    }
}

impl PciHost {
    /// The state of all devices.
    ///
    /// # Errors
    /// A device has state that cannot be saved.
    pub fn saved(&self) -> Result<Vec<SavedFunction>, SaveError> {
        let function = |(slot, function): (usize, &Function)| {
            Ok(SavedFunction {
                configuration: function.config.content().to_vec(),
                vectors: function.vectors.clone(),
                device: function.device.saved(slot + 1)?,
            })
        };
        self.functions.iter().enumerate().map(function).collect()
    }

    /// Replaces the state of all devices.
    ///
    /// # Errors
    /// The bus has other devices, or the state is not a valid state of them.
    pub fn restore(&mut self, saved: Vec<SavedFunction>) -> Result<(), RestoreError> {
        let kinds = |kinds: Vec<&str>| if kinds.is_empty() { "none".into() } else { kinds.join(", ") };
        let wanted = kinds(saved.iter().map(|function| function.device.kind().name()).collect());
        let actual = kinds(self.functions.iter().map(|function| function.device.kind().name()).collect());
        if wanted != actual {
            return Err(RestoreError::Devices { wanted, actual });
        }
        let mut functions = (1..).zip(self.functions.iter_mut().zip(saved));
        functions.try_for_each(|(slot, (function, saved))| function.restore(slot, saved))
    }

    /// Calls `write` with the number of each device, counted from 1, and the blocks that the guest has written to it.
    ///
    /// # Errors
    /// The host refuses, or `write` fails.
    pub fn written_blocks(&self, mut write: impl FnMut(u32, u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
        for (number, function) in (1..).zip(&self.functions) {
            function.device.written_blocks(|address, bytes| write(number, address, bytes))?;
        }
        Ok(())
    }

    /// Writes a block that the guest had written to a device before the checkpoint.
    ///
    /// # Errors
    /// The device has no such block, or the host refuses.
    pub fn write_block(&mut self, number: u32, address: u64, bytes: &[u8]) -> Result<(), RestoreError> {
        let slot = (number as usize).checked_sub(1);
        let device = slot.and_then(|slot| self.functions.get_mut(slot)).map(|function| &mut function.device);
        device.ok_or_else(|| InvalidState::value("the number of a device"))?.write_block(address, bytes)
    }
}
