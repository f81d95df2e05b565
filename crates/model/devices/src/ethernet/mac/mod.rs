//! An Ethernet MAC with DMA: descriptor rings, multiple queues, interrupt moderation, LRO, flow control and counters,
//! at 1 to 100 Gb/s depending on its parameters. It does not support VLANs or segmentation offload.
//!
//! Source: modelled after the Loongson 3A5000 manual's GMAC (Synopsys DesignWare) and Intel's 82599 data sheet; see
//! `registers`.

mod flow_control;
mod merge;
mod moderation;
mod queue;
mod receive;
mod registers;
mod state;
mod steering;
mod transmit;

use super::{Frame, Wire};
use crate::Bus;
use crate::device::{Answer, Count, Device};
use crate::registers::{RegisterMap, Slot};
use flow_control::FlowControl;
use longma_sim::{Duration, Time};
use queue::queue_register;
use registers as r;
use registers::{CounterRegister, MacRegister, QueueRegister};
use std::collections::VecDeque;

pub use registers::{DESCRIPTOR_FIELDS, MAP};
pub use state::{Counters, MacSpec, MacState};
use state::{DmaState, Queue, Settings};

/// A MAC. Each of its queues interrupts on the line of its bus with the same number.
///
/// The caller connects the two ends of the wire: it passes received frames to [`Mac::deliver`] and collects sent ones
/// with [`Mac::take_sent`].
///
/// *Rings*: the MAC owns descriptors whose `OWN` bit is set. It fetches descriptors in order, fills or sends their
/// buffers, and returns them by writing the status word, which clears `OWN`; the interrupt follows. At a descriptor
/// owned by software it stops until `RX_POLL` or `TX_POLL` is written or, when receiving, until the next frame.
///
/// *Queues*: each has its rings and its interrupt line. Frames go to queue 0 unless `SPREAD` enables selection by hash.
/// They are stored one by one in the order of arrival. Send rings are served round robin.
///
/// *Invalid descriptors*: if a descriptor has no bytes, belongs to a frame without beginning or end, has an
/// inaccessible buffer or too many bytes, it is returned with `ERROR` and the reason. The frame is dropped and counted,
/// and the ring continues. An inaccessible ring disables its direction and interrupts with `BUS`.
#[derive(Clone, Debug)]
pub struct Mac {
    spec: MacSpec,
    state: MacState,
}

impl Mac {
    /// Creates a MAC in its reset state, on a wire with a propagation delay.
    pub fn new(spec: MacSpec, propagation: Duration) -> Self {
        let state = MacState {
            settings: Settings { max_frame: spec.max_frame.into(), ..Settings::default() },
            now: Time::ZERO,
            inbox: VecDeque::new(),
            fifo: VecDeque::new(),
            fifo_bytes: 0,
            queues: vec![
                Queue { tx_idle: true, ..Queue::default() };
                spec.queues.clamp(1, r::MAX_QUEUES) as usize
            ],
            rx_queue: 0,
            rx_step: DmaState::Ready,
            rx_offset: 0,
            rx_merging: None,
            tx_queue: 0,
            tx_step: DmaState::Suspended,
            wire: Wire::new(spec.rate, propagation),
            last_begin: Time::ZERO,
            outbox: VecDeque::new(),
            flow: FlowControl::default(),
            counters: Counters::default(),
        };
        Self { spec, state }
    }

    /// The state, for a checkpoint.
    pub const fn state(&self) -> &MacState {
        &self.state
    }

    /// Restores a MAC from a checkpoint.
    pub fn restore(spec: MacSpec, state: MacState) -> Self {
        Self { spec, state }
    }

    /// The counters.
    pub const fn counters(&self) -> &Counters {
        &self.state.counters
    }

    /// Adds a frame on the wire to the MAC. Its last bit arrives at `arrival`, which must not be before that of an
    /// earlier frame.
    pub fn deliver(&mut self, frame: Frame, arrival: Time) {
        self.state.inbox.push_back((arrival, frame));
    }

    /// The next sent frame, and when its last bit arrives at the other end.
    pub fn take_sent(&mut self) -> Option<(Time, Frame)> {
        self.state.outbox.pop_front()
    }

    /// The value of a register; 0 for a queue that does not exist.
    fn value(&self, slot: &Slot) -> u64 {
        let state = &self.state;
        let spread = &state.settings.spread;
        match slot.block {
            r::MAC_BLOCK => self.own_value(MacRegister::ALL[slot.register]),
            r::COUNTER_BLOCK => self.count(CounterRegister::ALL[slot.register]),
            r::KEY_BLOCK => spread.key[slot.copy],
            r::TABLE_BLOCK => spread.table[slot.copy],
            _ => state
                .queues
                .get(slot.copy + 1)
                .map_or(0, |queue| queue.value(QueueRegister::ALL[slot.register])),
        }
    }

