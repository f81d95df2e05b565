//! The devices of a simulated host: their schedule, their registers and their interrupts. `longma-devices` has the
//! device models, and `longma-linux` maps them into programs.

mod access;
mod activity;
mod build;
mod bus;
mod line;
mod part;
mod report;
mod wire;

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use longma_guest::{GuestMemory, Window};
use longma_linux::DeviceFile;
use longma_memory::{MemorySystem, StoreWindow};
use longma_sim::{Duration, Time};

use crate::kernel_model::{Kernel, Work};

pub(crate) use activity::{DeviceSlice, DeviceTrack};
pub use build::{DevicesError, has_devices};
pub use wire::{TcpOptions, WireEnd};

use activity::ActivityRecorder;
use bus::{MachineBus, StoreRange};
use longma_devices::{Bus, bus::AttachedBus};
use part::{Model, Part};
use wire::Wire;

/// Marks an absent time.
const NEVER: u64 = u64::MAX;

/// Values that the scheduler reads without locking the devices.
#[derive(Debug)]
pub(crate) struct Published {
    /// The time of the next device event in picoseconds.
    next: AtomicU64,
    /// The time at which a file first became ready, until the scheduler takes it.
    ready: AtomicU64,
    /// The core that was interrupted at that time.
    interrupted: AtomicUsize,
}

impl Published {
    /// The time of the next device event; `None` if all devices are waiting.
    pub fn next_event(&self) -> Option<Time> {
        time(self.next.load(Ordering::Relaxed))
    }

    /// The time at which files first became ready since the last call, and the core that was interrupted then.
    pub fn take_ready(&self) -> Option<(Time, usize)> {
        if self.ready.load(Ordering::Relaxed) == NEVER {
            return None;
        }
        let core = self.interrupted.load(Ordering::Relaxed);
        time(self.ready.swap(NEVER, Ordering::Relaxed)).map(|at| (at, core))
    }

    /// Records that a file has become ready by an interrupt of `core`.
    fn is_ready(&self, at: Time, core: usize) {
        if at.ps() < self.ready.load(Ordering::Relaxed) {
            self.ready.store(at.ps(), Ordering::Relaxed);
            self.interrupted.store(core, Ordering::Relaxed);
        }
    }
}

fn time(ps: u64) -> Option<Time> {
    (ps != NEVER).then(|| Time::from_ps(ps))
}

/// An in-core store.
#[derive(Debug)]
struct Store {
    core: usize,
    /// The load-to-use latency from its own core.
    latency: Duration,
    bytes: u64,
}

/// All devices of a host.
pub(crate) struct Devices {
    files: Arc<[DeviceFile]>,
    /// Devices with registers, indexed by window number.
    parts: Vec<Part>,
    /// In-core stores, indexed by window number.
    stores: Vec<Store>,
    wires: Vec<Wire>,
    /// The program's memory, once it runs.
    guest: Option<GuestMemory>,
    /// The address ranges of mapped stores, and the mapping change count for which they are valid.
    ranges: Vec<StoreRange>,
    seen_windows: u64,
    /// The time of the next event of each part, followed by those of the wires.
    next: Vec<u64>,
    published: Arc<Published>,
    kernel: Arc<Kernel>,
    /// The counts before the region of interest.
    before: Vec<u64>,
    accesses: u64,
    /// The recorder of the trace, if a trace is written.
    activity: Option<ActivityRecorder>,
}

impl Devices {
    /// The files in /dev/longma.
    pub fn files(&self) -> Arc<[DeviceFile]> {
        self.files.clone()
    }

    /// The values for the scheduler.
    pub fn published(&self) -> Arc<Published> {
        self.published.clone()
    }

    /// The names of devices, indexed by [`DeviceSlice::part`].
    pub fn names(&self) -> Vec<String> {
        self.parts.iter().map(|part| part.name.clone()).collect()
    }

    /// Starts recording for the trace.
    pub fn record_activity(&mut self) {
        self.activity = Some(ActivityRecorder::new(self.parts.len()));
    }

    /// Takes the recorded activity up to `until`.
    pub fn take_activity(&mut self, until: Time) -> Vec<DeviceSlice> {
        self.activity.as_mut().map_or_else(Vec::new, |activity| activity.take(until))
    }

    /// Takes the flow events of interrupts up to `at`, for the thread that runs next.
    pub fn take_reported_frames(&mut self, at: Time) -> Vec<u64> {
        self.activity.as_mut().map_or_else(Vec::new, |activity| activity.take_reported_frames(at))
    }

    /// Updates the view of the program's memory if its mappings have changed.
    pub fn see(&mut self, guest: &GuestMemory, memory: &mut MemorySystem) {
        let changes = guest.window_changes();
        if self.guest.is_some() && changes == self.seen_windows {
            return;
        }
        self.guest = Some(guest.clone());
        self.seen_windows = changes;
        let device_windows = guest.windows().into_iter().filter_map(|(range, window, offset)| match window {
            Window::Memory(number) => {
                let store = self.stores.get(usize::from(number))?;
                let end = range.end.min(range.start + store.bytes.saturating_sub(offset));
                Some(StoreRange { range: range.start..end, core: store.core, latency: store.latency })
            }
            Window::Registers(_) => None,
        });
        self.ranges = device_windows.collect();
        let windows = self.ranges.iter().map(|store| StoreWindow {
            range: store.range.clone(),
            latency_cycles: bus::store_latencies(store, memory),
        });
        let windows = windows.collect();
        memory.set_stores(windows);
    }

