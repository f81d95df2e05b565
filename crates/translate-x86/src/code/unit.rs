//! A unit: the code that direct jumps and calls reach from one address, which of its flags are read, and its translation in the order of
//! its addresses.
//! Not what single instructions become, and not where units lie (`engine`).
//! Source: Intel SDM, volume 2, for lengths, flags and targets, by iced-x86.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register, RflagsBits};
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
    /// By address; an invalid one has been read and is none.
    pub instructions: FxHashMap<u64, Instruction>,
    pub leaders: BTreeSet<u64>,
    /// The leaders that calls, returns and the engine lead to; others have jumps of the unit only.
    pub doors: FxHashSet<u64>,
    /// The pages of the code that has been read, be it for the flags that others read.
    looked_at: FxHashSet<u64>,
    /// A leader that the engine leads to and that is none of these: a jump may close a loop there.
    pub entrance: Option<u64>,
    /// The flags that are read before they are written, by leader.
    live: FxHashMap<u64, u32>,
    /// Those that code behind a call reads.
    returned: u32,
    /// The registers that are read before they are written, by leader.
    registers: FxHashMap<u64, Live>,
    /// Instructions for whose code there are too few registers: they are illegal ones rather than executed wrongly.
    pub refused: FxHashSet<u64>,
    /// By leader, once all leaders are known.
    blocks: FxHashMap<u64, Block>,
    /// The same of each block's instructions, once it is known what is read where.
    around: FxHashMap<u64, Rc<[Around]>>,
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
pub(super) type Block = (Rc<[Instruction]>, Option<u64>);

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

/// The flags that may be read where the indirect jump at the end of a block leads to. Compilers put a test that all cases of a switch begin with
/// before its jump, and the branches that read it behind. By what has set the flags last:
///
/// - of what computes the jump's address, and of the check that its index is in the table, nothing is read;
/// - of a sum that it is zero or negative, which a test would say as well, and, where it is not a constant that is added, the carry: interpreters
///   count up before each of their jumps, and all flags of that are half as many instructions again;
/// - of differences, comparisons, tests and others everything but AF, which is for decimal numbers.
///
/// A jump through a pointer at a fixed place is a call, as those of procedure linkage tables are.
fn live_behind_jump(block: &[Instruction]) -> u32 {
    let Some((jump, before)) = block.split_last() else { return ARITHMETIC };
    if jump.is_ip_rel_memory_operand() {
        return 0;
    }
    let writes_flags = |i: &Instruction| i.rflags_modified() & ARITHMETIC != 0;
    let Some(at) = before.iter().rposition(writes_flags) else { return ARITHMETIC };
    let (last, after) = (&before[at], &before[at + 1..]);
    let first = full(last, 0);
    let target = full(jump, 0);
    if first != Register::None {
        let computes_target =
            first == target && writes(last, first) && !after.iter().any(|i| writes(i, first));
        // Where the index is: in the jump, or in the load of what it jumps to. What is put there later is not what was compared.
        let load = after.iter().position(|i| target != Register::None && full(i, 0) == target);
        let index_at = |i: &Instruction| i.memory_index().full_register() == first;
        let is_index = match load {
            Some(load) => index_at(&after[load]) && !after[..load].iter().any(|i| writes(i, first)),
            None => index_at(jump) && !after.iter().any(|i| writes(i, first)),
        };
        if computes_target || last.mnemonic() == Mnemonic::Cmp && is_index {
            return 0;
        }
    }
    let is_zero_or_negative = RflagsBits::ZF | RflagsBits::SF;
    match last.mnemonic() {
        Mnemonic::Inc | Mnemonic::Dec => is_zero_or_negative,
        Mnemonic::Add if !is_register_or_memory(last, 1) => is_zero_or_negative,
        Mnemonic::Add => is_zero_or_negative | RflagsBits::CF,
        _ => ARITHMETIC & !RflagsBits::AF,
    }
}

fn is_register_or_memory(i: &Instruction, operand: u32) -> bool {
    matches!(i.op_kind(operand), OpKind::Register | OpKind::Memory)
}

/// Whether an instruction writes a general register, be it in part.
fn writes(i: &Instruction, register: Register) -> bool {
    let written = uses(&mut InstructionInfoFactory::new(), i).written;
    register.is_gpr64() && written & 1 << register.number() != 0
}

