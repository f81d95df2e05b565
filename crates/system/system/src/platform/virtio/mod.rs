//! Virtio devices on PCI: negotiation, queues and their interrupts. The driver is not trusted: vm-memory checks each
//! address of a queue on use, a descriptor chain ends after at most 65536 descriptors, and the time of a request
//! advances the clock. Source: Virtual I/O Device Version 1.2, sections 2, 4.1 (PCI), 5.1 (network), 5.2 (block),
//! 5.4 (entropy), 5.9 (9P; its requests are those of 9P2000.L).

mod block;
mod disk;
mod network;
mod saved;
mod share;

use std::io::Write as _;
use std::time::Duration;

use longma_random::SplitMix64;
use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_queue::{DescriptorChain, Queue, QueueT};
use vm_memory::GuestMemoryMmap;

use super::lane::Lane;
use super::pci::{Effects, window};
use crate::net::Network;
pub use disk::{Disk, DiskError, DiskOptions, Format};
use network::Nic;
pub use saved::SavedTransport;
pub use share::{SharedFolder, TagError};

/// The maximum number of descriptors of a queue.
const QUEUE_SIZE: u16 = 256;
/// The vector number that means no vector (VIRTIO_MSI_NO_VECTOR).
const NO_VECTOR: u16 = 0xffff;
/// The maximum number of random bytes of a request.
const MAX_ENTROPY_BYTES: usize = 1 << 16;
/// Bytes that a device copies in one cycle.
const BYTES_PER_CYCLE: u64 = 16;
/// The distance of the notification registers of two queues.
const NOTIFY_BYTES: u32 = 4;
/// Cycles that a descriptor takes.
const DESCRIPTOR_CYCLES: u64 = 16;

/// The type of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A disk.
    Block,
    /// A source of random numbers.
    Entropy,
    /// A NIC.
    Network,
    /// A folder of the host.
    Share,
}

/// The part of a device that serves requests.
#[derive(Debug)]
enum Backend {
    Block(Disk),
    Entropy(SplitMix64),
    Network(Nic),
    Share(SharedFolder),
}

impl Backend {
    /// Whether the device has data for the next request of a queue.
    fn can_serve(&self, number: usize) -> bool {
        match self {
            Self::Network(nic) => number != network::RECEIVE || nic.has_received(),
            _ => true,
        }
    }
}

/// A queue and the vector of its interrupts.
#[derive(Debug)]
struct DeviceQueue {
    ring: Queue,
    vector: u16,
}

/// A virtio device.
#[derive(Debug)]
pub struct Transport {
    backend: Backend,
    configuration: Vec<u8>,
    queues: Vec<DeviceQueue>,
    configuration_vector: u16,
    /// The driver's selections of the halves of offered and accepted features.
    selectors: [u32; 2],
    accepted: u64,
    status: u8,
    selected_queue: u16,
    interrupt_status: u8,
}

impl Transport {
    /// Creates a disk.
    pub fn disk(disk: Disk) -> Self {
        let configuration = block::configuration(&disk);
        Self::new(Backend::Block(disk), configuration)
    }

    /// Creates an entropy device. Its numbers depend only on `seed`.
    pub fn entropy(seed: u64) -> Self {
        Self::new(Backend::Entropy(SplitMix64::new(seed)), Vec::new())
    }

    /// Creates a NIC.
    pub fn network(network: Network) -> Self {
        Self::new(Backend::Network(Nic::new(network)), network::configuration())
    }

    /// Creates a file system that is a folder of the host.
    pub fn share(folder: SharedFolder) -> Self {
        let configuration = folder.configuration();
        Self::new(Backend::Share(folder), configuration)
    }

    fn new(backend: Backend, configuration: Vec<u8>) -> Self {
        let queues = if matches!(backend, Backend::Network(_)) { network::QUEUES } else { 1 };
        let new_queue = || DeviceQueue {
            ring: Queue::new(QUEUE_SIZE).expect("a power of two is a size of a queue"),
            vector: NO_VECTOR,
        };
        Self {
            backend,
            configuration,
            queues: std::iter::repeat_with(new_queue).take(queues).collect(),
            configuration_vector: NO_VECTOR,
            selectors: [0; 2],
            accepted: 0,
            status: 0,
            selected_queue: 0,
            interrupt_status: 0,
        }
    }

    /// The type of the device.
    pub fn kind(&self) -> Kind {
        match self.backend {
            Backend::Block(_) => Kind::Block,
            Backend::Entropy(_) => Kind::Entropy,
            Backend::Network(_) => Kind::Network,
            Backend::Share(_) => Kind::Share,
        }
    }

    /// The number of MSI-X vectors: one for each queue and one for configuration changes.
    pub fn vectors(&self) -> u16 {
        self.queues.len() as u16 + 1
    }

