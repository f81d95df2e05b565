//! The tuner: keeps each flow and its application on one socket, on different cores that share a cache, and logs the
//! reasons. `plan` proposes changes, `damping` prevents oscillation, and `journal` undoes the changes.
//!
//! Source: Hanford et al. 2014, "future work". Like bpftune, it reports what it changes and why, and leaves a setting
//! alone when another program changes it.

pub mod damping;
pub mod history;
mod layout;
pub mod log;
pub mod metrics;
pub mod model;
mod placement;
pub mod plan;
pub mod service;

use crate::journal::{Journal, JournalError};
use crate::setting::{Interface, Setting};
use crate::watch::{Flow, Observation, Protocol, Queue, Thread};
use damping::{ChangeDamper, Verdict};
use log::{Decision, DecisionKind};
use longma_cpu_set::CpuSet;
use model::{Assignment, Model};
use plan::{Move, Moved};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Minimum interval between observations.
pub const MIN_INTERVAL: Duration = Duration::from_millis(1000);
/// Maximum interval between observations. Together with [`CONFIRM_INTERVAL`] and the time of the observations, it lets
/// the tuner respond to a change within two seconds.
pub const MAX_INTERVAL: Duration = Duration::from_millis(1500);
/// Fraction of one core that observing may use, within the limits on the interval.
const OBSERVATION_COST: f64 = 0.004;

/// Interval after an observation that used the given CPU time.
pub fn pause(cost: Duration) -> Duration {
    cost.div_f64(OBSERVATION_COST).clamp(MIN_INTERVAL, MAX_INTERVAL)
}

/// Interval between the observation that proposes a change and the one that confirms it.
pub const CONFIRM_INTERVAL: Duration = Duration::from_millis(300);

/// Fraction of one core that searching for inherited affinities may use. The search becomes rarer as it takes longer.
const INHERITED_COST: f64 = 0.001;

/// Bytes of a thread's name that the kernel keeps (TASK_COMM_LEN without the terminating zero).
const NAME_BYTES: usize = 15;

/// Maximum number of settings and messages to remember.
const MAX_REMEMBERED: usize = 20_000;

/// Objects that the tuner must not change.
#[derive(Clone, Debug, Default)]
pub struct Exclusions {
    /// Only use these CPUs; `None` allows all.
    pub cpus: Option<CpuSet>,
    /// Interrupts to leave alone.
    pub irqs: BTreeSet<u32>,
    /// Processes to leave alone, by ID, by the name of any of their threads, or by program name.
    pub processes: BTreeSet<String>,
    /// Ports, local or remote, whose flows are ignored.
    pub ports: BTreeSet<u16>,
    /// Bytes per second that the flows of a thread must carry together; otherwise it and its flows are left alone.
    pub min_bytes: f64,
}

impl Exclusions {
    /// Returns whether a thread's process is excluded.
    fn has(&self, thread: &Thread) -> bool {
        let is_called = |name: &String| {
            let short = name.as_bytes().get(..NAME_BYTES).unwrap_or(name.as_bytes());
            thread.names.iter().chain([&thread.name]).any(|of| of == name || of.as_bytes() == short)
        };
        self.processes.contains(&thread.process.to_string()) || self.processes.iter().any(is_called)
    }
}

/// State of the tuner between observations.
pub struct Tuner {
    exclusions: Exclusions,
    damper: ChangeDamper<Setting>,
    /// The value written to each setting; in a dry run, the value that would have been written.
    ours: BTreeMap<Setting, CpuSet>,
    /// Settings that another program changed or the kernel rejected.
    given_up: BTreeSet<Setting>,
    /// Messages already logged.
    logged: BTreeSet<String>,
    /// The time of the next search for inherited affinities.
    next_inherited_search: Duration,
}

impl Tuner {
    /// Creates a tuner.
    pub fn new(exclusions: Exclusions) -> Self {
        let (ours, given_up, logged, next_inherited_search) = Default::default();
        Self { exclusions, damper: ChangeDamper::new(), ours, given_up, logged, next_inherited_search }
    }

