//! Virtio devices on PCI: negotiation, queues and their interrupts. The driver is not trusted: vm-memory checks each
//! address of a queue on use, a descriptor chain ends after at most 65536 descriptors, and the time of a request
//! advances the clock. Source: Virtual I/O Device Version 1.2, sections 2, 4.1 (PCI), 5.2 (block), 5.4 (entropy).

mod block;
mod disk;

use std::io::Write as _;

use longma_random::SplitMix64;
use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_queue::{DescriptorChain, Queue, QueueT};
use vm_memory::GuestMemoryMmap;

use super::lane::Lane;
use super::pci::{Effects, window};
pub use disk::{Disk, DiskError};

/// The maximum number of descriptors of a queue.
const QUEUE_SIZE: u16 = 256;
/// The vector number that means no vector (VIRTIO_MSI_NO_VECTOR).
const NO_VECTOR: u16 = 0xffff;
/// The maximum number of random bytes of a request.
const MOST_ENTROPY: usize = 1 << 16;
/// Bytes that a device copies in one cycle.
const BYTES_PER_CYCLE: u64 = 16;
/// Cycles that a descriptor takes.
const DESCRIPTOR_CYCLES: u64 = 16;

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A disk.
    Block,
    /// A source of random numbers.
    Entropy,
}

/// The part of a device that serves requests.
#[derive(Debug)]
enum Backend {
    Block(Disk),
    Entropy(SplitMix64),
}

/// A virtio device with one queue.
#[derive(Debug)]
pub struct Transport {
    backend: Backend,
    configuration: Vec<u8>,
    queue: Queue,
    queue_vector: u16,
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

    fn new(backend: Backend, configuration: Vec<u8>) -> Self {
        Self {
            backend,
            configuration,
            queue: Queue::new(QUEUE_SIZE).expect("a power of two is a size of a queue"),
            queue_vector: NO_VECTOR,
            configuration_vector: NO_VECTOR,
            selectors: [0; 2],
            accepted: 0,
            status: 0,
            selected_queue: 0,
            interrupt_status: 0,
        }
    }

    /// The kind of the device.
    pub fn kind(&self) -> Kind {
        match self.backend {
            Backend::Block(_) => Kind::Block,
            Backend::Entropy(_) => Kind::Entropy,
        }
    }

    /// The number of MSI-X vectors: one for the queue and one for configuration changes.
    pub fn vectors(&self) -> u16 {
        2
    }

    fn offered(&self) -> u64 {
        let own = match self.backend {
            Backend::Block(_) => block::FEATURES,
            Backend::Entropy(_) => 0,
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
        let has_queue = self.selected_queue == 0;
        match register {
            0x00 => u64::from(self.selectors[0]) | half(self.offered(), self.selectors[0]) << 32,
            0x08 => u64::from(self.selectors[1]) | half(self.accepted, self.selectors[1]) << 32,
            0x10 => {
                let low = u64::from(self.configuration_vector) | 1 << 16;
                low | u64::from(self.status) << 32 | u64::from(self.selected_queue) << 48
            }
            0x18 if has_queue => {
                let low = u64::from(self.queue.size()) | u64::from(self.queue_vector) << 16;
                low | u64::from(self.queue.ready()) << 32
            }
            0x20 if has_queue => self.queue.desc_table(),
            0x28 if has_queue => self.queue.avail_ring(),
            0x30 if has_queue => self.queue.used_ring(),
            _ => 0,
        }
    }

    /// Writes a register. Returns the vector of an interrupt to send, if any.
    pub fn write(
        &mut self,
        offset: u32,
        bytes: usize,
        value: u64,
        memory: &GuestMemoryMmap,
        effects: &mut Effects,
    ) -> Option<u16> {
        match offset & !(window::PART - 1) {
            window::COMMON => self.write_common(offset, bytes, value),
            window::NOTIFY if offset == window::NOTIFY => return self.serve(memory, effects),
            _ => {}
        }
        None
    }

    fn write_common(&mut self, offset: u32, bytes: usize, value: u64) {
        let (low, high) = (value as u32, (value >> 32) as u32);
        // Drivers write an address as a doubleword or as two words.
        let halves = match (offset & 4, bytes) {
            (0, 8) => (Some(low), Some(high)),
            (0, _) => (Some(low), None),
            _ => (None, Some(low)),
        };
        let has_queue = self.selected_queue == 0;
        match offset {
            0x00 => self.selectors[0] = low,
            0x08 => self.selectors[1] = low,
            0x0c => self.accept(low),
            0x10 => self.configuration_vector = self.vector(low),
            0x14 => self.set_status(value as u8),
            0x16 => self.selected_queue = low as u16,
            0x18 if has_queue && !self.queue.ready() => self.queue.set_size(low as u16),
            0x1a if has_queue => self.queue_vector = self.vector(low),
            0x1c if has_queue => self.queue.set_ready(low & 1 == 1),
            0x20 | 0x24 if has_queue => self.queue.set_desc_table_address(halves.0, halves.1),
            0x28 | 0x2c if has_queue => self.queue.set_avail_ring_address(halves.0, halves.1),
            0x30 | 0x34 if has_queue => self.queue.set_used_ring_address(halves.0, halves.1),
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
            self.queue.reset();
            (self.queue_vector, self.configuration_vector) = (NO_VECTOR, NO_VECTOR);
            (self.selectors, self.accepted, self.selected_queue) = ([0; 2], 0, 0);
            (self.status, self.interrupt_status) = (0, 0);
            return;
        }
        let is_acceptable =
            self.accepted & !self.offered() == 0 && self.accepted >> VIRTIO_F_VERSION_1 & 1 == 1;
        let features_ok = VIRTIO_CONFIG_S_FEATURES_OK as u8;
        self.status = if is_acceptable { status } else { status & !features_ok };
    }

    /// Serves the requests in the queue, at most as many as the queue has descriptors.
    fn serve(&mut self, memory: &GuestMemoryMmap, effects: &mut Effects) -> Option<u16> {
        let broken = VIRTIO_CONFIG_S_NEEDS_RESET as u8;
        if self.status & (VIRTIO_CONFIG_S_DRIVER_OK as u8 | broken) != VIRTIO_CONFIG_S_DRIVER_OK as u8 {
            return None;
        }
        if !self.queue.is_valid(memory) {
            self.status |= broken;
            return None;
        }
        let mut has_served = false;
        for _ in 0..self.queue.size() {
            let Some(chain) = self.queue.pop_descriptor_chain(memory) else { break };
            let head = chain.head_index();
            let written = self.serve_chain(memory, chain, effects);
            if self.queue.add_used(memory, head, written).is_err() {
                self.status |= broken;
                break;
            }
            has_served = true;
        }
        let used_bytes = 8 * u64::from(self.queue.size()) + 6;
        effects.write(self.queue.used_ring(), used_bytes);
        if !has_served {
            return None;
        }
        self.interrupt_status |= 1;
        Some(self.queue_vector)
    }

    /// Serves one request. Returns how many bytes the device has written to its buffers; 0 if it is malformed.
    fn serve_chain(
        &mut self,
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
            Backend::Entropy(numbers) => {
                let mut bytes = vec![0; space.min(MOST_ENTROPY)];
                bytes.chunks_mut(8).for_each(|part| {
                    part.copy_from_slice(&numbers.next_u64().to_le_bytes()[..part.len()]);
                });
                if output.write_all(&bytes).is_ok() { bytes.len() as u32 } else { 0 }
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