/// The whole of the register that an operand is, if it is one.
fn full(i: &Instruction, operand: u32) -> Register {
    let is_register = i.op_count() > operand && i.op_kind(operand) == OpKind::Register;
    if is_register { i.op_register(operand).full_register() } else { Register::None }
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
        let mut found = Self::empty(start, options);
        let mut visited = FxHashSet::default();
        let mut ahead = VecDeque::from([start]);
        while let Some(leader) = ahead.pop_front() {
            let is_new = leader == start || !known(leader);
            if !is_new || found.leaders.contains(&leader) || visited.len() >= MOST_INSTRUCTIONS {
                continue;
            }
            let mut pc = leader;
            while visited.insert(pc) {
                let Some(instruction) = decode_at(pc, fetch) else { break };
                found.instructions.insert(pc, instruction);
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
                        found.doors.extend(next.iter().copied());
                    }
                    ahead.extend(next);
                    break;
                }
                pc = instruction.next_ip();
                if known(pc) || visited.len() >= MOST_INSTRUCTIONS {
                    break;
                }
            }
            if found.instructions.contains_key(&leader) {
                found.leaders.insert(leader);
            }
        }
        found.entrance =
            door.filter(|door| found.instructions.contains_key(door) && !found.doors.contains(door));
        found.leaders.extend(found.entrance);
        found.blocks = found.leaders.iter().map(|&leader| (leader, found.find_block(leader))).collect();
        if found.sees_across() {
            found.look_ahead(fetch);
            found.find_live();
        }
        found.find_registers();
        found
    }

    fn empty(start: u64, options: Options) -> Self {
        Self { options, doors: FxHashSet::from_iter([start]), ..Self::default() }
    }

    /// Whether it is known which flags are read beyond a block.
    fn sees_across(&self) -> bool {
        self.options.has(Part::Flags) && self.options.has(Part::FlagsAcross)
    }

    /// Looks at the code of other units that this one goes on in, for the flags that are read there.
    fn look_ahead(&mut self, fetch: &dyn Fn(u64) -> Option<u32>) {
        let mut pages: FxHashSet<u64> = self.instructions.keys().map(|pc| pc / PAGE).collect();
        let mut outside = BTreeSet::new();
        for &leader in &self.leaders {
            let (block, next) = self.block(leader);
            outside.extend(next);
            for i in block.iter() {
                let jumps = matches!(
                    i.flow_control(),
                    FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
                );
                if jumps {
                    outside.insert(i.near_branch_target());
                }
            }
        }
        outside.retain(|pc| !self.leaders.contains(pc));
        for pc in outside {
            let mut left = LOOKAHEAD;
            let read = self.flags_read(&mut pages, pc, ARITHMETIC, fetch, &mut left);
            self.live.insert(pc, read);
        }
        self.looked_at = pages;
    }

    /// Which of these flags code from `pc` on reads before it writes them; all of them once `left` instructions have been looked at.
    fn flags_read(
        &self,
        pages: &mut FxHashSet<u64>,
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
            pages.extend([pc, pc.wrapping_add(i.len() as u64 - 1)].map(|at| at / PAGE));
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

    /// The block at `leader`.
    pub fn block(&self, leader: u64) -> Block {
        self.blocks.get(&leader).cloned().unwrap_or_else(|| self.find_block(leader))
    }

    fn find_block(&self, leader: u64) -> Block {
        let mut block = Vec::new();
        let mut pc = leader;
        let next = loop {
            if pc != leader && self.leaders.contains(&pc) {
                break Some(pc);
            }
            let Some(instruction) = self.instructions.get(&pc) else { break Some(pc) };
            block.push(*instruction);
            if instruction.is_invalid() || ends(instruction) {
                break None;
            }
            pc = instruction.next_ip();
        };
        (block.into(), next)
    }

    /// The flags that code at a leader reads; all of them where nothing is known.
    fn live_at(&self, pc: u64) -> u32 {
        self.live.get(&pc).copied().unwrap_or(ARITHMETIC)
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
            FlowControl::Call => self.live.get(&last.near_branch_target()).copied().unwrap_or(0),
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
        self.registers.get(&pc).copied().unwrap_or(Live::ALL)
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
        let blocks = self.leaders.iter().rev().map(|&leader| {
            let (block, next) = self.block(leader);
            let uses = uses_of(&block);
            (leader, block, next, uses)
        });
        let blocks: Vec<_> = blocks.collect();
        self.registers = self.leaders.iter().map(|&leader| (leader, Live::default())).collect();
        let mut changed = true;
        while changed {
            changed = false;
            for (leader, block, next, uses) in &blocks {
                let mut live = self.registers_behind(block, *next);
                for (instruction, uses) in block.iter().zip(uses).rev() {
                    live = uses.before(self.registers_read_behind(instruction, live));
                }
                changed |= self.registers.insert(*leader, live) != Some(live);
            }
        }
        let around = |(leader, block, next, uses): &(u64, Rc<[Instruction]>, _, Vec<_>)| {
            (*leader, self.find_around(block, *next, uses))
        };
        self.around = blocks.iter().map(around).collect();
    }

    /// What is known at each instruction of the block at `leader`.
    pub fn around(&self, leader: u64) -> Rc<[Around]> {
        self.around.get(&leader).cloned().unwrap_or_else(|| {
            let (block, next) = self.block(leader);
            self.find_around(&block, next, &uses_of(&block))
        })
    }

    fn find_around(&self, block: &[Instruction], next: Option<u64>, uses: &[Uses]) -> Rc<[Around]> {
        let mut flags = self.live_behind(block, next);
        let mut registers = self.registers_behind(block, next);
        let mut around = Vec::with_capacity(block.len());
        for (instruction, uses) in block.iter().zip(uses).rev() {
            let read = self.registers_read_behind(instruction, registers);
            let all = if self.options.has(Part::Flags) { 0 } else { ARITHMETIC };
            around.push(Around {
                uses: *uses,
                flags: flags | self.live_where_taken(instruction) | all,
                registers: read,
            });
            flags = self.live_before(instruction, flags);
            registers = uses.before(read);
        }
        around.reverse();
        around.into()
    }

    /// The flags that code behind a call reads. Where that ends in a trap, nobody comes back: the handler's view of them is not asked for.
    fn live_behind_call(&self, pc: u64) -> u32 {
        let Some(&live) = self.live.get(&pc) else { return 0 };
        let (block, next) = self.block(pc);
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
        let blocks: Vec<_> = self.leaders.iter().rev().map(|&leader| (leader, self.block(leader))).collect();
        let behind_calls: Vec<u64> = self
            .instructions
            .values()
            .filter(|i| i.is_call_near() || i.is_call_near_indirect())
            .map(Instruction::next_ip)
            .collect();
        self.live.extend(self.leaders.iter().map(|&leader| (leader, 0)));
        loop {
            let mut changed = false;
            for (leader, (block, next)) in &blocks {
                let mut live = self.live_behind(block, *next);
                for instruction in block.iter().rev() {
                    live = self.live_before(instruction, live);
                }
                changed |= self.live.insert(*leader, live) != Some(live);
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
        let mut pieces: Vec<(u64, u64)> = self
            .instructions
            .iter()
            .map(|(pc, instruction)| {
                // What is none may become one by any of the bytes that were looked at.
                let bytes = if instruction.is_invalid() { LONGEST } else { instruction.len() };
                (*pc, bytes as u64)
            })
            .collect();
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
}

/// How often a unit is lowered to find what holds at its leaders, before what has not settled is given up.
const MOST_ROUNDS: usize = 8;

/// What holds where jumps of the unit lead to.
pub(super) type Plan = FxHashMap<u64, Known>;

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
        reach.instructions.insert(start, Instruction::default());
        reach.leaders.insert(start);
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
    let calls = reach.instructions.values().filter(|i| i.is_call_near() || i.is_call_near_indirect());
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
    if !reach.options.has(Part::Loops) {
        return reach.leaders.iter().map(|leader| (*leader, Known::default())).collect();
    }
    let mut given_up: FxHashSet<u64> = FxHashSet::default();
    let mut memory = Remembered::default();
    let mut outs_before: FxHashMap<u64, Vec<(bool, Known)>> = FxHashMap::default();
    for round in 0.. {
        let mut lowering = Lowering::new(reach, &plan, false);
        lowering.remembered = memory;
        lowering.all();
        let of = |(to, outs): (&u64, &Vec<_>)| {
            let as_before = plan.get(to).filter(|_| outs_before.get(to) == Some(outs));
            let known = match as_before {
                _ if given_up.contains(to) => Known::default(),
                Some(known) => *known,
                None => join(outs, reach.registers_at(*to)),
            };
            (*to, known)
        };
        let next: Plan = lowering.outs.iter().map(of).collect();
        (memory, outs_before) = (lowering.remembered, lowering.outs);
        if next == plan {
            break;
        }
        if round >= MOST_ROUNDS {
            given_up.extend(next.iter().filter(|(to, known)| plan.get(to) != Some(known)).map(|(to, _)| *to));
        }
        plan = next;
        for (_, known) in plan.iter_mut().filter(|(to, _)| given_up.contains(to)) {
            *known = Known::default();
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
