//! The sweep: runs a load at every pair of CPUs (flow and application) and reads all counters, several times in random
//! order. `analysis` evaluates the results.
//!
//! Source: Hanford et al. 2014: interrupts to core f, iperf3 on core a, run under a counter tool, repeat.

mod bounds;
mod misrouted;
mod record;

use longma_random::SplitMix64;
pub use misrouted::{Evidence, MisroutedFlow};
pub use record::{Header, ResultError, ResultFile, Results, Sample};

use crate::child::{ChildError, Start, how_it_ended};
use crate::counters::{Hardware, Reading};
use crate::host::Host;
use crate::journal::{Journal, JournalError};
use crate::load::{LoadError, Rate};
use crate::pairs::{Pair, classify};
use crate::setting::{Interface, Setting};
use crate::vary::{SweepParameter, Value, Variant, load_of, words};
use longma_cpu_set::CpuSet;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Part of a run in which counters are read, as fractions of its length. Excludes the start and the load's final
/// report.
const COUNTED_FRACTION: (f64, f64) = (0.15, 0.9);
/// Time that a run may take beyond its length, for connecting and reporting.
const GRACE: Duration = Duration::from_secs(10);

/// Retries and delay if the server is still busy with the previous run.
const MAX_BUSY_RETRIES: u32 = 20;
const BUSY_RETRY_DELAY: Duration = Duration::from_millis(250);
/// How long a link may stay down after a setting was changed.
const LINK_TIMEOUT: Duration = Duration::from_secs(10);

/// The runs of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The pairs.
    pub pairs: Vec<Pair>,
    /// Combinations of varied parameters. Each pair is measured with each of them. A single empty combination if
    /// nothing is varied.
    pub variants: Vec<Variant>,
    /// Number of repetitions.
    pub repeats: u32,
    /// Seed of the random order.
    pub seed: u64,
}

/// The environment of all runs.
pub struct Setup<'a> {
    /// The host as the receiver sees it.
    pub host: &'a dyn Host,
    /// Properties common to all runs.
    pub header: &'a Header,
    /// A process whose network namespace the load runs in; `None` for this process's namespace.
    pub namespace: Option<u32>,
    /// Called after a failed run to recover the remote end. Returns a description of the remote failure, if known.
    pub after_failure: &'a mut dyn FnMut() -> Option<String>,
    /// Ends the sweep after the current run.
    pub stop: &'a AtomicBool,
}

/// Statistics of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Runs performed.
    pub ran: usize,
    /// Runs that the file already contained.
    pub known: usize,
    /// Performed runs that failed.
    pub failed: usize,
    /// Runs skipped because the interface rejected their combination of settings.
    pub refused: usize,
    /// Whether the sweep was stopped early.
    pub stopped: bool,
}

/// Why a sweep ended early.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A setting cannot be changed, or another program changed it.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A result cannot be written.
    #[error(transparent)]
    Result(#[from] ResultError),
    /// The load failed several times in a row with the same error.
    #[error("the load failed {times} times in a row: {why}")]
    Load {
        /// Number of failures.
        times: usize,
        /// The last error.
        why: String,
    },
}

/// Number of consecutive failures after which the sweep gives up.
const MAX_FAILURES: usize = 3;

impl Plan {
    /// The runs in order. Each repetition shuffles the variants, and each variant shuffles the pairs, so that drift
    /// affects all alike. The pairs of a variant stay together, because a driver may take the link down for a change.
    pub fn order(&self) -> Vec<Run> {
        let mut random = SplitMix64::new(self.seed);
        let mut all = Vec::new();
        for repeat in 0..self.repeats {
            for variant in shuffled(&self.variants, &mut random) {
                let run = |pair: Pair| Run { pair, repeat, variant: variant.clone() };
                all.extend(shuffled(&self.pairs, &mut random).into_iter().map(run));
            }
        }
        all
    }
}

/// A run of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The pair of CPUs.
    pub pair: Pair,
    /// Number of the repetition, from 0.
    pub repeat: u32,
    /// Values of the varied parameters.
    pub variant: Variant,
}

/// A random permutation (Fisher and Yates).
fn shuffled<T: Clone>(all: &[T], random: &mut SplitMix64) -> Vec<T> {
    let mut all = all.to_vec();
    for last in (1..all.len()).rev() {
        all.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
    }
    all
}

