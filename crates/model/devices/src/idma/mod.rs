//! IDMA: the copy engine of a core, with channels whose progress software observes and controls through tags.
//!
//! Source: Su Wen, Wang Huandong, Tai Yunfang, Wang Jing, Optimization of memory and network subsystems in multi-core
//! processors for cloud computing, 2012. Choices that the paper leaves open are marked where they are made.

mod channel;
mod engine;
mod pattern;
mod registers;

use crate::Bus;
use crate::device::{Answer, Count, Device};
use crate::registers::RegisterMap;
use channel::{Channel, Direction, Phase};
use engine::InFlightBeat;
use longma_sim::{Clock, Duration, Time};
use longma_topology::parts::Idma as IdmaPart;
use longma_topology::units::Frequency;
use registers as r;
use registers::{CHANNEL_BLOCK, ChannelRegister, EngineRegister};
use serde::{Deserialize, Serialize};

pub use registers::MAP;

/// Static configuration and timing of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdmaSpec {
    /// The core's clock.
    pub clock: Clock,
    /// Number of channels that read into an in-core store.
    pub read_channels: u32,
    /// Number of channels that write from an in-core store.
    pub write_channels: u32,
    /// Bytes per beat; one beat in and one out per cycle. A power of two from 8 to 128.
    pub beat_bytes: u32,
    /// Tags per channel, 1 to 128.
    pub tags: u32,
    /// Maximum length of a piece, bytes.
    pub granule_bytes: u32,
    /// Requests in flight in each direction.
    pub outstanding: u32,
    /// Duration of a register write.
    pub register_write: Duration,
    /// Duration of a register read.
    pub register_read: Duration,
    /// Time from the start of a channel to its first request.
    pub start: Duration,
}

/// An engine that cannot be modelled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdmaError {
    /// A parameter in the machine file is outside the range of the registers.
    #[error(
        "IDMA with {what} = {given} cannot be modelled: it must be {range}; change it in the machine file"
    )]
    Spec {
        /// The parameter.
        what: &'static str,
        /// Its value.
        given: u64,
        /// The permitted range.
        range: &'static str,
    },
    /// A checkpoint does not fit the engine.
    #[error("the saved state of an IDMA engine does not fit: {0}; restore it on the machine it was saved on")]
    State(&'static str),
}

impl IdmaSpec {
    /// The configuration of `part` in a core with `clock`.
    ///
    /// # Errors
    /// If a parameter is outside the range of the registers.
    pub fn from_part(part: &IdmaPart, clock: Frequency) -> Result<Self, IdmaError> {
        let ps = |latency: longma_topology::units::Latency| Duration::from_ps(latency.ps(clock));
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let hz = Clock::new(clock.hz()).map_err(|_| IdmaError::Spec {
            what: "clock",
            given: clock.hz(),
            range: "a frequency up to 1 THz",
        })?;
        let spec = Self {
            clock: hz,
            read_channels: part.read_channels,
            write_channels: part.write_channels,
            beat_bytes: narrow(part.beat.bits() / 8),
            tags: part.tags,
            granule_bytes: narrow(part.tag_granule.bytes()),
            outstanding: part.outstanding,
            register_write: ps(part.register_write),
            register_read: ps(part.register_read),
            start: ps(part.start),
        };
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), IdmaError> {
        let channels = u64::from(self.read_channels) + u64::from(self.write_channels);
        let beat = self.beat_bytes;
        let limits = [
            ("channels", channels, (1..=u64::from(r::MAX_CHANNELS)).contains(&channels), "1 to 8"),
            ("tags", self.tags.into(), (1..=r::MAX_TAGS).contains(&self.tags), "1 to 128"),
            (
                "bytes per beat",
                beat.into(),
                beat.is_power_of_two() && (8..=128).contains(&beat),
                "a power of two from 8 to 128",
            ),
            (
                "tag_granule",
                self.granule_bytes.into(),
                (1..=32768).contains(&self.granule_bytes),
                "1 to 32768 bytes",
            ),
            ("outstanding", self.outstanding.into(), (1..=64).contains(&self.outstanding), "1 to 64"),
        ];
        match limits.into_iter().find(|limit| !limit.2) {
            Some((what, given, _, range)) => Err(IdmaError::Spec { what, given, range }),
            None => Ok(()),
        }
    }
}

