//! Receiving: checks at the wire, the FIFO, and frames into the buffers of the receive ring.
//! Not interrupts: see `moderation`.
//! Source: the order of checks and the counters follow IEEE 802.3-2018, 4.2.9 and 30.3; rings as in the manuals that `registers` names.

use super::super::frame::FCS_BYTES;
use super::super::{Frame, MIN_BYTES};
use super::registers as r;
use super::registers::{DESCRIPTOR_BYTES, STATUS_OFFSET};
use super::state::{Descriptor, MacSpec, MacState, Step, length};
use crate::registers::Field;
use crate::{Bus, BusFault, Placement};
use longma_sim::Time;

impl MacState {
    /// A frame's last bit arrives.
    pub(super) fn arrive(&mut self, spec: &MacSpec, frame: Frame, bus: &mut dyn Bus) {
        if !r::RX_ENABLE.is_set(self.settings.control) || !self.accept(&frame) {
            return;
        }
        let room = u64::from(spec.rx_fifo_bytes).saturating_sub(self.fifo_bytes);
        if frame.len() as u64 > room {
            self.counters.rx_missed += 1;
            self.cause(r::INT_RX_MISSED.mask(), bus);
        } else {
            self.fifo_bytes += frame.len() as u64;
            self.fifo.push_back(frame);
        }
        // A frame is reason enough to look at the ring again.
        if self.rx_step == Step::Suspended {
            self.rx_step = Step::Ready;
        }
    }

    /// Whether a frame is to be handed over; counts those that are not.
    fn accept(&mut self, frame: &Frame) -> bool {
        let counters = &mut self.counters;
        if frame.len() < MIN_BYTES {
            counters.rx_short += 1;
            return false;
        }
        if frame.len() as u64 > self.settings.max_frame.min(16383) {
            counters.rx_long += 1;
            return false;
        }
        if frame.payload().is_err() {
            counters.rx_crc += 1;
            if !r::PASS_BAD.is_set(self.settings.control) {
                return false;
            }
        }
        let to = frame.destination();
        let own = self.settings.address.to_le_bytes()[..6] == to;
        let group = to[0] & 1 != 0;
        let multicast = group && r::ALL_MULTICAST.is_set(self.settings.control);
        let taken = own || to == [0xff; 6] || multicast || r::PROMISCUOUS.is_set(self.settings.control);
        counters.rx_filtered += u64::from(!taken);
        taken
    }

    /// When receiving goes on by itself.
    pub(super) fn rx_time(&self) -> Option<Time> {
        let ready = self.rx_step == Step::Ready && !self.fifo.is_empty();
        let enabled = r::RX_ENABLE.is_set(self.settings.control);
        self.rx_step.end().or((ready && enabled).then_some(self.now)).map(|at| at.max(self.now))
    }

    /// The next step of receiving.
    pub(super) fn receive(&mut self, spec: &MacSpec, bus: &mut dyn Bus) {
        match std::mem::take(&mut self.rx_step) {
            Step::Suspended => self.rx_step = Step::Suspended,
            Step::Ready => match self.rx.take() {
                Some(descriptor) => self.store(spec, descriptor, bus),
                None => self.fetch_rx(spec, bus),
            },
            Step::Fetching { found, .. } if found.is_empty() => {
                self.rx_step = Step::Suspended;
                self.counters.rx_starved += 1;
                self.cause(r::INT_RX_STARVED.mask(), bus);
            }
            Step::Fetching { found, .. } => self.rx.fetched.extend(found),
            Step::Moving { descriptor, status, .. } => self.give_back(descriptor, status, bus),
            Step::Reporting { causes, .. } if causes != 0 => self.received(spec, bus),
            Step::Reporting { .. } => {}
        }
    }

    fn fetch_rx(&mut self, spec: &MacSpec, bus: &mut dyn Bus) {
        let (address, count) = self.rx.to_fetch(spec.descriptor_batch);
        match fetch(address, count, self.now, bus) {
            Ok((at, found)) => self.rx_step = Step::Fetching { at, found },
            Err(_) => self.switch_off(r::RX_ENABLE, bus),
        }
    }

