//! The timing model of a host: runs the instruction traces of threads through the timing models of cores and the memory
//! system. Source: the split into functional execution and timing with a trace between them is ZSim's (Sanchez and
//! Kozyrakis, ISCA 2013).

mod annotation;
mod check;
mod config;
mod functions;
mod intervals;
mod kernel_execution;
mod limits;
mod programs;
mod quantum;
mod replay;
mod result;
mod sampling;
#[cfg(test)]
mod tests;
mod timeline;
mod warming;

use longma_locks::IgnorePoison;
use std::{fmt, io, sync::Arc};

use longma_core::{Core, Magic, Stop};
use longma_guest::host::locks::Mutex;
use longma_linux::{DeviceFile, TransferredMemory};
use longma_memory::{Detail, MemorySystem, placement::SpaceId};
use longma_sim::{Clock, Cycle, Duration, Manifest, Region, Statistics, StatisticsError, Time};
use longma_timing::{FetchOptions, ModelKind, TimingModel};
use longma_topology::{
    Machine,
    parts::{CacheKind, SYSTEM_CALL},
};

use crate::{
    Ending, Report,
    devices::{Devices, Published},
    kernel_model::{Costs, Kernel},
    schedule::{DeviceClock, KernelWork, ThreadSlot, TimingBackend},
};
pub use annotation::{AnnotatedFunction, AnnotatedInstruction, AnnotatedSelection, Annotation, Cost};
pub use check::refusals;
pub use config::{Level, Save, SimulationError, TimingSimulationConfig, WARMED_INSTRUCTIONS, Warm};
pub use functions::FunctionTime;
use intervals::Intervals;
use kernel_execution::KernelCounts;
pub use limits::{Limits, Snapshots};
pub use longma_memory::{Traffic, placement::Policy};
use programs::EarlierPrograms;
use replay::Recording;
pub use replay::RecordingError;
pub use result::{ResultError, RunResult, Summary};
use sampling::Sampler;
pub use sampling::{Estimate, INTERVAL, MIN_UNITS, SamplingError, SamplingPlan, SamplingReport};
pub use timeline::{Timeline, TraceWriter};
use warming::{Warming, shifted};

/// The memory size that programs observe if the machine file states none.
const DEFAULT_MEMORY_BYTES: u64 = 16 << 30;

/// Whether instructions are currently counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Instructions run through the models.
    Counted,
    /// Outside the region of interest: each instruction takes one cycle, and statistics are not counted.
    Passed,
}

/// A core with its clock.
struct ModelledCore {
    model: TimingModel,
    clock: Clock,
    /// How far the core's cycles are ahead of the program's time, because replaying the warm-up took model time.
    lead: Duration,
    /// The core's cycle while instructions are not counted. The model does not advance during this time.
    passed: Cycle,
    /// Runs the trace through the caches while instructions are not counted, for [`Warm::All`].
    warmer: Option<TimingModel>,
    /// The minimum cycles of a system call.
    system_call_cycles: u64,
    /// Trace words and cycles of the last part of a turn.
    last_part: (u64, u64),
    /// The kernel work done on this core.
    kernel: KernelCounts,
    /// The time of the next timer tick, if there are ticks.
    next_tick: Time,
}

impl ModelledCore {
    /// The cycle at `time`.
    fn cycle_at(&self, time: Time) -> Cycle {
        Cycle(self.clock.cycle_at(shifted(time, self.lead)))
    }

    /// The time at which `cycle` starts; `None` beyond the end of simulated time, 213 days.
    fn start_of(&self, cycle: Cycle) -> Option<Time> {
        let start = self.clock.start_of(cycle.0)?;
        Some(Time::from_ps(start.ps().saturating_sub(self.lead.ps())))
    }
}

/// The timing models of a host.
pub struct TimingSimulation {
    config: TimingSimulationConfig,
    memory: MemorySystem,
    devices: Devices,
    cores: Vec<ModelledCore>,
    kernel: Arc<Kernel>,
    phase: Phase,
    warming: Warming,
    /// Selects the instructions that are timed, unless all are.
    sampler: Option<Box<Sampler>>,
    /// The start of the current counting period, and the total length of the previous ones.
    counted_since: Time,
    counted_before: Duration,
    regions: u32,
    threads: usize,
    /// The latest time that any core has reached.
    end: Time,
    /// Summaries of the run so far, if they are requested.
    intervals: Option<Intervals>,
    /// The ChampSim trace of the counted instructions, if one is written.
    recording: Option<Recording>,
    /// The programs that the process has replaced by others.
    earlier: EarlierPrograms,
}

