//! Emits host code for a region: block entries, edges, exits, and operand access for the instruction emitters in the
//! other files. Source: LoongArch Reference Manual, volume 1; Intel SDM, volume 2.

mod atomic;
mod bits;
pub(super) mod control;
mod counting;
mod crypto;
mod float;
mod host_vectors;
mod integer;
mod lane_crossing;
mod memory;
pub(crate) mod origin;
mod scratch;
mod sequences;
mod system;
mod system_atomic;
mod system_vector;
mod tracing;
mod vector;
mod vector_table;

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};
use longma_loongarch::{Extension, Instruction, Op, State};
use longma_trace::has_address;

use self::origin::OriginSupport;
use super::{
    allocation::{Allocation, VectorWidth, registers_of},
    assembler::{Arg, Assembled, Assembler, Condition, Label},
    interpreter_call::{InterpreterCall, InterpreterCalls, PlacedInterpreterCall},
    region::{Region, RegionBlock},
    registers::{CANONICAL, GENERAL_HOSTS, VECTOR_HOSTS, low32, wide},
    trampolines::{Trampolines, field, general_slot, vector_slot},
};
use crate::{
    block::End,
    counting::Counting,
    cpu::{Cpu, ExitReason, InterruptedBlock},
    register_accesses::RegisterAccesses,
    traced_blocks::TracedBlocks,
};

/// How far beyond a checked register an access may reach. It is less than the guard area after guest memory.
const MAX_SLACK_BYTES: i64 = 16 << 10;

/// A direct jump out of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkSite {
    /// The position of the jump's displacement in the region's code.
    pub displacement: usize,
    /// The position of its target while it is not linked.
    pub unlinked: usize,
    /// The target guest address.
    pub target: u64,
}

/// The code of a region and the data that the translator keeps about it.
pub(crate) struct Emitted {
    pub code: Assembled,
    /// The position of the entry point for other regions.
    pub entry: usize,
    /// The position of the code that spills all registers and exits. EAX holds the reason.
    pub spill: usize,
    /// The position of the code that calls the interpreter for one instruction.
    pub interpreter_call: usize,
    /// `(position, guest address)` of each instruction, ascending by position.
    pub positions: Vec<(u32, u64)>,
    /// The positions of counted blocks, ascending.
    pub counted_blocks: Vec<(u32, InterruptedBlock)>,
    /// Possible side entries: `(guest address, position)` of blocks.
    pub blocks: Vec<(u64, usize)>,
    pub links: Vec<LinkSite>,
    pub allocation: Allocation,
    /// Interpreter calls; the code contains pointers to them.
    pub interpreter_calls: InterpreterCalls,
}

/// Out-of-line code, emitted after the blocks.
enum Stub {
    /// Exits with a reason at a guest address.
    Leave { label: Label, pc: u64, reason: ExitReason, left: InterruptedBlock },
    /// Exits because the target of a link is not translated.
    Unlinked { label: Label, pc: u64, link: usize },
    /// Executes one instruction in the interpreter and continues. `end` is the end of the block.
    InterpreterCall { label: Label, back: Label, pc: u64, end: u64, instruction: Instruction },
    /// Exits before a block that exceeds the budget of a system or of metered code.
    Budget { label: Label, pc: u64, length: u8 },
    /// An indirect call whose target is not in the lookup table.
    CallMiss { label: Label, landing: Label },
    /// A jump to a trampoline.
    JumpTo { label: Label, host: u64 },
    /// The edge of a conditional branch that leaves the region.
    Edge { label: Label, target: u64 },
}

pub(super) struct Emitter<'a> {
    a: Assembler,
    region: &'a Region,
    allocation: Allocation,
    trampolines: Trampolines,
    /// Guest memory does not start at host address 0, so accesses use the GS segment.
    based: bool,
    counting: Option<&'a Counting>,
    metered: bool,
    tracing: Option<&'a TracedBlocks>,
    registers: &'a RegisterAccesses,
    system: Option<&'a mut CallOuts<'a>>,
    origin: OriginSupport,
    /// The record of the block being emitted, if blocks are traced.
    record: tracing::OpenRecord,
    block_labels: Vec<(u64, Label)>,
    stubs: Vec<Stub>,
    links: Vec<LinkSite>,
    interpreter_calls: InterpreterCalls,
    positions: Vec<(u32, u64)>,
    counted_blocks: Vec<(u32, InterruptedBlock)>,
    /// Guest registers with a known constant value.
    known: [Option<u64>; 32],
    /// Guest registers that passed a range check, and the distance in bytes that they have moved since.
    in_range: [Option<i64>; 32],
    /// The value and the range distance of the register that the last instruction wrote.
    wrote_known: Option<u64>,
    wrote_in_range: Option<i64>,
    /// The current block, if it is counted or metered.
    counted: InterruptedBlock,
    /// The address of the current instruction.
    pc: u64,
    /// The end of the current block.
    block_end: u64,
    spill: Label,
    interpreter_call: Label,
}

