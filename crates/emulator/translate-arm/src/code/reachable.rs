//! Discovers the code that is reachable from an address by direct jumps and calls, and computes the liveness of
//! registers and flags. Source: Arm Architecture Reference Manual (Arm DDI 0487), chapter C6, for targets.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::copies::source;
use super::flags::ALL;
use super::loops::Loops;
use super::operands::NONE;
use super::uses::{Live, Uses, uses};
use crate::instruction::{Instruction, Op, Operand, decode};
use longma_translate::optimizations::{Optimization, Options};

/// Maximum number of instructions outside of the unit that are examined for the flags that they read.
const LOOKAHEAD: usize = 40;
/// Maximum block length, in instructions, for duplicating a jump target after the jump instead of jumping.
const MAX_JOINED: usize = 12;
/// Granularity at which the engine detects code changes.
pub(super) const PAGE: u64 = 4096;

/// The code that is reachable from an address.
pub(super) struct ReachableCode {
    /// Translation options.
    pub options: Options,
    /// The instructions by address; `None` if the word is not a valid instruction.
    pub instructions: FxHashMap<u64, Option<Instruction>>,
    pub leaders: BTreeSet<u64>,
    /// Entry points: leaders that are reachable by calls, by returns or from the engine. Other leaders are reached only
    /// by jumps within the unit.
    pub entry_points: FxHashSet<u64>,
    /// Pages of all code that was read, including code outside of the unit that was examined for flag reads.
    pub inspected_pages: FxHashSet<u64>,
    /// A leader that the engine enters although it is not an entry point. This way, a loop that starts there is still
    /// recognized as a loop.
    pub engine_entries: Vec<u64>,
    /// Liveness at the start of each leader.
    live: FxHashMap<u64, Live>,
    /// The flags that code after a call reads.
    returned: u8,
    /// The calls after which the code reads flags that the callee may have preserved.
    read_after: FxHashSet<u64>,
    used: FxHashMap<u64, Uses>,
    /// Instructions that need more temporary registers than there are. They raise an illegal instruction exception
    /// instead.
    pub refused: FxHashSet<u64>,
    /// Instructions that ran out of temporary registers while values were cached. They are lowered without caching.
    pub frugal: FxHashSet<u64>,
    /// The loops of the unit.
    pub loops: Loops,
    /// The blocks of all leaders, once discovery is complete.
    blocks: FxHashMap<u64, Rc<Block>>,
    /// Maximum number of source instructions.
    limit: usize,
}

/// A block: its instructions, and the address to which it falls through.
pub(super) type Block = (Vec<(u64, Option<Instruction>)>, Option<u64>);

/// The targets of an instruction that ends a block, and the address after it if that is reachable.
fn successors(i: Instruction, pc: u64) -> Vec<u64> {
    let after = pc.wrapping_add(4);
    match i.op {
        Op::B => i.target(pc).into_iter().collect(),
        Op::Bl => [after].into_iter().chain(i.target(pc)).collect(),
        Op::Blr | Op::Svc => vec![after],
        _ => vec![],
    }
}

impl ReachableCode {
    /// Follows direct jumps and calls from `start`, up to addresses for which `known` returns true and up to a number
    /// of instructions. Instructions at `extra_entries` that are reached become additional entry points.
    pub fn of(
        start: u64,
        extra_entries: &[u64],
        fetch: &dyn Fn(u64) -> Option<u32>,
        known: &dyn Fn(u64) -> bool,
        (limit, options): (usize, Options),
    ) -> Self {
        let mut reachable = Self {
            options,
            instructions: FxHashMap::default(),
            leaders: BTreeSet::new(),
            entry_points: FxHashSet::default(),
            inspected_pages: FxHashSet::default(),
            engine_entries: Vec::new(),
            live: FxHashMap::default(),
            returned: 0,
            read_after: FxHashSet::default(),
            used: FxHashMap::default(),
            refused: FxHashSet::default(),
            frugal: FxHashSet::default(),
            loops: Loops::default(),
            blocks: FxHashMap::default(),
            limit,
        };
        let mut visited = FxHashSet::default();
        let mut work_list = VecDeque::from([start]);
        while let Some(leader) = work_list.pop_front() {
            let is_new = leader == start || !known(leader);
            if !is_new || reachable.leaders.contains(&leader) || visited.len() >= limit {
                continue;
            }
            reachable.follow(leader, &mut visited, &mut work_list, fetch, known);
            if reachable.instructions.contains_key(&leader) {
                reachable.leaders.insert(leader);
            }
        }
        reachable.used = reachable
            .instructions
            .iter()
            .filter_map(|(pc, instruction)| instruction.map(|instruction| (*pc, uses(instruction))))
            .collect();
        reachable.find_entry_points(start, extra_entries);
        if options.has(Optimization::Loops) {
            reachable.split_loops();
        }
        reachable.look_ahead(fetch);
        reachable.find_live();
        if options.has(Optimization::Loops) {
            let loops = Loops::of(&reachable);
            reachable.copy_loops(&loops);
            reachable.loops = loops;
        }
        reachable.blocks =
            reachable.leaders.iter().map(|leader| (*leader, Rc::new(reachable.block(*leader)))).collect();
        reachable
    }

