//! Receive path: checks of incoming frames, the FIFO, and DMA into the buffers of the receive rings.
//!
//! Source: the order of checks and the counters follow IEEE 802.3-2018, 4.2.9 and 30.3; rings as in the manuals cited
//! in `registers`.

use super::super::frame::FCS_BYTES;
use super::super::{Frame, MIN_BYTES};
use super::merge::Merge;
use super::registers as r;
use super::registers::{DESCRIPTOR_BYTES, STATUS_OFFSET};
use super::state::{Descriptor, DmaState, MAX_FRAME, MacSpec, MacState, Progress, Received, length};
use super::steering;
use crate::registers::Field;
use crate::{Bus, BusFault, Placement};
use longma_sim::Time;

/// How far ahead of the current time bursts may be issued, picoseconds: 1 us, a fraction of the range of the machine's
/// reservation calendars. A MAC directly at a port of the chip finishes a frame in this time; on PCI, a single burst
/// takes longer.
const LOOKAHEAD_PS: u64 = 1_000_000;

impl MacState {
    /// Processes the arrival of a frame's last bit.
    pub(super) fn arrive(&mut self, spec: &MacSpec, frame: Frame, bus: &mut dyn Bus) {
        if !r::RX_ENABLE.is_set(self.settings.control)
            || self.process_pause(spec, &frame)
            || !self.accept(&frame)
        {
            return;
        }
        let control = self.settings.control;
        let spreads = r::SPREAD.is_set(control) && self.queues.len() > 1;
        let queue = if spreads { self.settings.spread.queue_of(&frame, self.queues.len()) } else { 0 };
        let free_bytes = u64::from(spec.rx_fifo_bytes).saturating_sub(self.fifo_bytes);
        if frame.len() as u64 > free_bytes {
            self.counters.rx_missed += 1;
            self.cause(queue, r::INT_RX_MISSED.mask(), bus);
        } else {
            self.fifo_bytes += frame.len() as u64;
            let sums = if r::RX_SUMS.is_set(control) { steering::checksum_status(&frame) } else { 0 };
            self.fifo.push_back(Received { frame, queue, sums });
        }
        self.fifo_changed(spec);
        // A new frame resumes a suspended ring.
        if self.rx_step == DmaState::Suspended {
            self.rx_step = DmaState::Ready;
        }
    }

