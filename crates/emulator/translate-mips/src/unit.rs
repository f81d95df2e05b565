//! Translates a unit: all code that direct jumps and calls reach from an address, in address order.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use super::code::{Exit, ReachableCode, Unit, exit, successors};
use super::instruction::decode;
use super::lower::Lowering;
use longma_translate::optimizations::{Optimization, Options};

/// Maximum number of source instructions in a unit, limited by the reach of 16-bit branches.
const MAX_INSTRUCTIONS: usize = 3000;

/// Follows direct jumps and calls from `start`, up to addresses for which `known` returns true.
fn reachable(
    start: u64,
    fetch: &dyn Fn(u64) -> Option<u32>,
    known: &dyn Fn(u64) -> bool,
    options: &Options,
) -> ReachableCode {
    let mut reachable = ReachableCode { words: FxHashMap::default(), leaders: BTreeSet::new() };
    let mut visited = FxHashSet::default();
    let mut work_list = std::collections::VecDeque::from([start]);
    while let Some(leader) = work_list.pop_front() {
        let is_new = leader == start || !known(leader);
        if !is_new || reachable.leaders.contains(&leader) || visited.len() >= MAX_INSTRUCTIONS {
            continue;
        }
        let mut pc = leader;
        while visited.insert(pc) {
            let Some(word) = fetch(pc) else { break };
            reachable.words.insert(pc, word);
            if pc == leader {
                reachable.leaders.insert(leader);
            }
            let Some(instruction) = decode(word) else { break };
            if let Some(next) = successors(instruction, pc) {
                if instruction.has_delay_slot()
                    && let Some(word) = fetch(pc.wrapping_add(4))
                {
                    reachable.words.insert(pc.wrapping_add(4), word);
                }
                if options.has(Optimization::Units) {
                    work_list.extend(next);
                }
                break;
            }
            pc = pc.wrapping_add(4);
            if known(pc) || visited.len() >= MAX_INSTRUCTIONS {
                break;
            }
        }
        if visited.contains(&leader) && reachable.words.contains_key(&leader) {
            reachable.leaders.insert(leader);
        }
    }
    reachable
}

/// Translates the code that is reachable from `start`. `fetch` reads source code. Addresses for which `known` returns
/// true are not included.
pub fn translate(
    start: u64,
    fetch: &dyn Fn(u64) -> Option<u32>,
    known: &dyn Fn(u64) -> bool,
    options: &Options,
) -> Unit {
    let reachable = reachable(start, fetch, known, options);
    let mut lowering = Lowering::new(&reachable, options);
    let mut begins = FxHashMap::default();
    let leaders: Vec<u64> = reachable.leaders.iter().copied().collect();
    for (index, &leader) in leaders.iter().enumerate() {
        let begin = lowering.assembler.words.len();
        begins.insert(leader, begin);
        lowering.block(leader, leaders.get(index + 1).copied());
        lowering.assembler.pad_empty_block(begin);
        lowering.unit.end_block(begin, lowering.assembler.words.len());
    }
    let mut unit = std::mem::take(&mut lowering.unit);
    unit.entries = leaders.iter().map(|pc| (*pc, begins[pc] as u32)).collect();
    let mut entries = if options.is_cold { FxHashMap::default() } else { begins };
    lowering.out_of_line(&mut unit);
    for pc in lowering.assembler.outside(&entries) {
        let at = lowering.assembler.words.len();
        entries.insert(pc, at);
        exit(&mut lowering.assembler, &mut unit, pc, Exit::To(pc));
    }
    unit.sources =
        ranges(&reachable).into_iter().map(|(first, count)| (first, 4 * u64::from(count))).collect();
    unit.words = lowering.assembler.finish(&entries);
    unit
}

fn ranges(reachable: &ReachableCode) -> Vec<(u64, u32)> {
    let mut addresses: Vec<u64> = reachable.words.keys().copied().collect();
    addresses.sort_unstable();
    let mut ranges: Vec<(u64, u32)> = Vec::new();
    for pc in addresses {
        match ranges.last_mut() {
            Some((start, count)) if *start + 4 * u64::from(*count) == pc => *count += 1,
            _ => ranges.push((pc, 1)),
        }
    }
    ranges
}