    /// Decides on an observation made at time `now`, measured from the start, and applies the changes. Without a
    /// journal it makes a dry run.
    ///
    /// # Errors
    /// If the journal cannot be written. In that case, nothing is changed.
    pub fn step(
        &mut self,
        observation: &Observation,
        mut journal: Option<&mut Journal<'_>>,
        now: Duration,
    ) -> Result<Vec<Decision>, JournalError> {
        let mut decisions = Vec::new();
        for missing in &observation.missing {
            self.log(DecisionKind::Missing, "host", missing, &mut decisions);
        }
        self.forget(observation);
        if let Some(journal) = journal.as_deref_mut() {
            if now >= self.next_inherited_search {
                let begin = Instant::now();
                journal.inherit()?;
                self.next_inherited_search = now + begin.elapsed().div_f64(INHERITED_COST);
            }
            for error in journal.foreign() {
                self.give_up(&error, &mut decisions);
            }
        }
        let (model, assignment) = self.model(observation, &mut decisions);
        let moves = plan::plan(&model, &assignment);
        let settings: Vec<Setting> =
            moves.iter().map(|change| self.setting(observation, change.what)).collect();
        let verdicts = self.damper.judge(&settings, now);
        for ((change, setting), verdict) in moves.iter().zip(settings).zip(verdicts) {
            match verdict {
                Verdict::Wait => {}
                Verdict::Hold => {
                    let words = format!(
                        "it was changed {} times within {} s: it stays unchanged for now",
                        damping::MAX_CHANGES,
                        damping::WINDOW.as_secs()
                    );
                    self.log(
                        DecisionKind::LeftAlone,
                        &name(observation, change.what),
                        &words,
                        &mut decisions,
                    );
                }
                Verdict::Make => {
                    let why = reason(observation, &model, &assignment, change);
                    match self.make(setting, change, journal.as_deref_mut())? {
                        Ok(()) => decisions.push(self.moved(
                            observation,
                            change,
                            &assignment,
                            why,
                            journal.is_some(),
                        )),
                        Err(error) => self.give_up(&error, &mut decisions),
                    }
                }
            }
        }
        Ok(decisions)
    }

    /// Returns whether the next observation should come soon.
    pub fn is_waiting(&self) -> bool {
        self.damper.is_waiting()
    }

    /// Makes a change. The outer error is the journal's, the inner one the setting's.
    fn make(
        &mut self,
        setting: Setting,
        change: &Move,
        journal: Option<&mut Journal<'_>>,
    ) -> Result<Result<(), JournalError>, JournalError> {
        let value = match setting {
            Setting::Rps { .. } => change.to.mask(),
            _ => change.to.to_string(),
        };
        match journal.map_or(Ok(()), |journal| journal.set(&setting, &value)) {
            Ok(()) => {
                self.ours.insert(setting, change.to.clone());
                Ok(Ok(()))
            }
            Err(
                error @ (JournalError::Foreign { .. }
                | JournalError::Refused { .. }
                | JournalError::Renamed { .. }),
            ) => Ok(Err(error)),
            Err(error) => Err(error),
        }
    }

    fn moved(
        &self,
        observation: &Observation,
        change: &Move,
        from: &Assignment,
        why: String,
        is_done: bool,
    ) -> Decision {
        let before = match change.what {
            Moved::Queue(index) => {
                from.queues[index].map_or("where packets arrive".into(), |cpu| cpu.to_string())
            }
            Moved::Thread(index) => observation.threads[index].bound.to_string(),
        };
        let act = if is_done { DecisionKind::Moved } else { DecisionKind::WouldMove };
        Decision {
            from: Some(before),
            to: Some(change.to.to_string()),
            ..Decision::new(act, name(observation, change.what), why)
        }
    }

