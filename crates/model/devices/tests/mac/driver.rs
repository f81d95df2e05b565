//! A minimal driver: rings, buffers and received frames.

use longma_devices::Device;
use longma_devices::bus::{PlainBus, Region};
use longma_devices::ethernet::Frame;
use longma_devices::ethernet::mac::{MAP, Mac, MacSpec};
use longma_devices::ethernet::tcp::{Endpoint, Segment};
use longma_sim::{Duration, Time};

pub const MEMORY: u64 = 0x8_0000_0000;
pub const MEMORY_BYTES: usize = 1 << 20;
pub const RX_RING: u64 = MEMORY;
pub const TX_RING: u64 = MEMORY + 0x1_0000;
pub const BUFFERS: u64 = MEMORY + 0x2_0000;
pub const OWN: u32 = 1 << 31;
pub const STATION: [u8; 6] = [2, 0x12, 0x34, 0x56, 0x78, 0x9a];

pub struct Driver {
    pub mac: Mac,
    pub bus: PlainBus,
    pub now: Time,
}

pub fn gigabit() -> MacSpec {
    MacSpec {
        rate: 1_000_000_000,
        max_frame: 1518,
        rx_fifo_bytes: 16384,
        burst_bytes: 128,
        burst_interval: Duration::from_ps(10_000),
        descriptor_batch: 1,
        register_read: Duration::ZERO,
        register_write: Duration::ZERO,
        interrupt_delay: Duration::ZERO,
        queues: 1,
        pause: false,
    }
}

pub fn register(name: &str) -> u64 {
    let found = MAP.blocks.iter().find_map(|block| {
        let register = block.registers.iter().find(|r| r.name == name)?;
        Some(block.base + register.offset)
    });
    found.unwrap_or_else(|| panic!("no register {name}")).into()
}

impl Driver {
    pub fn new(spec: MacSpec) -> Self {
        let memory = PlainBus::new().with(Region::Memory, MEMORY, MEMORY_BYTES, Duration::from_ps(100_000));
        let mut driver = Self { mac: Mac::new(spec, Duration::ZERO), bus: memory, now: Time::from_ps(1) };
        let mut address = [0; 8];
        address[..6].copy_from_slice(&STATION);
        driver.set("ADDRESS", u64::from_le_bytes(address));
        driver
    }

    pub fn set(&mut self, name: &str, value: u64) {
        self.mac.write(register(name), 8, value, self.now, &mut self.bus);
    }

    pub fn get(&mut self, name: &str) -> u64 {
        self.mac.read(register(name), 8, self.now, &mut self.bus).value
    }

    pub fn pass(&mut self, ps: u64) {
        self.now = Time::from_ps(self.now.ps() + ps);
        self.mac.advance(self.now, &mut self.bus);
    }

    pub fn run(&mut self) {
        for turn in 0.. {
            assert!(turn < 1_000_000, "the MAC must become idle");
            let Some(at) = self.mac.next_event() else { return };
            self.now = self.now.max(at);
            self.mac.advance(self.now, &mut self.bus);
        }
    }

    pub fn put(&mut self, ring: u64, number: u64, buffer: u64, control: u32, status: u32) {
        let words = self.bus.bytes_mut(ring + number * 16, 16).unwrap();
        words[..8].copy_from_slice(&buffer.to_le_bytes());
        words[8..12].copy_from_slice(&control.to_le_bytes());
        words[12..].copy_from_slice(&status.to_le_bytes());
    }

    pub fn status(&self, ring: u64, number: u64) -> u32 {
        let bytes = self.bus.bytes(ring + number * 16 + 12, 4).unwrap();
        u32::from_le_bytes(bytes.try_into().unwrap())
    }

    /// Sets up a receive ring of `count` buffers of `size` bytes, all owned by the MAC.
    pub fn receive_ring(&mut self, count: u64, size: u64) {
        for number in 0..count {
            self.put(RX_RING, number, BUFFERS + number * size, size as u32, OWN);
        }
        self.set("RX_BASE", RX_RING);
        self.set("RX_COUNT", count);
        self.set("CONTROL", 1);
    }
}

/// The payload of a frame to the station `to`.
pub fn content(to: [u8; 6], length: usize, seed: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..length.max(14)).map(|at| (at as u64 * 7 + seed * 13 + (seed >> 8)) as u8).collect();
    bytes[..6].copy_from_slice(&to);
    bytes
}

/// A valid TCP segment to the station, of the connection from `port`.
pub fn segment(port: u16, data: &[u8]) -> Frame {
    let from = Endpoint { station: [2; 6], address: [10, 0, 0, 1], port };
    let to = Endpoint { station: STATION, address: [10, 0, 0, 2], port: 5001 };
    let segment = Segment { data: data.to_vec(), ..Segment::default() };
    segment.frame(&from, &to).expect("it fits")
}