impl fmt::Debug for TimingSimulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimingSimulation")
            .field("phase", &self.phase)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl TimingSimulation {
    /// Builds the models of the configured host, with cold caches.
    ///
    /// # Errors
    /// The machine file describes something that cannot be modelled.
    pub fn new(mut config: TimingSimulationConfig) -> Result<Self, SimulationError> {
        let machine = config.machine.clone();
        let hosts = &machine.layout().hosts;
        let host = hosts.get(config.host).ok_or_else(|| SimulationError::NoHost {
            machine: machine.name.clone(),
            host: config.host,
            hosts: hosts.len(),
        })?;
        if host.cores.is_empty() {
            return Err(SimulationError::NoCore(machine.name.clone()));
        }
        let mut memory = MemorySystem::new(&machine, config.host, config.level.detail(), config.seed)?;
        memory.spaces().set_policy(SpaceId(0), config.placement.clone())?;
        let kernel = Arc::new(Kernel::new(Costs::of(&machine, config.host)));
        let mut devices = Devices::new(&machine, config.host, &mut memory, &config.wires, kernel.clone())?;
        if let Some(timeline) = &mut config.timeline {
            timeline.name_devices(&devices.names());
            devices.record_activity();
            memory.watch_traffic(config.restored_at.unwrap_or_default(), timeline::SAMPLE);
        }
        let kind = match config.level {
            Level::Functional | Level::Cache => Some(ModelKind::Counting),
            Level::Timing(kind) => kind,
        };
        let mut cores = (0..host.cores.len())
            .map(|core| model_core(&machine, config.host, core, kind))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(start) = config.restored_at {
            cores.iter_mut().for_each(|core| core.model.pass_to(core.cycle_at(start)));
        }
        if let Some(interval) = kernel.costs().tick_interval {
            cores.iter_mut().for_each(|core| core.next_tick = Time::from_ps(interval.ps()));
        }
        let models = config.level != Level::Functional;
        let counts = models && (config.region == Region::Whole || config.restored_at.is_some());
        let phase = if counts { Phase::Counted } else { Phase::Passed };
        let warmed = match config.warm {
            Warm::Last(instructions) if models && !counts => instructions,
            _ => 0,
        };
        if models && !counts && config.warm == Warm::All {
            memory.set_detail(Detail::Counts);
            for (number, core) in cores.iter_mut().enumerate() {
                core.warmer = Some(timing_model(&machine, config.host, number, Some(ModelKind::Counting))?);
            }
        }
        let start = config.restored_at.unwrap_or_default();
        let mut sampler = config.sampling.map(|plan| Box::new(Sampler::new(plan, config.seed)));
        let mut simulation = Self {
            warming: Warming::new(warmed),
            sampler: None,
            config,
            memory,
            devices,
            cores,
            kernel,
            phase,
            counted_since: start,
            counted_before: Duration::ZERO,
            regions: u32::from(start > Time::ZERO),
            threads: 0,
            end: start,
            intervals: None,
            recording: None,
            earlier: EarlierPrograms::default(),
        };
        if let Some(sampler) = &mut sampler {
            simulation.begin_sampling(sampler);
        }
        simulation.sampler = sampler;
        Ok(simulation)
    }

    /// The NUMA node of each core.
    pub fn core_nodes(machine: &Machine, host: usize) -> Vec<usize> {
        machine.layout().hosts.get(host).map_or_else(Vec::new, |h| h.cores.iter().map(|c| c.node).collect())
    }

    /// Runs the trace through the core's model, or adds its length to the core's time if instructions are not counted.
    fn account(&mut self, number: usize, guest: &mut Core) {
        if let Some(mut sampler) = self.sampler.take() {
            self.account_sampled(number, guest, &mut sampler);
            self.sampler = Some(sampler);
            return;
        }
        let core = &mut self.cores[number];
        match self.phase {
            Phase::Counted => {
                if let Some(recording) = &mut self.recording {
                    recording.append(self.threads, guest.trace(), &*guest);
                }
                let mut port = self.memory.port(number);
                port.set_space(SpaceId(0));
                core.model.drain(guest.trace(), &*guest, &mut port);
            }
            Phase::Passed => {
                let from = core.start_of(core.passed).unwrap_or_default();
                let traced = guest.trace().instructions();
                core.passed = core.passed + traced + guest.take_untraced_instructions();
                let to = core.start_of(core.passed).unwrap_or(from);
                let begin = core.cycle_at(from);
                if let Some(warmer) = &mut core.warmer {
                    let mut port = self.memory.port(number);
                    port.set_space(SpaceId(0));
                    warmer.pass_to(begin);
                    warmer.drain(guest.trace(), &*guest, &mut port);
                }
                self.warming.keep(number, from, to, guest.trace());
            }
        }
    }

    /// Whether accesses have the latencies of the machine.
    fn is_timed(&self) -> bool {
        matches!(self.config.level, Level::Timing(_))
    }

    /// The current cycle of core `number`.
    fn now(&self, number: usize) -> Cycle {
        let core = &self.cores[number];
        match self.phase {
            Phase::Counted => core.model.now(),
            Phase::Passed => core.passed,
        }
    }

    /// The current time of core `number`, at least `start`.
    fn time(&self, number: usize, start: Time) -> Time {
        self.cores[number].start_of(self.now(number)).unwrap_or(start).max(start)
    }

    /// Handles a magic instruction at `at`. Returns the time at which the program continues.
    fn magic(&mut self, slot: ThreadSlot, magic: Magic, at: Time, guest: &Core) -> Time {
        let mut then = at;
        let of_interest = self.config.region == Region::OfInterest && self.config.level != Level::Functional;
        match magic {
            Magic::RegionBegin if of_interest && self.phase == Phase::Passed => {
                then = self.begin_region(slot.core, at, guest);
            }
            Magic::RegionEnd if of_interest && self.phase == Phase::Counted => {
                then = self.end_region(slot.core, at);
            }
            Magic::RegionBegin | Magic::RegionEnd | Magic::Checkpoint | Magic::Event(_) => {}
        }
        if matches!(magic, Magic::RegionBegin | Magic::Checkpoint)
            && let Some(save) = self.config.save.take()
        {
            save();
        }
        if let Some(timeline) = &mut self.config.timeline {
            timeline.mark(slot, magic, then);
        }
        then
    }

    /// Replays the stored instructions through the models. This takes more cycles than one an instruction. The
    /// difference becomes the cores' lead over the program's time, so that no time passes for the program and its
    /// devices.
    fn warm_up(&mut self, guest: &Core) {
        let (mut shift, mut ends) = (Duration::ZERO, vec![None; self.cores.len()]);
        for quantum in self.warming.take() {
            let core = &mut self.cores[quantum.core];
            core.model.pass_to(Cycle(core.clock.cycle_at(shifted(quantum.from, shift))));
            let mut port = self.memory.port(quantum.core);
            port.set_space(SpaceId(0));
            core.model.drain(&quantum.trace, guest, &mut port);
            let end = core.clock.start_of(core.model.now().0).unwrap_or(quantum.to);
            shift = shift.max(end.checked_since(quantum.to).unwrap_or_default());
            ends[quantum.core] = Some(quantum.to);
        }
        for (core, to) in self.cores.iter_mut().zip(ends) {
            let Some(to) = to else { continue };
            // Complete pending accesses, which are not part of the region.
            core.model.complete();
            let end = core.clock.start_of(core.model.now().0).unwrap_or(to);
            shift = shift.max(end.checked_since(to).unwrap_or_default());
        }
        if shift > Duration::ZERO {
            self.cores.iter_mut().for_each(|core| core.lead = shift);
            self.memory.set_lead(shift);
        }
    }

    /// Starts counting. The first region starts with warm models, later ones continue with the state of the previous
    /// one. Returns the time at which `core` continues.
    fn begin_region(&mut self, core: usize, at: Time, guest: &Core) -> Time {
        self.warm_up(guest);
        let at = at.max(self.cores[core].start_of(self.cores[core].model.now()).unwrap_or(at));
        if self.regions == 0 {
            self.memory.clear_statistics();
            self.devices.clear_counts();
            if self.config.timeline.is_some() {
                self.memory.watch_traffic(at, timeline::SAMPLE);
            }
            for core in &mut self.cores {
                core.model.reset();
                core.kernel = KernelCounts::default();
            }
            self.earlier.clear_counts();
        }
        self.cores.iter_mut().for_each(|core| core.warmer = None);
        self.memory.set_detail(self.config.level.detail());
        // Cores that executed nothing during the setup would otherwise count the setup as idle time.
        for core in &mut self.cores {
            core.model.pass_to(core.cycle_at(at));
        }
        self.regions += 1;
        self.counted_since = at;
        self.phase = Phase::Counted;
        at
    }

    /// Stops counting after all pending accesses of all cores are complete. `core` reached the end at `at`; returns the
    /// time at which it continues.
    fn end_region(&mut self, core: usize, at: Time) -> Time {
        self.cores.iter_mut().for_each(|core| core.model.complete());
        let at = self.time(core, at);
        self.counted_before = self.counted_time(at);
        self.phase = Phase::Passed;
        self.cores.iter_mut().for_each(|core| core.passed = core.model.now());
        at
    }

    /// Completes all pending accesses at the end of the program.
    pub fn finish(&mut self) {
        if self.phase == Phase::Passed {
            return;
        }
        for number in 0..self.cores.len() {
            self.cores[number].model.complete();
            self.end = self.time(number, self.end);
        }
    }

    /// The simulated time that was counted up to `at`.
    fn counted_time(&self, at: Time) -> Duration {
        match self.phase {
            Phase::Passed => self.counted_before,
            Phase::Counted => {
                let more = at.checked_since(self.counted_since).unwrap_or_default();
                self.counted_before.checked_add(more).unwrap_or(self.counted_before)
            }
        }
    }

    /// The memory size that programs observe, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let hosts = &self.config.machine.layout().hosts;
        let nodes = hosts.get(self.config.host).map_or(&[][..], |host| &host.nodes);
        let stated = nodes.iter().filter_map(|node| node.memory_bytes).reduce(u64::saturating_add);
        stated.filter(|bytes| *bytes > 0).unwrap_or(DEFAULT_MEMORY_BYTES)
    }

    /// The name of the first core's model; `None` at level `cache`.
    pub fn core_model(&self) -> Option<&'static str> {
        match self.cores.first()?.model.kind() {
            ModelKind::Counting => None,
            ModelKind::InOrder => Some("in-order"),
            ModelKind::OutOfOrder => Some("out-of-order"),
        }
    }

    /// The number of regions of interest that began.
    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// The result of a run that has ended.
    ///
    /// # Errors
    /// A sampled run cannot be estimated; or two parts of the model use the same statistic name, which is a bug in the
    /// models.
    pub fn result(
        &self,
        manifest: Manifest,
        ending: Ending,
        report: &Report<'_>,
    ) -> Result<RunResult, ResultError> {
        if let Some(sampler) = &self.sampler {
            return Ok(self.sampled_result(sampler, manifest, ending, report)?);
        }
        let blocks = self.cores.iter().flat_map(|core| {
            let width = core.model.stack().map_or(1, |stack| stack.width());
            core.model.blocks().map(move |(number, counts)| (number, counts, width))
        });
        let symbols = report.symbols();
        let source = self.earlier.source(report, &result::executed(self, report), 1.0);
        let mut statistics = self.statistics()?;
        result::add_source(source, &mut statistics)?;
        Ok(RunResult {
            manifest,
            ending,
            source,
            summary: Summary::of(self),
            traffic: self.memory.traffic(),
            statistics,
            functions: functions::by_function(blocks, |number| self.location_of(report, &symbols, number)),
            programs: self.programs(report),
            intervals: self.intervals(),
            sampling: None,
            stopped: self.stopped(),
        })
    }

    /// All statistics.
    ///
    /// # Errors
    /// Two parts of the model use the same statistic name, which is a bug in the models.
    pub fn statistics(&self) -> Result<Statistics, StatisticsError> {
        self.add_to(Statistics::default())
    }

    /// All possible statistics, including those that are zero and those of idle cores.
    ///
    /// # Errors
    /// Two parts of the model use the same statistic name, which is a bug in the models.
    pub fn measurable(&self) -> Result<Statistics, StatisticsError> {
        self.add_to(Statistics::complete())
    }

    fn add_to(&self, mut statistics: Statistics) -> Result<Statistics, StatisticsError> {
        result::add_run(self, &mut statistics)?;
        for (number, core) in self.cores.iter().enumerate() {
            if statistics.wants(core.model.instructions() + core.kernel.total()) {
                core.model.statistics(&mut statistics, &format!("core{number}"))?;
                core.kernel.report(&mut statistics, &format!("core{number}.kernel"))?;
            }
        }
        self.memory.report(&mut statistics, self.counted_time(self.end))?;
        self.devices.report(&mut statistics)?;
        Ok(statistics)
    }

    /// Completes the trace, if one is written.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn finish_timeline(&mut self) -> io::Result<()> {
        let Some(mut timeline) = self.config.timeline.take() else { return Ok(()) };
        let end = self.end.checked_add(timeline::SAMPLE).unwrap_or(self.end);
        timeline.write_traffic(end, &mut self.memory);
        timeline.finish()
    }
}

