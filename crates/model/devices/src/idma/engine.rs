//! The data path of an IDMA engine: arbitration between channels, requests in flight, arrivals, and tag updates.
//!
//! Source: Su et al., 2012: one beat in and one beat out per cycle, no cost to switch between channels. Arbitration and
//! queues are not specified there.

use super::channel::{Channel, ChannelError, Direction, Phase, Transfer};
use super::registers as r;
use super::{IdmaSpec, IdmaState};
use crate::{Bus, BusFault, Placement, Region};
use longma_sim::Time;
use serde::{Deserialize, Serialize};

/// The event that a request awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stage {
    /// The arrival of the requested data, which is then written to the in-core store.
    Arriving,
    /// The time at which its write becomes visible.
    Writing,
}

/// A request in flight: one beat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InFlightBeat {
    pub channel: usize,
    /// Whether the beat is the last of its piece.
    pub last: bool,
    /// Data in flight to a store; empty once written.
    pub bytes: Vec<u8>,
    /// Destination address in the store.
    pub destination: u64,
    pub stage: Stage,
    /// End of the stage.
    pub at: Time,
}

/// The next event.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The write of the in-flight beat with this index becomes visible.
    Visible(usize),
    /// The data of the in-flight beat with this index arrives.
    Arrive(usize),
    /// This channel issues a request.
    Request(usize),
}

/// One beat of a piece.
#[derive(Clone, Copy, Debug)]
struct Beat {
    source: u64,
    destination: u64,
    bytes: usize,
    last: bool,
}

impl IdmaState {
    /// Time of the next event.
    pub(super) fn next_time(&self, spec: &IdmaSpec) -> Option<Time> {
        self.next(spec).map(|next| next.0)
    }

    /// Processes all events up to `until`.
    pub(super) fn run(&mut self, spec: &IdmaSpec, until: Time, bus: &mut dyn Bus) {
        while let Some((at, event)) = self.next(spec)
            && at <= until
        {
            self.now = self.now.max(at);
            match event {
                Event::Visible(flight) => self.visible(flight, bus),
                Event::Arrive(flight) => self.arrive(spec, flight, bus),
                Event::Request(channel) => self.request(spec, channel, bus),
            }
        }
        self.now = self.now.max(until);
    }

    /// The next event. Among events at the same time, completions precede requests and older beats precede younger
    /// ones.
    fn next(&self, spec: &IdmaSpec) -> Option<(Time, Event)> {
        let mut first: Option<(Time, Event)> = None;
        let mut offer = |at: Time, event: Event| {
            if first.is_none_or(|(earliest, _)| at < earliest) {
                first = Some((at, event));
            }
        };
        let mut channels_seen = 0u32;
        let mut arriving = 0u32;
        let mut under_way = [0; 2];
        for (number, flight) in self.flights.iter().enumerate() {
            let bit = 1 << flight.channel;
            under_way[self.channels[flight.channel].direction as usize] += 1;
            match flight.stage {
                // A channel's requests complete in order, so that its progress is a single number.
                Stage::Writing if channels_seen & bit == 0 => {
                    offer(flight.at.max(self.now), Event::Visible(number))
                }
                Stage::Arriving if arriving & bit == 0 => {
                    offer(flight.at.max(self.landing_free).max(self.now), Event::Arrive(number));
                    arriving |= bit;
                }
                Stage::Writing | Stage::Arriving => {}
            }
            channels_seen |= bit;
        }
        for direction in [Direction::Read, Direction::Write] {
            if under_way[direction as usize] < spec.outstanding
                && let Some((at, channel)) = self.next_request(spec, direction)
            {
                offer(at, Event::Request(channel));
            }
        }
        first
    }

