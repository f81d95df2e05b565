//! A virtio device in a checkpoint: its registers, its queues, and its own state.

use std::io;

use longma_random::SplitMix64;
use serde::{Deserialize, Serialize};
use virtio_queue::{Queue, QueueState};

use super::{Backend, DeviceQueue, Kind, NO_VECTOR, QUEUE_SIZE, Transport};
use crate::checkpoint_file::{InvalidState, RestoreError, SaveError};

/// The state of a device.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedTransport {
    backend: SavedBackend,
    queues: Vec<SavedQueue>,
    configuration_vector: u16,
    selectors: [u32; 2],
    accepted: u64,
    status: u8,
    selected_queue: u16,
    interrupt_status: u8,
}

/// A device's state besides its registers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum SavedBackend {
    /// In the file, the blocks that the guest has written follow the description of the devices.
    Block {
        sectors: u64,
        /// SHA-256 of the disk's content without the guest's writes.
        image_sha256: String,
    },
    Entropy {
        state: u64,
    },
    /// Frames in flight are lost.
    Network {},
    Share {
        tag: String,
    },
}

/// The state of a queue.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedQueue {
    size: u16,
    is_ready: bool,
    next_avail: u16,
    next_used: u16,
    desc_table: u64,
    avail_ring: u64,
    used_ring: u64,
    vector: u16,
}

impl Kind {
    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "disk",
            Self::Entropy => "random numbers",
            Self::Network => "NIC",
            Self::Share => "shared folder",
        }
    }
}

impl SavedTransport {
    /// The type of the device.
    pub fn kind(&self) -> Kind {
        match self.backend {
            SavedBackend::Block { .. } => Kind::Block,
            SavedBackend::Entropy { .. } => Kind::Entropy,
            SavedBackend::Network {} => Kind::Network,
            SavedBackend::Share { .. } => Kind::Share,
        }
    }
}

impl SavedQueue {
    fn new(queue: &DeviceQueue) -> Self {
        let QueueState { size, ready, next_avail, next_used, desc_table, avail_ring, used_ring, .. } =
            queue.ring.state();
        let vector = queue.vector;
        Self { size, is_ready: ready, next_avail, next_used, desc_table, avail_ring, used_ring, vector }
    }

    fn restored(&self) -> Option<DeviceQueue> {
        let state = QueueState {
            max_size: QUEUE_SIZE,
            next_avail: self.next_avail,
            next_used: self.next_used,
            event_idx_enabled: false,
            size: self.size,
            ready: self.is_ready,
            desc_table: self.desc_table,
            avail_ring: self.avail_ring,
            used_ring: self.used_ring,
        };
        Some(DeviceQueue { ring: Queue::try_from(state).ok()?, vector: self.vector })
    }
}

impl Transport {
    /// The state of the device, which is in this slot.
    ///
    /// # Errors
    /// It has state that cannot be saved, or the host refuses to read an image.
    pub fn saved(&self, slot: usize) -> Result<SavedTransport, SaveError> {
        let backend = match &self.backend {
            Backend::Block(disk) if disk.changes_image() => return Err(SaveError::ChangedImage { slot }),
            Backend::Block(disk) => {
                let image_sha256 = disk.image_digest().map_err(|error| SaveError::Image { slot, error })?;
                SavedBackend::Block { sectors: disk.sectors(), image_sha256 }
            }
            Backend::Entropy(numbers) => SavedBackend::Entropy { state: numbers.state() },
            Backend::Network(_) => SavedBackend::Network {},
            Backend::Share(folder) if folder.is_in_use() => {
                return Err(SaveError::Mounted { tag: folder.tag().to_owned() });
            }
            Backend::Share(folder) => SavedBackend::Share { tag: folder.tag().to_owned() },
        };
        Ok(SavedTransport {
            backend,
            queues: self.queues.iter().map(SavedQueue::new).collect(),
            configuration_vector: self.configuration_vector,
            selectors: self.selectors,
            accepted: self.accepted,
            status: self.status,
            selected_queue: self.selected_queue,
            interrupt_status: self.interrupt_status,
        })
    }

    /// Replaces the state of the device, which is in this slot and of the same kind.
    ///
    /// # Errors
    /// The state is of another device, or invalid.
    pub fn restore(&mut self, slot: usize, saved: SavedTransport) -> Result<(), RestoreError> {
        self.restore_backend(slot, saved.backend)?;
        let queues: Option<Vec<_>> = saved.queues.iter().map(SavedQueue::restored).collect();
        let is_vector = |number: u16| number < self.vectors() || number == NO_VECTOR;
        let are_vectors =
            is_vector(saved.configuration_vector) && saved.queues.iter().all(|queue| is_vector(queue.vector));
        let is_possible = are_vectors && saved.queues.len() == self.queues.len();
        self.queues = queues.filter(|_| is_possible).ok_or_else(|| InvalidState::value("a queue"))?;
        self.configuration_vector = saved.configuration_vector;
        self.selectors = saved.selectors;
        self.accepted = saved.accepted;
        self.status = saved.status;
        self.selected_queue = saved.selected_queue;
        self.interrupt_status = saved.interrupt_status;
        Ok(())
    }

    fn restore_backend(&mut self, slot: usize, saved: SavedBackend) -> Result<(), RestoreError> {
        match (&mut self.backend, saved) {
            (Backend::Block(disk), SavedBackend::Block { sectors, image_sha256 }) => {
                if disk.changes_image() {
                    return Err(RestoreError::ChangedImage { slot });
                }
                let is_same = disk.sectors() == sectors
                    && disk.image_digest().map_err(|error| RestoreError::Image { slot, error })?
                        == image_sha256;
                if is_same { Ok(()) } else { Err(RestoreError::OtherImage { slot }) }
            }
            (Backend::Entropy(numbers), SavedBackend::Entropy { state }) => {
                *numbers = SplitMix64::new(state);
                Ok(())
            }
            (Backend::Network(_), SavedBackend::Network {}) => Ok(()),
            (Backend::Share(folder), SavedBackend::Share { tag }) if folder.tag() == tag => Ok(()),
            (Backend::Share(folder), SavedBackend::Share { tag }) => {
                Err(RestoreError::Tag { wanted: tag, actual: folder.tag().to_owned() })
            }
            (_, _) => Err(InvalidState::value("the kind of a device").into()),
        }
    }

    /// Calls `write` with the blocks that the guest has written to the device.
    ///
    /// # Errors
    /// The host refuses, or `write` fails.
    pub fn written_blocks(&self, write: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
        match &self.backend {
            Backend::Block(disk) => disk.written_blocks(write),
            _ => Ok(()),
        }
    }

    /// Writes a block that the guest had written before the checkpoint.
    ///
    /// # Errors
    /// The device has no such block, or the host refuses.
    pub fn write_block(&mut self, start: u64, bytes: &[u8]) -> Result<(), RestoreError> {
        match &mut self.backend {
            Backend::Block(disk) if disk.contains(start, bytes.len() as u64) => {
                disk.write(start, bytes).map_err(RestoreError::Copy)
            }
            _ => Err(InvalidState::value("a block of a disk").into()),
        }
    }
}