    fn offered(&self) -> u64 {
        let own = match self.backend {
            Backend::Block(_) => block::FEATURES,
            Backend::Entropy(_) => 0,
            Backend::Network(_) => network::FEATURES,
            Backend::Share(_) => share::FEATURES,
        };
        own | 1 << VIRTIO_F_VERSION_1
    }

    /// Reads a register at an offset in the window.
    pub fn read(&mut self, offset: u32, bytes: usize) -> u64 {
        match offset & !(window::PART - 1) {
            window::COMMON => {
                let lane = Lane::new(offset.into(), bytes);
                lane.extract(self.common(lane.register))
            }
            // Reading the interrupt status clears it.
            window::STATUS if offset == window::STATUS => std::mem::take(&mut self.interrupt_status).into(),
            window::DEVICE => {
                let start = (offset - window::DEVICE) as usize;
                (0..bytes.min(8)).rev().fold(0, |value, byte| {
                    value << 8 | u64::from(self.configuration.get(start + byte).copied().unwrap_or(0))
                })
            }
            _ => 0,
        }
    }

    /// A doubleword of the common configuration structure.
    fn common(&self, register: u64) -> u64 {
        let half = |features: u64, selector: u32| match selector {
            0 => features & 0xffff_ffff,
            1 => features >> 32,
            _ => 0,
        };
        let queue = self.queues.get(usize::from(self.selected_queue));
        match (register, queue) {
            (0x00, _) => u64::from(self.selectors[0]) | half(self.offered(), self.selectors[0]) << 32,
            (0x08, _) => u64::from(self.selectors[1]) | half(self.accepted, self.selectors[1]) << 32,
            (0x10, _) => {
                let low = u64::from(self.configuration_vector) | (self.queues.len() as u64) << 16;
                low | u64::from(self.status) << 32 | u64::from(self.selected_queue) << 48
            }
            (0x18, Some(queue)) => {
                let low = u64::from(queue.ring.size()) | u64::from(queue.vector) << 16;
                // The last field is the number of the notification register.
                low | u64::from(queue.ring.ready()) << 32 | u64::from(self.selected_queue) << 48
            }
            (0x20, Some(queue)) => queue.ring.desc_table(),
            (0x28, Some(queue)) => queue.ring.avail_ring(),
            (0x30, Some(queue)) => queue.ring.used_ring(),
            _ => 0,
        }
    }

    /// Writes a register. Returns the vectors of interrupts to send.
    pub fn write(
        &mut self,
        offset: u32,
        bytes: usize,
        value: u64,
        memory: &GuestMemoryMmap,
        effects: &mut Effects,
    ) -> Vec<u16> {
        match offset & !(window::PART - 1) {
            window::COMMON => self.write_common(offset, bytes, value),
            window::NOTIFY if offset.is_multiple_of(NOTIFY_BYTES) => {
                let queue = ((offset - window::NOTIFY) / NOTIFY_BYTES) as usize;
                return self.serve(queue, memory, effects).into_iter().collect();
            }
            _ => {}
        }
        Vec::new()
    }

    fn write_common(&mut self, offset: u32, bytes: usize, value: u64) {
        let (low, high) = (value as u32, (value >> 32) as u32);
        // Drivers write an address as a doubleword or as two words.
        let halves = match (offset & 4, bytes) {
            (0, 8) => (Some(low), Some(high)),
            (0, _) => (Some(low), None),
            _ => (None, Some(low)),
        };
        match offset {
            0x00 => self.selectors[0] = low,
            0x08 => self.selectors[1] = low,
            0x0c => self.accept(low),
            0x10 => self.configuration_vector = self.vector(low),
            0x14 => self.set_status(value as u8),
            0x16 => self.selected_queue = low as u16,
            _ => {}
        }
        let vector = self.vector(low);
        let Some(queue) = self.queues.get_mut(usize::from(self.selected_queue)) else { return };
        match offset {
            0x18 if !queue.ring.ready() => queue.ring.set_size(low as u16),
            0x1a => queue.vector = vector,
            0x1c => queue.ring.set_ready(low & 1 == 1),
            0x20 | 0x24 => queue.ring.set_desc_table_address(halves.0, halves.1),
            0x28 | 0x2c => queue.ring.set_avail_ring_address(halves.0, halves.1),
            0x30 | 0x34 => queue.ring.set_used_ring_address(halves.0, halves.1),
            _ => {}
        }
    }

    fn accept(&mut self, half: u32) {
        let shift = match self.selectors[1] {
            0 => 0,
            1 => 32,
            _ => return,
        };
        self.accepted = self.accepted & !(0xffff_ffff << shift) | u64::from(half) << shift;
    }

    fn vector(&self, number: u32) -> u16 {
        if number < self.vectors().into() { number as u16 } else { NO_VECTOR }
    }