    fn own_value(&self, register: MacRegister) -> u64 {
        let state = &self.state;
        let settings = &state.settings;
        match register {
            MacRegister::Control => settings.control,
            MacRegister::Address => settings.address,
            MacRegister::MaxFrame => settings.max_frame,
            MacRegister::Dca => settings.dca,
            MacRegister::Queues => state.queues.len() as u64,
            MacRegister::Status => {
                r::RX_SUSPENDED.with((state.rx_step == DmaState::Suspended).into())
                    | r::TX_SUSPENDED.with((state.tx_step == DmaState::Suspended).into())
                    | r::FIFO.with(state.fifo_bytes)
            }
            _ => queue_register(register).map_or(0, |register| state.queues[0].value(register)),
        }
    }

    fn set(&mut self, slot: &Slot, value: u64, bus: &mut dyn Bus) {
        let state = &mut self.state;
        let settings = &mut state.settings;
        match slot.block {
            r::MAC_BLOCK => match MacRegister::ALL[slot.register] {
                MacRegister::Control => settings.control = value,
                MacRegister::Address => settings.address = value,
                MacRegister::MaxFrame => settings.max_frame = value,
                MacRegister::Dca => settings.dca = value,
                register => {
                    if let Some(register) = queue_register(register) {
                        state.write_queue_register(0, register, value, bus);
                    }
                }
            },
            r::KEY_BLOCK => settings.spread.key[slot.copy] = value,
            r::TABLE_BLOCK => settings.spread.table[slot.copy] = value,
            r::QUEUE_BLOCK => {
                state.write_queue_register(slot.copy + 1, QueueRegister::ALL[slot.register], value, bus)
            }
            _ => {}
        }
    }

    fn count(&self, register: CounterRegister) -> u64 {
        let counters = &self.state.counters;
        match register {
            CounterRegister::RxGood => counters.rx_good,
            CounterRegister::RxBytes => counters.rx_bytes,
            CounterRegister::RxCrc => counters.rx_crc,
            CounterRegister::RxShort => counters.rx_short,
            CounterRegister::RxLong => counters.rx_long,
            CounterRegister::RxFiltered => counters.rx_filtered,
            CounterRegister::RxMissed => counters.rx_missed,
            CounterRegister::RxStarved => counters.rx_starved,
            CounterRegister::RxBadDescriptor => counters.rx_bad_descriptor,
            CounterRegister::TxGood => counters.tx_good,
            CounterRegister::TxBytes => counters.tx_bytes,
            CounterRegister::TxBad => counters.tx_bad,
            CounterRegister::RxMerged => counters.rx_merged,
            CounterRegister::RxPause => counters.rx_pause,
            CounterRegister::TxPause => counters.tx_pause,
            CounterRegister::Interrupts => counters.interrupts,
        }
    }

    /// The next event. Events at the same time are ordered: wire, receive, send, interrupts, flow control.
    fn next(&self) -> Option<(Time, usize)> {
        let state = &self.state;
        let wire = state.inbox.front().map(|frame| frame.0.max(state.now));
        let times =
            [wire, state.rx_time(), state.tx_time(), state.interrupt_time(), state.pause_renewal_time()];
        let times = times.into_iter().enumerate().filter_map(|(what, at)| at.map(|at| (at, what)));
        times.min()
    }
}

impl Device for Mac {
    fn registers(&self) -> &'static RegisterMap {
        &MAP
    }

    fn read(&mut self, offset: u64, width: u32, at: Time, bus: &mut dyn Bus) -> Answer {
        self.advance(at, bus);
        let value = MAP.find(offset, width).map_or(0, |slot| slot.part(self.value(&slot)));
        Answer { value, takes: self.spec.register_read }
    }

    fn write(&mut self, offset: u64, width: u32, value: u64, at: Time, bus: &mut dyn Bus) -> Duration {
        self.advance(at, bus);
        if let Some(slot) = MAP.find(offset, width)
            && let Some(value) = slot.merge(self.value(&slot), value)
        {
            self.set(&slot, value, bus);
        }
        self.spec.register_write
    }

    fn next_event(&self) -> Option<Time> {
        self.next().map(|next| next.0)
    }

    fn counts(&self) -> Vec<Count> {
        self.state.counters.of_frames()
    }

    fn advance(&mut self, until: Time, bus: &mut dyn Bus) {
        while let Some((at, event)) = self.next()
            && at <= until
        {
            let (spec, state) = (&self.spec, &mut self.state);
            state.now = at;
            match event {
                0 => {
                    if let Some((_, frame)) = state.inbox.pop_front() {
                        state.arrive(spec, frame, bus);
                    }
                }
                1 => state.receive(spec, bus),
                2 => state.send(spec, bus),
                3 => state.moderate(bus),
                _ => state.renew_pause(spec),
            }
        }
        self.state.now = self.state.now.max(until);
    }
}
