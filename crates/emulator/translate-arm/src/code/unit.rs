//! Translates a unit: all code that is reachable from an address, in address order, after planning the register state
//! at each leader.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::copies::source;
use super::known::KnownState;
use super::lower::{Edges, Lowering, PlanCache};
use super::reachable::{PAGE, ReachableCode, reads_returned_flags};
use crate::Unit;
use longma_translate::front_end::Exit;
use longma_translate::optimizations::{Optimization, Options};

/// Maximum number of planning passes. States that have not converged by then use the default.
const MAX_ROUNDS: usize = 12;

/// Maximum number of source instructions in a unit.
const MAX_INSTRUCTIONS: usize = 1500;
/// Maximum number of words in a unit, limited by the reach of 16-bit branches.
const MAX_WORDS: usize = 30_000;

/// The register states expected at leaders that are not entry points.
pub(super) type Plan = FxHashMap<u64, Rc<KnownState>>;

/// Translates the code that is reachable from `start`, with additional entry points at `extra_entries`. `fetch` reads
/// source code. Addresses for which `known` returns true are not included.
pub fn translate(
    start: u64,
    extra_entries: &[u64],
    fetch: &dyn Fn(u64) -> Option<u32>,
    known: &dyn Fn(u64) -> bool,
    options: &Options,
) -> Unit {
    let mut limit = MAX_INSTRUCTIONS;
    let mut reachable = ReachableCode::of(start, extra_entries, fetch, known, (limit, *options));
    loop {
        match lower(&reachable) {
            Ok(mut unit) => {
                let mut returns = unit.return_addresses.iter();
                unit.reads_flags_after_call = returns.any(|pc| reads_returned_flags(*pc, fetch));
                return unit;
            }
            Err(Failure::OutOfTemporaries(pc)) => {
                if !reachable.frugal.insert(pc) {
                    reachable.refused.insert(pc);
                }
            }
            Err(Failure::TooLong) => {
                limit /= 4;
                let (refused, frugal) = (reachable.refused, reachable.frugal);
                reachable = ReachableCode::of(start, extra_entries, fetch, known, (limit, *options));
                (reachable.refused, reachable.frugal) = (refused, frugal);
            }
        }
    }
}

/// Why lowering failed.
enum Failure {
    /// The instruction at this address ran out of temporary registers.
    OutOfTemporaries(u64),
    /// The unit is too long for its branches.
    TooLong,
}

/// Lowers the code of a unit.
///
/// # Errors
/// Fails if the unit must be lowered with other parameters.
fn lower(reachable: &ReachableCode) -> Result<Unit, Failure> {
    let plan = plan(reachable);
    let mut lowering = Lowering::new(reachable, &plan, true);
    lowering.all();
    if let Some(pc) = lowering.out_of_temporaries_at {
        return Err(Failure::OutOfTemporaries(pc));
    }
    if lowering.assembler.words.len() > MAX_WORDS {
        return Err(Failure::TooLong);
    }
    let mut unit = std::mem::take(&mut lowering.unit);
    let mut entries = std::mem::take(&mut lowering.entry_points);
    for pc in lowering.assembler.outside(&entries) {
        let at = lowering.assembler.words.len();
        entries.insert(pc, at);
        unit.exit(&mut lowering.assembler, pc, Exit::To(pc));
    }
    unit.entries.sort_unstable();
    unit.sources = reachable.ranges();
    unit.inspected_pages = reachable.inspected_pages.iter().map(|page| page * PAGE).collect();
    let calls =
        reachable.instructions.iter().filter_map(|(pc, i)| Some((source(*pc), i.filter(|i| i.is_call())?)));
    for (pc, call) in calls {
        unit.called.extend(call.target(pc));
        unit.return_addresses.push(pc.wrapping_add(4));
    }
    unit.words = lowering.assembler.finish(&entries);
    Ok(unit)
}

/// Determines the states at the targets of the unit's jumps. Lowers the unit repeatedly until the states at the jumps
/// match those assumed.
fn plan(reachable: &ReachableCode) -> Plan {
    let mut plan = Plan::default();
    // Cold translations are single blocks without internal jumps.
    if !reachable.options.has(Optimization::Loops) || reachable.options.is_cold {
        return plan;
    }
    let mut given_up: FxHashSet<u64> = FxHashSet::default();
    let mut memory = PlanCache::default();
    let mut outs_before = Edges::default();
    for round in 0.. {
        let mut lowering = Lowering::new(reachable, &plan, false);
        lowering.remembered = memory;
        lowering.all();
        let mut outs = lowering.outs;
        outs.retain(|to, _| reachable.leaders.contains(to) && !reachable.entry_points.contains(to));
        let next_state = |(to, outs): (&u64, &Vec<(bool, Rc<KnownState>)>)| {
            let as_before = plan.get(to).filter(|_| outs_before.get(to) == Some(outs));
            let known = match as_before {
                _ if given_up.contains(to) => Rc::default(),
                Some(known) => known.clone(),
                None => {
                    let live = reachable.live_at(*to);
                    Rc::new(KnownState::join(outs, live.wide, live.upper))
                }
            };
            (*to, known)
        };
        let next: Plan = outs.iter().map(next_state).collect();
        (memory, outs_before) = (lowering.remembered, outs);
        if next == plan {
            return plan;
        }
        if round >= MAX_ROUNDS {
            given_up.extend(next.iter().filter(|(to, known)| plan.get(to) != Some(known)).map(|(to, _)| *to));
        }
        plan = next;
        for (_, known) in plan.iter_mut().filter(|(to, _)| given_up.contains(to)) {
            *known = Rc::default();
        }
    }
    plan
}
