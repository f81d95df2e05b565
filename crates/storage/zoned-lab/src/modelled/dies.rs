//! The flash of the modelled SSD: tracks when its dies, channels and link are free, and which data is in its write
//! buffers.
//!
//! Source: the structure of NVMeVirt's zoned drives (FAST 2023). A zone is striped over all dies. A write completes
//! when it is in the buffer, and is programmed when a full program unit is buffered. Programs are not suspended for
//! reads.

use super::parameters::Parameters;
use longma_sim::{Duration, Resource, Time};
use longma_zoned::device::{Geometry, ZoneNumber};
use std::collections::VecDeque;

/// The unit of the firmware latencies, bytes.
const FIRMWARE_UNIT: u64 = 4096;

/// The timing state of the dies, channels, link and buffers.
#[derive(Clone)]
pub struct Dies {
    parameters: Parameters,
    link: Resource,
    /// When each channel becomes free.
    channels: Vec<Time>,
    /// When each die becomes free.
    dies: Vec<Time>,
    buffers: Vec<Buffer>,
}

/// The write buffer of a zone.
#[derive(Clone, Default)]
struct Buffer {
    /// Ranges (offset, length) that wait for a full program unit.
    waiting: Vec<(u64, u64)>,
    /// Ranges being programmed, with the time when they leave the buffer.
    leaving: VecDeque<(Time, Vec<(u64, u64)>)>,
}

impl Dies {
    pub fn new(parameters: &Parameters, geometry: &Geometry) -> Self {
        let count = (parameters.channels * parameters.dies_per_channel) as usize;
        Self {
            parameters: *parameters,
            // Calendar buckets of about the length of a transfer: 4 KiB take 1.3 us.
            link: Resource::new(parameters.link_bytes_per_second, Duration::from_ps(8_000_000)),
            channels: vec![Time::ZERO; parameters.channels as usize],
            dies: vec![Time::ZERO; count],
            buffers: vec![Buffer::default(); geometry.zones() as usize],
        }
    }

    /// The completion time of a command without a data transfer.
    pub fn command(&self, at: Time) -> Time {
        after(at, self.parameters.host)
    }

    /// The completion time of a read of `bytes` at offset `byte` of a zone.
    pub fn read(&mut self, at: Time, zone: ZoneNumber, byte: u64, bytes: u64, wear: f64) -> Time {
        let p = self.parameters;
        let small = bytes <= FIRMWARE_UNIT;
        let begin = after(at, if small { p.firmware_read_4k } else { p.firmware_read });
        let sense = stretched(if small { p.read_4k } else { p.read_page }, wear);
        let (mut ready, mut from) = (begin, byte);
        while from < byte + bytes {
            let next = (from / p.page_bytes + 1) * p.page_bytes;
            let now = next.min(byte + bytes) - from;
            if !self.buffers[zone.0 as usize].holds(begin, from) {
                let die = self.die_of(zone, from);
                let sensed = take(&mut self.dies[die], begin, sense);
                ready = ready.max(self.cross_channel(die, sensed, now));
            }
            from = next;
        }
        let arrived = self.link.acquire(ready, bytes as u32);
        after(arrived, p.host)
    }

    /// The completion time of a write of `bytes` at offset `byte` of a zone, that is, when it is in the buffer.
    pub fn write(&mut self, at: Time, zone: ZoneNumber, byte: u64, bytes: u64, wear: f64) -> Time {
        let p = self.parameters;
        let units = bytes.div_ceil(FIRMWARE_UNIT);
        let arrived = self.link.acquire(after(at, p.firmware_write), bytes as u32);
        let mut stored = after(arrived, Duration::from_ps(p.firmware_write_4k.ps() * units));
        let mut from = byte;
        while from < byte + bytes {
            let buffer = &mut self.buffers[zone.0 as usize];
            let now = (byte + bytes - from).min(p.program_bytes - sum(&buffer.waiting));
            stored = stored.max(buffer.room_for(stored, now, &p));
            buffer.waiting.push((from, now));
            from += now;
            if sum(&buffer.waiting) == p.program_bytes {
                let parts = std::mem::take(&mut buffer.waiting);
                let done = self.program(stored, zone, parts[0].0, wear);
                self.buffers[zone.0 as usize].leaving.push_back((done, parts));
            }
        }
        after(stored, p.host)
    }

