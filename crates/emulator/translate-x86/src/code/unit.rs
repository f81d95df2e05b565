//! Translation units: the code that direct jumps and calls reach from an address, liveness of flags and registers, and
//! translation in address order. Source: Intel SDM, volume 2, for lengths, flags and targets, as encoded in iced-x86.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, RflagsBits};
use rustc_hash::{FxHashMap, FxHashSet};

use super::forms::join;
use super::known::RegisterStates;
use super::lower::{Lowering, PlanCache};
use super::reading::{MAX_INSTRUCTION_BYTES, Words, decode_at, note_page};
use super::returned_flags::{is_read_after, reads_returned_flags};
use super::uses::{Live, Uses, uses};
use crate::Unit;
use longma_translate::front_end::Exit;
use longma_translate::optimizations::{Optimization, Options};

mod cold;
mod indirect;
mod ranges;
mod visited;

use indirect::{PushedValues, live_after_jump};
use ranges::join_ranges;
use visited::Visited;

/// The granularity of change tracking; the same as the engine's.
pub(super) const PAGE: u64 = 4096;
/// The maximum number of bytes read to decode an instruction.
const BYTES_READ: u64 = 20;
/// The maximum number of instructions outside the unit that are scanned for live flags.
const LOOKAHEAD: usize = 40;
/// The maximum number of source instructions in a unit, so that branches with 16-bit offsets reach across it.
const MAX_INSTRUCTIONS: usize = 1500;
/// PUSH ES, which is invalid in 64-bit mode.
const NO_INSTRUCTION: u8 = 0x06;
/// The flags that arithmetic writes, as iced-x86's bits.
pub(super) const ARITHMETIC: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::CF | RflagsBits::PF;

/// The code that is reachable from an address.
#[derive(Default)]
pub(super) struct ReachableCode {
    /// The options of the translation.
    pub options: Options,
    /// The leaders in address order. Other fields are indexed by leader number.
    pub leaders: Vec<u64>,
    /// Leaders that calls, returns or the engine enter, sorted. Other leaders are reached only by jumps within the
    /// unit.
    entry_points: Vec<u64>,
    /// The pages whose code was read, including code that was only scanned for live flags.
    inspected_pages: Vec<u64>,
    /// Leaders that the engine enters in addition, because a loop may be running through them.
    pub engine_entries: Vec<u64>,
    /// The live flags at each leader.
    live: Vec<u32>,
    /// The live flags at addresses outside the unit, sorted by address.
    live_outside: Vec<(u64, u32)>,
    /// The flags that are live at return addresses.
    returned: u32,
    /// The live registers at each leader.
    registers: Vec<Live>,
    /// Instructions that ran out of temporaries. They are translated as illegal instructions.
    pub refused: FxHashSet<u64>,
    /// The block of each leader.
    blocks: Vec<Block>,
    /// The instructions of all blocks. An invalid instruction represents undecodable bytes.
    code: Vec<Instruction>,
    /// The analysis results of each instruction.
    contexts: Vec<InstructionContext>,
}

/// The analysis results of an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct InstructionContext {
    /// The registers that it uses.
    pub uses: Uses,
    /// The flags that are live after it or at its jump target.
    pub flags: u32,
    /// The registers that are live after it or at its jump target.
    pub registers: Live,
}

/// The instructions from a leader to the end of its block, and the address at which the block falls through, if it
/// does.
#[derive(Clone, Copy)]
struct Block {
    first: usize,
    end: usize,
    next: Option<u64>,
}

/// Whether an instruction is a system call: SYSCALL, or INT 80h.
pub(super) fn is_system_call(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Syscall => true,
        Mnemonic::Int => instruction.immediate8() == 0x80,
        _ => false,
    }
}

