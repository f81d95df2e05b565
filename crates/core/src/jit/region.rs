//! A region: the blocks that are translated together, found from one entry along direct branches and behind calls.
//! Not a function: it is what ran so far of one, and loops stay whole.
//! Source: profile-guided region formation after Hank, Hwu and Rau, "Region-based compilation" (MICRO 1995).

use std::collections::BTreeMap;

use longma_loongarch::Instruction;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::block::{Block, End};

/// The most blocks of a region.
const MAX_BLOCKS: usize = 200;

/// The most instructions of a region.
const MAX_INSTRUCTIONS: usize = 3000;

/// What the interpreter knows of the program so far.
pub(crate) trait Profile {
    /// The block at `pc` and how often it ran, if it ran.
    fn block(&self, pc: u64) -> Option<(&Block, u32)>;
}

/// A block of a region.
#[derive(Debug)]
pub(crate) struct RegionBlock {
    pub start: u64,
    pub instructions: Vec<Instruction>,
    pub end: End,
    /// An estimate of how often it runs for each time the region is entered.
    pub weight: u64,
    /// True if a jump from its own place or behind goes to it.
    pub is_loop_head: bool,
}

/// Blocks in the order of their addresses.
#[derive(Debug)]
pub(crate) struct Region {
    pub entry: u64,
    pub blocks: Vec<RegionBlock>,
}

impl Region {
    /// Collects what ran behind `entry`.
    pub fn form(entry: u64, profile: &impl Profile) -> Self {
        let mut found: BTreeMap<u64, (Block, u32)> = BTreeMap::new();
        let mut pending = vec![entry];
        let mut instructions = 0;
        let mut seen = FxHashSet::default();
        while let Some(pc) = pending.pop() {
            if !seen.insert(pc) || found.len() >= MAX_BLOCKS || instructions >= MAX_INSTRUCTIONS {
                continue;
            }
            let Some((block, weight)) = profile.block(pc) else { continue };
            if block.end == End::Invalid {
                continue;
            }
            instructions += block.instructions.len();
            pending.extend(successors(block.end));
            found.insert(pc, (block.clone(), weight.max(1)));
        }
        cut_overlaps(&mut found);
        let starts: FxHashSet<u64> = found.keys().copied().collect();
        let mut heads = FxHashSet::default();
        for (block, _) in found.values() {
            heads.extend(successors(block.end).filter(|&to| to <= block.start && starts.contains(&to)));
        }
        let loops = loops_of(&found, &heads);
        let blocks = found
            .into_iter()
            .map(|(start, (block, runs))| RegionBlock {
                start,
                instructions: block.instructions,
                end: block.end,
                weight: weight_of(start, runs, &loops),
                is_loop_head: heads.contains(&start),
            })
            .collect();
        Self { entry, blocks }
    }
}

/// A loop: the addresses from its head to its farthest jump back, and how often the head ran.
struct Loop {
    addresses: std::ops::RangeInclusive<u64>,
    runs: u32,
}

/// The loops of a region. Compilers lay a loop out in one piece, so addresses stand for membership.
fn loops_of(blocks: &BTreeMap<u64, (Block, u32)>, heads: &FxHashSet<u64>) -> Vec<Loop> {
    let mut loops: FxHashMap<u64, Loop> = FxHashMap::default();
    for (block, _) in blocks.values() {
        for head in successors(block.end).filter(|to| *to <= block.start && heads.contains(to)) {
            let runs = blocks[&head].1;
            let found = loops.entry(head).or_insert(Loop { addresses: head..=head, runs });
            let end = block.start.max(*found.addresses.end());
            found.addresses = head..=end;
        }
    }
    loops.into_values().collect()
}

/// Each loop around a block is taken to go round eight times; a block that ran far less often than a loop's head is taken to be
/// off that loop's usual path.
fn weight_of(start: u64, runs: u32, loops: &[Loop]) -> u64 {
    const ROUNDS: u64 = 8;
    const MAX_DEPTH: usize = 6;
    let depth =
        loops.iter().filter(|l| l.addresses.contains(&start) && runs >= l.runs / 8).take(MAX_DEPTH).count();
    ROUNDS.pow(depth as u32)
}

/// Where control may go from a block without leaving the function.
pub(crate) fn successors(end: End) -> impl Iterator<Item = u64> {
    let (a, b) = match end {
        End::Next(next) | End::Jump(next) => (Some(next), None),
        // The path that falls through is followed first: it is popped last-in first-out.
        End::Branch { taken, next } => (Some(taken), Some(next)),
        End::Call { next, .. } | End::IndirectCall { next } | End::Leave { next } => (Some(next), None),
        End::Return | End::Indirect | End::Invalid => (None, None),
    };
    a.into_iter().chain(b)
}

/// Ends each block where the next one begins, so that no instruction is translated twice.
fn cut_overlaps(blocks: &mut BTreeMap<u64, (Block, u32)>) {
    let starts: Vec<u64> = blocks.keys().copied().collect();
    for pair in starts.windows(2) {
        let (block, _) = blocks.get_mut(&pair[0]).expect("the key was just listed");
        let length = (pair[1] - pair[0]) / 4;
        if pair[1] % 4 == 0 && length < block.instructions.len() as u64 {
            block.instructions.truncate(length as usize);
            block.end = End::Next(pair[1]);
        }
    }
}
