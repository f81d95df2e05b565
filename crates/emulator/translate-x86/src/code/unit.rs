//! A unit: the code that direct jumps and calls reach from one address, which of its flags are read, and its translation in the order of
//! its addresses.
//! Not what single instructions become, and not where units lie (`engine`).
//! Source: Intel SDM, volume 2, for lengths, flags and targets, by iced-x86.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, RflagsBits};
use rustc_hash::{FxHashMap, FxHashSet};

use super::forms::join;
use super::known::Known;
use super::lower::{Lowering, Remembered};
use super::reading::{LONGEST, Words, decode_at};
use super::uses::{Live, Uses, uses};
use crate::Unit;
use longma_translate::front_end::Exit;
use longma_translate::parts::{Options, Part};

mod cold;
mod indirect;
mod visited;

use indirect::live_behind_jump;
use visited::Visited;

/// What is watched for changes of the source's code, as the engine does.
const PAGE: u64 = 4096;
/// No more is read from an address on to know the instruction there.
const BYTES_READ: u64 = 20;
/// So many instructions of other units are looked at for the flags that they read.
const LOOKAHEAD: usize = 40;
/// A unit has no more source instructions than this: branches of 16 bits reach across it.
const MOST_INSTRUCTIONS: usize = 1500;
/// PUSH ES, which 64-bit mode does not have.
const NO_INSTRUCTION: u8 = 0x06;
/// The flags that arithmetic writes, as iced-x86 has them.
pub(super) const ARITHMETIC: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::CF | RflagsBits::PF;

/// The code that one address reaches.
#[derive(Default)]
pub(super) struct Reach {
    /// How it is to be translated.
    pub options: Options,
    /// In the order of their addresses; what is known of each is at its number.
    pub leaders: Vec<u64>,
    /// What calls, returns and the engine lead to, in order: other leaders have jumps of the unit only.
    doors: Vec<u64>,
    /// The pages of the code that has been read, be it for the flags that others read.
    looked_at: Vec<u64>,
    /// A leader that the engine leads to and that is none of these: a jump may close a loop there.
    pub entrance: Option<u64>,
    /// The flags that are read before they are written, by leader.
    live: Vec<u32>,
    /// The same of other units' code, by address and in order.
    live_outside: Vec<(u64, u32)>,
    /// Those that code behind a call reads.
    returned: u32,
    /// The registers that are read before they are written, by leader.
    registers: Vec<Live>,
    /// Instructions for whose code there are too few registers: they are illegal ones rather than executed wrongly.
    pub refused: FxHashSet<u64>,
    /// By leader.
    blocks: Vec<Block>,
    /// The instructions of one block behind those of the other; an invalid one has been read and is none.
    code: Vec<Instruction>,
    /// What is known at each of them.
    around: Vec<Around>,
}

/// What is known at an instruction of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around {
    /// What it does to registers.
    pub uses: Uses,
    /// The flags that are read behind it or where it jumps to.
    pub flags: u32,
    /// The registers.
    pub registers: Live,
}

/// The instructions from a leader to the end of its block, and where it goes on without a jump, if it does.
#[derive(Clone, Copy)]
struct Block {
    first: usize,
    end: usize,
    next: Option<u64>,
}

/// Where execution can go on behind an instruction that ends a block, as far as that is known.
pub(super) fn successors(instruction: &Instruction) -> Option<Vec<u64>> {
    let behind = instruction.next_ip();
    Some(match instruction.flow_control() {
        FlowControl::Next => return None,
        FlowControl::UnconditionalBranch => vec![instruction.near_branch_target()],
        FlowControl::ConditionalBranch => vec![behind, instruction.near_branch_target()],
        FlowControl::Call if instruction.mnemonic() == Mnemonic::Syscall => vec![behind],
        FlowControl::Call => vec![behind, instruction.near_branch_target()],
        FlowControl::IndirectCall => vec![behind],
        _ => vec![],
    })
}

/// Whether an instruction may leave the flags that it writes as they are, by a count of zero.
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

/// The flags that are read at an instruction or, if it does not write them, behind it.
fn live_before(instruction: &Instruction, behind: u32) -> u32 {
    if instruction.mnemonic() == Mnemonic::Syscall {
        // R11, which a processor puts them into, stays as it is here.
        return behind;
    }
    let written = if may_keep_flags(instruction) { 0 } else { instruction.rflags_modified() };
    (behind & !written | instruction.rflags_read()) & ARITHMETIC
}