    /// Stops managing a setting after an error.
    fn give_up(&mut self, error: &JournalError, decisions: &mut Vec<Decision>) {
        let (setting, words) = match error {
            JournalError::Foreign { setting, found, ours } => (
                setting,
                format!("another program set it to `{found}` after this program set it to `{ours}`"),
            ),
            JournalError::Renamed { setting, .. } => (setting, error.to_string()),
            JournalError::Refused { setting, value, error }
                if error.kind() == std::io::ErrorKind::NotFound =>
            {
                (setting, format!("it ended before it could be moved to CPUs {value}"))
            }
            JournalError::Refused { setting: setting @ Setting::Irq(_), value, error } => {
                let advice = "its driver manages it; applications still follow it";
                (setting, format!("the kernel refuses to move it to CPU {value} ({error}): {advice}"))
            }
            JournalError::Refused { setting, value, error } => {
                (setting, format!("the kernel refuses CPUs {value} ({error})"))
            }
            _ => return,
        };
        self.ours.remove(setting);
        if self.given_up.insert(setting.clone()) {
            self.log(DecisionKind::LeftAlone, &setting.to_string(), &words, decisions);
        }
    }

    /// Drops threads without flows when too much is remembered. Most of them have ended.
    fn forget(&mut self, observation: &Observation) {
        if self.ours.len() + self.given_up.len() + self.logged.len() < MAX_REMEMBERED {
            return;
        }
        let threads: BTreeSet<Setting> = observation.threads.iter().map(Thread::setting).collect();
        let stays =
            |setting: &Setting| !matches!(setting, Setting::Thread { .. }) || threads.contains(setting);
        self.given_up.retain(stays);
        self.ours.retain(|setting, _| stays(setting));
        self.logged.clear();
    }

    fn log(&mut self, act: DecisionKind, subject: &str, words: &str, decisions: &mut Vec<Decision>) {
        // Digits vary between observations, so ignore them when comparing messages.
        let sentence: String = format!("{subject}: {words}")
            .chars()
            .filter(|letter| act != DecisionKind::Missing || !letter.is_ascii_digit())
            .collect();
        if self.logged.insert(sentence) {
            decisions.push(Decision::new(act, subject, words));
        }
    }

    fn setting(&self, observation: &Observation, what: Moved) -> Setting {
        match what {
            Moved::Queue(index) => observation.queues[index].setting.clone(),
            Moved::Thread(index) => observation.threads[index].setting(),
        }
    }

    /// Builds the model of an observation and its current placement.
    fn model(&mut self, observation: &Observation, decisions: &mut Vec<Decision>) -> (Model, Assignment) {
        let online: CpuSet = observation.places.iter().map(|place| place.cpu).collect();
        // Isolated CPUs are used only if they are named.
        let is_usable = |cpu: &u32| match &self.exclusions.cpus {
            Some(only) => only.contains(*cpu),
            None => !observation.isolated.contains(*cpu),
        };
        let usable: CpuSet = online.iter().filter(is_usable).collect();
        let (places, distances) = (observation.places.clone(), observation.distances.clone());
        let mut model = Model { places, distances, ..Model::default() };
        let mut assignment = Assignment { queues: Vec::new(), threads: Vec::new() };
        for queue in &observation.queues {
            let why = self.queue_is_taken(queue);
            if let Some(why) = &why {
                self.log(DecisionKind::LeftAlone, &queue.name, why, decisions);
            }
            let open = why.is_none().then(|| usable.clone()).filter(|open| !open.is_empty());
            model.queues.push(model::Queue { node: queue.node, load: queue.load, open });
            let cpu = self.ours.get(&queue.setting).and_then(|cpus| cpus.iter().next()).or(queue.cpu);
            assignment.queues.push(cpu.filter(|cpu| online.contains(*cpu)));
        }
        let busy = busy(observation, &self.exclusions);
        for (index, thread) in observation.threads.iter().enumerate() {
            let why = self.thread_is_taken(observation, thread);
            if let Some(why) = &why {
                self.log(DecisionKind::LeftAlone, &thread_name(thread), why, decisions);
            }
            let open: CpuSet = thread.open.iter().filter(|cpu| usable.contains(*cpu)).collect();
            let may_move = why.is_none() && busy[index] && !open.is_empty();
            model.threads.push(model::Thread { load: thread.load, open: may_move.then_some(open) });
            // Use the thread's affinity and not its current CPU, which may change at any time.
            let bound = self.ours.get(&thread.setting()).unwrap_or(&thread.bound);
            let cpus: CpuSet = bound.iter().filter(|cpu| online.contains(*cpu)).collect();
            assignment.threads.push(if cpus.is_empty() { CpuSet::one(thread.cpu) } else { cpus });
        }
        model.links = links(observation, &self.exclusions);
        model.keep_unlinked_queues_near();
        model.other = other(observation, &assignment, &model);
        (model, assignment)
    }