    fn set_status(&mut self, status: u8) {
        if status == 0 {
            if let Backend::Share(folder) = &mut self.backend {
                folder.reset();
            }
            for queue in &mut self.queues {
                queue.ring.reset();
                queue.vector = NO_VECTOR;
            }
            self.configuration_vector = NO_VECTOR;
            (self.selectors, self.accepted, self.selected_queue) = ([0; 2], 0, 0);
            (self.status, self.interrupt_status) = (0, 0);
            return;
        }
        let is_acceptable =
            self.accepted & !self.offered() == 0 && self.accepted >> VIRTIO_F_VERSION_1 & 1 == 1;
        let features_ok = VIRTIO_CONFIG_S_FEATURES_OK as u8;
        self.status = if is_acceptable { status } else { status & !features_ok };
    }

    /// Exchanges frames of a NIC with its network at the guest's time `now_ns`. If none arrives, waits up to `wait` of the
    /// host's time.
    pub fn exchange(&mut self, now_ns: u64, wait: Duration) {
        if let Backend::Network(nic) = &mut self.backend {
            nic.exchange(now_ns, wait);
        }
    }

    /// Writes the frames that a NIC has received to memory. Returns the vector of an interrupt to send.
    pub fn receive(&mut self, memory: &GuestMemoryMmap, effects: &mut Effects) -> Option<u16> {
        match &self.backend {
            Backend::Network(nic) if nic.has_received() => self.serve(network::RECEIVE, memory, effects),
            _ => None,
        }
    }

    /// Serves the requests in a queue, at most as many as the queue has descriptors. Returns the vector of an interrupt
    /// to send.
    fn serve(&mut self, number: usize, memory: &GuestMemoryMmap, effects: &mut Effects) -> Option<u16> {
        let broken = VIRTIO_CONFIG_S_NEEDS_RESET as u8;
        let queue = self.queues.get(number)?;
        if self.status & (VIRTIO_CONFIG_S_DRIVER_OK as u8 | broken) != VIRTIO_CONFIG_S_DRIVER_OK as u8 {
            return None;
        }
        if !queue.ring.is_valid(memory) {
            // A driver that has not started the queue of received frames may send nevertheless.
            let is_optional = matches!(self.backend, Backend::Network(_)) && !queue.ring.ready();
            self.status |= if is_optional { 0 } else { broken };
            return None;
        }
        let mut has_served = false;
        for _ in 0..self.queues[number].ring.size() {
            if !self.backend.can_serve(number) {
                break;
            }
            let Some(chain) = self.queues[number].ring.pop_descriptor_chain(memory) else { break };
            let head = chain.head_index();
            let written = self.serve_chain(number, memory, chain, effects);
            if self.queues[number].ring.add_used(memory, head, written).is_err() {
                self.status |= broken;
                break;
            }
            has_served = true;
        }
        let queue = &self.queues[number];
        let used_bytes = 8 * u64::from(queue.ring.size()) + 6;
        effects.write(queue.ring.used_ring(), used_bytes);
        if !has_served {
            return None;
        }
        self.interrupt_status |= 1;
        Some(queue.vector)
    }

    /// Serves one request. Returns how many bytes the device has written to its buffers; 0 if it is malformed.
    fn serve_chain(
        &mut self,
        number: usize,
        memory: &GuestMemoryMmap,
        chain: DescriptorChain<&GuestMemoryMmap>,
        effects: &mut Effects,
    ) -> u32 {
        effects.cycles += chain.clone().count() as u64 * DESCRIPTOR_CYCLES;
        for part in chain.clone().writable() {
            effects.write(part.addr().0, part.len().into());
        }
        let (Ok(mut input), Ok(mut output)) = (chain.clone().reader(memory), chain.writer(memory)) else {
            return 0;
        };
        let space = output.available_bytes();
        effects.cycles += (input.available_bytes() as u64 + space as u64) / BYTES_PER_CYCLE;
        match &mut self.backend {
            Backend::Network(nic) if number == network::RECEIVE => nic.receive(space, &mut output),
            Backend::Network(nic) => {
                nic.send(input.available_bytes(), &mut input);
                0
            }
            Backend::Entropy(numbers) => {
                let mut bytes = vec![0; space.min(MAX_ENTROPY_BYTES)];
                bytes.chunks_mut(8).for_each(|part| {
                    part.copy_from_slice(&numbers.next_u64().to_le_bytes()[..part.len()]);
                });
                if output.write_all(&bytes).is_ok() { bytes.len() as u32 } else { 0 }
            }
            Backend::Share(folder) => {
                effects.cycles += share::REQUEST_CYCLES;
                folder.serve(input.available_bytes(), &mut input, space, &mut output)
            }
            Backend::Block(disk) => {
                let Some(data) = space.checked_sub(1) else { return 0 };
                let Ok(mut status) = output.split_at(data) else { return 0 };
                let lengths = block::Lengths { input: input.available_bytes() as u64, output: data as u64 };
                let outcome = block::serve(disk, &mut input, lengths, &mut output);
                let is_written = status.write_all(&[outcome]).is_ok();
                output.bytes_written() as u32 + u32::from(is_written)
            }
        }
    }
}

#[cfg(test)]
mod tests;
