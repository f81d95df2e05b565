//! Writes a Perfetto trace: the thread on each core, the program's markers, device activity, and the load of
//! components. Single accesses are left out because a minute of them would fill a disk.

use std::{
    collections::HashMap,
    io::{self, BufWriter, Write},
};

use longma_core::Magic;
use longma_memory::MemorySystem;
use longma_sim::{Duration, Time, TraceEvents, Track};

use super::ModelledCore;
use crate::devices::{DeviceSlice, DeviceTrack};
use crate::schedule::ThreadSlot;

/// The sampling interval of counters.
pub(super) const SAMPLE: Duration = Duration::from_ps(10_000_000);

/// How far a core may lag behind the most advanced one and still transfer bytes. Traffic windows are written after this
/// delay.
const MAX_LAG: Duration = Duration::from_ps(2 * SAMPLE.ps());

/// The trace process that contains the cores.
const CORES: u32 = 1;
/// The trace process that contains the memory system.
const MEMORY: u32 = 2;

/// The trace process that contains the devices.
const DEVICES: u32 = 3;

/// The output of a trace.
pub type TraceWriter = Box<dyn Write + Send>;

/// A trace that is being written.
pub struct Timeline {
    events: TraceEvents<BufWriter<TraceWriter>>,
    /// The thread that each core runs, since when.
    running: Vec<Option<Running>>,
    named: Vec<bool>,
    next_sample: Time,
    last: Vec<Sampled>,
    /// The last rate written for each component.
    last_rates: HashMap<String, f64>,
    /// The first error. A failure to write the trace does not stop the run.
    failed: Option<io::Error>,
}

/// The name of flow events that follow a frame.
const FRAME: &str = "frame";

/// A flow event of a frame: from the wire (leg 0), from memory (leg 1), or from the interrupt (leg 2).
struct Arrow {
    frame: u64,
    leg: u64,
}

impl Arrow {
    fn id(&self) -> u64 {
        self.frame * 3 + self.leg
    }
}

#[derive(Clone, Copy)]
struct Running {
    thread: u32,
    since: Time,
    until: Time,
}

/// A core's counters at the last sample.
#[derive(Clone, Copy, Default)]
struct Sampled {
    instructions: u64,
    cycles: u64,
}