    fn queue_is_taken(&self, queue: &Queue) -> Option<String> {
        if self.given_up.contains(&queue.setting) {
            return Some("it was given up".into());
        }
        match queue.setting {
            Setting::Irq(number) if self.exclusions.irqs.contains(&number) => Some("it is excluded".into()),
            _ if self.ours.contains_key(&queue.setting) => None,
            _ => queue.taken.clone(),
        }
    }

    fn thread_is_taken(&self, observation: &Observation, thread: &Thread) -> Option<String> {
        if self.exclusions.has(thread) {
            return Some("it is excluded".into());
        }
        let setting = thread.setting();
        if self.given_up.contains(&setting) {
            return Some("it was given up".into());
        }
        let is_pinned = thread.open.iter().any(|cpu| !thread.bound.contains(cpu));
        // An affinity inherited from a thread that was bound here is not another program's decision.
        let inherited = || {
            observation
                .threads
                .iter()
                .any(|of| of.process == thread.process && self.ours.get(&of.setting()) == Some(&thread.bound))
        };
        if is_pinned && !self.ours.contains_key(&setting) && !inherited() {
            return Some(format!("another program has bound it to CPUs {}", thread.bound));
        }
        None
    }
}

/// Indices of the queues by interface.
fn by_interface(queues: &[Queue]) -> BTreeMap<&Interface, Vec<usize>> {
    let mut all: BTreeMap<&Interface, Vec<usize>> = BTreeMap::new();
    for (index, queue) in queues.iter().enumerate() {
        all.entry(&queue.interface).or_default().push(index);
    }
    all
}

/// The queues on which a flow may arrive: for each interface, the queue to which the flow is hashed, if that is known
/// and unique, and otherwise all queues of the interface.
fn queues_of(flow: &Flow, queues: &[Queue], by_interface: &BTreeMap<&Interface, Vec<usize>>) -> Vec<usize> {
    let of_interface = |(interface, number): &(Interface, Option<u32>)| {
        let all = by_interface.get(interface).map_or(&[][..], |all| all);
        let mut hashed = all.iter().filter(|index| number.is_some() && queues[**index].number == *number);
        match (hashed.next(), hashed.next()) {
            (Some(only), None) => vec![*only],
            _ => all.to_vec(),
        }
    };
    flow.arrives.iter().flat_map(of_interface).collect()
}

/// For each thread, whether its flows carry enough bytes for the tuner to move it.
fn busy(observation: &Observation, exclusions: &Exclusions) -> Vec<bool> {
    // A flow with an unknown rate may be busy.
    let mut bytes = vec![0.0; observation.threads.len()];
    for flow in &observation.flows {
        if let Some(thread) = flow.thread {
            bytes[thread] += flow.known_bytes().unwrap_or(f64::INFINITY);
        }
    }
    bytes.into_iter().map(|bytes| bytes >= exclusions.min_bytes).collect()
}