/// The environment for which a region is emitted.
pub(crate) struct EmitContext<'a> {
    pub trampolines: Trampolines,
    /// Guest memory does not start at host address 0.
    pub based: bool,
    /// The block counters, if blocks are counted.
    pub counting: Option<&'a Counting>,
    /// Each block subtracts its length from an instruction budget.
    pub metered: bool,
    /// The traced blocks, if blocks are traced.
    pub tracing: Option<&'a TracedBlocks>,
    /// Instructions that access device registers.
    pub registers: &'a RegisterAccesses,
    /// For the code of a system: returns the address of the data for an instruction that the owner of the core
    /// executes. The second argument is the number of instructions that follow it in the block.
    pub system: Option<&'a mut CallOuts<'a>>,
    /// Support for the architecture that the program was compiled for.
    pub origin: OriginSupport,
}

/// See [`EmitContext::system`].
pub(crate) type CallOuts<'a> = dyn FnMut(&Instruction, u32) -> u64 + 'a;

/// Emits the code of a region.
pub(crate) fn emit<'a>(region: &'a Region, context: EmitContext<'a>) -> Emitted {
    let EmitContext { trampolines, based, counting, metered, tracing, registers, system, origin } = context;
    let mut a = Assembler::new();
    let (spill, interpreter_call) = (a.label(), a.label());
    let block_labels = region.blocks.iter().map(|b| (b.start, a.label())).collect();
    let mut allocation = Allocation::choose(region);
    if system.is_some() {
        allocation.spill_vectors();
    }
    let emitter = Emitter {
        a,
        region,
        allocation,
        trampolines,
        based,
        counting,
        metered,
        tracing,
        registers,
        system,
        origin,
        record: tracing::OpenRecord::default(),
        block_labels,
        stubs: Vec::new(),
        links: Vec::new(),
        interpreter_calls: InterpreterCalls::new(),
        positions: Vec::new(),
        counted_blocks: Vec::new(),
        known: [None; 32],
        in_range: [None; 32],
        wrote_known: None,
        wrote_in_range: None,
        counted: InterruptedBlock::default(),
        pc: region.entry,
        block_end: region.entry,
        spill,
        interpreter_call,
    };
    emitter.run()
}