/// The known successors of an instruction that ends a block.
pub(super) fn successors(instruction: &Instruction) -> Option<Vec<u64>> {
    let next = instruction.next_ip();
    Some(match instruction.flow_control() {
        FlowControl::Next => return None,
        FlowControl::UnconditionalBranch => vec![instruction.near_branch_target()],
        FlowControl::ConditionalBranch => vec![next, instruction.near_branch_target()],
        FlowControl::Call | FlowControl::Interrupt if is_system_call(instruction) => vec![next],
        FlowControl::Call => vec![next, instruction.near_branch_target()],
        FlowControl::IndirectCall => vec![next],
        _ => vec![],
    })
}

/// Whether an instruction may leave its flags unchanged because of a zero count.
pub(super) fn may_keep_flags(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    match instruction.mnemonic() {
        Shl | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd => {
            let count = instruction.op_count() - 1;
            instruction.op_kind(count) == iced_x86::OpKind::Register || instruction.immediate8() & 0x1f == 0
        }
        Cmpsb | Cmpsw | Cmpsd | Cmpsq | Scasb | Scasw | Scasd | Scasq => {
            instruction.has_rep_prefix() || instruction.has_repne_prefix()
        }
        _ => false,
    }
}

/// The flags that are live before an instruction, if `live_after` are live after it.
fn live_before(instruction: &Instruction, live_after: u32) -> u32 {
    if is_system_call(instruction) {
        // A processor saves the flags in R11, which is not modelled.
        return live_after;
    }
    let written = if may_keep_flags(instruction) { 0 } else { instruction.rflags_modified() };
    (live_after & !written | instruction.rflags_read()) & ARITHMETIC
}

/// The register uses of instructions.
fn uses_of(block: &[Instruction]) -> Vec<Uses> {
    let mut factory = InstructionInfoFactory::new();
    block.iter().map(|instruction| uses(&mut factory, instruction)).collect()
}

/// Whether an instruction ends a block.
fn ends(instruction: &Instruction) -> bool {
    !matches!(instruction.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch)
}

/// Whether an instruction is a call or system call, whose successor is reached by a return.
pub(super) fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

impl ReachableCode {
    /// Follows direct jumps and calls from `start` up to addresses in `known`. Instructions at `extra_entries` that
    /// are reached become additional entry points.
    fn of(
        start: u64,
        extra_entries: &[u64],
        fetch: &dyn Fn(u64) -> Option<u32>,
        known: &dyn Fn(u64) -> bool,
        options: Options,
    ) -> Self {
        let words = Words::new(fetch);
        let fetch: &dyn Fn(u64) -> Option<u32> = &|address| words.word(address);
        if options.is_cold {
            return Self::of_block(start, fetch, options);
        }
        let mut reachable = Self { options, entry_points: vec![start], ..Self::default() };
        let mut visited = Visited::default();
        let mut work_list = VecDeque::from([start]);
        while let Some(leader) = work_list.pop_front() {
            if visited.is_leader(leader) || visited.places.len() >= MAX_INSTRUCTIONS {
                continue;
            }
            if leader != start && known(leader) {
                continue;
            }
            let mut pc = leader;
            while let Entry::Vacant(vacant) = visited.places.entry(pc) {
                let decoded = decode_at(pc, fetch);
                vacant.insert(decoded.map(|_| visited.code.len()));
                let Some(instruction) = decoded else { break };
                visited.code.push((instruction, false));
                if instruction.is_invalid() {
                    break;
                }
                if !options.has(Optimization::Units) && instruction.flow_control() != FlowControl::Next {
                    break;
                }
                if instruction.flow_control() == FlowControl::ConditionalBranch {
                    work_list.push_back(instruction.near_branch_target());
                } else if let Some(next) = successors(&instruction) {
                    if is_call(&instruction) {
                        reachable.entry_points.extend(&next);
                    }
                    work_list.extend(next);
                    break;
                }
                pc = instruction.next_ip();
                if known(pc) || visited.places.len() >= MAX_INSTRUCTIONS {
                    break;
                }
            }
            visited.make_leader(leader);
        }
        reachable.entry_points.sort_unstable();
        let mut engine_entries = extra_entries.to_vec();
        engine_entries.sort_unstable();
        engine_entries.dedup();
        engine_entries.retain(|entry| !reachable.is_entry_point(*entry) && visited.make_leader(*entry));
        reachable.engine_entries = engine_entries;
        reachable.create_blocks(&visited);
        if reachable.analyses_across_blocks() {
            reachable.look_ahead(fetch);
            reachable.find_live();
        }
        reachable.find_registers();
        reachable
    }