    fn follow(
        &mut self,
        leader: u64,
        visited: &mut FxHashSet<u64>,
        work_list: &mut VecDeque<u64>,
        fetch: &dyn Fn(u64) -> Option<u32>,
        known: &dyn Fn(u64) -> bool,
    ) {
        let mut pc = leader;
        while visited.insert(pc) {
            let Some(word) = fetch(pc) else { return };
            let instruction = decode(word);
            self.instructions.insert(pc, instruction);
            let Some(i) = instruction else { return };
            let goes_elsewhere = i.is_conditional_branch() || i.ends_block();
            if !self.options.has(Optimization::Units) && goes_elsewhere {
                return;
            }
            if i.is_conditional_branch() {
                work_list.extend(i.target(pc));
            } else if i.ends_block() {
                let next = successors(i, pc);
                if i.is_call() {
                    self.entry_points.extend(next.iter().copied());
                }
                work_list.extend(next);
                return;
            }
            pc = pc.wrapping_add(4);
            if known(pc) || visited.len() >= self.limit {
                return;
            }
        }
    }

    /// Makes `start` an entry point. If it is inside a loop of the unit and there are no `extra_entries`, makes it an
    /// engine entry instead, so that a thread that was interrupted in a loop continues in optimized code.
    /// `extra_entries` always become engine entries.
    fn find_entry_points(&mut self, start: u64, extra_entries: &[u64]) {
        // If `start` is in a loop, the loop's code is reachable from it, so all of its jumps to `start` are known.
        let comes_back = |(pc, i): (&u64, &Option<Instruction>)| {
            i.is_some_and(|i| {
                let jumps = i.is_conditional_branch() || i.op == Op::B;
                let falls = !i.ends_block() && pc.wrapping_add(4) == start;
                falls || jumps && i.target(*pc) == Some(start)
            })
        };
        let sees_loops = self.options.has(Optimization::Loops) && self.options.has(Optimization::Units);
        let is_loop = sees_loops && self.instructions.iter().any(comes_back);
        let mut engine_entries = extra_entries.to_vec();
        if engine_entries.is_empty() && is_loop {
            engine_entries.push(start);
        }
        if !engine_entries.contains(&start) || !is_loop {
            self.entry_points.insert(start);
        }
        engine_entries.sort_unstable();
        engine_entries.dedup();
        engine_entries
            .retain(|entry| self.instructions.contains_key(entry) && !self.entry_points.contains(entry));
        self.leaders.extend(&engine_entries);
        self.engine_entries = engine_entries;
    }

    /// Ends the block after a backward branch: the code after it is not part of the loop.
    fn split_loops(&mut self) {
        let closing = self.instructions.iter().filter(|(pc, i)| {
            let target = i.filter(|i| i.is_conditional_branch()).and_then(|i| i.target(**pc));
            target.is_some_and(|target| target <= **pc && self.leaders.contains(&target))
        });
        let after: Vec<u64> = closing.map(|(pc, _)| pc.wrapping_add(4)).collect();
        self.leaders.extend(after.into_iter().filter(|pc| self.instructions.contains_key(pc)));
    }