impl Emitter<'_> {
    fn run(mut self) -> Emitted {
        let entry = self.a.position();
        self.enter_mapping();
        let region = self.region;
        if region.blocks.first().is_none_or(|b| b.start != region.entry) {
            let label = self.label_of(region.entry).expect("a region has its entry");
            self.a.jump(label);
        }
        for (index, block) in region.blocks.iter().enumerate() {
            let next = region.blocks.get(index + 1).map(|b| b.start);
            self.block(block, next);
        }
        let end_of_blocks = self.a.position();
        self.positions.push((end_of_blocks as u32, 0));
        while let Some(stub) = self.stubs.pop() {
            self.stub(stub);
        }
        self.shared_exits();
        let blocks = self
            .block_labels
            .iter()
            .filter_map(|(pc, label)| Some((*pc, self.a.position_of(*label)?)))
            .collect();
        let shared = |label| self.a.position_of(label).expect("shared_exits places it");
        let (spill, interpreter_call) = (shared(self.spill), shared(self.interpreter_call));
        Emitted {
            entry,
            spill,
            interpreter_call,
            positions: self.positions,
            counted_blocks: self.counted_blocks,
            blocks,
            links: self.links,
            allocation: self.allocation,
            interpreter_calls: self.interpreter_calls,
            code: self.a.finish(),
        }
    }

    fn label_of(&self, pc: u64) -> Option<Label> {
        let index = self.block_labels.binary_search_by_key(&pc, |(start, _)| *start).ok()?;
        Some(self.block_labels[index].1)
    }

    fn block(&mut self, block: &RegionBlock, next: Option<u64>) {
        let label = self.label_of(block.start).expect("every block has a label");
        self.a.place(label);
        self.known = [None; 32];
        self.in_range = [None; 32];
        self.known[0] = Some(0);
        self.pc = block.start;
        self.block_end = block.start.wrapping_add(4 * block.instructions.len() as u64);
        if self.system.is_some() {
            self.take_budget(block);
        } else if block.is_loop_head || block.start == self.region.entry {
            self.positions.push((self.a.position() as u32, block.start));
            self.check_attention();
        }
        self.open_record(block);
        self.count_block(block);
        let mut skip = false;
        for (index, instruction) in block.instructions.iter().enumerate() {
            self.pc = block.start + 4 * index as u64;
            let following = block.instructions.get(index + 1);
            if std::mem::take(&mut skip) {
                continue;
            }
            self.positions.push((self.a.position() as u32, self.pc));
            let ends = if self.system.is_some() { Self::emit_system_block_end } else { Self::emit_block_end };
            if following.is_none() && ends(self, block, instruction, next) {
                return;
            }
            if has_address(instruction.op) && self.registers.is_known(self.pc) {
                // The rest of the block is still emitted, because jumps may target it.
                self.exit_to_run_loop();
            }
            self.record_address(instruction);
            skip = self.fused(instruction, following, block, index, next);
            if !skip {
                self.instruction(instruction, following);
            } else if index + 2 == block.instructions.len() && ends_with_control(block.end) {
                return;
            }
        }
        if let End::Next(target) = block.end {
            self.close_record();
            self.jump_to_block(target, next);
        }
    }

    /// Emits one instruction that does not end a block.
    fn instruction(&mut self, instruction: &Instruction, following: Option<&Instruction>) {
        let is_private = instruction.op.row().extension == Extension::Private;
        let emitted = if self.system.is_some() {
            self.system_instruction(instruction, following)
        } else {
            (self.origin.is_translated || !is_private) && self.process_instruction(instruction, following)
        };
        if !emitted {
            self.call_interpreter(instruction);
        }
        self.update_known_values(instruction);
    }

    fn process_instruction(&mut self, instruction: &Instruction, following: Option<&Instruction>) -> bool {
        self.constant(instruction, following)
            || self.integer(instruction)
            || self.bits(instruction)
            || self.memory(instruction)
            || self.atomic(instruction)
            || self.float(instruction)
            || self.scratch(instruction)
            || self.vector(instruction)
            || self.vector_sequence(instruction)
            || self.cryptography(instruction)
    }

    /// Emits a comparison and the following branch as one, if they end the block.
    fn fused(
        &mut self,
        instruction: &Instruction,
        following: Option<&Instruction>,
        block: &RegionBlock,
        index: usize,
        next: Option<u64>,
    ) -> bool {
        let (Some(branch), End::Branch { taken, next: fall }) = (following, block.end) else { return false };
        if index + 2 != block.instructions.len() {
            return false;
        }
        let Some(condition) = self.compare_and_branch(instruction, branch) else { return false };
        self.close_record();
        self.branch(condition, taken, fall, next);
        true
    }

    /// Updates the known register values after `instruction`.
    fn update_known_values(&mut self, instruction: &Instruction) {
        let (known, in_range) = (self.wrote_known.take(), self.wrote_in_range.take());
        for (kind, number, written) in registers_of(instruction) {
            let writes_two = matches!(instruction.op, Op::RdtimelW | Op::RdtimehW | Op::RdtimeD);
            if kind == longma_loongarch::RegisterKind::General && (written || writes_two) && number != 0 {
                self.known[usize::from(number)] = known;
                self.in_range[usize::from(number)] = in_range;
            }
        }
    }

    /// Jumps within the region, or out of it.
    fn jump_to_block(&mut self, target: u64, next: Option<u64>) {
        match self.label_of(target) {
            Some(_) if next == Some(target) => {}
            Some(label) => self.a.jump(label),
            None => self.jump_to_region(target),
        }
    }

    /// Jumps to the code of another region, which is linked once it exists.
    fn jump_to_region(&mut self, target: u64) {
        self.leave_mapping();
        if self.system.is_some() {
            self.load_constant(Register::RDX, target);
            self.find_and_jump();
        } else {
            self.linked_jump(target, false);
        }
    }

    fn linked_jump(&mut self, target: u64, call: bool) {
        let label = self.a.label();
        let displacement = self.a.patchable(call, label);
        let link = self.links.len();
        self.links.push(LinkSite { displacement, unlinked: 0, target });
        self.stubs.push(Stub::Unlinked { label, pc: target, link });
    }

    /// The label for a branch to `target`: a block, or a stub that exits.
    fn edge(&mut self, target: u64) -> Label {
        if let Some(label) = self.label_of(target) {
            return label;
        }
        let label = self.a.label();
        self.stubs.push(Stub::Edge { label, target });
        label
    }

    fn check_attention(&mut self) {
        let label = self.a.label();
        self.a.op2(Code::Cmp_rm32_imm8, field(offset_of!(Cpu, attention)), 0);
        self.a.jump_if(Condition::NotEqual, label);
        let left = InterruptedBlock::default();
        self.stubs.push(Stub::Leave { label, pc: self.pc, reason: ExitReason::Attention, left });
    }

    /// A label for code that passes the current instruction to the run loop.
    fn interpret_label(&mut self) -> Label {
        let label = self.a.label();
        let left = self.counted;
        self.stubs.push(Stub::Leave { label, pc: self.pc, reason: ExitReason::Interpret, left });
        label
    }

    /// Passes the current instruction to the run loop.
    fn exit_to_run_loop(&mut self) {
        let label = self.interpret_label();
        self.a.jump(label);
    }

    /// Executes one instruction in the interpreter and continues.
    fn call_interpreter(&mut self, instruction: &Instruction) {
        self.set_pc(self.pc);
        if let Some(call_outs) = &mut self.system {
            let following = self.block_end.wrapping_sub(self.pc) / 4 - 1;
            let data = call_outs(instruction, following as u32);
            self.a.op2(Code::Mov_r64_imm64, Register::RDX, data as i64);
            self.a.call(self.interpreter_call);
            return;
        }
        let interpreter_call = InterpreterCall::new(*instruction);
        self.a.op2(Code::Mov_r64_imm64, Register::RDX, std::ptr::from_ref(&*interpreter_call) as i64);
        let site = self.a.position() - size_of::<u64>();
        self.interpreter_calls.push(PlacedInterpreterCall { interpreter_call, site });
        let label = self.interpreter_call;
        self.a.call(label);
    }

    /// An out-of-line label where the interpreter executes `instruction`, and the label where execution continues.
    fn slow_path(&mut self, instruction: &Instruction) -> (Label, Label) {
        let (label, resume) = (self.a.label(), self.a.label());
        let (pc, end) = (self.pc, self.block_end);
        self.stubs.push(Stub::InterpreterCall { label, back: resume, pc, end, instruction: *instruction });
        (label, resume)
    }

    fn set_pc(&mut self, pc: u64) {
        let slot = field(offset_of!(Cpu, state) + offset_of!(State, pc));
        if i32::try_from(pc as i64).is_ok() {
            self.a.op2(Code::Mov_rm64_imm32, slot, pc as i64);
        } else {
            self.a.op2(Code::Mov_r64_imm64, Register::RAX, pc as i64);
            self.a.op2(Code::Mov_rm64_r64, slot, Register::RAX);
        }
    }

    /// Stores the counted block that the code is leaving.
    fn set_interrupted(&mut self, left: InterruptedBlock) {
        if left.instructions > 0 {
            let slot = offset_of!(Cpu, interrupted_block);
            self.a.op2(Code::Mov_r64_imm64, Register::RAX, left.start as i64);
            self.a.op2(Code::Mov_rm64_r64, field(slot + offset_of!(InterruptedBlock, start)), Register::RAX);
            let instructions = field(slot + offset_of!(InterruptedBlock, instructions));
            self.a.op2(Code::Mov_rm64_imm32, instructions, left.instructions as i64);
        }
    }

    fn set_reason(&mut self, reason: ExitReason) {
        self.a.op2(Code::Mov_r32_imm32, Register::EAX, reason as i32);
    }

    fn stub(&mut self, stub: Stub) {
        match stub {
            Stub::Leave { label, pc, reason, left } => {
                self.a.place(label);
                self.set_interrupted(left);
                self.set_pc(pc);
                self.set_reason(reason);
                self.a.jump(self.spill);
            }
            Stub::Unlinked { label, pc, link } => {
                self.a.place(label);
                self.links[link].unlinked = self.a.position();
                self.set_pc(pc);
                self.set_reason(ExitReason::Unlinked);
                self.a.jump_to(self.trampolines.leave_canonical);
            }
            Stub::InterpreterCall { label, back, pc, end, instruction } => {
                self.a.place(label);
                (self.pc, self.block_end) = (pc, end);
                self.call_interpreter(&instruction);
                self.a.jump(back);
            }
            Stub::Budget { label, pc, length } => {
                self.a.place(label);
                self.return_budget(pc, length);
            }
            Stub::CallMiss { label, landing } => {
                control::call_miss(&mut self.a, label, landing, self.trampolines.leave_indirect);
            }
            Stub::JumpTo { label, host } => {
                self.a.place(label);
                self.a.jump_to(host);
            }
            Stub::Edge { label, target } => {
                self.a.place(label);
                self.jump_to_region(target);
            }
        }
    }

    /// Emits the two exits that depend on the register mapping of the region.
    fn shared_exits(&mut self) {
        self.a.place(self.spill);
        self.registers_to_memory();
        self.a.jump_to(self.trampolines.leave);

        self.a.place(self.interpreter_call);
        self.registers_to_memory();
        let call = self.a.label();
        let trapped = self.a.label();
        self.a.call(call);
        self.a.op2(Code::Test_rm32_r32, Register::EAX, Register::EAX);
        self.a.jump_if(Condition::NotEqual, trapped);
        self.registers_from_memory();
        self.a.op0(Code::Retnq);
        self.a.place(call);
        self.a.jump_to(self.trampolines.interpreter_call);
        self.a.place(trapped);
        self.a.op2(Code::Lea_r64_m, Register::RSP, MemoryOperand::with_base_displ(Register::RSP, 8));
        self.set_reason(ExitReason::Trap);
        self.a.jump_to(self.trampolines.leave);
    }

    fn registers_to_memory(&mut self) {
        for (host, guest) in GENERAL_HOSTS.into_iter().zip(self.allocation.general) {
            if CANONICAL.contains(&guest) || self.allocation.general_written >> guest & 1 != 0 {
                self.a.op2(Code::Mov_rm64_r64, general_slot(guest), host);
            }
        }
        self.vectors_to_memory();
    }

    fn registers_from_memory(&mut self) {
        for (host, guest) in GENERAL_HOSTS.into_iter().zip(self.allocation.general) {
            self.a.op2(Code::Mov_r64_rm64, host, general_slot(guest));
        }
        self.vectors_from_memory();
    }

    fn enter_mapping(&mut self) {
        enter_mapping(&mut self.a, &self.allocation);
    }

    /// Switches from the region's mapping to the canonical one.
    fn leave_mapping(&mut self) {
        for index in 0..GENERAL_HOSTS.len() {
            let (host, canonical, chosen) =
                (GENERAL_HOSTS[index], CANONICAL[index], self.allocation.general[index]);
            if canonical != chosen {
                if self.allocation.general_written >> chosen & 1 != 0 {
                    self.a.op2(Code::Mov_rm64_r64, general_slot(chosen), host);
                }
                self.a.op2(Code::Mov_r64_rm64, host, general_slot(canonical));
            }
        }
        self.vectors_to_memory();
    }

    fn vectors_to_memory(&mut self) {
        for (index, guest) in self.allocation.vector.into_iter().enumerate() {
            let Some(guest) = guest.filter(|g| self.allocation.vector_written >> g & 1 != 0) else {
                continue;
            };
            let host = VECTOR_HOSTS[index];
            match self.allocation.vector_width {
                VectorWidth::Scalar => self.a.op2(Code::VEX_Vmovsd_m64_xmm, vector_slot(guest), host),
                VectorWidth::Lsx => self.a.op2(Code::VEX_Vmovdqu_xmmm128_xmm, vector_slot(guest), host),
                VectorWidth::Lasx => {
                    self.a.op2(Code::VEX_Vmovdqu_ymmm256_ymm, vector_slot(guest), wide(host))
                }
            }
        }
    }

    fn vectors_from_memory(&mut self) {
        vectors_from_memory(&mut self.a, &self.allocation);
    }

    // Operands.

    /// The host register of guest general register `number`, if it has one.
    fn host_of(&self, number: u8) -> Option<Register> {
        self.allocation.general_host[usize::from(number)].map(|index| GENERAL_HOSTS[usize::from(index)])
    }

    /// Reads guest register `number` into a host register: its assigned one, or `scratch` after a load.
    fn read(&mut self, number: u8, scratch: Register) -> Register {
        if number == 0 {
            self.a.op2(Code::Xor_r32_rm32, low32(scratch), low32(scratch));
            return scratch;
        }
        self.host_of(number).unwrap_or_else(|| {
            self.a.op2(Code::Mov_r64_rm64, scratch, general_slot(number));
            scratch
        })
    }

    /// Guest register `number` (not r0) as a 64-bit source operand.
    fn source(&self, number: u8) -> Arg {
        self.host_of(number).map_or_else(|| general_slot(number).into(), Arg::Reg)
    }

    /// Guest register `number` (not r0) as a 32-bit source operand.
    fn source32(&self, number: u8) -> Arg {
        self.host_of(number).map_or_else(|| general_slot(number).into(), |r| low32(r).into())
    }

    /// Copies guest register `number` into `to`.
    fn copy(&mut self, to: Register, number: u8) {
        if number == 0 {
            self.a.op2(Code::Xor_r32_rm32, low32(to), low32(to));
        } else if self.host_of(number) != Some(to) {
            let source = self.source(number);
            self.a.op2(Code::Mov_r64_rm64, to, source);
        }
    }

    /// The host register in which to compute guest register `number`: its assigned one, or `scratch`.
    fn target(&self, number: u8, scratch: Register) -> Register {
        self.host_of(number).unwrap_or(scratch)
    }

    /// Writes `value` to guest register `number`.
    fn write(&mut self, number: u8, value: Register) {
        match self.host_of(number) {
            _ if number == 0 => {}
            Some(host) if host == value => {}
            Some(host) => self.a.op2(Code::Mov_r64_rm64, host, value),
            None => self.a.op2(Code::Mov_rm64_r64, general_slot(number), value),
        }
    }

    /// Loads a constant into a host register.
    fn load_constant(&mut self, to: Register, value: u64) {
        if value == 0 {
            self.a.op2(Code::Xor_r32_rm32, low32(to), low32(to));
        } else if u32::try_from(value).is_ok() {
            self.a.op2(Code::Mov_r32_imm32, low32(to), value as i64);
        } else if i32::try_from(value as i64).is_ok() {
            self.a.op2(Code::Mov_rm64_imm32, to, value as i64);
        } else {
            self.a.op2(Code::Mov_r64_imm64, to, value as i64);
        }
    }

    /// Writes a constant to guest register `number`.
    fn write_constant(&mut self, number: u8, value: u64) {
        match self.host_of(number) {
            _ if number == 0 => {}
            Some(host) => self.load_constant(host, value),
            None if i32::try_from(value as i64).is_ok() => {
                self.a.op2(Code::Mov_rm64_imm32, general_slot(number), value as i64);
            }
            None => {
                self.a.op2(Code::Mov_r64_imm64, Register::RAX, value as i64);
                self.a.op2(Code::Mov_rm64_r64, general_slot(number), Register::RAX);
            }
        }
    }
}