    /// The number of the leader at an address.
    pub fn number(&self, pc: u64) -> Option<usize> {
        self.leaders.binary_search(&pc).ok()
    }

    /// Whether calls, returns or the engine enter a leader.
    pub fn is_entry_point(&self, leader: u64) -> bool {
        self.entry_points.binary_search(&leader).is_ok()
    }

    /// Whether flag liveness extends across blocks.
    fn analyses_across_blocks(&self) -> bool {
        self.options.has(Optimization::Flags) && self.options.has(Optimization::FlagsAcross)
    }

    /// The flags that are live after calls and returns: by the calling convention, none.
    fn live_across_calls(&self) -> u32 {
        if self.options.keeps_flags_across_calls { ARITHMETIC } else { 0 }
    }

    /// Scans code outside the unit for flags that are live there.
    fn look_ahead(&mut self, fetch: &dyn Fn(u64) -> Option<u32>) {
        let mut pages = Vec::new();
        let mut outside: Vec<u64> = self.blocks.iter().filter_map(|block| block.next).collect();
        for i in &self.code {
            note_page(&mut pages, i.ip());
            match i.flow_control() {
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                    outside.push(i.near_branch_target());
                }
                FlowControl::Call | FlowControl::IndirectCall => outside.push(i.next_ip()),
                _ => {}
            }
        }
        outside.sort_unstable();
        outside.dedup();
        outside.retain(|pc| self.number(*pc).is_none());
        for pc in outside {
            let mut left = LOOKAHEAD;
            let read = self.flags_read(&mut pages, pc, ARITHMETIC, fetch, &mut left);
            self.live_outside.push((pc, read));
        }
        self.inspected_pages = pages;
    }

    /// The flags among `candidates` that are live at `pc`. Once `budget` instructions have been scanned, all of
    /// `candidates` counts as live.
    fn flags_read(
        &self,
        pages: &mut Vec<u64>,
        mut pc: u64,
        mut candidates: u32,
        fetch: &dyn Fn(u64) -> Option<u32>,
        budget: &mut usize,
    ) -> u32 {
        let (mut read, mut pushed) = (0, PushedValues::default());
        while candidates != 0 {
            // Cold blocks do not scan other pages, because validating them later would be expensive.
            let ends = [pc, pc.wrapping_add(BYTES_READ)].map(|at| at / PAGE);
            let is_near = !self.options.is_cold || ends.iter().all(|page| pages.contains(page));
            let decoded = (*budget > 0 && is_near).then(|| decode_at(pc, fetch)).flatten();
            let Some(i) = decoded.filter(|i| !i.is_invalid()) else { return read | candidates };
            note_page(pages, pc);
            note_page(pages, pc.wrapping_add(i.len() as u64 - 1));
            *budget -= 1;
            pushed.note(&i);
            let is_call = is_system_call(&i);
            read |= if is_call { 0 } else { i.rflags_read() & candidates };
            if !may_keep_flags(&i) && !is_call {
                candidates &= !i.rflags_modified();
            }
            candidates &= !read;
            pc = match i.flow_control() {
                FlowControl::Next => i.next_ip(),
                FlowControl::UnconditionalBranch => i.near_branch_target(),
                FlowControl::ConditionalBranch => {
                    read |= self.flags_read(pages, i.near_branch_target(), candidates, fetch, budget);
                    candidates &= !read;
                    i.next_ip()
                }
                // The same rule as for indirect jumps within a unit.
                FlowControl::IndirectBranch if !i.is_ip_rel_memory_operand() => return read | candidates,
                FlowControl::Call | FlowControl::Interrupt if is_call => i.next_ip(),
                FlowControl::Call | FlowControl::IndirectCall => {
                    let keeps = is_read_after(&i, self.options.is_cold, pages, fetch);
                    return read | candidates & if keeps { ARITHMETIC } else { self.live_across_calls() };
                }
                FlowControl::Return if pushed.is_top() => return read | candidates,
                FlowControl::IndirectBranch | FlowControl::Return => {
                    return read | candidates & self.live_across_calls();
                }
                _ => return read | candidates,
            };
        }
        read
    }

    /// The instructions of a leader's block.
    pub fn block(&self, number: usize) -> &[Instruction] {
        let Block { first, end, .. } = self.blocks[number];
        &self.code[first..end]
    }

    /// The address at which a leader's block falls through, if it does.
    pub fn fall_through(&self, number: usize) -> Option<u64> {
        self.blocks[number].next
    }

    /// The analysis results of a leader's block.
    pub fn contexts(&self, number: usize) -> &[InstructionContext] {
        let Block { first, end, .. } = self.blocks[number];
        &self.contexts[first..end]
    }

    /// All instructions. Those in several blocks occur repeatedly.
    pub fn instructions(&self) -> impl ExactSizeIterator<Item = &Instruction> {
        self.code.iter()
    }

    /// The live flags at a leader or at scanned code outside; `None` if unknown.
    fn known_live(&self, pc: u64) -> Option<u32> {
        let Some(number) = self.number(pc) else {
            let index = self.live_outside.binary_search_by_key(&pc, |(pc, _)| *pc).ok();
            return index.map(|at| self.live_outside[at].1);
        };
        self.live.get(number).copied()
    }

    /// The live flags at a leader; all if unknown.
    fn live_at(&self, pc: u64) -> u32 {
        self.known_live(pc).unwrap_or(ARITHMETIC)
    }

    /// The live flags after a block.
    fn live_after_block(&self, block: &[Instruction], next: Option<u64>) -> u32 {
        if !self.analyses_across_blocks() {
            return ARITHMETIC;
        }
        if let Some(next) = next {
            return self.live_at(next);
        }
        let Some(last) = block.last() else { return ARITHMETIC };
        match last.flow_control() {
            FlowControl::UnconditionalBranch => self.live_at(last.near_branch_target()),
            FlowControl::Call | FlowControl::Interrupt if is_system_call(last) => {
                self.live_at(last.next_ip())
            }
            // Calls within the unit are analysed. Other callees may leave flags unchanged, such as Go's routines that
            // clear and copy memory.
            FlowControl::Call => {
                let callee = self.known_live(last.near_branch_target()).unwrap_or(0);
                callee | self.known_live(last.next_ip()).unwrap_or(0) | self.live_across_calls()
            }
            FlowControl::Return if PushedValues::are_jumped_to(block) => ARITHMETIC,
            FlowControl::Return => self.returned | self.live_across_calls(),
            FlowControl::IndirectBranch => live_after_jump(block) | self.live_across_calls(),
            FlowControl::IndirectCall => {
                self.known_live(last.next_ip()).unwrap_or(0) | self.live_across_calls()
            }
            _ => ARITHMETIC,
        }
    }

    /// The flags that are live before or at the jump target of an instruction, if `live_after` are live after it.
    fn live_before(&self, instruction: &Instruction, live_after: u32) -> u32 {
        if !self.options.has(Optimization::Flags) {
            return ARITHMETIC;
        }
        live_before(instruction, live_after | self.live_at_target(instruction))
    }

    /// The flags that are live at the target of a conditional branch.
    pub fn live_at_target(&self, instruction: &Instruction) -> u32 {
        let is_branch = instruction.flow_control() == FlowControl::ConditionalBranch;
        if is_branch { self.live_at(instruction.near_branch_target()) } else { 0 }
    }

    /// The registers that are live at an address; all if unknown.
    pub fn registers_at(&self, pc: u64) -> Live {
        self.number(pc).map_or(Live::ALL, |number| self.registers_of(number))
    }

    /// The registers that are live at a leader.
    pub fn registers_of(&self, number: usize) -> Live {
        self.registers.get(number).copied().unwrap_or(Live::ALL)
    }

    /// The registers that are live after an instruction and at its jump target.
    fn registers_live_after(&self, instruction: &Instruction, live_after: Live) -> Live {
        if instruction.flow_control() == FlowControl::ConditionalBranch {
            live_after.or(self.registers_at(instruction.near_branch_target()))
        } else {
            live_after
        }
    }

    fn registers_live_after_block(&self, block: &[Instruction], next: Option<u64>) -> Live {
        if let Some(next) = next {
            return self.registers_at(next);
        }
        let Some(last) = block.last() else { return Live::ALL };
        match last.flow_control() {
            FlowControl::UnconditionalBranch => self.registers_at(last.near_branch_target()),
            FlowControl::Call if last.is_call_near() => self.registers_at(last.near_branch_target()),
            _ => Live::ALL,
        }
    }

    fn find_registers(&mut self) {
        let uses = uses_of(&self.code);
        self.registers = vec![Live::default(); self.leaders.len()];
        let mut changed = true;
        while changed {
            changed = false;
            for number in (0..self.blocks.len()).rev() {
                let Block { first, end, next } = self.blocks[number];
                let block = &self.code[first..end];
                let mut live = self.registers_live_after_block(block, next);
                for (instruction, uses) in block.iter().zip(&uses[first..end]).rev() {
                    live = uses.before(self.registers_live_after(instruction, live));
                }
                changed |= std::mem::replace(&mut self.registers[number], live) != live;
            }
        }
        self.analyse_instructions(&uses);
    }

    /// Computes the analysis results of all instructions from those of leaders.
    fn analyse_instructions(&mut self, uses: &[Uses]) {
        let all = if self.options.has(Optimization::Flags) { 0 } else { ARITHMETIC };
        let mut contexts = Vec::with_capacity(self.code.len());
        for Block { first, end, next } in &self.blocks {
            let block = &self.code[*first..*end];
            let mut flags = self.live_after_block(block, *next);
            let mut registers = self.registers_live_after_block(block, *next);
            for (instruction, uses) in block.iter().zip(&uses[*first..*end]).rev() {
                let read = self.registers_live_after(instruction, registers);
                contexts.push(InstructionContext {
                    uses: *uses,
                    flags: flags | self.live_at_target(instruction) | all,
                    registers: read,
                });
                flags = self.live_before(instruction, flags);
                registers = uses.before(read);
            }
            contexts[*first..].reverse();
        }
        self.contexts = contexts;
    }

    /// The flags that are live at a return address. If the code there ends in a trap, the call does not return, and
    /// none are.
    fn live_after_call(&self, pc: u64) -> u32 {
        let Some(live) = self.known_live(pc) else { return 0 };
        // Usually a leader, but possibly in the middle of a block if the unit reached its maximum size.
        let at = match self.number(pc) {
            Some(number) => Some(self.blocks[number].first),
            None => self.code.iter().position(|i| i.ip() == pc),
        };
        let Some(at) = at else { return live };
        let Block { end, next, .. } = self.blocks[self.blocks.partition_point(|block| block.end <= at)];
        let block = &self.code[at..end];
        let ends_in_trap = next.is_none()
            && block.last().is_none_or(|last| {
                last.is_invalid()
                    || matches!(last.flow_control(), FlowControl::Exception | FlowControl::Interrupt)
                    || last.mnemonic() == Mnemonic::Hlt
            });
        if ends_in_trap {
            block.iter().rev().fold(0, |live, instruction| self.live_before(instruction, live))
        } else {
            live
        }
    }

    fn find_live(&mut self) {
        let calls = self.code.iter().filter(|i| i.is_call_near() || i.is_call_near_indirect());
        let mut return_addresses: Vec<u64> = calls.map(Instruction::next_ip).collect();
        return_addresses.sort_unstable();
        return_addresses.dedup();
        self.live = vec![0; self.leaders.len()];
        loop {
            let mut changed = false;
            for number in (0..self.blocks.len()).rev() {
                let Block { first, end, next } = self.blocks[number];
                let block = &self.code[first..end];
                let mut live = self.live_after_block(block, next);
                for instruction in block.iter().rev() {
                    live = self.live_before(instruction, live);
                }
                changed |= std::mem::replace(&mut self.live[number], live) != live;
            }
            let returned = return_addresses.iter().fold(0, |sum, pc| sum | self.live_after_call(*pc));
            changed |= returned != self.returned;
            self.returned = returned;
            if !changed {
                return;
            }
        }
    }

    fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        // Instructions of a block are contiguous, and blocks usually are.
        for instruction in &self.code {
            // Undecodable bytes may become valid by a change to any of them.
            let bytes = if instruction.is_invalid() { MAX_INSTRUCTION_BYTES } else { instruction.len() };
            match ranges.last_mut() {
                Some((start, length)) if *start + *length == instruction.ip() => *length += bytes as u64,
                _ => ranges.push((instruction.ip(), bytes as u64)),
            }
        }
        join_ranges(ranges)
    }
}