/// Builds the model and the clock of core `number`.
fn model_core(
    machine: &Machine,
    host: usize,
    number: usize,
    kind: Option<ModelKind>,
) -> Result<ModelledCore, SimulationError> {
    let layout = &machine.layout().hosts[host];
    let os = machine.hosts[layout.of].os.as_ref();
    let name = layout.cores[number].core.as_str();
    let core = &machine.cores[name];
    let clock =
        Clock::new(core.clock.hz()).map_err(|error| SimulationError::Clock { core: name.into(), error })?;
    let system_call = os.and_then(|os| os.system_call).unwrap_or(SYSTEM_CALL);
    Ok(ModelledCore {
        model: timing_model(machine, host, number, kind)?,
        clock,
        lead: Duration::ZERO,
        passed: Cycle(0),
        warmer: None,
        system_call_cycles: system_call.cycles(core.clock),
        last_part: (0, 0),
        kernel: KernelCounts::default(),
        next_tick: Time::ZERO,
    })
}

/// Builds the timing model of core `number` of a host, of the given kind or the kind in the machine file.
///
/// # Errors
/// The machine file describes a core that cannot be modelled.
///
/// # Panics
/// If the machine has no such host or core.
pub fn timing_model(
    machine: &Machine,
    host: usize,
    number: usize,
    kind: Option<ModelKind>,
) -> Result<TimingModel, SimulationError> {
    let layout = &machine.layout().hosts[host];
    let instance = &layout.cores[number];
    let core = &machine.cores[instance.core.as_str()];
    let mut caches =
        instance.caches.iter().map(|&cache| &machine.caches[layout.caches[cache].cache.as_str()]);
    let fetch = caches.find(|c| c.level == 1 && c.kind != CacheKind::Data);
    let defaults = FetchOptions::default();
    let fetch = fetch.map_or(defaults, |cache| FetchOptions {
        hit_cycles: cache.latency.map_or(defaults.hit_cycles, |latency| latency.cycles(core.clock)),
        line_bytes: cache.line.bytes(),
    });
    TimingModel::new(core, kind, fetch)
        .map_err(|error| SimulationError::Core { core: instance.core.clone(), error })
}

