//! Send path: assembles frames from descriptors of the send rings and puts them on the wire.
//!
//! Source: the manuals cited in `registers`.

use super::super::Frame;
use super::super::frame::{FCS_BYTES, HEADER_BYTES};
use super::receive::{burst_left, fetch};
use super::registers as r;
use super::state::{Descriptor, DmaState, MAX_FRAME, MacSpec, MacState};
use crate::registers::Field;
use crate::{Bus, BusFault};
use longma_sim::Time;

impl MacState {
    /// Time of the next send event. The next frame is assembled while the previous one is on the wire.
    pub(super) fn tx_time(&self) -> Option<Time> {
        let ready = self.tx_step == DmaState::Ready && r::TX_ENABLE.is_set(self.settings.control);
        let at = self.tx_step.end().or(ready.then_some(self.last_begin))?;
        Some(self.tx_after_pause(at).max(self.now))
    }

    /// Performs the next step of the send path.
    pub(super) fn send(&mut self, spec: &MacSpec, bus: &mut dyn Bus) {
        match std::mem::take(&mut self.tx_step) {
            DmaState::Suspended => self.tx_step = DmaState::Suspended,
            DmaState::Ready => {
                self.choose_tx();
                match self.queues[self.tx_queue].tx.take() {
                    Some(descriptor) => self.load(spec, descriptor, bus),
                    None => self.fetch_tx(spec, bus),
                }
            }
            DmaState::Fetching { found, .. } if found.is_empty() => {
                let queue = self.tx_queue;
                self.queues[queue].tx_idle = true;
                if self.queues.iter().all(|queue| queue.tx_idle) {
                    self.tx_step = DmaState::Suspended;
                }
                self.cause(queue, r::INT_TX_IDLE.mask(), bus);
            }
            DmaState::Fetching { found, .. } => self.queues[self.tx_queue].tx.fetched.extend(found),
            DmaState::Moving { descriptor, status, .. } => self.buffer_read(descriptor, status, bus),
            // Only the receive path writes buffers.
            DmaState::Storing { .. } => {}
            DmaState::Reporting { causes, .. } => self.cause(self.tx_queue, causes, bus),
        }
    }

    /// Selects the next queue with descriptors to send, round robin.
    fn choose_tx(&mut self) {
        let count = self.queues.len();
        let next =
            (1..=count).map(|by| (self.tx_queue + by) % count).find(|queue| !self.queues[*queue].tx_idle);
        self.tx_queue = next.unwrap_or(self.tx_queue);
    }

    fn fetch_tx(&mut self, spec: &MacSpec, bus: &mut dyn Bus) {
        let (address, count) = self.queues[self.tx_queue].tx.to_fetch(spec.descriptor_batch);
        match fetch(address, count, self.now, bus) {
            Ok((at, found)) => self.tx_step = DmaState::Fetching { at, found },
            Err(_) => self.disable_direction(r::TX_ENABLE, self.tx_queue, bus),
        }
    }

    /// Reads a descriptor's data.
    fn load(&mut self, spec: &MacSpec, descriptor: Descriptor, bus: &mut dyn Bus) {
        let first = r::SEND_FIRST.is_set(descriptor.control);
        let open = self.queues[self.tx_queue].tx_frame.take();
        if first {
            // A new frame discards an incomplete one.
            self.counters.tx_bad += u64::from(open.is_some());
            self.queues[self.tx_queue].tx_dropping = false;
        }
        let frame = if first { Some(Vec::new()) } else { open };
        let loaded = self.append(spec, &descriptor, frame, bus);
        let queue = &mut self.queues[self.tx_queue];
        let (at, status) = match loaded {
            Ok((at, frame)) => {
                queue.tx_frame = Some(frame);
                (at, 0)
            }
            Err(error) => {
                // The parts of an invalid frame count once.
                self.counters.tx_bad += u64::from(!queue.tx_dropping);
                queue.tx_dropping = !r::SEND_LAST.is_set(descriptor.control);
                (self.now, r::ERROR.mask() | error.mask())
            }
        };
        self.tx_step = DmaState::Moving { at, descriptor, status };
    }

    /// Appends a descriptor's data to the open frame. Returns the time at which the data has arrived, and the frame.
    fn append(
        &self,
        spec: &MacSpec,
        descriptor: &Descriptor,
        frame: Option<Vec<u8>>,
        bus: &mut dyn Bus,
    ) -> Result<(Time, Vec<u8>), Field> {
        let mut frame = frame.filter(|_| descriptor.size() > 0).ok_or(r::MALFORMED)?;
        let total = frame.len() as u64 + descriptor.size() + FCS_BYTES as u64;
        if total > self.settings.max_frame.min(MAX_FRAME) {
            return Err(r::TOO_LONG);
        }
        let at = read_buffer(spec, descriptor, &mut frame, self.now, bus).map_err(|_| r::BUS)?;
        Ok((at, frame))
    }

    /// Processes a descriptor whose data has arrived: sends the frame if this was its last part, and returns the
    /// descriptor.
    fn buffer_read(&mut self, descriptor: Descriptor, mut status: u64, bus: &mut dyn Bus) {
        let mut causes = 0;
        if r::SEND_LAST.is_set(descriptor.control)
            && let Some(bytes) = self.queues[self.tx_queue].tx_frame.take()
        {
            if bytes.len() < HEADER_BYTES {
                self.counters.tx_bad += 1;
                status |= r::ERROR.mask() | r::MALFORMED.mask();
            } else {
                self.transmit(Frame::new(&bytes));
            }
        }
        if r::COMPLETE.is_set(descriptor.control) {
            causes = r::INT_TX.mask();
        }
        match self.write_status(descriptor, status, bus) {
            Ok(at) => self.tx_step = DmaState::Reporting { at, causes },
            Err(_) => self.disable_direction(r::TX_ENABLE, self.tx_queue, bus),
        }
    }

    fn transmit(&mut self, frame: Frame) {
        let transmission = self.wire.send(&frame, self.now);
        self.last_begin = transmission.begin;
        self.counters.tx_good += 1;
        self.counters.tx_bytes += frame.len() as u64;
        self.outbox.push_back((transmission.arrival, frame));
    }
}

/// Appends the contents of a descriptor's buffer to `frame`, in bursts. Returns the time at which the last one has
/// arrived.
fn read_buffer(
    spec: &MacSpec,
    descriptor: &Descriptor,
    frame: &mut Vec<u8>,
    now: Time,
    bus: &mut dyn Bus,
) -> Result<Time, BusFault> {
    let begin = frame.len();
    frame.resize(begin + descriptor.size() as usize, 0);
    let (mut at, mut end, mut address) = (now, now, descriptor.buffer);
    let mut rest = &mut frame[begin..];
    while !rest.is_empty() {
        let count = rest.len().min(burst_left(spec, address));
        let (burst, after) = rest.split_at_mut(count);
        end = end.max(bus.read(address, burst, at)?);
        at = Time::from_ps(at.ps().saturating_add(spec.burst_interval.ps()));
        address = address.wrapping_add(count as u64);
        rest = after;
    }
    Ok(end)
}