    /// The instructions from a leader to the end of its block.
    pub fn block(&self, leader: u64) -> Block {
        let mut block = Vec::new();
        let mut pc = leader;
        let mut entered = 0..1;
        loop {
            if pc != leader && !entered.contains(&block.len()) && self.leaders.contains(&pc) {
                return (block, Some(pc));
            }
            // A copy of a loop ends where the loop ends.
            let Some(instruction) = self.instructions.get(&pc) else { return (block, Some(source(pc))) };
            block.push((pc, *instruction));
            if let Some((to, length)) = self.duplicable_target(leader, &block) {
                (entered, pc) = (block.len()..block.len() + length, to);
                continue;
            }
            if instruction.is_none_or(Instruction::ends_block) {
                return (block, None);
            }
            pc = pc.wrapping_add(4);
        }
    }

    /// If a block ends with a jump to code that is short enough to be duplicated after the jump: returns its address
    /// and the number of instructions, up to its final jump.
    fn duplicable_target(&self, leader: u64, block: &[(u64, Option<Instruction>)]) -> Option<(u64, usize)> {
        let (pc, i) = *block.last()?;
        let to = i.filter(|i| i.op == Op::B)?.target(source(pc))?;
        let to = self.lead(leader, to);
        let is_new = block.len() < MAX_JOINED && block.iter().all(|(pc, _)| *pc != to);
        if !is_new || !self.leaders.contains(&to) {
            return None;
        }
        let at = |length: usize| to.wrapping_add(4 * length as u64);
        for length in 0..MAX_JOINED {
            let i = (*self.instructions.get(&at(length))?)?;
            if matches!(i.op, Op::Ret | Op::Br | Op::B) {
                return Some((to, length + 1));
            }
            if i.ends_block() {
                return None;
            }
            if i.is_conditional_branch() && self.leaders.contains(&at(length + 1)) {
                return Some((to, length + 1));
            }
        }
        None
    }

    /// The block of a leader. Computed only once for all planning passes.
    pub fn cached_block(&self, leader: u64) -> Rc<Block> {
        self.blocks.get(&leader).cloned().unwrap_or_default()
    }

    /// The targets within the unit of jumps from a block, and the address to which the block falls through.
    pub fn internal_successors(&self, leader: u64) -> Vec<u64> {
        let (block, next) = self.block(leader);
        let jumps = block.iter().filter_map(|(pc, i)| {
            let i = i.filter(|i| i.is_conditional_branch() || i.op == Op::B)?;
            i.target(*pc)
        });
        jumps.chain(next).collect()
    }

    /// Liveness at an address. Unknown code is assumed to read everything.
    pub fn live_at(&self, pc: u64) -> Live {
        let live = self.live.get(&source(pc)).copied().unwrap_or(Live { flags: ALL, ..Live::REGISTERS });
        if self.analyses_across_blocks() { live } else { Live { flags: ALL, ..live } }
    }

    /// Whether the liveness of flags across blocks is known.
    fn analyses_across_blocks(&self) -> bool {
        self.options.has(Optimization::Flags) && self.options.has(Optimization::FlagsAcross)
    }

    /// The registers that an instruction uses.
    pub fn used_by(&self, pc: u64) -> Uses {
        self.used.get(&source(pc)).copied().unwrap_or_default()
    }

    /// Liveness after the last instruction of a block.
    pub fn live_after(&self, block: &Block) -> Live {
        if let Some(next) = block.1 {
            return self.live_at(next);
        }
        let Some((pc, Some(last))) = block.0.last().copied() else {
            return Live { flags: ALL, ..Live::REGISTERS };
        };
        let flags = |flags| Live { flags, ..Live::REGISTERS };
        if !self.analyses_across_blocks() && last.op != Op::B {
            return flags(ALL);
        }
        let is_read = self.options.keeps_flags_across_calls || self.read_after.contains(&source(pc));
        let across = if is_read { ALL } else { 0 };
        match last.op {
            Op::B => last.target(pc).map_or(Live::REGISTERS, |to| self.live_at(to)),
            Op::Svc => flags(self.live_at(pc.wrapping_add(4)).flags),
            // By the calling convention, flags are dead across calls. A callee in the same unit and the code at the
            // return address are checked nevertheless.
            Op::Bl => {
                let known = last.target(pc).and_then(|to| self.live.get(&to)).map_or(0, |live| live.flags);
                flags(known | across)
            }
            Op::Ret => flags(self.returned | across),
            Op::Br if is_call(last) => flags(across),
            Op::Br => flags(live_after_jump(&block.0) | across),
            Op::Blr => flags(across),
            _ => flags(ALL),
        }
    }