/// A simulation shared by the threads that run it and the one that reports its result.
pub type SharedTimingSimulation = Arc<Mutex<TimingSimulation>>;

/// The devices of a simulation, as the scheduler sees them.
struct SharedDevices {
    simulation: SharedTimingSimulation,
    published: Arc<Published>,
}

impl DeviceClock for SharedDevices {
    fn next_event(&self) -> Option<Time> {
        self.published.next_event()
    }

    fn advance(&self, limit: Time) {
        let mut simulation = self.simulation.lock().ignore_poison();
        let simulation = &mut *simulation;
        simulation.devices.advance_to_event(limit, &mut simulation.memory);
    }

    fn take_ready(&self) -> Option<(Time, usize)> {
        self.published.take_ready()
    }
}

impl TimingBackend for SharedTimingSimulation {
    fn devices(&self) -> Option<Arc<dyn DeviceClock>> {
        let published = self.lock().ignore_poison().devices.published();
        Some(Arc::new(SharedDevices { simulation: self.clone(), published }))
    }

    fn device_files(&self) -> Arc<[DeviceFile]> {
        self.lock().ignore_poison().devices.files()
    }

    fn kernel(&self) -> Option<KernelWork> {
        Some(KernelWork(self.lock().ignore_poison().kernel.clone()))
    }

    fn run(&self, slot: ThreadSlot, guest: &mut Core) -> (Stop, Time) {
        self.lock().ignore_poison().run_quantum(slot, guest)
    }

    fn enter_kernel(&self, slot: ThreadSlot) -> Time {
        self.lock().ignore_poison().run_system_call(slot)
    }

    fn leave_kernel(&self, slot: ThreadSlot, copied: &[TransferredMemory]) -> Time {
        self.lock().ignore_poison().copy_in_kernel(slot, copied)
    }
}

impl TimingSimulation {
    /// Wraps the simulation for sharing between threads.
    pub fn shared(self) -> SharedTimingSimulation {
        Arc::new(Mutex::new(self))
    }
}