/// The mutable state of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdmaState {
    channels: Vec<Channel>,
    /// Requests in flight, oldest first.
    flights: Vec<InFlightBeat>,
    /// Time up to which all events are processed.
    now: Time,
    /// For each direction, when the next request can be issued.
    request_free: [Time; 2],
    /// When the next beat can arrive.
    landing_free: Time,
    /// For each direction, the channel with the highest priority.
    turn: [usize; 2],
    interrupts: u64,
    bad_accesses: u64,
    /// Bytes read and written.
    bytes: [u64; 2],
}

/// The engine of one core. It interrupts on line 0 of its bus.
///
/// A channel moves a stream of `LENGTH` bytes in pieces. Each piece has a tag, and the tags form a ring, as do the
/// slots of the pieces in the in-core store. The engine moves a piece only while it owns the tag (0), and sets the tag
/// (1) when the piece is complete and visible to every core. Software thus reads the progress from the tags, pauses a
/// channel by taking a tag, and resumes it by giving the tag back.
///
/// *Order*: a channel reads its pieces in order, and its tags become ready in order. A store that was visible before a
/// piece's tag was given is included in the piece; one that becomes visible after the tag is ready is not.
///
/// *Memory to memory*: a read channel fetches pieces into the in-core store, and a write channel fed by it writes each
/// one out as soon as it is complete, without involving the core.
///
/// *Overlap*: if source and destination of such a copy overlap, the engine reads all bytes of a piece before it writes
/// the piece, but may read later pieces before or after it writes earlier ones. As in memmove, a copy to lower
/// addresses must therefore run upwards, and a copy to higher addresses downwards, with negative strides. Otherwise the
/// copy reads bytes that it has already overwritten.
///
/// *Faults*: an unmapped address stops the channel at that beat. The engine has then moved the bytes before this beat
/// and no others; the piece's tag stays 0, and the fault raises an interrupt. `RESUME` continues with the first
/// incomplete piece.
///
/// *Saving a channel*: write `STOP`, wait until `BUSY` and `RUNNING` are 0, and read the registers and the tags. To
/// restore, write them back with `RESUME`, here or on another core that sees the same in-core store contents.
///
/// Not specified in the paper: tags are read and written by masks, so that core and engine never overwrite each other's
/// changes; a piece is no larger than one register of the store; addresses are virtual addresses of the process,
/// translated by the core's TLB.
#[derive(Clone, Debug)]
pub struct Idma {
    spec: IdmaSpec,
    state: IdmaState,
}

impl Idma {
    /// Creates an engine in its reset state.
    ///
    /// # Errors
    /// If a parameter of `spec` is outside the range of the registers.
    pub fn new(spec: IdmaSpec) -> Result<Self, IdmaError> {
        spec.check()?;
        let channel = |n| if n < spec.read_channels { Direction::Read } else { Direction::Write };
        let channels = spec.read_channels + spec.write_channels;
        let state = IdmaState {
            channels: (0..channels).map(|n| Channel::new(channel(n))).collect(),
            flights: Vec::new(),
            now: Time::ZERO,
            request_free: [Time::ZERO; 2],
            landing_free: Time::ZERO,
            turn: [0; 2],
            interrupts: 0,
            bad_accesses: 0,
            bytes: [0; 2],
        };
        Ok(Self { spec, state })
    }

    /// The configuration.
    pub const fn spec(&self) -> &IdmaSpec {
        &self.spec
    }

    /// The state, for a checkpoint.
    pub const fn state(&self) -> &IdmaState {
        &self.state
    }

    /// Restores an engine from a checkpoint.
    ///
    /// # Errors
    /// If the state does not fit the engine.
    pub fn restore(spec: IdmaSpec, state: IdmaState) -> Result<Self, IdmaError> {
        let fresh = Self::new(spec)?;
        state.check(&spec, &fresh.state).map_err(IdmaError::State)?;
        Ok(Self { spec, state })
    }