/// What instructions do to registers.
fn uses_of(block: &[Instruction]) -> Vec<Uses> {
    let mut factory = InstructionInfoFactory::new();
    block.iter().map(|instruction| uses(&mut factory, instruction)).collect()
}

/// Whether an instruction ends a block.
fn ends(instruction: &Instruction) -> bool {
    !matches!(instruction.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch)
}

/// Whether an instruction is a call, of the system too: what stands behind is reached by a return.
pub(super) fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

/// Notes the page of an address among others, which are few.
fn note_page(pages: &mut Vec<u64>, address: u64) {
    let page = address / PAGE;
    if pages.last() != Some(&page) && !pages.contains(&page) {
        pages.push(page);
    }
}

impl Reach {
    /// Follows direct jumps and calls from `start`, up to what `known` has. An instruction at `door` that is reached can be come to as
    /// well.
    fn of(
        start: u64,
        door: Option<u64>,
        fetch: &dyn Fn(u64) -> Option<u32>,
        known: &dyn Fn(u64) -> bool,
        options: Options,
    ) -> Self {
        let words = Words::new(fetch);
        let fetch: &dyn Fn(u64) -> Option<u32> = &|address| words.word(address);
        if options.is_cold {
            return Self::of_block(start, fetch, options);
        }
        let mut found = Self { options, doors: vec![start], ..Self::default() };
        let mut visited = Visited::default();
        let mut ahead = VecDeque::from([start]);
        while let Some(leader) = ahead.pop_front() {
            if visited.is_leader(leader) || visited.places.len() >= MOST_INSTRUCTIONS {
                continue;
            }
            if leader != start && known(leader) {
                continue;
            }
            let mut pc = leader;
            while let Entry::Vacant(place) = visited.places.entry(pc) {
                let decoded = decode_at(pc, fetch);
                place.insert(decoded.map(|_| visited.code.len()));
                let Some(instruction) = decoded else { break };
                visited.code.push((instruction, false));
                if instruction.is_invalid() {
                    break;
                }
                if !options.has(Part::Units) && instruction.flow_control() != FlowControl::Next {
                    break;
                }
                if instruction.flow_control() == FlowControl::ConditionalBranch {
                    ahead.push_back(instruction.near_branch_target());
                } else if let Some(next) = successors(&instruction) {
                    if is_call(&instruction) {
                        found.doors.extend(&next);
                    }
                    ahead.extend(next);
                    break;
                }
                pc = instruction.next_ip();
                if known(pc) || visited.places.len() >= MOST_INSTRUCTIONS {
                    break;
                }
            }
            visited.lead(leader);
        }
        found.doors.sort_unstable();
        found.entrance = door.filter(|door| !found.is_door(*door) && visited.lead(*door));
        found.lay(&visited);
        if found.sees_across() {
            found.look_ahead(fetch);
            found.find_live();
        }
        found.find_registers();
        found
    }

    /// The number of the leader at an address.
    pub fn number(&self, pc: u64) -> Option<usize> {
        self.leaders.binary_search(&pc).ok()
    }

    /// Whether calls, returns and the engine lead there.
    pub fn is_door(&self, leader: u64) -> bool {
        self.doors.binary_search(&leader).is_ok()
    }

    /// Whether it is known which flags are read beyond a block.
    fn sees_across(&self) -> bool {
        self.options.has(Part::Flags) && self.options.has(Part::FlagsAcross)
    }