    /// The FIFO's first frame, or what is left of it, goes into a descriptor's buffer.
    fn store(&mut self, spec: &MacSpec, descriptor: Descriptor, bus: &mut dyn Bus) {
        let Some(frame) = self.fifo.front() else { return };
        let payload = &frame.bytes()[..frame.len().saturating_sub(FCS_BYTES)];
        let from = (self.rx_offset as usize).min(payload.len());
        let count = (payload.len() - from).min(descriptor.size() as usize);
        let first = r::FIRST.with(u64::from(from == 0));
        let moved = match count {
            0 => Err(r::MALFORMED),
            _ => self
                .write_buffer(spec, descriptor.buffer, &payload[from..from + count], from, bus)
                .map_err(|_| r::BUS),
        };
        let (at, status) = match moved {
            Err(error) => {
                self.counters.rx_bad_descriptor += 1;
                self.drop_first();
                (self.now, first | r::LAST.mask() | r::ERROR.mask() | error.mask())
            }
            Ok(at) if from + count < payload.len() => {
                self.rx_offset += count as u64;
                (at, first | length(count as u64))
            }
            Ok(at) => {
                let bad = frame.payload().is_err();
                let error = if bad { r::ERROR.mask() | r::CRC.mask() } else { 0 };
                let status = first | r::LAST.mask() | error | length(payload.len() as u64);
                self.counters.rx_good += u64::from(!bad);
                self.counters.rx_bytes += if bad { 0 } else { frame.len() as u64 };
                self.drop_first();
                (at, status)
            }
        };
        self.rx_step = Step::Moving { at, descriptor, status };
    }

    /// Takes the first frame out of the FIFO.
    fn drop_first(&mut self) {
        self.rx_offset = 0;
        if let Some(frame) = self.fifo.pop_front() {
            self.fifo_bytes = self.fifo_bytes.saturating_sub(frame.len() as u64);
        }
    }

    /// Writes `bytes`, which stand `offset` bytes into their frame, in bursts; when the last is visible.
    fn write_buffer(
        &self,
        spec: &MacSpec,
        buffer: u64,
        bytes: &[u8],
        offset: usize,
        bus: &mut dyn Bus,
    ) -> Result<Time, BusFault> {
        let header =
            (r::DCA_HEADER_BYTES.of(self.settings.dca) as usize).saturating_sub(offset).min(bytes.len());
        let (mut end, mut at) = (self.now, self.now);
        let mut begin = 0;
        while begin < bytes.len() {
            let part = if begin < header { header } else { bytes.len() };
            let until = part.min(begin + burst_left(spec, buffer.wrapping_add(begin as u64)));
            let placement = self.data_placement(begin < header);
            let done = bus.write(buffer.wrapping_add(begin as u64), &bytes[begin..until], placement, at)?;
            end = end.max(done);
            at = Time::from_ps(at.ps().saturating_add(spec.burst_interval.ps()));
            begin = until;
        }
        Ok(end)
    }

    fn data_placement(&self, header: bool) -> Placement {
        let dca = self.settings.dca;
        let mode = if header { r::DCA_HEADER.of(dca) } else { r::DCA_DATA.of(dca) };
        self.settings.placement(mode, r::DCA_WAYS.of(dca))
    }

    fn give_back(&mut self, descriptor: Descriptor, status: u64, bus: &mut dyn Bus) {
        let causes = r::LAST.of(status) * r::INT_RX.mask();
        match self.write_status(descriptor, status, bus) {
            Ok(at) => self.rx_step = Step::Reporting { at, causes },
            Err(_) => self.switch_off(r::RX_ENABLE, bus),
        }
    }

    /// A ring cannot be accessed: its direction is switched off.
    pub(super) fn switch_off(&mut self, direction: Field, bus: &mut dyn Bus) {
        self.settings.control &= !direction.mask();
        self.cause(r::INT_BUS.mask(), bus);
    }

    /// Writes a descriptor's status; when it is visible.
    pub(super) fn write_status(
        &self,
        descriptor: Descriptor,
        status: u64,
        bus: &mut dyn Bus,
    ) -> Result<Time, BusFault> {
        let dca = self.settings.dca;
        let placement = self.settings.placement(r::DCA_DESCRIPTOR.of(dca), r::DCA_WAYS.of(dca));
        let address = descriptor.address.wrapping_add(STATUS_OFFSET);
        bus.write(address, &(status as u32).to_le_bytes(), placement, self.now)
    }
}

/// Bytes from `address` to the end of its burst.
pub(super) fn burst_left(spec: &MacSpec, address: u64) -> usize {
    let burst = u64::from(spec.burst_bytes.max(16));
    (burst - address % burst) as usize
}

/// Reads `count` descriptors from `address` on: when they are there, and those before the first that is software's.
pub(super) fn fetch(
    address: u64,
    count: u32,
    at: Time,
    bus: &mut dyn Bus,
) -> Result<(Time, Vec<Descriptor>), BusFault> {
    let mut bytes = vec![0; count as usize * DESCRIPTOR_BYTES as usize];
    if bytes.is_empty() {
        return Ok((at, Vec::new()));
    }
    let at = bus.read(address, &mut bytes, at)?;
    let (chunks, _) = bytes.as_chunks();
    let addresses = (0..).map(|number: u64| address.wrapping_add(number * DESCRIPTOR_BYTES));
    let all = addresses.zip(chunks).map(|(address, chunk)| Descriptor::parse(address, chunk));
    Ok((at, all.take_while(|d| r::OWN.is_set(d.status)).collect()))
}