/// Makes the runs of `plan` that are missing from `results`, and calls `tell` for each. The caller restores the
/// settings with the journal.
///
/// # Errors
/// If a setting cannot be changed or another program changed it, a result cannot be written, or the load fails
/// repeatedly.
pub fn run(
    plan: &Plan,
    setup: &mut Setup<'_>,
    journal: &mut Journal<'_>,
    results: &mut ResultFile,
    tell: &mut dyn FnMut(&Sample, usize, usize),
) -> Result<Outcome, SweepError> {
    let order = plan.order();
    let todo: Vec<Run> = order.iter().filter(|run| !is_known(run, &results.known)).cloned().collect();
    let mut outcome = Outcome { known: order.len() - todo.len(), ..Outcome::default() };
    let mut in_a_row = 0;
    let (base, mut applied) = (base(plan, setup), Variant::new());
    preserve(&base, journal)?;
    let mut excluded: Option<(Variant, JournalError)> = None;
    for run in &todo {
        if setup.stop.load(Ordering::Relaxed) {
            outcome.stopped = true;
            break;
        }
        setup.header.steering.apply(journal, run.pair.flow)?;
        if excluded.as_ref().is_none_or(|(variant, _)| *variant != run.variant) {
            match vary(setup, journal, (&base, &applied), &run.variant) {
                Ok(()) => (applied, excluded) = (run.variant.clone(), None),
                // The interface may accept other values or, with several settings, other combinations.
                Err(error @ JournalError::Refused { .. }) => {
                    (applied, excluded) = (Variant::new(), Some((run.variant.clone(), error)));
                }
                Err(error) => return Err(error.into()),
            }
        }
        if let Some((_, error)) = &excluded {
            let Some(sample) = refused(setup, run, error) else { continue };
            results.add(&sample)?;
            outcome.refused += 1;
            tell(&sample, outcome.known + outcome.ran + outcome.refused, order.len());
            continue;
        }
        let Some(mut sample) = measure(setup, run) else {
            outcome.stopped = true;
            break;
        };
        // A run is invalid if another program changed a setting during it.
        if let Some(foreign) = journal.foreign().into_iter().next() {
            return Err(foreign.into());
        }
        if let Some(why) = &mut sample.failure
            && let Some(more) = (setup.after_failure)()
        {
            why.push_str(&format!("; {more}"));
        }
        results.add(&sample)?;
        outcome.ran += 1;
        tell(&sample, outcome.known + outcome.ran + outcome.refused, order.len());
        in_a_row = if sample.failure.is_some() { in_a_row + 1 } else { 0 };
        if let Some(why) = sample.failure {
            outcome.failed += 1;
            if in_a_row >= MAX_FAILURES {
                return Err(SweepError::Load { times: in_a_row, why });
            }
        }
    }
    match excluded {
        // Nothing could be measured, so report the last rejection.
        Some((_, error)) if outcome.ran == 0 && outcome.known == 0 => Err(error.into()),
        _ => Ok(outcome),
    }
}

/// Returns whether a run has a result or was rejected.
fn is_known(run: &Run, known: &[Sample]) -> bool {
    let is_same = |sample: &Sample| {
        (sample.pair, sample.repeat, &sample.variant) == (run.pair, run.repeat, &run.variant)
    };
    known.iter().any(|sample| is_same(sample) && (sample.failure.is_none() || sample.refused))
}

/// A sample for a run whose settings the interface rejected.
fn refused(setup: &Setup<'_>, run: &Run, error: &JournalError) -> Option<Sample> {
    let why = format!("the interface rejects {}: {error}", words(&run.variant));
    Some(Sample { failure: Some(why), refused: true, ..unmeasured(setup, run)? })
}

/// Original values of all varied settings.
type Base = Vec<(Setting, String)>;

fn base(plan: &Plan, setup: &Setup<'_>) -> Base {
    let mut found = Base::new();
    for (parameter, value) in plan.variants.iter().flatten() {
        for (setting, _) in parameter.settings(&setup.header.nic, value) {
            // Interrupts go to the flow's CPU, except with accelerated RFS.
            if !matches!(setting, Setting::Irq(_))
                && !found.iter().any(|known| known.0 == setting)
                && let Ok(text) = setting.read(setup.host)
            {
                found.push((setting, text));
            }
        }
    }
    found
}