    /// Looks at the code of other units that this one goes on in, for the flags that are read there.
    fn look_ahead(&mut self, fetch: &dyn Fn(u64) -> Option<u32>) {
        let mut pages = Vec::new();
        let mut outside: Vec<u64> = self.blocks.iter().filter_map(|block| block.next).collect();
        for i in &self.code {
            note_page(&mut pages, i.ip());
            let kind = i.flow_control();
            if matches!(kind, FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch) {
                outside.push(i.near_branch_target());
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
        self.looked_at = pages;
    }

    /// Which of these flags code from `pc` on reads before it writes them; all of them once `left` instructions have been looked at.
    fn flags_read(
        &self,
        pages: &mut Vec<u64>,
        mut pc: u64,
        mut asked: u32,
        fetch: &dyn Fn(u64) -> Option<u32>,
        left: &mut usize,
    ) -> u32 {
        let mut read = 0;
        while asked != 0 {
            // For a few times not on other pages than those that it has been read from: they may be hard to get at.
            let ends = [pc, pc.wrapping_add(BYTES_READ)].map(|at| at / PAGE);
            let is_near = !self.options.is_cold || ends.iter().all(|page| pages.contains(page));
            let found = (*left > 0 && is_near).then(|| decode_at(pc, fetch)).flatten();
            let Some(i) = found.filter(|i| !i.is_invalid()) else { return read | asked };
            note_page(pages, pc);
            note_page(pages, pc.wrapping_add(i.len() as u64 - 1));
            *left -= 1;
            let is_call = i.mnemonic() == Mnemonic::Syscall;
            read |= if is_call { 0 } else { i.rflags_read() & asked };
            if !may_keep_flags(&i) && !is_call {
                asked &= !i.rflags_modified();
            }
            asked &= !read;
            pc = match i.flow_control() {
                FlowControl::Next => i.next_ip(),
                FlowControl::UnconditionalBranch => i.near_branch_target(),
                FlowControl::ConditionalBranch => {
                    read |= self.flags_read(pages, i.near_branch_target(), asked, fetch, left);
                    asked &= !read;
                    i.next_ip()
                }
                // As inside of a unit.
                FlowControl::IndirectBranch if i.is_ip_rel_memory_operand() => return read,
                FlowControl::IndirectBranch => return read | asked,
                FlowControl::Return | FlowControl::IndirectCall => return read,
                FlowControl::Call if is_call => i.next_ip(),
                FlowControl::Call => return read,
                _ => return read | asked,
            };
        }
        read
    }

    /// The instructions of the block of a leader.
    pub fn block(&self, number: usize) -> &[Instruction] {
        let Block { first, end, .. } = self.blocks[number];
        &self.code[first..end]
    }

    /// Where the block of a leader goes on without a jump, if it does.
    pub fn behind(&self, number: usize) -> Option<u64> {
        self.blocks[number].next
    }

    /// What is known at each instruction of the block of a leader.
    pub fn around(&self, number: usize) -> &[Around] {
        let Block { first, end, .. } = self.blocks[number];
        &self.around[first..end]
    }

    /// All instructions; one that lies in two blocks comes twice.
    pub fn instructions(&self) -> impl ExactSizeIterator<Item = &Instruction> {
        self.code.iter()
    }

    /// The flags that code at a leader reads, or other code that is jumped to, if anything is known of it.
    fn known_live(&self, pc: u64) -> Option<u32> {
        let Some(number) = self.number(pc) else {
            let found = self.live_outside.binary_search_by_key(&pc, |(pc, _)| *pc).ok();
            return found.map(|at| self.live_outside[at].1);
        };
        self.live.get(number).copied()
    }

    /// The flags that code at a leader reads; all of them where nothing is known.
    fn live_at(&self, pc: u64) -> u32 {
        self.known_live(pc).unwrap_or(ARITHMETIC)
    }

    /// The flags that are read behind a block's end.
    fn live_behind(&self, block: &[Instruction], next: Option<u64>) -> u32 {
        if !self.sees_across() {
            return ARITHMETIC;
        }
        if let Some(next) = next {
            return self.live_at(next);
        }
        let Some(last) = block.last() else { return ARITHMETIC };
        match last.flow_control() {
            FlowControl::UnconditionalBranch => self.live_at(last.near_branch_target()),
            FlowControl::Call if last.mnemonic() == Mnemonic::Syscall => self.live_at(last.next_ip()),
            // By the calling convention nothing is read across a call, but in the same unit it is seen.
            FlowControl::Call => self.known_live(last.near_branch_target()).unwrap_or(0),
            FlowControl::Return => self.returned,
            FlowControl::IndirectBranch => live_behind_jump(block),
            FlowControl::IndirectCall => 0,
            _ => ARITHMETIC,
        }
    }

    /// The flags that are read at an instruction, behind it or where it jumps to; `behind` are those behind it.
    fn live_before(&self, instruction: &Instruction, behind: u32) -> u32 {
        if !self.options.has(Part::Flags) {
            return ARITHMETIC;
        }
        live_before(instruction, behind | self.live_where_taken(instruction))
    }

    /// The flags that are read where a conditional branch goes if it is taken.
    pub fn live_where_taken(&self, instruction: &Instruction) -> u32 {
        let is_branch = instruction.flow_control() == FlowControl::ConditionalBranch;
        if is_branch { self.live_at(instruction.near_branch_target()) } else { 0 }
    }

    /// The registers that code at an address reads; all of them where nothing is known.
    pub fn registers_at(&self, pc: u64) -> Live {
        self.number(pc).map_or(Live::ALL, |number| self.registers_of(number))
    }

    /// The same of a leader's number.
    pub fn registers_of(&self, number: usize) -> Live {
        self.registers.get(number).copied().unwrap_or(Live::ALL)
    }

    /// What is read behind an instruction: behind it in its block, and where it jumps to.
    fn registers_read_behind(&self, instruction: &Instruction, behind: Live) -> Live {
        if instruction.flow_control() == FlowControl::ConditionalBranch {
            behind.or(self.registers_at(instruction.near_branch_target()))
        } else {
            behind
        }
    }

    fn registers_behind(&self, block: &[Instruction], next: Option<u64>) -> Live {
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
                let mut live = self.registers_behind(block, next);
                for (instruction, uses) in block.iter().zip(&uses[first..end]).rev() {
                    live = uses.before(self.registers_read_behind(instruction, live));
                }
                changed |= std::mem::replace(&mut self.registers[number], live) != live;
            }
        }
        self.find_around(&uses);
    }