    /// The completion time of an erase of a zone of which `bytes` were written.
    pub fn erase(&mut self, at: Time, zone: ZoneNumber, bytes: u64) -> Time {
        self.buffers[zone.0 as usize] = Buffer::default();
        let touched = bytes.div_ceil(self.parameters.program_bytes).min(self.dies.len() as u64);
        let mut end = at;
        for page in 0..touched {
            let die = self.die_of(zone, page * self.parameters.program_bytes);
            end = end.max(take(&mut self.dies[die], at, self.parameters.erase));
        }
        after(end, self.parameters.host)
    }

    /// The completion time of a finish that fills `bytes` of a zone from offset `byte` on.
    pub fn fill(&mut self, at: Time, zone: ZoneNumber, byte: u64, bytes: u64) -> Time {
        self.buffers[zone.0 as usize] = Buffer::default();
        let (mut end, mut from) = (at, byte);
        while from < byte + bytes {
            end = end.max(self.program(at, zone, from, 1.0));
            from += self.parameters.program_bytes;
        }
        after(end, self.parameters.host)
    }

    /// When the program unit at offset `byte` of a zone, which is in the buffer at time `at`, is on the flash.
    fn program(&mut self, at: Time, zone: ZoneNumber, byte: u64, wear: f64) -> Time {
        let die = self.die_of(zone, byte);
        let moved = self.cross_channel(die, at.max(self.dies[die]), self.parameters.program_bytes);
        take(&mut self.dies[die], moved, stretched(self.parameters.program, wear))
    }

    /// The die that holds a byte of a zone. Different zones start on different dies.
    fn die_of(&self, zone: ZoneNumber, byte: u64) -> usize {
        let page = byte / self.parameters.program_bytes + u64::from(zone.0);
        (page % self.dies.len() as u64) as usize
    }

    /// When `bytes` from or to a die have crossed its channel.
    fn cross_channel(&mut self, die: usize, at: Time, bytes: u64) -> Time {
        let ps = u128::from(bytes) * 1_000_000_000_000 / u128::from(self.parameters.channel_bytes_per_second);
        let channel = die % self.channels.len();
        take(&mut self.channels[channel], at, Duration::from_ps(ps as u64))
    }
}

impl Buffer {
    /// Whether a byte can be read from the buffer.
    fn holds(&mut self, at: Time, byte: u64) -> bool {
        self.leave(at);
        let parts = self.leaving.iter().flat_map(|(_, parts)| parts).chain(&self.waiting);
        parts.into_iter().any(|(from, bytes)| (*from..from + bytes).contains(&byte))
    }

    /// The earliest time, from `at` on, when the buffer has room for `bytes` more.
    fn room_for(&mut self, at: Time, bytes: u64, parameters: &Parameters) -> Time {
        self.leave(at);
        let mut used = sum(&self.waiting) + self.leaving.iter().map(|(_, parts)| sum(parts)).sum::<u64>();
        let mut free = at;
        while used + bytes > parameters.buffer_bytes {
            let Some((left, freed)) = self.leaving.pop_front() else { break };
            (free, used) = (free.max(left), used - sum(&freed));
        }
        free
    }

    fn leave(&mut self, at: Time) {
        while self.leaving.front().is_some_and(|(left, _)| *left <= at) {
            self.leaving.pop_front();
        }
    }
}

fn sum(parts: &[(u64, u64)]) -> u64 {
    parts.iter().map(|(_, bytes)| bytes).sum()
}

/// Occupies a first-come, first-served resource for `work`. Returns the completion time.
fn take(free: &mut Time, at: Time, work: Duration) -> Time {
    *free = after(at.max(*free), work);
    *free
}

fn after(at: Time, duration: Duration) -> Time {
    at.checked_add(duration).unwrap_or(Time::from_ps(u64::MAX))
}

fn stretched(duration: Duration, factor: f64) -> Duration {
    Duration::from_ps((duration.ps() as f64 * factor) as u64)
}