/// The weights between queues and threads. If a flow's queue is unknown, its bytes are divided among the queues of the
/// interface by their interrupt rates.
fn links(observation: &Observation, exclusions: &Exclusions) -> Vec<model::Link> {
    let mut weights: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    let (busy, by_interface) = (busy(observation, exclusions), by_interface(&observation.queues));
    for flow in &observation.flows {
        let is_excluded = [flow.local, flow.remote].iter().any(|end| exclusions.ports.contains(&end.port()));
        let Some(thread) = flow.thread.filter(|thread| !is_excluded && busy[*thread]) else { continue };
        let queues = queues_of(flow, &observation.queues, &by_interface);
        let all: f64 = queues.iter().filter_map(|index| observation.queues[*index].interrupts).sum();
        // Without rates, all flows count the same.
        let bytes = flow.known_bytes().unwrap_or(1.0);
        for index in &queues {
            let part = if all > 0.0 {
                observation.queues[*index].interrupts.unwrap_or(0.0) / all
            } else {
                1.0 / queues.len() as f64
            };
            *weights.entry((*index, thread)).or_default() += bytes * part;
        }
    }
    let all: f64 = weights.values().sum();
    let link = |((queue, thread), weight): ((usize, usize), f64)| model::Link {
        queue,
        thread,
        weight: weight / all,
    };
    weights.into_iter().filter(|(_, weight)| *weight > 0.0).map(link).collect()
}

/// Load of each CPU not caused by a queue or a flow's thread.
fn other(observation: &Observation, assignment: &Assignment, model: &Model) -> BTreeMap<u32, f64> {
    let mine = model.loads(assignment);
    let rest = |(cpu, shares): (&u32, &crate::counters::CpuShares)| {
        let rest = shares.busy() + shares.steal - mine.get(cpu).copied().unwrap_or(0.0);
        (*cpu, rest.max(0.0))
    };
    observation.cpus.iter().map(rest).collect()
}

fn thread_name(thread: &Thread) -> String {
    match thread.thread == thread.process {
        true => format!("{} ({})", thread.name, thread.process),
        false => format!("{} (thread {} of {})", thread.name, thread.thread, thread.process),
    }
}

fn name(observation: &Observation, what: Moved) -> String {
    match what {
        Moved::Queue(index) => observation.queues[index].name.clone(),
        Moved::Thread(index) => thread_name(&observation.threads[index]),
    }
}

/// Human-readable reason for a change.
fn reason(observation: &Observation, model: &Model, from: &Assignment, change: &Move) -> String {
    let of_change = |link: &&model::Link| match change.what {
        Moved::Queue(index) => link.queue == index,
        Moved::Thread(index) => link.thread == index,
    };
    let Some(link) =
        model.links.iter().filter(of_change).max_by(|one, other| one.weight.total_cmp(&other.weight))
    else {
        return format!(
            "the CPUs there have spare capacity; cost of all flows {:.2} to {:.2} classes",
            change.before, change.after
        );
    };
    let thread = &observation.threads[link.thread];
    let application = thread.cpu;
    let description = match from.queues[link.queue] {
        None => "its packets are processed where they arrive".into(),
        Some(flow) => {
            let class = crate::pairs::classify(&model.places, crate::pairs::Pair { flow, application });
            let words = class.map_or("one of the CPUs is offline", crate::pairs::Class::meaning);
            format!(
                "flow on CPU {flow}, application on CPU {application} of {}: {words}",
                from.threads[link.thread]
            )
        }
    };
    let flows = || observation.flows.iter().filter(|flow| flow.thread == Some(link.thread));
    let gbps = flows().map(|flow| flow.bytes() * 8e-9).sum::<f64>();
    let is_estimate = flows().any(|flow| flow.protocol == Protocol::Udp);
    let estimate = if is_estimate { " (UDP, estimated)" } else { "" };
    let drops: f64 = flows().filter_map(|flow| flow.drops).sum();
    let drops = if drops > 0.0 { format!(", {drops:.0} datagrams a second dropped") } else { String::new() };
    format!(
        "{} has flows of {gbps:.2} Gb/s{estimate}{drops} by {}; {description}; cost of all flows {:.2} to {:.2} classes",
        thread_name(thread),
        observation.queues[link.queue].name,
        change.before,
        change.after
    )
}

#[cfg(test)]
mod tests;