    /// Finds what is known at each instruction, once it is known what is read at each leader.
    fn find_around(&mut self, uses: &[Uses]) {
        let all = if self.options.has(Part::Flags) { 0 } else { ARITHMETIC };
        let mut around = Vec::with_capacity(self.code.len());
        for Block { first, end, next } in &self.blocks {
            let block = &self.code[*first..*end];
            let mut flags = self.live_behind(block, *next);
            let mut registers = self.registers_behind(block, *next);
            for (instruction, uses) in block.iter().zip(&uses[*first..*end]).rev() {
                let read = self.registers_read_behind(instruction, registers);
                around.push(Around {
                    uses: *uses,
                    flags: flags | self.live_where_taken(instruction) | all,
                    registers: read,
                });
                flags = self.live_before(instruction, flags);
                registers = uses.before(read);
            }
            around[*first..].reverse();
        }
        self.around = around;
    }

    /// The flags that code behind a call reads. Where that ends in a trap, nobody comes back: the handler's view of them is not asked for.
    fn live_behind_call(&self, pc: u64) -> u32 {
        let Some(live) = self.known_live(pc) else { return 0 };
        // It is mostly a leader, but when there are too many instructions it may be in the middle of a block.
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
        let mut behind_calls: Vec<u64> = calls.map(Instruction::next_ip).collect();
        behind_calls.sort_unstable();
        behind_calls.dedup();
        self.live = vec![0; self.leaders.len()];
        loop {
            let mut changed = false;
            for number in (0..self.blocks.len()).rev() {
                let Block { first, end, next } = self.blocks[number];
                let block = &self.code[first..end];
                let mut live = self.live_behind(block, next);
                for instruction in block.iter().rev() {
                    live = self.live_before(instruction, live);
                }
                changed |= std::mem::replace(&mut self.live[number], live) != live;
            }
            let returned = behind_calls.iter().fold(0, |sum, pc| sum | self.live_behind_call(*pc));
            changed |= returned != self.returned;
            self.returned = returned;
            if !changed {
                return;
            }
        }
    }

    fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        // Instructions of a block follow each other, and blocks mostly do.
        for instruction in &self.code {
            // What is none may become one by any of the bytes that were looked at.
            let bytes = if instruction.is_invalid() { LONGEST } else { instruction.len() };
            match ranges.last_mut() {
                Some((start, length)) if *start + *length == instruction.ip() => *length += bytes as u64,
                _ => ranges.push((instruction.ip(), bytes as u64)),
            }
        }
        join_ranges(ranges)
    }
}

/// Ranges of addresses, each with its size, in order and joined where they touch.
fn join_ranges(mut pieces: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    if pieces.len() < 2 {
        return pieces;
    }
    pieces.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (pc, bytes) in pieces {
        match ranges.last_mut() {
            Some((start, length)) if *start + *length >= pc => {
                *length = (*length).max(pc + bytes - *start);
            }
            _ => ranges.push((pc, bytes)),
        }
    }
    ranges
}

/// How often a unit is lowered to find what holds at its leaders, before what has not settled is given up.
const MOST_ROUNDS: usize = 8;

/// What holds where jumps of the unit lead to, by leader.
pub(super) type Plan = Vec<Option<Known>>;

/// Translates what `start` reaches, and lets others come to `door` in it. `fetch` reads aligned words of the source's code; `known` says
/// what is not to be translated with it.
pub fn translate(
    start: u64,
    door: Option<u64>,
    fetch: &dyn Fn(u64) -> Option<u32>,
    known: &dyn Fn(u64) -> bool,
    options: &Options,
) -> Unit {
    let mut reach = Reach::of(start, door, fetch, known, *options);
    if reach.leaders.is_empty() {
        // Its bytes end where nothing can be executed: what is not there is no instruction.
        reach.be_nothing(start);
    }
    loop {
        match lower(&reach) {
            Ok(unit) => return unit,
            Err(pc) => reach.refused.insert(pc),
        };
    }
}