    /// Returns whether a frame is accepted; counts the reason if it is not.
    fn accept(&mut self, frame: &Frame) -> bool {
        let counters = &mut self.counters;
        if frame.len() < MIN_BYTES {
            counters.rx_short += 1;
            return false;
        }
        if frame.len() as u64 > self.settings.max_frame.min(MAX_FRAME) {
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
        let is_own_address = self.settings.address.to_le_bytes()[..6] == to;
        let group = to[0] & 1 != 0;
        let multicast = group && r::ALL_MULTICAST.is_set(self.settings.control);
        let is_accepted =
            is_own_address || to == [0xff; 6] || multicast || r::PROMISCUOUS.is_set(self.settings.control);
        counters.rx_filtered += u64::from(!is_accepted);
        is_accepted
    }

    /// Time of the next receive event.
    pub(super) fn rx_time(&self) -> Option<Time> {
        let ready = self.rx_step == DmaState::Ready && !self.fifo.is_empty();
        let enabled = r::RX_ENABLE.is_set(self.settings.control);
        self.rx_step.end().or((ready && enabled).then_some(self.now)).map(|at| at.max(self.now))
    }

    /// Performs the next step of the receive path.
    pub(super) fn receive(&mut self, spec: &MacSpec, bus: &mut dyn Bus) {
        match std::mem::take(&mut self.rx_step) {
            DmaState::Suspended => self.rx_step = DmaState::Suspended,
            DmaState::Ready => {
                self.rx_queue = self.fifo.front().map_or(0, |received| received.queue);
                match self.queues[self.rx_queue].rx.take() {
                    Some(descriptor) => self.store(spec, descriptor, bus),
                    None => self.fetch_rx(spec, bus),
                }
            }
            DmaState::Fetching { found, .. } if found.is_empty() => self.handle_missing_descriptor(spec, bus),
            DmaState::Fetching { found, .. } => self.queues[self.rx_queue].rx.fetched.extend(found),
            DmaState::Storing { descriptor, progress, .. } => {
                self.write_bursts(spec, descriptor, progress, bus)
            }
            DmaState::Moving { descriptor, status, .. } => {
                self.return_descriptor(spec, descriptor, status, bus)
            }
            DmaState::Reporting { causes, .. } if causes != 0 => self.received(spec, bus),
            DmaState::Reporting { .. } => {}
        }
        self.fifo_changed(spec);
    }

    /// Handles the absence of a descriptor for the first frame.
    fn handle_missing_descriptor(&mut self, spec: &MacSpec, bus: &mut dyn Bus) {
        self.close(self.rx_queue, bus);
        if self.waits_for_descriptors(spec) {
            self.rx_step = DmaState::Suspended;
        } else {
            self.drop_first();
        }
        self.counters.rx_starved += 1;
        self.cause(self.rx_queue, r::INT_RX_STARVED.mask(), bus);
    }

    fn fetch_rx(&mut self, spec: &MacSpec, bus: &mut dyn Bus) {
        let queue = &self.queues[self.rx_queue];
        let (address, count) = queue.rx.to_fetch(spec.descriptor_batch);
        // Descriptors held by a large frame still appear as owned by the MAC in memory.
        let merged_descriptors = queue.merge.as_ref().map_or(0, Merge::kept);
        match fetch(address, count.min(queue.rx.count.saturating_sub(merged_descriptors)), self.now, bus) {
            Ok((at, found)) => self.rx_step = DmaState::Fetching { at, found },
            Err(_) => self.disable_direction(r::RX_ENABLE, self.rx_queue, bus),
        }
    }

    /// Stores the FIFO's first frame, or the rest of it, in a descriptor's buffer.
    fn store(&mut self, spec: &MacSpec, descriptor: Descriptor, bus: &mut dyn Bus) {
        if self.rx_offset == 0 {
            self.classify_first_frame(&descriptor, bus);
        }
        let Some(Received { frame, .. }) = self.fifo.front() else { return };
        let left = payload(frame).len().saturating_sub(self.rx_offset as usize);
        let count = left.min(descriptor.size() as usize) as u64;
        match count {
            0 => self.drop_for_descriptor(descriptor, r::MALFORMED),
            _ => self.write_bursts(spec, descriptor, Progress { count, done: 0, visible: self.now }, bus),
        }
    }

    /// Drops the first frame because of an invalid descriptor.
    fn drop_for_descriptor(&mut self, descriptor: Descriptor, error: Field) {
        let first = r::FIRST.with(u64::from(self.rx_offset == 0));
        self.counters.rx_bad_descriptor += 1;
        self.rx_merging = None;
        self.drop_first();
        let status = first | r::LAST.mask() | r::ERROR.mask() | error.mask();
        self.rx_step = DmaState::Moving { at: self.now, descriptor, status };
    }

    /// Finishes a descriptor's buffer: all its writes have been issued, and the last byte is visible at `at`.
    fn buffer_written(&mut self, descriptor: Descriptor, count: u64, at: Time) {
        let Some(Received { frame, sums, .. }) = self.fifo.front() else { return };
        let first = r::FIRST.with(u64::from(self.rx_offset == 0));
        let frame_bytes = payload(frame).len() as u64;
        if self.rx_offset + count < frame_bytes {
            self.rx_offset += count;
            self.rx_step = DmaState::Moving { at, descriptor, status: first | length(count) };
            return;
        }
        let bad = frame.payload().is_err();
        let errors = if bad { r::ERROR.mask() | r::CRC.mask() } else { *sums };
        self.counters.rx_good += u64::from(!bad);
        self.counters.rx_bytes += if bad { 0 } else { frame.len() as u64 };
        self.drop_first();
        let status = first | r::LAST.mask() | errors | length(frame_bytes);
        self.rx_step = DmaState::Moving { at, descriptor, status };
    }

    /// Removes the first frame from the FIFO.
    fn drop_first(&mut self) {
        self.rx_offset = 0;
        if let Some(received) = self.fifo.pop_front() {
            self.fifo_bytes = self.fifo_bytes.saturating_sub(received.frame.len() as u64);
        }
    }

    /// Writes bursts of the first frame as the bus accepts them: those that start within [`LOOKAHEAD_PS`] now, the
    /// others in a later step. Caches and memory thus see each burst at about its actual time, even on a slow bus.
    fn write_bursts(
        &mut self,
        spec: &MacSpec,
        descriptor: Descriptor,
        mut progress: Progress,
        bus: &mut dyn Bus,
    ) {
        let mut at = bus.free(self.now);
        while progress.done < progress.count {
            if at.ps() - self.now.ps() > LOOKAHEAD_PS {
                self.rx_step = DmaState::Storing { at, descriptor, progress };
                return;
            }
            let Ok((bytes, visible)) = self.write_burst(spec, &descriptor, &progress, at, bus) else {
                self.drop_for_descriptor(descriptor, r::BUS);
                return;
            };
            progress.done += bytes;
            progress.visible = progress.visible.max(visible);
            at = bus.free(Time::from_ps(at.ps().saturating_add(spec.burst_interval.ps())));
        }
        self.buffer_written(descriptor, progress.count, progress.visible);
    }

    /// Writes the next burst of the first frame. Returns its length and when it is visible.
    fn write_burst(
        &self,
        spec: &MacSpec,
        descriptor: &Descriptor,
        progress: &Progress,
        at: Time,
        bus: &mut dyn Bus,
    ) -> Result<(u64, Time), BusFault> {
        let header = r::DCA_HEADER_BYTES.of(self.settings.dca);
        let from = self.rx_offset + progress.done;
        let end = self.rx_offset + progress.count;
        let address = descriptor.buffer.wrapping_add(progress.done);
        // Header and data may have different destinations, so a burst contains only one of them.
        let part = if from < header { end.min(header) } else { end };
        let until = part.min(from + burst_left(spec, address) as u64);
        let placement = self.data_placement(from < header);
        let bytes = self
            .fifo
            .front()
            .map_or(&[][..], |received| &received.frame.bytes()[from as usize..until as usize]);
        Ok((until - from, bus.write(address, bytes, placement, at)?))
    }

    pub(super) fn data_placement(&self, header: bool) -> Placement {
        let dca = self.settings.dca;
        let mode = if header { r::DCA_HEADER.of(dca) } else { r::DCA_DATA.of(dca) };
        self.settings.placement(mode, r::DCA_WAYS.of(dca))
    }

    fn return_descriptor(&mut self, spec: &MacSpec, descriptor: Descriptor, status: u64, bus: &mut dyn Bus) {
        if let Some(segment) = self.rx_merging.take() {
            self.retain_descriptor(segment, descriptor, spec, bus);
            return;
        }
        let causes = r::LAST.of(status) * r::INT_RX.mask();
        match self.write_status(descriptor, status, bus) {
            Ok(at) => self.rx_step = DmaState::Reporting { at, causes },
            Err(_) => self.disable_direction(r::RX_ENABLE, self.rx_queue, bus),
        }
    }

    /// Disables a direction because a queue's ring is not accessible.
    pub(super) fn disable_direction(&mut self, direction: Field, queue: usize, bus: &mut dyn Bus) {
        self.settings.control &= !direction.mask();
        self.cause(queue, r::INT_BUS.mask(), bus);
    }

    /// Writes a descriptor's status. Returns the time at which it is visible.
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

/// The part of a frame that is stored in buffers: all except the check sequence.
fn payload(frame: &Frame) -> &[u8] {
    &frame.bytes()[..frame.len().saturating_sub(FCS_BYTES)]
}

/// Bytes from `address` to the end of its burst.
pub(super) fn burst_left(spec: &MacSpec, address: u64) -> usize {
    let burst = u64::from(spec.burst_bytes.max(16));
    (burst - address % burst) as usize
}

/// Reads `count` descriptors from `address` on. Returns the time at which they arrive, and those before the first one
/// owned by software.
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