    /// The channel that issues the next request in this direction, and when.
    fn next_request(&self, spec: &IdmaSpec, direction: Direction) -> Option<(Time, usize)> {
        let free = self.request_free[direction as usize].max(self.now);
        let turn = self.turn[direction as usize];
        let count = self.channels.len();
        let mut first: Option<(Time, usize)> = None;
        for channel in (0..count).map(|n| (turn + n) % count) {
            if self.channels[channel].direction != direction || !self.may_request(channel) {
                continue;
            }
            let at = free.max(self.channels[channel].not_before);
            if first.is_none_or(|(earliest, _)| at < earliest) {
                first = Some((at, channel));
            }
        }
        let (at, channel) = first?;
        Some((spec.clock.next_edge(at)?, channel))
    }

    /// Returns whether a channel can issue a request.
    fn may_request(&self, number: usize) -> bool {
        let channel = &self.channels[number];
        let Some(transfer) = channel.transfer.as_ref().filter(|_| channel.running()) else { return false };
        if channel.inside > 0 {
            return true;
        }
        channel.phase == Phase::Running
            && channel.piece < transfer.pieces()
            // The previous piece in the same slot of the ring must be completed.
            && channel.piece - channel.moved < transfer.ring.into()
            && !channel.ready.has(transfer.tag_of(channel.piece))
            && self.is_piece_ready(transfer, channel.piece)
    }

    /// Returns whether piece `piece` is ready to be written, if a read channel feeds it.
    fn is_piece_ready(&self, transfer: &Transfer, piece: u64) -> bool {
        let Some(feed) = transfer.feed else { return true };
        let feeder = &self.channels[feed as usize];
        let Some(from) = &feeder.transfer else { return false };
        // Mismatches and faults of the feeder are reported when the request is issued.
        from.piece != transfer.piece
            || feeder.phase == Phase::Faulted && feeder.flights == 0 && feeder.moved <= piece
            || feeder.moved > piece && feeder.ready.has(from.tag_of(piece))
    }

    /// Returns whether a running channel waits for a tag.
    pub(super) fn waiting(&self, number: usize) -> bool {
        let channel = &self.channels[number];
        let left = channel.transfer.as_ref().is_some_and(|t| channel.piece < t.pieces());
        channel.running() && left && !self.may_request(number)
    }

    /// Issues one beat of a channel.
    fn request(&mut self, spec: &IdmaSpec, number: usize, bus: &mut dyn Bus) {
        let direction = self.channels[number].direction;
        self.turn[direction as usize] = (number + 1) % self.channels.len();
        let next_cycle = spec.clock.next_edge(Time::from_ps(self.now.ps().saturating_add(1)));
        self.request_free[direction as usize] = next_cycle.unwrap_or(self.now);
        let started = self.next_beat(spec, number).and_then(|beat| {
            let flight = match direction {
                Direction::Read => read_beat(beat, self.now, bus),
                Direction::Write => self.write_beat(number, beat, bus),
            }?;
            Ok((beat, flight))
        });
        match started {
            Ok((beat, mut flight)) => {
                flight.channel = number;
                self.bytes[direction as usize] += beat.bytes as u64;
                self.flights.push(flight);
                self.beat_issued(number, beat);
            }
            Err((error, address)) => self.fault(number, error, address, bus),
        }
    }

