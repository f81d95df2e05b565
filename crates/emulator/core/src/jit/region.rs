//! Forms regions, the unit of translation: the executed blocks that are reachable from one entry through direct
//! branches and calls' return addresses. Source: profile-guided region formation after Hank, Hwu and Rau, "Region-based
//! compilation" (MICRO 1995).

use longma_loongarch::Instruction;
use rustc_hash::FxHashSet;

use crate::block::{Block, End};

/// The maximum number of blocks in a region.
const MAX_BLOCKS: usize = 200;

/// The maximum number of instructions in a region.
const MAX_INSTRUCTIONS: usize = 3000;

/// A block that is in this many regions is not copied into another one. Later regions jump to a copy, which costs a few
/// loads and stores of registers.
const MAX_COPIES: u32 = 2;

/// The blocks that the interpreter has executed.
pub(crate) trait Profile {
    /// The block at `pc` and its execution count, if it has run.
    fn block(&self, pc: u64) -> Option<(&Block, u32)>;
}

/// A block of a region.
#[derive(Debug)]
pub(crate) struct RegionBlock {
    pub start: u64,
    pub instructions: Vec<Instruction>,
    pub end: End,
    /// The estimated number of executions each time the region is entered.
    pub weight: u64,
    /// Whether a backward jump, or a jump from the block itself, targets it.
    pub is_loop_head: bool,
}

/// A region. Its blocks are in address order.
#[derive(Debug)]
pub(crate) struct Region {
    pub entry: u64,
    pub blocks: Vec<RegionBlock>,
}

impl Region {
    /// Collects the executed blocks reachable from `entry`. `copies` returns the number of regions that contain a
    /// block. A block that other regions contain is included only if it leads to a new block.
    pub fn form(entry: u64, profile: &impl Profile, copies: impl Fn(u64) -> u32) -> Self {
        let mut collected: Vec<(Block, u32)> = Vec::new();
        let mut pending = vec![entry];
        let mut instructions = 0;
        let mut visited = FxHashSet::default();
        while let Some(pc) = pending.pop() {
            if !visited.insert(pc) || collected.len() >= MAX_BLOCKS || instructions >= MAX_INSTRUCTIONS {
                continue;
            }
            let Some((block, weight)) = profile.block(pc) else { continue };
            if block.end == End::Invalid {
                continue;
            }
            instructions += block.instructions.len();
            pending.extend(successors(block.end));
            collected.push((block.clone(), weight.max(1)));
        }
        collected.sort_unstable_by_key(|(block, _)| block.start);
        omit_copies(entry, &mut collected, copies);
        cut_overlaps(&mut collected);
        let mut loop_heads: Vec<u64> = Vec::new();
        for (block, _) in &collected {
            let backward = successors(block.end).filter(|&to| to <= block.start);
            loop_heads.extend(backward.filter(|to| block_at(&collected, *to).is_some()));
        }
        loop_heads.sort_unstable();
        loop_heads.dedup();
        let loops = loops_of(&collected, &loop_heads);
        let blocks = collected
            .into_iter()
            .map(|(block, runs)| RegionBlock {
                start: block.start,
                instructions: block.instructions,
                end: block.end,
                weight: weight_of(block.start, runs, &loops),
                is_loop_head: loop_heads.binary_search(&block.start).is_ok(),
            })
            .collect();
        Self { entry, blocks }
    }
}

/// Removes blocks that other regions contain and that do not lead to a new block, and those with too many copies.
fn omit_copies(entry: u64, blocks: &mut Vec<(Block, u32)>, copies: impl Fn(u64) -> u32) {
    let counts: Vec<u32> = blocks.iter().map(|(block, _)| copies(block.start)).collect();
    if counts.iter().all(|count| *count == 0) {
        return;
    }
    let mut predecessors: Vec<Vec<usize>> = vec![Vec::new(); blocks.len()];
    for (number, (block, _)) in blocks.iter().enumerate() {
        for to in successors(block.end) {
            if let Ok(to) = blocks.binary_search_by_key(&to, |(block, _)| block.start) {
                predecessors[to].push(number);
            }
        }
    }
    let is_new = |number: &usize| counts[*number] == 0 || blocks[*number].0.start == entry;
    let mut pending: Vec<usize> = (0..blocks.len()).filter(is_new).collect();
    let mut is_kept = vec![false; blocks.len()];
    while let Some(number) = pending.pop() {
        if !std::mem::replace(&mut is_kept[number], true) {
            let before = &predecessors[number];
            pending.extend(before.iter().filter(|before| counts[**before] < MAX_COPIES));
        }
    }
    let mut is_kept = is_kept.into_iter();
    blocks.retain(|_| is_kept.next().unwrap_or_default());
}

