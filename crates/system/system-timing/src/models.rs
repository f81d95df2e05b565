//! The models of a machine that runs an operating system: the cores and the memory system of a machine file.

use longma_memory::{Detail, MemorySystem};
use longma_runner::simulation::{Level, SimulationError, timing_model};
use longma_sim::{Clock, Cycle, Duration, Time};
use longma_system::{CoreEvent, Exception, Executed, Machine, Timing};
use longma_timing::{ModelKind, TimingModel};
use longma_topology::Machine as Description;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::port::SystemPort;
use crate::split::{Privilege, Split};

/// The latency of a load from a device register. An estimate: a read over PCI Express takes 500 to 900 ns on servers
/// (Neugebauer et al., Understanding PCIe performance for end host networking, SIGCOMM 2018). Stores are posted.
const DEVICE_READ: Duration = Duration::from_ps(500_000);

const PS_PER_NS: u64 = 1000;

/// The reason why a machine cannot be modelled.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// The level has no models.
    #[error("level `functional` has no models: use `cache` or `timing`")]
    Level,
    /// The machine file has too few cores.
    #[error(
        "machine {machine} has {described} cores, and {cores} are booted: give --cores {described} or less"
    )]
    Cores {
        /// The machine's name.
        machine: String,
        /// The cores of its first host.
        described: usize,
        /// The cores to boot.
        cores: usize,
    },
    /// A part of the machine cannot be modelled.
    #[error(transparent)]
    Machine(#[from] SimulationError),
}

/// One core's models.
struct ModelledCore {
    model: TimingModel,
    clock: Clock,
    split: Split,
}

impl ModelledCore {
    /// The cycle at a time in nanoseconds.
    fn cycle_at(&self, ns: u64) -> Cycle {
        Cycle(self.clock.cycle_at(Time::from_ps(ns.saturating_mul(PS_PER_NS))))
    }

    /// The time that the model has reached, in nanoseconds; 0 after 213 days.
    fn time_ns(&self) -> u64 {
        self.clock.start_of(self.model.now().0).map_or(0, |time| time.ps() / PS_PER_NS)
    }

    fn charge(&mut self, to: Privilege) {
        let stack = self.model.stack();
        self.split.charge(to, stack.as_ref(), self.model.branches());
    }
}

/// The models. They time the execution of the cores in `Machine::run_observed`.
pub struct SystemModels {
    description: Arc<Description>,
    level: Level,
    seed: u64,
    memory: MemorySystem,
    cores: Vec<ModelledCore>,
    /// The time at which counting began, in nanoseconds; `None` while counting is off.
    counted_since: Option<u64>,
    counted_ns: u64,
    regions: u32,
    /// Exceptions and interrupts by name, and accesses to devices.
    pub(crate) exceptions: BTreeMap<&'static str, u64>,
    pub(crate) device_accesses: u64,
}

impl SystemModels {
    /// Builds the models of the first host of `description` for a machine with `cores` cores, with cold caches.
    ///
    /// # Errors
    /// The machine file has fewer cores, or describes something that cannot be modelled.
    pub fn new(
        description: Arc<Description>,
        level: Level,
        cores: usize,
        seed: u64,
    ) -> Result<Self, ModelsError> {
        let (detail, kind) = match level {
            Level::Functional => return Err(ModelsError::Level),
            Level::Cache => (Detail::Counts, Some(ModelKind::Counting)),
            Level::Timing(kind) => (Detail::Timing, kind),
        };
        let machine = description.name.clone();
        let host = description.layout().hosts.first();
        let described = host.map_or(0, |host| host.cores.len());
        if described < cores {
            return Err(ModelsError::Cores { machine, described, cores });
        }
        let mut memory = MemorySystem::new(&description, 0, detail, seed).map_err(SimulationError::Memory)?;
        memory.use_physical_addresses();
        let modelled: Result<Vec<_>, SimulationError> =
            (0..cores).map(|number| modelled_core(&description, number, kind)).collect();
        Ok(Self {
            cores: modelled?,
            description,
            level,
            seed,
            memory,
            counted_since: None,
            counted_ns: 0,
            regions: 0,
            exceptions: BTreeMap::new(),
            device_accesses: 0,
        })
    }

    /// The machine file.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The level.
    pub fn level(&self) -> Level {
        self.level
    }