    /// The next beat of a channel that can issue a request.
    fn next_beat(&self, spec: &IdmaSpec, number: usize) -> Result<Beat, (ChannelError, u64)> {
        let channel = &self.channels[number];
        let Some(transfer) = &channel.transfer else { return Err((ChannelError::Setup, 0)) };
        let offset = channel.piece.wrapping_mul(transfer.piece.into()).wrapping_add(channel.inside);
        let left = transfer.bytes_of(channel.piece).saturating_sub(channel.inside);
        let (source, destination) = match (channel.direction, transfer.feed) {
            (Direction::Read, _) => {
                (transfer.source.at(offset), transfer.destination.at(transfer.in_store(offset)))
            }
            (Direction::Write, None) => {
                (transfer.source.at(transfer.in_store(offset)), transfer.destination.at(offset))
            }
            (Direction::Write, Some(feed)) => {
                let feeder = &self.channels[feed as usize];
                // A piece that arrived before the feeder's fault is still valid.
                let good = feeder.phase != Phase::Faulted || feeder.moved > channel.piece;
                let from = feeder.transfer.filter(|from| good && from.piece == transfer.piece);
                let from = from.ok_or((ChannelError::Feed, feeder.fault))?;
                (from.destination.at(from.in_store(offset)), transfer.destination.at(offset))
            }
        };
        // On the side outside the in-core store, a beat does not cross a boundary that is a multiple of its size.
        let outer = if channel.direction == Direction::Read { source } else { destination };
        let beat_left = u64::from(spec.beat_bytes) - outer.address % u64::from(spec.beat_bytes);
        let bytes = left.min(source.bytes).min(destination.bytes).min(beat_left);
        Ok(Beat {
            source: source.address,
            destination: destination.address,
            bytes: bytes as usize,
            last: bytes == left,
        })
    }

    /// Reads a beat from a store and starts its write.
    fn write_beat(
        &self,
        number: usize,
        beat: Beat,
        bus: &mut dyn Bus,
    ) -> Result<InFlightBeat, (ChannelError, u64)> {
        must_be_store(bus, beat.source, ChannelError::Source)?;
        let mut bytes = vec![0; beat.bytes];
        let read =
            bus.read(beat.source, &mut bytes, self.now).map_err(|f| (ChannelError::Source, f.address()))?;
        let placement = self.channels[number].transfer.map_or(Placement::Memory, |t| t.placement);
        let at = bus.write(beat.destination, &bytes, placement, read).map_err(write_fault)?;
        Ok(InFlightBeat {
            channel: number,
            last: beat.last,
            bytes: Vec::new(),
            destination: 0,
            stage: Stage::Writing,
            at,
        })
    }

    /// Updates the channel after a beat has been issued. The last beat of a piece returns the feeder's tag.
    fn beat_issued(&mut self, number: usize, beat: Beat) {
        let channel = &mut self.channels[number];
        channel.flights += 1;
        channel.inside += beat.bytes as u64;
        if !beat.last {
            return;
        }
        let piece = channel.piece;
        (channel.piece, channel.inside) = (piece + 1, 0);
        if let Some(feed) = channel.transfer.and_then(|t| t.feed) {
            let feeder = &mut self.channels[feed as usize];
            if let Some(from) = feeder.transfer {
                feeder.ready.set(from.tag_of(piece), false);
            }
        }
    }

    /// Writes arrived data to the store.
    fn arrive(&mut self, spec: &IdmaSpec, number: usize, bus: &mut dyn Bus) {
        let next_cycle = spec.clock.next_edge(Time::from_ps(self.now.ps().saturating_add(1)));
        self.landing_free = next_cycle.unwrap_or(self.now);
        let flight = &mut self.flights[number];
        let bytes = std::mem::take(&mut flight.bytes);
        match bus.write(flight.destination, &bytes, Placement::Memory, self.now) {
            Ok(at) => (flight.stage, flight.at) = (Stage::Writing, at),
            Err(fault) => {
                let channel = flight.channel;
                let (error, address) = write_fault(fault);
                // Data after the fault must not be written.
                let before = self.flights.len();
                self.flights.retain(|f| f.channel != channel || f.stage == Stage::Writing);
                self.channels[channel].flights -= (before - self.flights.len()) as u32;
                self.fault(channel, error, address, bus);
            }
        }
    }

