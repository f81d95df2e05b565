//! An engine on a bus that only fulfils the guarantees of `Bus`: writes become visible after random delays.

use longma_devices::idma::{Idma, IdmaSpec, MAP};
use longma_devices::{Bus, BusFault, Device, Placement, Region};
use longma_random::SplitMix64;
use longma_sim::{Clock, Duration, Time};

/// Base addresses of the areas. Those of chip 1 begin at bit 44, as in the manual of the 3A5000.
pub const MEMORY: u64 = 0x10_0000;
pub const STORE: u64 = 0xe000_0000;
pub const FAR_MEMORY: u64 = 1 << 44 | 0x10_0000;
pub const FAR_STORE: u64 = 1 << 44 | 0xe000_0000;
pub const STORE_BYTES: usize = 4096;
pub const CYCLE_PS: u64 = 1250;

#[derive(Clone, Debug)]
pub struct Area {
    pub base: u64,
    pub bytes: Vec<u8>,
    pub region: Region,
    pub latency_ps: u64,
}

/// A write that is not visible yet.
#[derive(Clone, Debug)]
struct Pending {
    at: Time,
    address: u64,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct LateBus {
    pub areas: Vec<Area>,
    pending: Vec<Pending>,
    pub random: SplitMix64,
    pub asserted: bool,
    /// Addresses inside an area that behave as unmapped.
    pub hole: Option<std::ops::Range<u64>>,
    /// Addresses that are not writable.
    pub sealed: Option<std::ops::Range<u64>>,
}

impl LateBus {
    pub fn new(memory_bytes: usize, seed: u64) -> Self {
        let area = |base, bytes, region, latency_ps| Area { base, bytes: vec![0; bytes], region, latency_ps };
        Self {
            areas: vec![
                area(MEMORY, memory_bytes, Region::Memory, 100_000),
                area(STORE, STORE_BYTES, Region::InCoreStore, 0),
                area(FAR_MEMORY, memory_bytes, Region::Memory, 400_000),
                area(FAR_STORE, STORE_BYTES, Region::InCoreStore, 300_000),
            ],
            pending: Vec::new(),
            random: SplitMix64::new(seed),
            asserted: false,
            hole: None,
            sealed: None,
        }
    }

    /// Applies all writes that are visible at `at`.
    pub fn settle(&mut self, at: Time) {
        let mut late = Vec::new();
        for write in std::mem::take(&mut self.pending) {
            if write.at <= at {
                let (area, offset) = self.find(write.address).unwrap();
                self.areas[area].bytes[offset..offset + write.bytes.len()].copy_from_slice(&write.bytes);
            } else {
                late.push(write);
            }
        }
        self.pending = late;
    }

    pub fn find(&self, address: u64) -> Option<(usize, usize)> {
        let hole = self.hole.as_ref().is_some_and(|hole| hole.contains(&address));
        let found =
            self.areas.iter().position(|a| (a.base..a.base + a.bytes.len() as u64).contains(&address));
        found.filter(|_| !hole).map(|area| (area, (address - self.areas[area].base) as usize))
    }

    /// The value that a core reads at `at`.
    pub fn peek(&mut self, address: u64, length: usize, at: Time) -> Vec<u8> {
        self.settle(at);
        let (area, offset) = self.find(address).unwrap();
        self.areas[area].bytes[offset..offset + length].to_vec()
    }

    /// A core's store, visible immediately.
    pub fn poke(&mut self, address: u64, bytes: &[u8], at: Time) {
        self.settle(at);
        let (area, offset) = self.find(address).unwrap();
        self.areas[area].bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn find_area(&self, address: u64, length: usize) -> Result<(usize, usize), BusFault> {
        for byte in 0..length as u64 {
            let address = address.wrapping_add(byte);
            self.find(address).ok_or(BusFault::Unmapped { address })?;
        }
        self.find(address).ok_or(BusFault::Unmapped { address })
    }

    fn takes(&mut self, area: usize) -> u64 {
        let latency = self.areas[area].latency_ps;
        latency / 2 + self.random.below(latency)
    }
}

impl Bus for LateBus {
    fn region(&self, address: u64) -> Option<Region> {
        self.find(address).map(|(area, _)| self.areas[area].region)
    }

    fn read(&mut self, address: u64, into: &mut [u8], at: Time) -> Result<Time, BusFault> {
        self.settle(at);
        let (area, offset) = self.find_area(address, into.len())?;
        into.copy_from_slice(&self.areas[area].bytes[offset..offset + into.len()]);
        Ok(Time::from_ps(at.ps() + self.takes(area)))
    }

    fn write(&mut self, address: u64, bytes: &[u8], _: Placement, at: Time) -> Result<Time, BusFault> {
        let (area, _) = self.find_area(address, bytes.len())?;
        let end = address + bytes.len() as u64;
        if let Some(sealed) = self.sealed.as_ref().filter(|s| s.start < end && address < s.end) {
            return Err(BusFault::Denied { address: address.max(sealed.start) });
        }
        let takes = self.takes(area);
        let delay = if self.random.below(2) == 0 { takes } else { self.random.below(takes + 1) };
        let delay = Time::from_ps(at.ps() + delay);
        self.pending.push(Pending { at: delay, address, bytes: bytes.to_vec() });
        Ok(Time::from_ps(at.ps() + takes))
    }

