//! The devices and interrupt controllers in a checkpoint.

use std::io;

use serde::{Deserialize, Serialize};

use super::Platform;
use super::extended::ExtendedInterrupts;
use super::ipi::Ipi;
use super::pch_pic::{PchPic, SavedPchPic};
use super::pci::SavedFunction;
use super::rtc::Rtc;
use super::uart::{SavedUart, Uart};
use crate::checkpoint_file::{InvalidState, RestoreError, SaveError};

/// The state of the devices and interrupt controllers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPlatform {
    ipi: Vec<Ipi>,
    extended: ExtendedInterrupts,
    pch_pic: SavedPchPic,
    uart: SavedUart,
    rtc: Rtc,
    pci: Vec<SavedFunction>,
    exit_status: u8,
}

impl SavedPlatform {
    /// The number of NICs.
    pub fn nics(&self) -> usize {
        self.pci.iter().filter(|function| function.is_nic()).count()
    }
}

impl Platform {
    /// The state, between two runs.
    ///
    /// # Errors
    /// A device has state that cannot be saved.
    pub(crate) fn saved(&self) -> Result<SavedPlatform, SaveError> {
        // The cores handle a request to the power controller and a mark before a run ends, so neither is pending here.
        Ok(SavedPlatform {
            ipi: self.ipi.clone(),
            extended: self.extended.clone(),
            pch_pic: self.pch_pic.saved(),
            uart: self.uart.saved(),
            rtc: self.rtc.clone(),
            pci: self.pci.saved()?,
            exit_status: self.exit_status,
        })
    }

    /// Replaces the state.
    ///
    /// # Errors
    /// The machine has other cores or devices, or the state is not a valid state of a machine.
    pub(crate) fn restore(&mut self, saved: SavedPlatform) -> Result<(), RestoreError> {
        let cores = self.ipi.len();
        if saved.ipi.len() != cores || !saved.extended.is_of(cores) {
            return Err(InvalidState::value("an interrupt controller").into());
        }
        self.pci.restore(saved.pci)?;
        self.ipi = saved.ipi;
        self.extended = saved.extended;
        self.pch_pic = PchPic::restored(saved.pch_pic).ok_or_else(|| InvalidState::value("the PCH-PIC"))?;
        self.uart = Uart::restored(saved.uart).ok_or_else(|| InvalidState::value("the UART"))?;
        self.rtc = saved.rtc;
        (self.power, self.exit_status, self.mark) = (None, saved.exit_status, None);
        Ok(())
    }

    /// Calls `write` with the blocks that the guest has written to disks.
    ///
    /// # Errors
    /// The host refuses, or `write` fails.
    pub(crate) fn written_blocks(
        &self,
        write: impl FnMut(u32, u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.pci.written_blocks(write)
    }

    /// Writes a block to a disk as the guest did.
    ///
    /// # Errors
    /// There is no such block, or the host refuses.
    pub(crate) fn write_block(&mut self, disk: u32, address: u64, bytes: &[u8]) -> Result<(), RestoreError> {
        self.pci.write_block(disk, address, bytes)
    }
}