/// The maximum number of planning rounds. Leaders that have not converged by then start with the default state.
const MAX_ROUNDS: usize = 8;

/// The planned states of leaders for jumps within the unit.
pub(super) type Plan = Vec<Option<RegisterStates>>;

/// Translates the code that is reachable from `start`, with `extra_entries` as additional entry points. `fetch` reads
/// aligned words of source code. `known` excludes addresses from the unit.
pub fn translate(
    start: u64,
    extra_entries: &[u64],
    fetch: &dyn Fn(u64) -> Option<u32>,
    known: &dyn Fn(u64) -> bool,
    options: &Options,
) -> Unit {
    let mut reachable = ReachableCode::of(start, extra_entries, fetch, known, *options);
    if reachable.leaders.is_empty() {
        // The instruction extends into a non-executable page.
        reachable.add_invalid(start);
    }
    loop {
        match lower(&reachable) {
            Ok(mut unit) => {
                unit.reads_flags_after_call =
                    reachable.instructions().any(|i| reads_returned_flags(i, fetch));
                return unit;
            }
            Err(pc) => reachable.refused.insert(pc),
        };
    }
}

/// Translates the single instruction at `start`. All flags count as live after it.
pub(crate) fn translate_one(start: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> Unit {
    let length = decode_at(start, fetch).filter(|i| !i.is_invalid()).map(|i| i.len() as u64);
    let Some(length) = length else { return translate(start, &[], fetch, &|_| true, &Options::default()) };
    let single = |pc: u64| {
        let is_its = |byte: u64| pc.wrapping_add(byte).wrapping_sub(start) < length;
        if !(0..4).any(is_its) {
            return None;
        }
        let mut word = fetch(pc)?.to_le_bytes();
        for (byte, code) in (0..).zip(&mut word) {
            *code = if is_its(byte) { *code } else { NO_INSTRUCTION };
        }
        Some(u32::from_le_bytes(word))
    };
    translate(start, &[], &single, &|_| true, &Options::default())
}

/// Lowers the code to a unit.
///
/// # Errors
/// The address of an instruction that ran out of temporaries.
fn lower(reachable: &ReachableCode) -> Result<Unit, u64> {
    let plan = plan(reachable);
    let mut lowering = Lowering::new(reachable, &plan, true);
    lowering.all();
    if let Some(pc) = lowering.out_of_temporaries_at {
        return Err(pc);
    }
    let mut unit = std::mem::take(&mut lowering.unit);
    unit.entries.sort_unstable();
    let mut entries = FxHashMap::default();
    for pc in lowering.assembler.outside(&entries) {
        let at = lowering.assembler.words.len();
        entries.insert(pc, at);
        unit.exit(&mut lowering.assembler, pc, Exit::To(pc));
    }
    unit.sources = reachable.ranges();
    unit.inspected_pages = reachable.inspected_pages.iter().map(|page| page * PAGE).collect();
    let calls = reachable.instructions().filter(|i| i.is_call_near() || i.is_call_near_indirect());
    for call in calls {
        unit.called.extend(call.is_call_near().then(|| call.near_branch_target()));
        unit.return_addresses.push(call.next_ip());
    }
    unit.words = lowering.assembler.finish(&entries);
    Ok(unit)
}

/// Computes the states at the leaders for jumps within the unit: repeats lowering without output until the incoming
/// states match the assumptions.
fn plan(reachable: &ReachableCode) -> Plan {
    let mut plan = Plan::default();
    if reachable.options.is_cold {
        // Cold blocks have no jumps within the unit.
        return plan;
    }
    let leaders = reachable.leaders.len();
    if !reachable.options.has(Optimization::Loops) {
        return vec![Some(RegisterStates::default()); leaders];
    }
    plan = vec![None; leaders];
    let mut given_up = vec![false; leaders];
    let mut memory = PlanCache::new();
    let mut outs_before: Vec<Vec<(bool, RegisterStates)>> = vec![Vec::new(); leaders];
    for round in 0.. {
        let mut lowering = Lowering::new(reachable, &plan, false);
        lowering.remembered = memory;
        lowering.all();
        let next_state = |(to, outs): (usize, &Vec<(bool, RegisterStates)>)| match plan[to] {
            _ if outs.is_empty() => None,
            _ if given_up[to] => Some(RegisterStates::default()),
            Some(known) if outs_before[to] == *outs => Some(known),
            _ => Some(join(outs, reachable.registers_of(to))),
        };
        let next: Plan = lowering.outs.iter().enumerate().map(next_state).collect();
        (memory, outs_before) = (lowering.remembered, lowering.outs);
        if next == plan {
            break;
        }
        if round >= MAX_ROUNDS {
            for (to, known) in next.iter().enumerate() {
                given_up[to] |= known.is_some() && plan[to] != *known;
            }
        }
        plan = next;
        for (known, _) in plan.iter_mut().zip(&given_up).filter(|(_, is_given_up)| **is_given_up) {
            *known = known.map(|_| RegisterStates::default());
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::TEMPORARIES;

    /// add rax, rbx; ret
    const CODE: [u32; 1] = [0xc3d8_0148];

    fn reachable() -> ReachableCode {
        ReachableCode::of(0, &[], &|at| CODE.get(at as usize / 4).copied(), &|_| false, Options::default())
    }

    #[test]
    fn an_instruction_that_runs_out_of_registers_is_reported() {
        let reachable = reachable();
        let plan = Plan::default();
        let mut lowering = Lowering::new(&reachable, &plan, true);
        let mut registers: Vec<u8> = TEMPORARIES.iter().map(|_| lowering.temporary()).collect();
        registers.sort_unstable();
        assert_eq!((registers, lowering.out_of_temporaries_at), (TEMPORARIES.to_vec(), None));
        lowering.temporary();
        assert_eq!(lowering.out_of_temporaries_at, Some(0));
    }

    #[test]
    fn a_refused_instruction_is_illegal() {
        let mut reachable = reachable();
        let is_illegal = |unit: &Unit| unit.exits.iter().any(|exit| matches!(exit.1, Exit::Illegal));
        assert!(!is_illegal(&lower(&reachable).unwrap()));
        reachable.refused.insert(0);
        assert!(is_illegal(&lower(&reachable).unwrap()));
    }
}