    fn interrupt(&mut self, line: u32, asserted: bool, _: Time) {
        assert_eq!(line, 0);
        self.asserted = asserted;
    }
}

/// An engine, its bus and the current time.
#[derive(Clone, Debug)]
pub struct Machine {
    pub idma: Idma,
    pub bus: LateBus,
    pub now: Time,
}

/// The offset of a register of a channel, or of the engine if `channel` is `None`.
pub fn offset(channel: Option<usize>, name: &str) -> u64 {
    let block = &MAP.blocks[usize::from(channel.is_none())];
    let register = block.registers.iter().find(|r| r.name == name).unwrap();
    u64::from(block.base + block.stride * channel.unwrap_or(0) as u32 + register.offset)
}

/// A field of a register of the channels or of the engine.
pub fn field(register: &str, name: &str) -> longma_devices::registers::Field {
    let registers = MAP.blocks.iter().flat_map(|b| b.registers);
    let register = registers.into_iter().find(|r| r.name == register).unwrap();
    *register.fields.iter().find(|f| f.name == name).unwrap()
}

/// The configuration of the godson3's engine.
pub fn spec() -> IdmaSpec {
    IdmaSpec {
        clock: Clock::new(800_000_000).unwrap(),
        read_channels: 3,
        write_channels: 1,
        beat_bytes: 32,
        tags: 128,
        granule_bytes: 32,
        outstanding: 8,
        register_write: Duration::from_ps(2 * CYCLE_PS),
        register_read: Duration::from_ps(2 * CYCLE_PS),
        start: Duration::from_ps(4 * CYCLE_PS),
    }
}

impl Machine {
    pub fn new(memory_bytes: usize, seed: u64) -> Self {
        Self {
            idma: Idma::new(spec()).unwrap(),
            bus: LateBus::new(memory_bytes, seed),
            now: Time::from_ps(1000),
        }
    }

    pub fn set(&mut self, channel: usize, register: &str, value: u64) {
        self.idma.write(offset(Some(channel), register), 8, value, self.now, &mut self.bus);
    }

    pub fn get(&mut self, channel: usize, register: &str) -> u64 {
        self.idma.read(offset(Some(channel), register), 8, self.now, &mut self.bus).value
    }

    pub fn engine(&mut self, register: &str) -> u64 {
        self.idma.read(offset(None, register), 8, self.now, &mut self.bus).value
    }

    pub fn flag(&mut self, channel: usize, name: &str) -> bool {
        let status = self.get(channel, "STATUS");
        field("STATUS", name).is_set(status)
    }

    pub fn pass(&mut self, ps: u64) {
        self.now = Time::from_ps(self.now.ps() + ps);
        self.idma.advance(self.now, &mut self.bus);
    }

    /// Advances time until there are no more events.
    pub fn run(&mut self) {
        let mut turns = 0u64;
        while let Some(at) = self.idma.next_event() {
            assert!(at >= self.now, "events must not be in the past");
            self.now = at;
            self.idma.advance(at, &mut self.bus);
            turns += 1;
            assert!(turns < 10_000_000, "the engine must become idle");
        }
        self.bus.settle(self.now);
    }

    /// Saves a channel's registers after a stop and restores them into a new engine, which replaces this one.
    pub fn move_to_another_engine(&mut self, channels: &[usize]) {
        const REGISTERS: [&str; 11] = [
            "SOURCE",
            "DESTINATION",
            "LENGTH",
            "BLOCK",
            "STRIDE",
            "ROW_STRIDE",
            "TAG",
            "POSITION",
            "MASK0",
            "MASK1",
            "CONTROL",
        ];
        let mut was_running = Vec::new();
        for &channel in channels.iter().rev() {
            let running = self.flag(channel, "RUNNING");
            let control = self.get(channel, "CONTROL");
            self.set(channel, "CONTROL", control | field("CONTROL", "STOP").mask());
            was_running.insert(0, running);
        }
        while channels.iter().any(|c| self.flag(*c, "BUSY") || self.flag(*c, "RUNNING")) {
            self.pass(5 * CYCLE_PS);
        }
        let mut saved = Vec::new();
        for &channel in channels {
            let tags = ["TAGS0", "TAGS1"].map(|r| self.get(channel, r));
            let is_done = self.flag(channel, "DONE");
            saved.push((channel, is_done, tags, REGISTERS.map(|r| self.get(channel, r))));
        }
        self.idma = Idma::new(spec()).unwrap();
        for ((channel, is_done, tags, values), running) in saved.into_iter().zip(was_running) {
            self.set(channel, "TAGS0", tags[0]);
            self.set(channel, "TAGS1", tags[1]);
            for (register, value) in REGISTERS.into_iter().zip(values) {
                let resume = register == "CONTROL" && (running || is_done);
                let more = if resume { field("CONTROL", "RESUME").mask() } else { 0 };
                self.set(channel, register, value | more);
            }
        }
    }
}