/// A loop: the addresses from its head to its last backward jump, and how often the head ran.
struct Loop {
    addresses: std::ops::RangeInclusive<u64>,
    runs: u32,
}

/// The loops of a region. Compilers lay out a loop contiguously, so a block belongs to a loop if its address is in the
/// range.
fn loops_of(blocks: &[(Block, u32)], loop_heads: &[u64]) -> Vec<Loop> {
    let runs = |head: u64| block_at(blocks, head).map_or(0, |(_, runs)| *runs);
    let loop_at = |head: &u64| Loop { addresses: *head..=*head, runs: runs(*head) };
    let mut loops: Vec<Loop> = loop_heads.iter().map(loop_at).collect();
    for (block, _) in blocks {
        for head in successors(block.end).filter(|to| *to <= block.start) {
            if let Ok(index) = loop_heads.binary_search(&head) {
                // The blocks are in ascending order, so the last assignment wins.
                loops[index].addresses = head..=block.start;
            }
        }
    }
    loops
}

/// The block that starts at `start`, found by binary search.
fn block_at(blocks: &[(Block, u32)], start: u64) -> Option<&(Block, u32)> {
    blocks.binary_search_by_key(&start, |(block, _)| block.start).ok().map(|index| &blocks[index])
}

/// Estimates a block's weight. Each loop around it is assumed to iterate eight times. A block that ran far less often
/// than the head of a loop is assumed to be off the loop's usual path.
fn weight_of(start: u64, runs: u32, loops: &[Loop]) -> u64 {
    const ITERATIONS: u64 = 8;
    const MAX_DEPTH: usize = 6;
    let depth =
        loops.iter().filter(|l| l.addresses.contains(&start) && runs >= l.runs / 8).take(MAX_DEPTH).count();
    ITERATIONS.pow(depth as u32)
}

/// The addresses that may follow a block within the function.
pub(crate) fn successors(end: End) -> impl Iterator<Item = u64> {
    let (a, b) = match end {
        End::Next(next) | End::Jump(next) => (Some(next), None),
        // The fall-through path is processed first, because the work list is last-in first-out.
        End::Branch { taken, next } => (Some(taken), Some(next)),
        End::Call { next, .. } | End::IndirectCall { next } | End::Leave { next } => (Some(next), None),
        End::Return | End::Indirect | End::Invalid => (None, None),
    };
    a.into_iter().chain(b)
}

/// Ends each block where the next one starts, so that no instruction is translated twice.
fn cut_overlaps(blocks: &mut [(Block, u32)]) {
    for index in 1..blocks.len() {
        let next = blocks[index].0.start;
        let (block, _) = &mut blocks[index - 1];
        let length = (next - block.start) / 4;
        if next.is_multiple_of(4) && length < block.instructions.len() as u64 {
            block.instructions.truncate(length as usize);
            block.end = End::Next(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jit::listing::SingleRunProfile;

    /// Blocks without instructions, by address.
    fn blocks(ends: &[(u64, End)]) -> SingleRunProfile {
        let block = |&(start, end): &(u64, End)| (start, Block { start, instructions: Vec::new(), end });
        SingleRunProfile(ends.iter().map(block).collect())
    }

    fn starts(region: &Region) -> Vec<u64> {
        region.blocks.iter().map(|block| block.start).collect()
    }

    #[test]
    fn a_region_jumps_to_code_of_others_that_does_not_come_back() {
        let profile = blocks(&[
            (0x100, End::Branch { taken: 0x300, next: 0x200 }),
            (0x200, End::Jump(0x300)),
            (0x300, End::Next(0x400)),
            (0x400, End::Return),
        ]);
        assert_eq!(starts(&Region::form(0x100, &profile, |_| 0)), [0x100, 0x200, 0x300, 0x400]);
        let copies = |pc| u32::from(pc >= 0x300);
        assert_eq!(starts(&Region::form(0x100, &profile, copies)), [0x100, 0x200]);
        // The entry is in the region in any case.
        assert_eq!(starts(&Region::form(0x300, &profile, copies)), [0x300]);
    }

    #[test]
    fn a_region_copies_the_loop_around_a_new_block_a_limited_number_of_times() {
        let profile = blocks(&[
            (0x100, End::Branch { taken: 0x300, next: 0x200 }),
            (0x200, End::Jump(0x100)),
            (0x300, End::Jump(0x100)),
            (0x400, End::Return),
        ]);
        let with_copies = |count| move |pc| if pc == 0x300 { 0 } else { count };
        assert_eq!(starts(&Region::form(0x300, &profile, with_copies(1))), [0x100, 0x200, 0x300]);
        assert_eq!(starts(&Region::form(0x300, &profile, with_copies(MAX_COPIES))), [0x300]);
    }
}