/// Records the settings of single queues and NAPI instances that a setting of the whole interface replaces. Steering
/// replaces none.
fn preserve(base: &Base, journal: &mut Journal<'_>) -> Result<(), JournalError> {
    let replaces = |setting: &&Setting| {
        !matches!(setting, Setting::Rps { .. } | Setting::QueueFlows { .. } | Setting::Xps { .. })
    };
    let settings = base.iter().map(|(setting, _)| setting).filter(replaces);
    let interfaces: BTreeSet<&Interface> = settings.filter_map(Setting::interface).collect();
    for interface in interfaces {
        journal.preserve(&Setting::Napi(interface.clone()))?;
        journal.preserve(&Setting::QueueDelays(interface.clone()))?;
    }
    Ok(())
}

/// Applies `variant`. If anything changes, first restores all varied settings to their original values, because the
/// values that an interface accepts, and the effect of a setting, depend on the other settings. Otherwise, the result
/// would depend on the order of the runs.
fn vary(
    setup: &Setup<'_>,
    journal: &mut Journal<'_>,
    (base, applied): (&Base, &Variant),
    variant: &Variant,
) -> Result<(), JournalError> {
    let other = |settings: Vec<(Setting, String)>| -> Vec<(Setting, String)> {
        let differs = |(setting, value): &(Setting, String)| {
            !setting.read(setup.host).is_ok_and(|now| setting.means_same(&now, value))
        };
        settings.into_iter().filter(differs).collect()
    };
    let wanted = |parameter: &SweepParameter, value: &Value| parameter.settings(&setup.header.nic, value);
    let mut has_changed = false;
    if applied != variant {
        let back = other(base.clone());
        has_changed |= !back.is_empty();
        either_way(setup, journal, back)?;
        if has_changed {
            journal.reinstate();
        }
        let changes = other(variant.iter().flat_map(|(parameter, value)| wanted(parameter, value)).collect());
        has_changed |= !changes.is_empty();
        either_way(setup, journal, changes)?;
    } else {
        // Steering has just cleared the queues' flow tables and moved their interrupts.
        for parameter in [SweepParameter::Rfs, SweepParameter::Arfs] {
            if let Some(value) = variant.get(&parameter) {
                apply(journal, &wanted(&parameter, value))?;
            }
        }
    }
    let state = format!("sys/class/net/{}/operstate", setup.header.nic.name);
    let begin = Instant::now();
    while has_changed
        && begin.elapsed() < LINK_TIMEOUT
        && setup.host.read(&state).is_ok_and(|state| state == "down")
    {
        std::thread::sleep(BUSY_RETRY_DELAY);
    }
    Ok(())
}

/// Applies settings in this order, or in reverse if one is rejected. For example, some interfaces accept threaded NAPI
/// only while GRO is on.
fn either_way(
    setup: &Setup<'_>,
    journal: &mut Journal<'_>,
    mut settings: Vec<(Setting, String)>,
) -> Result<(), JournalError> {
    let now = |(setting, _): &(Setting, String)| Some((setting.clone(), setting.read(setup.host).ok()?));
    let before: Vec<(Setting, String)> = settings.iter().filter_map(now).collect();
    match apply(journal, &settings) {
        Err(JournalError::Refused { .. }) => {}
        other => return other,
    }
    // Start over, because a setting that was accepted may be the obstacle.
    match apply(journal, &before) {
        Ok(()) | Err(JournalError::Refused { .. }) => {}
        other => return other,
    }
    settings.reverse();
    apply(journal, &settings)
}

/// Applies settings in this order. Retries rejected settings as long as others are accepted, because one setting may
/// depend on another.
fn apply(journal: &mut Journal<'_>, settings: &[(Setting, String)]) -> Result<(), JournalError> {
    let mut left: Vec<&(Setting, String)> = settings.iter().collect();
    while !left.is_empty() {
        let (count, mut last) = (left.len(), None);
        for change in std::mem::take(&mut left) {
            match journal.set(&change.0, &change.1) {
                Err(error @ JournalError::Refused { .. }) => {
                    left.push(change);
                    last = Some(error);
                }
                other => other?,
            }
        }
        if let Some(error) = last.filter(|_| left.len() == count) {
            return Err(error);
        }
    }
    Ok(())
}

/// A sample without results; `None` if a CPU of the pair is offline, which is ruled out when the pairs are chosen.
fn unmeasured(setup: &Setup<'_>, run: &Run) -> Option<Sample> {
    Some(Sample {
        pair: run.pair,
        class: classify(&setup.header.places, run.pair)?,
        repeat: run.repeat,
        variant: run.variant.clone(),
        at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        rate: None,
        failure: None,
        refused: false,
        kernel: Default::default(),
        hardware: BTreeMap::new(),
        migrations: None,
    })
}

