//! Exports the counts of a timing model as named statistics.

use std::collections::{BTreeMap, BTreeSet};

use longma_loongarch::Op;
use longma_memory::Source;
use longma_sim::{Statistics, StatisticsError};

use crate::{model::TimingModel, stack::Cause};

impl TimingModel {
    /// Adds the model's statistics, with names that begin with `prefix` and a dot.
    ///
    /// # Errors
    /// If a plug-in has failed, if `prefix` is not a valid name, or if a name is already in use.
    pub fn statistics(&self, statistics: &mut Statistics, prefix: &str) -> Result<(), StatisticsError> {
        add(self, statistics, prefix)
    }
}

/// Adds the statistics of `model`, with names that begin with `prefix` and a dot.
fn add(model: &TimingModel, to: &mut Statistics, prefix: &str) -> Result<(), StatisticsError> {
    if let Some((part, error)) = model.failure() {
        return Err(StatisticsError::Failed(format!("the {part} of {prefix} has failed: {error}")));
    }
    let instructions = model.instructions();
    let name = |rest: &str| format!("{prefix}.{rest}");
    to.count(&name("instructions"), instructions, "instructions", "instructions executed")?;
    let executed: BTreeMap<_, _> = model.program().instructions_by_class().into_iter().collect();
    let classes: BTreeSet<_> = Op::all().map(|op| op.row().class).collect();
    for class in classes {
        let count = executed.get(&class).copied().unwrap_or(0);
        if !to.wants(count) {
            continue;
        }
        let class = kebab(&format!("{class:?}"));
        to.count(
            &name(&format!("class.{class}")),
            count,
            "instructions",
            "instructions of this class executed",
        )?;
    }
    let outside_blocks = model.program().outside_blocks;
    if to.wants(outside_blocks) {
        let description = "accesses to device registers, which are in no other class";
        to.count(&name("class.device-register"), outside_blocks, "instructions", description)?;
    }
    for source in &Source::ALL[1..] {
        let misses = model.blocks().map(|(_, counts)| u64::from(counts.misses[*source as usize])).sum();
        let name = name(&format!("data.{}", Cause::of(*source).name()));
        to.count(&name, misses, "accesses", "data accesses served by this source")?;
    }
    let fetches = model.blocks().map(|(_, counts)| u64::from(counts.fetch_misses)).sum();
    to.count(
        &name("fetch.misses"),
        fetches,
        "lines",
        "instruction lines that missed in the first-level cache",
    )?;
    add_stack(model, to, prefix)?;
    add_branches(model, to, prefix)?;
    if let Some(forwarded) = model.forwarded() {
        to.count(&name("loads_forwarded"), forwarded, "loads", "loads forwarded from a store in flight")?;
    }
    if let Some(passed) = model.passed_stores() {
        to.count(
            &name("loads_fetched_again"),
            passed,
            "loads",
            "loads squashed because they had passed a store to their address",
        )?;
    }
    Ok(())
}

fn add_stack(model: &TimingModel, to: &mut Statistics, prefix: &str) -> Result<(), StatisticsError> {
    let Some(stack) = model.stack() else { return Ok(()) };
    let instructions = model.instructions() as f64;
    let cycles = stack.total_slots() / stack.width();
    let busy = cycles as f64 - stack.cycles(Cause::Idle);
    to.count(&format!("{prefix}.cycles"), cycles, "cycles", "cycles, including idle ones")?;
    let idle = stack.slots(Cause::Idle) / stack.width();
    to.count(
        &format!("{prefix}.idle_cycles"),
        idle,
        "cycles",
        "cycles in which no thread ran or the thread waited for an external event",
    )?;
    to.rate(
        &format!("{prefix}.ipc"),
        instructions,
        busy,
        "instructions/cycle",
        "instructions per cycle, excluding idle cycles",
    )?;
    for cause in Cause::ALL {
        let name = format!("{prefix}.cpi.{}", cause.name());
        to.rate(&name, stack.cycles(cause), instructions, "cycles/instruction", cause.description())?;
    }
    Ok(())
}

fn add_branches(model: &TimingModel, to: &mut Statistics, prefix: &str) -> Result<(), StatisticsError> {
    let Some(branches) = model.branches() else { return Ok(()) };
    let counts = [
        ("conditional", branches.conditional, "conditional branches"),
        (
            "conditional_mispredicted",
            branches.conditional_mispredicted,
            "conditional branches with a mispredicted direction",
        ),
        ("indirect", branches.indirect, "jumps and calls through a register"),
        (
            "indirect_mispredicted",
            branches.indirect_mispredicted,
            "indirect branches with a mispredicted target",
        ),
        ("returns", branches.returns, "returns"),
        ("returns_mispredicted", branches.returns_mispredicted, "returns with a mispredicted target"),
        ("target_misses", branches.target_misses, "taken direct branches that missed in the target buffer"),
    ];
    for (name, count, description) in counts {
        to.count(&format!("{prefix}.branch.{name}"), count, "branches", description)?;
    }
    if let Some(lines) = model.wrong_path_lines() {
        let description = "instruction lines fetched on wrong paths";
        to.count(&format!("{prefix}.branch.wrong_path_lines"), lines, "lines", description)?;
    }
    let mispredicted =
        branches.conditional_mispredicted + branches.indirect_mispredicted + branches.returns_mispredicted;
    let kilo = model.instructions() as f64 / 1000.0;
    let name = format!("{prefix}.branch.mpki");
    to.rate(
        &name,
        mispredicted as f64,
        kilo,
        "mispredictions/1000 instructions",
        "mispredictions of all kinds of branches",
    )
}

/// Converts `FpAdd` to `fp-add`.
fn kebab(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}