    /// Liveness before an instruction, given the liveness `after` it.
    pub fn live_before(&self, pc: u64, i: Option<Instruction>, after: Live) -> Live {
        let Some(i) = i else { return Live { flags: ALL, ..Live::REGISTERS } };
        let after = match i.target(pc).filter(|_| i.is_conditional_branch()) {
            Some(target) => after.or(self.live_at(target)),
            None => after,
        };
        self.used_by(pc).before(after)
    }

    /// Examines the code that this unit jumps to in other units, for the flags that it reads.
    fn look_ahead(&mut self, fetch: &dyn Fn(u64) -> Option<u32>) {
        let mut pages: FxHashSet<u64> = self.instructions.keys().map(|pc| pc / PAGE).collect();
        let mut outside = BTreeSet::new();
        for &leader in &self.leaders {
            let (block, next) = self.block(leader);
            outside.extend(next);
            for (pc, i) in block {
                let jumps = i.filter(|i| i.is_conditional_branch() || i.op == Op::B);
                outside.extend(jumps.and_then(|i| i.target(pc)));
            }
        }
        for pc in outside.difference(&self.leaders.clone()).copied() {
            let mut left = LOOKAHEAD;
            let flags = flags_read((&mut pages, self.options), pc, fetch, &mut left);
            self.live.insert(pc, Live { flags, ..Live::REGISTERS });
        }
        let calls =
            self.instructions.iter().filter(|(_, i)| i.is_some_and(|i| matches!(i.op, Op::Bl | Op::Blr)));
        self.read_after = calls
            .map(|(pc, _)| *pc)
            .filter(|pc| is_read_after((&mut pages, self.options), *pc, fetch))
            .collect();
        self.inspected_pages = pages;
    }

    /// The flags that code after a call reads before its next jump. By the calling convention, flags are dead there.
    /// Only code with a private convention reads them.
    fn flags_read_after_call(&self, mut pc: u64) -> u8 {
        let mut read = 0;
        while let Some(Some(i)) = self.instructions.get(&pc) {
            let uses = self.used_by(pc);
            read |= uses.reads.flags;
            if uses.sets_flags || i.ends_block() {
                break;
            }
            pc = pc.wrapping_add(4);
        }
        read
    }

    fn find_live(&mut self) {
        let blocks: Vec<_> = self.leaders.iter().rev().map(|&leader| (leader, self.block(leader))).collect();
        let calls =
            self.instructions.iter().filter(|(_, i)| i.is_some_and(|i| matches!(i.op, Op::Bl | Op::Blr)));
        self.returned = calls.fold(0, |sum, (pc, _)| sum | self.flags_read_after_call(pc.wrapping_add(4)));
        self.live.extend(self.leaders.iter().map(|&leader| (leader, Live::default())));
        loop {
            let mut changed = false;
            for (leader, block) in &blocks {
                let mut live = self.live_after(block);
                if block.0.last().is_some_and(|(_, i)| i.is_some_and(|i| i.op == Op::Brk)) {
                    // Code that jumps to a trap does not return. Flag values in the trap handler's signal frame are not
                    // preserved.
                    live.flags = 0;
                }
                for (pc, i) in block.0.iter().rev() {
                    live = self.live_before(*pc, *i, live);
                }
                changed |= self.live.insert(*leader, live) != Some(live);
            }
            if !changed {
                return;
            }
        }
    }

    /// The ranges of source code that were read, as (address, bytes).
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let mut addresses: Vec<u64> =
            self.instructions.keys().copied().filter(|pc| source(*pc) == *pc).collect();
        addresses.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for pc in addresses {
            match ranges.last_mut() {
                Some((start, bytes)) if *start + *bytes == pc => *bytes += 4,
                _ => ranges.push((pc, 4)),
            }
        }
        ranges
    }
}