/// Translates the one instruction at `start`. Nothing is known of those behind it, so that all its flags are written.
pub(crate) fn translate_one(start: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> Unit {
    let length = decode_at(start, fetch).filter(|i| !i.is_invalid()).map(|i| i.len() as u64);
    let Some(length) = length else { return translate(start, None, fetch, &|_| true, &Options::default()) };
    let alone = |pc: u64| {
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
    translate(start, None, &alone, &|_| true, &Options::default())
}

/// The code of what has been found.
///
/// # Errors
/// The address of an instruction for which there are too few registers.
fn lower(reach: &Reach) -> Result<Unit, u64> {
    let plan = plan(reach);
    let mut lowering = Lowering::new(reach, &plan, true);
    lowering.all();
    if let Some(pc) = lowering.short_at {
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
    unit.sources = reach.ranges();
    unit.looked_at = reach.looked_at.iter().map(|page| page * PAGE).collect();
    let calls = reach.instructions().filter(|i| i.is_call_near() || i.is_call_near_indirect());
    for call in calls {
        unit.called.extend(call.is_call_near().then(|| call.near_branch_target()));
        unit.behind_calls.push(call.next_ip());
    }
    unit.words = lowering.assembler.finish(&entries);
    Ok(unit)
}

/// Finds what holds where jumps of the unit lead to: lowers it until what the jumps say of that is what was assumed.
fn plan(reach: &Reach) -> Plan {
    let mut plan = Plan::default();
    if reach.options.is_cold {
        // No jump of its own leads anywhere in it.
        return plan;
    }
    let leaders = reach.leaders.len();
    if !reach.options.has(Part::Loops) {
        return vec![Some(Known::default()); leaders];
    }
    plan = vec![None; leaders];
    let mut given_up = vec![false; leaders];
    let mut memory = Remembered::new();
    let mut outs_before: Vec<Vec<(bool, Known)>> = vec![Vec::new(); leaders];
    for round in 0.. {
        let mut lowering = Lowering::new(reach, &plan, false);
        lowering.remembered = memory;
        lowering.all();
        let of = |(to, outs): (usize, &Vec<(bool, Known)>)| match plan[to] {
            _ if outs.is_empty() => None,
            _ if given_up[to] => Some(Known::default()),
            Some(known) if outs_before[to] == *outs => Some(known),
            _ => Some(join(outs, reach.registers_of(to))),
        };
        let next: Plan = lowering.outs.iter().enumerate().map(of).collect();
        (memory, outs_before) = (lowering.remembered, lowering.outs);
        if next == plan {
            break;
        }
        if round >= MOST_ROUNDS {
            for (to, known) in next.iter().enumerate() {
                given_up[to] |= known.is_some() && plan[to] != *known;
            }
        }
        plan = next;
        for (known, _) in plan.iter_mut().zip(&given_up).filter(|(_, is_given_up)| **is_given_up) {
            *known = known.map(|_| Known::default());
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::TEMPORARIES;

    /// add rax, rbx; ret.
    const CODE: [u32; 1] = [0xc3d8_0148];

    fn reach() -> Reach {
        Reach::of(0, None, &|at| CODE.get(at as usize / 4).copied(), &|_| false, Options::default())
    }

    #[test]
    fn an_instruction_that_finds_too_few_registers_is_told_of() {
        let reach = reach();
        let plan = Plan::default();
        let mut lowering = Lowering::new(&reach, &plan, true);
        let mut found: Vec<u8> = TEMPORARIES.iter().map(|_| lowering.temporary()).collect();
        found.sort_unstable();
        assert_eq!((found, lowering.short_at), (TEMPORARIES.to_vec(), None));
        lowering.temporary();
        assert_eq!(lowering.short_at, Some(0));
    }

    #[test]
    fn an_instruction_that_is_refused_is_illegal() {
        let mut reach = reach();
        let is_illegal = |unit: &Unit| unit.exits.iter().any(|exit| matches!(exit.1, Exit::Illegal));
        assert!(!is_illegal(&lower(&reach).unwrap()));
        reach.refused.insert(0);
        assert!(is_illegal(&lower(&reach).unwrap()));
    }
}