    /// The time and index of the next event.
    fn first(&self) -> (u64, usize) {
        self.first_except(usize::MAX)
    }

    /// The time and index of the next event, ignoring index `but`.
    fn first_except(&self, but: usize) -> (u64, usize) {
        let mut first = (NEVER, 0);
        for (number, at) in self.next.iter().enumerate() {
            if *at < first.0 && number != but {
                first = (*at, number);
            }
        }
        first
    }

    /// The time of the next event.
    pub fn next_event(&self) -> Option<Time> {
        time(self.first().0)
    }

    /// Processes events up to `limit`, or up to the first one that makes a file ready. Returns the time reached.
    pub fn advance_to_event(&mut self, limit: Time, memory: &mut MemorySystem) -> Time {
        let reached = self.run(limit, memory, true);
        self.publish();
        reached
    }

    /// Processes events up to `limit`.
    pub fn advance(&mut self, limit: Time, memory: &mut MemorySystem) {
        if self.first().0 <= limit.ps() {
            self.run(limit, memory, false);
            self.publish();
        }
    }

    fn run(&mut self, limit: Time, memory: &mut MemorySystem, stops: bool) -> Time {
        if let Some(guest) = self.guest.clone() {
            self.see(&guest, memory);
        }
        loop {
            let (at, number) = self.first();
            if at > limit.ps() || at == NEVER {
                return limit;
            }
            let at = Time::from_ps(at);
            let became_ready = match number.checked_sub(self.parts.len()) {
                None => self.part_acts(number, at, self.horizon(number, at, limit), memory),
                Some(wire) => self.wire_acts(wire, at),
            };
            if became_ready && stops {
                return at;
            }
        }
    }

    /// The time up to which part `number`, whose event is due at `at`, may advance alone. A copy engine advances until
    /// another device acts or one of its interrupts can arrive. Other devices advance event by event, because they
    /// exchange frames.
    fn horizon(&self, number: usize, at: Time, limit: Time) -> Time {
        let part = &self.parts[number];
        if !part.model.device().acts_alone() {
            return at;
        }
        let other_devices = self.first_except(number).0.saturating_sub(1);
        let interrupt =
            part.lines.iter().map(|line| line.earliest(at).ps()).min().unwrap_or(NEVER).saturating_sub(1);
        Time::from_ps(limit.ps().min(other_devices).min(interrupt)).max(at)
    }

    /// Advances part `number` from `at` to `horizon`. Returns true if one of its files became ready.
    fn part_acts(&mut self, number: usize, at: Time, horizon: Time, memory: &mut MemorySystem) -> bool {
        let part = &mut self.parts[number];
        let mut ready = false;
        for (line, file) in part.lines.iter_mut().zip(&part.files) {
            let file = &self.files[*file];
            if !line.deliver(at, file) {
                continue;
            }
            ready = true;
            // Handling the interrupt is work of the interrupted core.
            let core = file.interrupt_core().unwrap_or(part.location.core);
            let takes = line.latency();
            let from = Time::from_ps(at.ps().saturating_sub(takes.ps()));
            self.kernel.post_with_cost(core, from, Work::Interrupt, takes);
            self.published.is_ready(at, core);
            if let Some(activity) = &mut self.activity {
                activity.delivered(number, at);
            }
        }
        self.act(number, memory, |model, bus| model.device_mut().advance(horizon, bus));
        self.settle(number);
        ready
    }

    /// Calls `act` with the model of part `number` and its bus.
    fn act<T>(
        &mut self,
        number: usize,
        memory: &mut MemorySystem,
        act: impl FnOnce(&mut Model, &mut dyn Bus) -> T,
    ) -> T {
        let part = &mut self.parts[number];
        let activity = self.activity.as_mut().map(|activity| (number, activity));
        let mut bus = MachineBus {
            memory,
            guest: self.guest.as_ref(),
            stores: &self.ranges,
            location: &part.location,
            lines: &mut part.lines,
            activity,
        };
        match &mut part.attachment {
            None => act(&mut part.model, &mut bus),
            Some((attachment, state)) => {
                act(&mut part.model, &mut AttachedBus { attachment, state, port: &mut bus })
            }
        }
    }

    fn wire_acts(&mut self, number: usize, at: Time) -> bool {
        let wire = &mut self.wires[number];
        let part = wire.part();
        if let Some(mac) = self.parts[part].model.mac() {
            wire.act(at, mac, self.activity.as_mut());
        }
        self.settle(part);
        false
    }

    /// Updates the files, frames and next event of part `number` after it has acted.
    fn settle(&mut self, number: usize) {
        let parts = self.parts.len();
        let part = &mut self.parts[number];
        part.clear_released(&self.files);
        if let Some(mac) = part.model.mac() {
            if let Some(activity) = &mut self.activity {
                activity.counted(number, mac.counters());
            }
            let wires = self.wires.iter_mut().enumerate().filter(|(_, wire)| wire.part() == number);
            for (wire_number, wire) in wires {
                wire.collect(mac, self.activity.as_mut());
                self.next[parts + wire_number] = wire.next_event().map_or(NEVER, Time::ps);
            }
        }
        let part = &mut self.parts[number];
        self.next[number] = part.next_event().map_or(NEVER, Time::ps);
    }

    fn publish(&self) {
        self.published.next.store(self.first().0, Ordering::Relaxed);
    }
}