impl Timeline {
    /// Starts a trace of at most `limit_bytes` bytes.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn new(to: TraceWriter, limit_bytes: u64) -> io::Result<Self> {
        let mut events = TraceEvents::new(BufWriter::new(to), limit_bytes)?;
        events.process_name(CORES, "cores")?;
        events.process_name(MEMORY, "memory")?;
        Ok(Self {
            events,
            running: Vec::new(),
            named: Vec::new(),
            next_sample: Time::ZERO,
            last: Vec::new(),
            last_rates: HashMap::new(),
            failed: None,
        })
    }

    fn keep_error(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }

    fn track(core: usize) -> Track {
        Track { process: CORES, thread: core as u32 }
    }

    /// Records that a thread ran at `slot` until `until`.
    pub(super) fn ran(&mut self, slot: ThreadSlot, until: Time) {
        let core = slot.core;
        if self.running.len() <= core {
            self.running.resize(core + 1, None);
            self.named.resize(core + 1, false);
        }
        if !std::mem::replace(&mut self.named[core], true) {
            let result = self.events.thread_name(Self::track(core), &format!("core {core}"));
            self.keep_error(result);
        }
        let thread = slot.thread.0;
        match &mut self.running[core] {
            Some(running) if running.thread == thread && running.until == slot.start => running.until = until,
            _ => {
                self.flush(core);
                self.running[core] = Some(Running { thread, since: slot.start, until });
            }
        }
    }

    /// Records kernel work on `core`.
    pub(super) fn kernel(&mut self, core: usize, name: &str, begin: Time, takes: Duration) {
        let result = self.events.slice(Self::track(core), name, begin, takes);
        self.keep_error(result);
    }

    fn flush(&mut self, core: usize) {
        let Some(Running { thread, since, until }) = self.running[core].take() else { return };
        let duration = until.checked_since(since).unwrap_or_default();
        let result = self.events.slice(Self::track(core), &format!("thread {thread}"), since, duration);
        self.keep_error(result);
    }

    /// Names the tracks of devices.
    pub(super) fn name_devices(&mut self, names: &[String]) {
        if names.is_empty() {
            return;
        }
        let result = self.events.process_name(DEVICES, "devices");
        self.keep_error(result);
        for (part, name) in names.iter().enumerate() {
            for (track, what) in DeviceTrack::ALL {
                let result =
                    self.events.thread_name(Self::device_track(part, track), &format!("{name} {what}"));
                self.keep_error(result);
            }
        }
    }

    fn device_track(part: usize, track: DeviceTrack) -> Track {
        Track { process: DEVICES, thread: (part * DeviceTrack::ALL.len() + track as usize) as u32 }
    }

    /// Records device activity. Flow events connect a received frame on the wire, the DMA that completes it, the
    /// interrupt that reports it, and the thread that runs next.
    pub(super) fn device(&mut self, slice: &DeviceSlice) {
        let track = Self::device_track(slice.part, slice.track);
        let duration = slice.end.checked_since(slice.begin).unwrap_or_default();
        let written = self.write_device(track, slice, duration);
        self.keep_error(written);
    }

    fn write_device(&mut self, track: Track, slice: &DeviceSlice, duration: Duration) -> io::Result<()> {
        self.events.slice(track, &slice.name, slice.begin, duration)?;
        let is_dma = slice.track == DeviceTrack::Dma;
        for frame in &slice.from {
            self.events.flow_end(
                track,
                FRAME,
                Arrow { frame: *frame, leg: u64::from(!is_dma) }.id(),
                slice.begin,
            )?;
            if is_dma {
                self.events.flow_start(track, FRAME, Arrow { frame: *frame, leg: 1 }.id(), slice.begin)?;
            }
        }
        for frame in &slice.to {
            let leg = if slice.track == DeviceTrack::Interrupt { 2 } else { 0 };
            self.events.flow_start(track, FRAME, Arrow { frame: *frame, leg }.id(), slice.begin)?;
        }
        Ok(())
    }

    /// Connects the thread at `slot` to the interrupts that reported these frames.
    pub(super) fn link_frames(&mut self, slot: ThreadSlot, frames: &[u64]) {
        for frame in frames {
            let id = Arrow { frame: *frame, leg: 2 }.id();
            let result = self.events.flow_end(Self::track(slot.core), FRAME, id, slot.start);
            self.keep_error(result);
        }
    }

    /// Records a marker of the program.
    pub(super) fn mark(&mut self, slot: ThreadSlot, magic: Magic, at: Time) {
        let name = match magic {
            Magic::RegionBegin => "region of interest begins".into(),
            Magic::RegionEnd => "region of interest ends".into(),
            Magic::Checkpoint => "checkpoint".into(),
            Magic::Event(number) => format!("event {number}"),
        };
        let result = self.events.instant(Self::track(slot.core), &name, at);
        self.keep_error(result);
    }

    /// Samples the counters if the interval has elapsed.
    pub(super) fn sample(&mut self, at: Time, cores: &[ModelledCore], memory: &mut MemorySystem) {
        if at < self.next_sample {
            return;
        }
        self.next_sample = at.checked_add(SAMPLE).unwrap_or(at);
        self.last.resize(cores.len(), Sampled::default());
        for (number, core) in cores.iter().enumerate() {
            let now = Sampled { instructions: core.model.instructions(), cycles: core.model.now().0 };
            let before = std::mem::replace(&mut self.last[number], now);
            let instructions = now.instructions.saturating_sub(before.instructions);
            let cycles = now.cycles.saturating_sub(before.cycles);
            if cycles > 0 {
                let ipc = instructions as f64 / cycles as f64;
                let result = self.events.counter(CORES, &format!("core {number} IPC"), at, &[("IPC", ipc)]);
                self.keep_error(result);
            }
        }
        self.write_traffic(Time::from_ps(at.ps().saturating_sub(MAX_LAG.ps())), memory);
    }

    /// Writes the traffic of each component in windows that are complete at `now`. Of consecutive empty windows, only
    /// the first is written.
    pub(super) fn write_traffic(&mut self, now: Time, memory: &mut MemorySystem) {
        for (name, windows) in memory.take_windows(now) {
            for (begin, bytes) in windows {
                let rate = bytes * 1000.0 / SAMPLE.ps() as f64;
                let before = self.last_rates.get(&name).copied().unwrap_or(0.0);
                if rate == 0.0 && before == 0.0 {
                    continue;
                }
                self.last_rates.insert(name.clone(), rate);
                let result = self.events.counter(MEMORY, &format!("{name} GB/s"), begin, &[("GB/s", rate)]);
                self.keep_error(result);
            }
        }
    }

    /// Completes the trace.
    ///
    /// # Errors
    /// The first error that occurred while writing.
    pub(super) fn finish(mut self) -> io::Result<()> {
        (0..self.running.len()).for_each(|core| self.flush(core));
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.events.finish()?.flush(),
        }
    }
}