    fn read_channel(&self, number: usize, register: ChannelRegister) -> u64 {
        let Some(channel) = self.state.channels.get(number) else { return 0 };
        match register {
            ChannelRegister::Source => channel.setup.source,
            ChannelRegister::Destination => channel.setup.destination,
            ChannelRegister::Length => channel.setup.length,
            ChannelRegister::Block => channel.setup.block,
            ChannelRegister::Stride => channel.setup.stride,
            ChannelRegister::RowStride => channel.setup.row_stride,
            ChannelRegister::Tag => channel.setup.tag,
            ChannelRegister::Control => channel.setup.control,
            ChannelRegister::Status => self.status(number, channel),
            ChannelRegister::Position => channel.moved,
            ChannelRegister::Fault => channel.fault,
            ChannelRegister::Mask0 => channel.mask.0[0],
            ChannelRegister::Mask1 => channel.mask.0[1],
            ChannelRegister::Tags0 => channel.ready.0[0],
            ChannelRegister::Tags1 => channel.ready.0[1],
            ChannelRegister::Give0 | ChannelRegister::Give1 => 0,
            ChannelRegister::Take0 | ChannelRegister::Take1 => 0,
        }
    }

    fn status(&self, number: usize, channel: &Channel) -> u64 {
        let bits = [
            (r::BUSY, channel.flights > 0),
            (r::RUNNING, channel.running()),
            (r::WAITING, self.state.waiting(number)),
            (r::DONE, channel.phase == Phase::Done),
            (r::STOPPED, channel.phase == Phase::Stopped),
            (r::FAULTED, channel.phase == Phase::Faulted),
            (r::REFUSED, channel.refused),
        ];
        let flags = bits.iter().fold(0, |value, (field, on)| value | field.with(u64::from(*on)));
        flags | r::ERROR.with(channel.error as u64)
    }

    fn write_channel(&mut self, number: usize, register: ChannelRegister, value: u64, bus: &mut dyn Bus) {
        let Some(channel) = self.state.channels.get_mut(number) else { return };
        match register {
            ChannelRegister::Source => channel.setup.source = value,
            ChannelRegister::Destination => channel.setup.destination = value,
            ChannelRegister::Length => channel.setup.length = value,
            ChannelRegister::Block => channel.setup.block = value,
            ChannelRegister::Stride => channel.setup.stride = value,
            ChannelRegister::RowStride => channel.setup.row_stride = value,
            ChannelRegister::Tag => channel.setup.tag = value,
            ChannelRegister::Control => self.command(number, value, bus),
            ChannelRegister::Position if !channel.running() && channel.flights == 0 => channel.moved = value,
            ChannelRegister::Mask0 => channel.mask.0[0] = value,
            ChannelRegister::Mask1 => channel.mask.0[1] = value,
            ChannelRegister::Tags0 => channel.replace_tags(0, value),
            ChannelRegister::Tags1 => channel.replace_tags(1, value),
            ChannelRegister::Give0 => channel.give(0, value),
            ChannelRegister::Give1 => channel.give(1, value),
            ChannelRegister::Take0 => channel.take(0, value),
            ChannelRegister::Take1 => channel.take(1, value),
            ChannelRegister::Status | ChannelRegister::Fault | ChannelRegister::Position => {}
        }
    }

    /// Processes a write of `CONTROL`.
    fn command(&mut self, number: usize, value: u64, bus: &mut dyn Bus) {
        let commands = [r::START, r::RESUME, r::STOP, r::GIVE];
        let now = self.state.now;
        let channel = &mut self.state.channels[number];
        channel.setup.control = commands.iter().fold(value, |value, command| value & !command.mask());
        if r::STOP.is_set(value) && channel.phase == Phase::Running {
            channel.phase = Phase::Stopping;
        }
        let (start, resume) = (r::START.is_set(value), r::RESUME.is_set(value));
        if (start || resume) && !r::STOP.is_set(value) {
            if channel.running() || channel.flights > 0 {
                channel.refused = true;
                return;
            }
            let from = if start { 0 } else { channel.moved };
            channel.begin(from, start && r::GIVE.is_set(value), &self.spec, now);
        } else if !r::STOP.is_set(value) {
            return;
        }
        self.state.settle(number, bus);
    }