/// Whether the last instruction of the block is emitted together with its end.
fn ends_with_control(end: End) -> bool {
    !matches!(end, End::Next(_))
}

/// Switches from the canonical mapping to a region's.
pub(in crate::jit) fn enter_mapping(a: &mut Assembler, allocation: &Allocation) {
    for index in 0..GENERAL_HOSTS.len() {
        let (host, canonical, chosen) = (GENERAL_HOSTS[index], CANONICAL[index], allocation.general[index]);
        if canonical != chosen {
            a.op2(Code::Mov_rm64_r64, general_slot(canonical), host);
            a.op2(Code::Mov_r64_rm64, host, general_slot(chosen));
        }
    }
    vectors_from_memory(a, allocation);
}

fn vectors_from_memory(a: &mut Assembler, allocation: &Allocation) {
    for (index, guest) in allocation.vector.into_iter().enumerate() {
        let Some(guest) = guest else { continue };
        let host = VECTOR_HOSTS[index];
        match allocation.vector_width {
            VectorWidth::Scalar => a.op2(Code::VEX_Vmovsd_xmm_m64, host, vector_slot(guest)),
            VectorWidth::Lsx => a.op2(Code::VEX_Vmovdqu_xmm_xmmm128, host, vector_slot(guest)),
            VectorWidth::Lasx => a.op2(Code::VEX_Vmovdqu_ymm_ymmm256, wide(host), vector_slot(guest)),
        }
    }
}