    /// The seed of random replacement.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The number of regions of interest that have begun.
    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// The simulated time that was counted.
    pub fn counted(&self) -> Duration {
        Duration::from_ps(self.counted_ns.saturating_mul(PS_PER_NS))
    }

    pub(crate) fn memory(&self) -> &MemorySystem {
        &self.memory
    }

    /// The model and the split of each core.
    pub(crate) fn cores(&self) -> impl Iterator<Item = (&TimingModel, &Split)> {
        self.cores.iter().map(|core| (&core.model, &core.split))
    }

    /// Advances the models to the time of `machine`, whose cores have executed without them.
    pub fn join(&mut self, machine: &Machine) {
        for (number, core) in self.cores.iter_mut().enumerate() {
            core.model.pass_to(core.cycle_at(machine.core_cycles(number)));
        }
    }

    /// Begins to count. The first call sets all counts to 0; earlier execution only warms the models. Has no effect
    /// while counting.
    pub fn begin(&mut self, machine: &Machine) {
        if self.counted_since.is_some() {
            return;
        }
        if self.regions == 0 {
            self.memory.clear_statistics();
            self.exceptions.clear();
            self.device_accesses = 0;
            for core in &mut self.cores {
                core.model.reset();
                core.split = Split::default();
            }
        }
        self.regions += 1;
        self.counted_since = Some(reached(machine));
    }

    /// Ends counting, once all accesses of the cores are complete. Has no effect if counting is off.
    pub fn end(&mut self, machine: &Machine) {
        let Some(since) = self.counted_since.take() else { return };
        let mut now = reached(machine);
        for core in &mut self.cores {
            core.model.complete();
            core.charge(Privilege::Kernel);
            now = now.max(core.time_ns());
        }
        self.counted_ns += now.saturating_sub(since);
    }
}

impl Timing for SystemModels {
    fn execute(&mut self, executed: &Executed<'_>) -> u64 {
        let core = &mut self.cores[executed.core];
        let mut port = SystemPort { port: self.memory.port(executed.core), pages: executed.pages };
        core.model.drain(executed.trace, executed.code, &mut port);
        core.charge(Privilege::of(executed.is_user));
        core.time_ns()
    }

    fn happen(&mut self, core: usize, is_user: bool, event: CoreEvent) -> u64 {
        let core = &mut self.cores[core];
        let now = core.model.now();
        match event {
            CoreEvent::Waited(until) => core.model.advance_to(core.cycle_at(until)),
            CoreEvent::Exception(exception) => {
                *self.exceptions.entry(name_of(exception)).or_default() += 1;
                core.model.kernel_until(now + 1);
            }
            CoreEvent::DeviceAccess { is_load, until } => {
                self.device_accesses += 1;
                let read =
                    Cycle(core.clock.cycle_at(Time::ZERO.checked_add(DEVICE_READ).unwrap_or(Time::ZERO)));
                let waits = if is_load { read.0.max(1) } else { 1 };
                let ready = core.cycle_at(until).max(now + waits);
                core.model.access_device_until(ready);
            }
        }
        core.charge(Privilege::of(is_user));
        core.time_ns()
    }
}

/// The cycle of the most advanced core. The machine's cycle is that of its last turn.
fn reached(machine: &Machine) -> u64 {
    (0..machine.cores()).map(|core| machine.core_cycles(core)).max().unwrap_or(0)
}

fn modelled_core(
    description: &Description,
    number: usize,
    kind: Option<ModelKind>,
) -> Result<ModelledCore, SimulationError> {
    let name = description.layout().hosts[0].cores[number].core.as_str();
    let hz = description.cores[name].clock.hz();
    let clock = Clock::new(hz).map_err(|error| SimulationError::Clock { core: name.into(), error })?;
    Ok(ModelledCore { model: timing_model(description, 0, number, kind)?, clock, split: Split::default() })
}

/// The name of an exception in statistics.
fn name_of(exception: Exception) -> &'static str {
    match exception {
        Exception::Interrupt(_) => "interrupts",
        Exception::TlbRefill => "tlb_refills",
        Exception::Syscall => "system_calls",
        Exception::PageInvalid(_)
        | Exception::PageModified
        | Exception::NotReadable
        | Exception::NotExecutable
        | Exception::PagePrivilege => "page_faults",
        Exception::FloatDisabled
        | Exception::Vector128Disabled
        | Exception::Vector256Disabled
        | Exception::TranslationDisabled => "disabled_units",
        _ => "others",
    }
}