    fn read_engine(&mut self, register: EngineRegister) -> u64 {
        let (spec, state) = (&self.spec, &mut self.state);
        match register {
            EngineRegister::Identity => {
                r::READ_CHANNELS.with(spec.read_channels.into())
                    | r::WRITE_CHANNELS.with(spec.write_channels.into())
                    | r::TAGS.with(spec.tags.into())
                    | r::BEAT.with(spec.beat_bytes.into())
                    | r::GRANULE.with(spec.granule_bytes.into())
                    | r::OUTSTANDING.with(spec.outstanding.into())
            }
            EngineRegister::Interrupt => state.interrupts,
            EngineRegister::BadAccesses => std::mem::take(&mut state.bad_accesses),
            EngineRegister::BytesRead => state.bytes[Direction::Read as usize],
            EngineRegister::BytesWritten => state.bytes[Direction::Write as usize],
        }
    }
}

impl Device for Idma {
    fn registers(&self) -> &'static RegisterMap {
        &MAP
    }

    fn read(&mut self, offset: u64, width: u32, at: Time, bus: &mut dyn Bus) -> Answer {
        self.advance(at, bus);
        let takes = self.spec.register_read;
        let Some(slot) = MAP.find(offset, width) else {
            self.state.bad_accesses = self.state.bad_accesses.saturating_add(1);
            return Answer { value: 0, takes };
        };
        let value = if slot.block == CHANNEL_BLOCK {
            self.read_channel(slot.copy, ChannelRegister::ALL[slot.register])
        } else {
            self.read_engine(EngineRegister::ALL[slot.register])
        };
        Answer { value: slot.part(value), takes }
    }

    fn write(&mut self, offset: u64, width: u32, value: u64, at: Time, bus: &mut dyn Bus) -> Duration {
        self.advance(at, bus);
        let takes = self.spec.register_write;
        let Some(slot) = MAP.find(offset, width) else {
            self.state.bad_accesses = self.state.bad_accesses.saturating_add(1);
            return takes;
        };
        if slot.block == CHANNEL_BLOCK {
            let register = ChannelRegister::ALL[slot.register];
            if let Some(value) = slot.merge(self.read_channel(slot.copy, register), value) {
                self.write_channel(slot.copy, register, value, bus);
            }
        } else if let EngineRegister::Interrupt = EngineRegister::ALL[slot.register]
            && let Some(left) = slot.merge(self.state.interrupts, value)
        {
            self.state.set_interrupts(left, bus);
        }
        takes
    }

    fn next_event(&self) -> Option<Time> {
        self.state.next_time(&self.spec)
    }

    fn advance(&mut self, until: Time, bus: &mut dyn Bus) {
        self.state.run(&self.spec, until, bus);
    }

    fn counts(&self) -> Vec<Count> {
        let [read, written] = self.state.bytes;
        vec![
            Count::new("bytes_read", read, "bytes", "bytes read by read channels"),
            Count::new("bytes_written", written, "bytes", "bytes written by write channels"),
        ]
    }

    fn acts_alone(&self) -> bool {
        true
    }
}

impl IdmaState {
    /// Checks that this is a valid state of an engine with `spec`, whose reset state is `fresh`. The error is the
    /// reason.
    fn check(&self, spec: &IdmaSpec, fresh: &Self) -> Result<(), &'static str> {
        let must = |holds: bool, otherwise| if holds { Ok(()) } else { Err(otherwise) };
        let directions = |state: &Self| state.channels.iter().map(|c| c.direction).collect::<Vec<_>>();
        must(directions(self) == directions(fresh), "its channels differ")?;
        must(
            self.turn.iter().all(|turn| *turn < self.channels.len()),
            "its arbitration refers to a channel that does not exist",
        )?;
        must(
            self.flights.iter().all(|f| f.channel < self.channels.len()),
            "a request refers to a channel that does not exist",
        )?;
        for (number, channel) in self.channels.iter().enumerate() {
            let flights = self.flights.iter().filter(|f| f.channel == number).count();
            must(flights == channel.flights as usize, "the number of requests in flight is inconsistent")?;
            must(channel.fits(spec), "a transfer is outside the range of the registers")?;
        }
        Ok(())
    }
}