/// Whether an indirect jump is a call. Only procedure linkage tables and veneers jump through x16 and x17.
fn is_call(jump: Instruction) -> bool {
    matches!(jump.rn(), 16 | 17)
}

/// The flags that can be live after the indirect jump at the end of a block. Compilers may hoist a comparison common to
/// all cases of a switch above the jump. But the flags of the bounds check of the index are dead.
fn live_after_jump(block: &[(u64, Option<Instruction>)]) -> u8 {
    let mut indices: Vec<u8> = Vec::new();
    for i in block.iter().rev().filter_map(|(_, i)| *i) {
        if uses(i).sets_flags {
            let is_check = i.op == Op::SubsImm && i.rd() == NONE && indices.contains(&i.rn());
            return if is_check { 0 } else { ALL };
        }
        // A register written after the comparison no longer has the compared value.
        let written = uses(i).written;
        indices.retain(|&index| index == NONE || written & 1 << index == 0);
        if i.row().operands.iter().any(|operand| matches!(operand, Operand::Address(b'r'))) {
            indices.push(i.rm());
        }
    }
    ALL
}

/// The instructions after a call that are searched for a read of the callee's flags.
const READ_AFTER_CALL: usize = 3;

/// Whether the code at a return address reads flags of the callee. Compilers rarely do; the run-time systems of SBCL
/// and Erlang return the results of comparisons in flags.
pub(crate) fn reads_returned_flags(start: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> bool {
    for number in 0..READ_AFTER_CALL as u64 {
        let Some(i) = fetch(start.wrapping_add(4 * number)).and_then(decode) else { return false };
        let uses = uses(i);
        if uses.reads.flags != 0 {
            return true;
        }
        if uses.sets_flags || i.ends_block() {
            return false;
        }
    }
    false
}

/// Whether code after the call at `pc` reads flags that the callee may have preserved, as in dav1d. A cold
/// translation reads only the listed pages; others are added.
fn is_read_after(
    (pages, options): (&mut FxHashSet<u64>, Options),
    pc: u64,
    fetch: &dyn Fn(u64) -> Option<u32>,
) -> bool {
    let first = pc.wrapping_add(4);
    let inspected = [first, first.wrapping_add(4 * (READ_AFTER_CALL as u64 - 1))].map(|at| at / PAGE);
    if options.is_cold && !inspected.iter().all(|page| pages.contains(page)) {
        return true;
    }
    pages.extend(inspected);
    reads_returned_flags(first, fetch)
}

/// The flags that code at `pc` reads before it writes them. Returns all flags after `left` instructions, and outside of
/// pages that are monitored for changes.
fn flags_read(
    (pages, options): (&mut FxHashSet<u64>, Options),
    mut pc: u64,
    fetch: &dyn Fn(u64) -> Option<u32>,
    left: &mut usize,
) -> u8 {
    let mut read = 0;
    while read != ALL {
        // A cold translation reads only the pages of the unit, because access to others may be slow.
        if *left == 0 || options.is_cold && !pages.contains(&(pc / PAGE)) {
            return ALL;
        }
        *left -= 1;
        let Some(i) = fetch(pc).and_then(decode) else { return ALL };
        pages.insert(pc / PAGE);
        let uses = uses(i);
        read |= uses.reads.flags;
        if uses.sets_flags {
            return read;
        }
        match i.op {
            Op::Br if !is_call(i) => return ALL,
            Op::Br | Op::Blr | Op::Ret | Op::Bl if options.keeps_flags_across_calls => return ALL,
            Op::Bl | Op::Blr if is_read_after((pages, options), pc, fetch) => return ALL,
            Op::Br | Op::Blr | Op::Ret | Op::Bl | Op::Brk => return read,
            Op::B => match i.target(pc) {
                Some(target) => pc = target,
                None => return ALL,
            },
            _ => {
                if let Some(target) = i.target(pc).filter(|_| i.is_conditional_branch()) {
                    read |= flags_read((pages, options), target, fetch, left);
                }
                pc = pc.wrapping_add(4);
            }
        }
    }
    read
}