    /// Completes a beat.
    fn visible(&mut self, number: usize, bus: &mut dyn Bus) {
        let flight = self.flights.remove(number);
        let channel = &mut self.channels[flight.channel];
        channel.flights -= 1;
        let mut pending = 0;
        if flight.last
            && let Some(transfer) = channel.transfer
        {
            let tag = transfer.tag_of(channel.moved);
            channel.moved = channel.moved.saturating_add(1);
            if !transfer.recycle || channel.wanted.has(tag) {
                channel.ready.set(tag, true);
                if transfer.tag_interrupt && channel.mask.has(tag) {
                    pending |= r::TAG_PENDING.with(1 << flight.channel);
                }
            }
            channel.wanted.set(tag, false);
        }
        pending |= settle(channel, flight.channel);
        self.raise(pending, bus);
    }

    /// Stops a channel with an error.
    fn fault(&mut self, number: usize, error: ChannelError, address: u64, bus: &mut dyn Bus) {
        let channel = &mut self.channels[number];
        // Only the first error is reported.
        if channel.phase != Phase::Faulted {
            channel.stop_with(error, address);
        }
        let pending = r::FAULT_PENDING.with(1 << number) | settle(channel, number);
        self.raise(pending, bus);
    }

    /// Processes the consequences of a phase change by software.
    pub(super) fn settle(&mut self, number: usize, bus: &mut dyn Bus) {
        let channel = &mut self.channels[number];
        let faulted = channel.phase == Phase::Faulted;
        let pending = settle(channel, number) | r::FAULT_PENDING.with(u64::from(faulted) << number);
        self.raise(pending, bus);
    }

    /// Sets bits of the interrupt register and updates the line.
    fn raise(&mut self, pending: u64, bus: &mut dyn Bus) {
        self.set_interrupts(self.interrupts | pending, bus);
    }

    /// Changes the interrupt register and updates the line.
    pub(super) fn set_interrupts(&mut self, to: u64, bus: &mut dyn Bus) {
        let (before, after) = (self.interrupts != 0, to != 0);
        self.interrupts = to;
        if before != after {
            bus.interrupt(0, after, self.now);
        }
    }
}

/// Updates a channel that has nothing in flight. Returns the interrupts to raise.
fn settle(channel: &mut Channel, number: usize) -> u64 {
    if channel.flights > 0 || channel.running() && channel.inside > 0 {
        return 0;
    }
    // No more data arrives for the tags that the core has taken.
    for (ready, wanted) in channel.ready.0.iter_mut().zip(&mut channel.wanted.0) {
        *ready |= std::mem::take(wanted);
    }
    let all = channel.transfer.is_some_and(|t| channel.moved >= t.pieces());
    match channel.phase {
        Phase::Running | Phase::Stopping if all => {
            channel.phase = Phase::Done;
            let interrupts = channel.transfer.is_some_and(|t| t.done_interrupt);
            r::DONE_PENDING.with(u64::from(interrupts) << number)
        }
        Phase::Stopping => {
            channel.phase = Phase::Stopped;
            0
        }
        _ => 0,
    }
}

/// Starts the read of a beat into a store.
fn read_beat(beat: Beat, at: Time, bus: &mut dyn Bus) -> Result<InFlightBeat, (ChannelError, u64)> {
    must_be_store(bus, beat.destination, ChannelError::Destination)?;
    let mut bytes = vec![0; beat.bytes];
    let at = bus.read(beat.source, &mut bytes, at).map_err(|f| (ChannelError::Source, f.address()))?;
    Ok(InFlightBeat {
        channel: 0,
        last: beat.last,
        bytes,
        destination: beat.destination,
        stage: Stage::Arriving,
        at,
    })
}

fn must_be_store(bus: &dyn Bus, address: u64, absent: ChannelError) -> Result<(), (ChannelError, u64)> {
    match bus.region(address) {
        Some(Region::InCoreStore) => Ok(()),
        Some(Region::Memory) => Err((ChannelError::NoStore, address)),
        None => Err((absent, address)),
    }
}

fn write_fault(fault: BusFault) -> (ChannelError, u64) {
    let error = match fault {
        BusFault::Unmapped { .. } => ChannelError::Destination,
        BusFault::Denied { .. } => ChannelError::Denied,
    };
    (error, fault.address())
}
