//! `--checkpoint` and `--restore`: saves the machine with the command's own state, and restores both.

use longma_sim::ManifestProgram;
use longma_system::Machine;
use longma_system::checkpoint::{Checkpoint, writable};
use longma_system_timing::kallsyms::ImageSymbols;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::path::{Path, PathBuf};

use super::console::Input;
use super::{Arguments, Started, devices, timed, usage};

/// The result's description of the software, and the names of the kernel's functions.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Software {
    /// The kernel, its command line and its RAM disk.
    pub program: ManifestProgram,
    /// The symbols inside the kernel image, if it has any.
    pub symbols: Option<ImageSymbols>,
}

/// The command's state in a checkpoint, besides the machine.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Notes {
    software: Software,
    /// The guest's mark at which it was saved.
    mark: Option<u8>,
    /// Typed input that the guest has not received yet.
    typed: Vec<u8>,
}

/// Saves the machine once.
pub struct Saver {
    path: PathBuf,
    software: Software,
    /// Whether the script triggers the checkpoint, not a mark of the guest.
    is_scripted: bool,
}

impl Saver {
    /// The saver that `--checkpoint` requests, if given.
    ///
    /// # Errors
    /// A checkpoint of this machine would fail.
    pub fn of(
        arguments: &Arguments,
        input: &Input,
        software: Option<Software>,
    ) -> Result<Option<Self>, Box<dyn Error>> {
        let is_scripted = input.has_checkpoint();
        let (Some(path), Some(software)) = (&arguments.checkpoint, software) else {
            return match is_scripted {
                true => Err(usage("the script has a checkpoint: add --checkpoint FILE")),
                false => Ok(None),
            };
        };
        if let Some(disk) = devices::changed_disk(&arguments.disk) {
            return Err(usage(format!(
                "--disk {disk}: the guest's writes change the image, which a checkpoint does not contain: leave ,write out"
            )));
        }
        // Check now: a failure after the boot would waste it.
        writable(path).map_err(|error| format!("--checkpoint {}: {error}", path.display()))?;
        Ok(Some(Self { path: path.clone(), software, is_scripted }))
    }

    /// Whether the machine is saved at this mark of the guest.
    pub fn saves_at(&self, mark: u8) -> bool {
        !self.is_scripted && timed::begins(mark)
    }

    /// Saves the machine at a mark of the guest. `typed` is the input that the guest has not received yet.
    ///
    /// # Errors
    /// It has state that cannot be saved, or the host refuses.
    pub fn save(&self, machine: &Machine, mark: Option<u8>, typed: &[u8]) -> Result<(), Box<dyn Error>> {
        let path = self.path.display();
        let notes = Notes { software: self.software.clone(), mark, typed: typed.to_vec() };
        machine
            .save_to(&self.path, serde_json::to_value(notes)?)
            .map_err(|error| format!("--checkpoint {path}: {error}"))?;
        eprintln!("longma: saved in {path}; `longma boot --restore {path}` continues");
        Ok(())
    }

    /// Warns that the machine was not saved.
    pub fn warn(&self) {
        let reason = match self.is_scripted {
            true => "the script did not reach its checkpoint",
            false => {
                "the guest set no mark; `devmem 0x100e001f 8 1` does, or give a script with `checkpoint`"
            }
        };
        eprintln!("longma: no checkpoint was written to {}: {reason}", self.path.display());
    }
}

/// Builds the machine of a checkpoint, with the devices of the options.
///
/// # Errors
/// The file is not a usable checkpoint, or the devices are not those of the saved machine.
pub fn restore(path: &Path, arguments: &Arguments) -> Result<Started, Box<dyn Error>> {
    let failed = |error: &dyn std::fmt::Display| format!("--restore {}: {error}", path.display());
    let checkpoint = Checkpoint::open(path).map_err(|error| failed(&error))?;
    let Notes { software, mark, typed } = serde_json::from_value(checkpoint.notes().clone())
        .map_err(|error| failed(&format!("another build of longma wrote it: {error}; save it again")))?;
    let mut configuration = checkpoint.configuration();
    configuration.translation = !arguments.interpret;
    let mut machine = Machine::new(&configuration).map_err(|error| failed(&error))?;
    let has_network = devices::attach(&mut machine, arguments, checkpoint.nics() > 0)?;
    checkpoint.restore(&mut machine).map_err(|error| failed(&error))?;
    Ok(Started { machine, software: Some(software), has_network, mark, typed })
}