/// Makes one run; `None` if it was stopped.
fn measure(setup: &Setup<'_>, run: &Run) -> Option<Sample> {
    let (header, pair) = (setup.header, run.pair);
    let length = Duration::from_secs(header.seconds.into());
    let start = Start {
        words: load_of(&header.load, &run.variant).words(header.seconds),
        cpus: Some(CpuSet::one(pair.application)),
        namespace: setup.namespace,
        limit: length + GRACE,
        has_environment: true,
    };
    let mut sample = unmeasured(setup, run)?;
    let mut outcome = measure_run(setup, &start, length, &mut sample);
    for _ in 0..MAX_BUSY_RETRIES {
        if !matches!(&outcome, Err(RunError::Load(error)) if error.is_busy())
            || setup.stop.load(Ordering::Relaxed)
        {
            break;
        }
        std::thread::sleep(BUSY_RETRY_DELAY);
        outcome = measure_run(setup, &start, length, &mut sample);
    }
    match outcome {
        Ok(rate) => sample.rate = Some(rate),
        Err(RunError::Child(ChildError::Stopped { .. })) => return None,
        Err(RunError::Child(error)) => sample.failure = Some(error.to_string()),
        Err(RunError::Load(error)) => sample.failure = Some(error.to_string()),
    }
    Some(sample)
}

enum RunError {
    Child(ChildError),
    Load(LoadError),
}

fn measure_run(
    setup: &Setup<'_>,
    start: &Start,
    length: Duration,
    sample: &mut Sample,
) -> Result<Rate, RunError> {
    let mut child = start.spawn().map_err(RunError::Child)?;
    child.runs_until(length.mul_f64(COUNTED_FRACTION.0), setup.stop);
    let mut cpus = vec![sample.pair.flow];
    cpus.extend(Some(sample.pair.application).filter(|application| *application != sample.pair.flow));
    let hardware: Vec<Hardware> = cpus.iter().filter_map(|cpu| Hardware::begin(*cpu).ok()).collect();
    let before = Reading::of(setup.host, &setup.header.nic);
    let migrations = moved(setup.host, child.id());
    let is_complete = child.runs_until(length.mul_f64(COUNTED_FRACTION.1), setup.stop);
    let ran = child.age();
    let after = Reading::of(setup.host, &setup.header.nic);
    if is_complete {
        sample.kernel = before.until(&after);
        sample.hardware = hardware.into_iter().map(|counters| (counters.cpu(), counters.end())).collect();
        let again = moved(setup.host, child.id());
        sample.migrations = again.zip(migrations).map(|(after, before)| after.saturating_sub(before));
    }
    let ended = child.end(setup.stop).map_err(RunError::Child)?;
    // iperf3 reports errors both in JSON and by its exit status. The JSON is more specific.
    match setup.header.load.rate(&ended.out) {
        Ok(rate) if ended.status.success() => match is_complete || length.is_zero() {
            true => Ok(rate),
            // The load ended before the counting interval was over, so the rate and the counts cover different times.
            false => {
                Err(RunError::Load(LoadError::Short { ran: ran.as_secs_f64(), wanted: length.as_secs_f64() }))
            }
        },
        Ok(_) => Err(RunError::Load(LoadError::NoRate(format!("it {}", how_it_ended(ended.status))))),
        // There was no output.
        Err(LoadError::NoRate(message)) if message.is_empty() && ended.err.trim().is_empty() => {
            Err(RunError::Load(LoadError::NoRate(format!(
                "it printed nothing and {}",
                how_it_ended(ended.status)
            ))))
        }
        Err(LoadError::NoRate(_)) if !ended.err.trim().is_empty() => {
            Err(RunError::Load(LoadError::NoRate(ended.err.trim().lines().last().unwrap_or_default().into())))
        }
        Err(error) => Err(RunError::Load(error)),
    }
}

/// Number of times the scheduler migrated a process, if the kernel reports it.
fn moved(host: &dyn Host, process: u32) -> Option<u64> {
    let facts = host.read(&format!("proc/{process}/sched")).ok()?;
    let line = facts.lines().find(|line| line.starts_with("se.nr_migrations"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
