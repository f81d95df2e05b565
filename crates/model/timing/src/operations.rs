//! Decodes blocks into micro-operations, which describe the demands of each instruction on the pipeline.
//!
//! Source: LoongArch Reference Manual, volume 1; operation classes of the machine file, refined by a table of
//! measurements.

use std::sync::Arc;

use longma_loongarch::{Class, Extension, Instruction, Location, Op, Operand, RegisterKind};
use longma_topology::parts::Operation;
use longma_trace::{AddressForm, TracedBlock, has_address};

use crate::{
    parameters::{ClassTiming, Parameters},
    registers::{self, registers_of},
};

/// Special handling of a micro-operation in the pipeline, in addition to waiting for registers and a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// No special handling.
    Plain,
    /// A load.
    Load,
    /// A store.
    Store,
    /// An atomic read-modify-write operation.
    Atomic,
    /// An [`Atomic`](Self::Atomic) that is also a full barrier.
    AtomicBarrier,
    /// A software prefetch.
    Prefetch,
    /// A barrier: earlier memory accesses complete before later ones begin.
    Barrier,
    /// Drains the pipeline before the next instruction is fetched.
    Serialize,
}

/// Maps the address in a trace to the start of the access. An instruction that loads or stores one part of an unaligned
/// value stays inside the aligned unit that contains the address, and is modelled as an access to the whole unit. A
/// load of other bytes of that unit therefore waits for such a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessedUnit {
    /// Address bits to clear.
    mask: u8,
}

impl AccessedUnit {
    fn of(op: Op) -> Self {
        let row = op.row();
        let is_of_one_side =
            row.extension == Extension::Lbt && matches!(row.class, Class::Load | Class::Store);
        Self { mask: if is_of_one_side { bytes_of(op).saturating_sub(1) } else { 0 } }
    }

    /// Returns the start of the access.
    #[inline]
    pub fn begin(self, address: u64) -> u64 {
        address & !u64::from(self.mask)
    }
}

/// A micro-operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MicroOperation {
    /// Units that can execute it, one bit each.
    pub units: u32,
    /// Cycles from issue to the issue of a dependent operation. Not used for loads, whose latency comes from the memory
    /// model.
    pub latency_cycles: u16,
    /// Cycles for which the operation occupies its unit.
    pub interval_cycles: u16,
    pub kind: Kind,
    /// Source registers; 0 for an unused entry.
    pub sources: [u8; 3],
    /// Bit mask of the sources that form the address; 0 without an access.
    pub address_sources: u8,
    /// The destination register, or [`registers::SINK`].
    pub destination: u8,
    /// Bytes accessed.
    pub bytes: u8,
    pub unit: AccessedUnit,
    /// The issue queue: 0 integer, 1 floating point, 2 memory.
    pub queue: u8,
    /// The register file of its rename register: 0 integer, 1 floating point, 2 none.
    pub file: u8,
}

impl MicroOperation {
    /// Returns whether it is a load or store that requires a translation. A prefetch is dropped without one.
    #[inline]
    pub fn is_access(&self) -> bool {
        self.kind != Kind::Plain
            && matches!(self.kind, Kind::Load | Kind::Store | Kind::Atomic | Kind::AtomicBarrier)
    }
}

/// How a block ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BranchKind {
    /// No branch: execution continues with the next block.
    None,
    /// A conditional branch.
    Conditional,
    /// A direct jump.
    Direct,
    /// A direct call.
    Call,
    /// A jump through a register.
    Indirect,
    /// A call through a register.
    IndirectCall,
    /// A return.
    Return,
}

/// The branch at the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    pub kind: BranchKind,
    /// Address of the branch instruction.
    pub address: u64,
    /// Target if taken; 0 for an indirect branch.
    pub target: u64,
}

/// A memory access of a block, for models without a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Index of the instruction in the block.
    pub instruction: u16,
    pub bytes: u8,
    pub unit: AccessedUnit,
    pub kind: Kind,
}

/// A decoded block.
#[derive(Clone, Debug)]
pub(crate) struct DecodedBlock {
    /// Guest address of the first instruction.
    pub start: u64,
    pub operations: Box<[MicroOperation]>,
    pub accesses: Box<[Access]>,
    pub branch: Branch,
    /// Whether its only memory accesses are loads and stores and its operations wait only for their operands.
    pub is_simple: bool,
    /// Longest latency of its operations except loads, cycles.
    pub longest_cycles: u16,
    /// The instructions, for counts by class and for the pipeline log.
    pub instructions: Arc<[Instruction]>,
}

impl DecodedBlock {
    /// Address of the last instruction.
    #[inline]
    pub fn last_address(&self) -> u64 {
        self.start.wrapping_add(4 * (self.operations.len() as u64).saturating_sub(1))
    }
}

/// Decodes `block` for a core with `parameters`.
pub(crate) fn decode_block(block: &TracedBlock, parameters: &Parameters) -> DecodedBlock {
    let operations: Box<[_]> = block.instructions.iter().map(|i| micro_operation(i, parameters)).collect();
    let accesses = block.instructions.iter().zip(&operations).enumerate();
    let accesses = accesses.filter(|(_, (instruction, _))| has_address(instruction.op)).map(
        |(index, (_, operation))| Access {
            instruction: index as u16,
            bytes: operation.bytes,
            unit: operation.unit,
            kind: operation.kind,
        },
    );
    DecodedBlock {
        start: block.start,
        accesses: accesses.collect(),
        branch: branch_of(block),
        is_simple: operations
            .iter()
            .all(|operation| matches!(operation.kind, Kind::Plain | Kind::Load | Kind::Store)),
        longest_cycles: operations
            .iter()
            .filter(|operation| operation.kind != Kind::Load)
            .map(|operation| operation.latency_cycles)
            .max()
            .unwrap_or(0),
        instructions: block.instructions.clone(),
        operations,
    }
}

fn micro_operation(instruction: &Instruction, parameters: &Parameters) -> MicroOperation {
    let op = instruction.op;
    let operation = operation_of(op.row().class);
    let class = parameters.class(operation);
    let ClassTiming { mut latency_cycles, mut interval_cycles, mut units, queue, .. } = class;
    let measured = parameters.measured.as_ref().and_then(|table| table[op as usize]);
    if let Some(measured) = measured {
        if let Some(latency) = measured.latency_cycles {
            latency_cycles = latency.round().max(1.0) as u32;
        }
        (units, interval_cycles) = units_at_rate(units, measured.interval_cycles);
    } else {
        // An operation wider than its unit takes several passes. Measured timings already include them.
        let passes = class.passes(vector_bits_of(op));
        interval_cycles = interval_cycles.saturating_mul(passes);
        latency_cycles = latency_cycles.saturating_add(passes - 1);
    }
    let registers = registers_of(instruction);
    let file = match registers.destination {
        registers::SINK => 2,
        register => u8::from(registers::is_float(register)),
    };
    MicroOperation {
        units,
        latency_cycles: latency_cycles.min(u16::MAX.into()) as u16,
        interval_cycles: interval_cycles.clamp(1, u16::MAX.into()) as u16,
        kind: kind_of(op),
        sources: registers.sources,
        address_sources: address_sources(instruction, registers.sources),
        destination: registers.destination,
        bytes: bytes_of(op),
        unit: AccessedUnit::of(op),
        queue,
        file,
    }
}

/// Bit mask of the `sources` that form the address of an access.
fn address_sources(instruction: &Instruction, sources: [u8; 3]) -> u8 {
    if !has_address(instruction.op) {
        return 0;
    }
    let index = match AddressForm::of(instruction) {
        AddressForm::Displaced(_) => 0,
        AddressForm::Indexed | AddressForm::Described => instruction.k & 31,
    };
    let of_address = |source: u8| source != 0 && (source == instruction.j & 31 || source == index);
    (0..3).filter(|nth| of_address(sources[*nth])).fold(0, |mask, nth| mask | 1 << nth)
}

/// Selects the lowest units of `units`, and the interval on each, that together start one operation every `interval`
/// cycles. An operation slower than one per cycle on all units uses the smallest number of units whose rate is within
/// 5% of the measurement; a faster one uses enough units to reach the rate.
fn units_at_rate(units: u32, interval: f64) -> (u32, u32) {
    let available = units.count_ones();
    let on = |count: u32| (interval * f64::from(count)).round().max(1.0);
    let fits = |count: &u32| (on(*count) / f64::from(*count) / interval - 1.0).abs() <= 0.05;
    let otherwise = if interval < 1.0 { ((1.0 / interval).ceil() as u32).clamp(1, available) } else { 1 };
    let count = (1..=available).find(fits).unwrap_or(otherwise);
    let each = if interval < 1.0 { 1.0 } else { on(count) };
    let mut selected = 0;
    for _ in 0..count {
        let rest = units & !selected;
        selected |= rest & rest.wrapping_neg();
    }
    (selected, each as u32)
}

/// Maps a class of the instruction table to the corresponding class of machine files.
fn operation_of(class: Class) -> Operation {
    match class {
        Class::Alu
        | Class::Shift
        | Class::Bit
        | Class::Move
        | Class::System
        | Class::Barrier
        | Class::Lbt => Operation::Integer,
        // A CRC step is a carry-less multiplication and has the latency of a multiplier on cores that publish it (Fog:
        // crc32 3).
        Class::Mul | Class::LbtMul | Class::Crc => Operation::IntegerMultiply,
        Class::Div => Operation::IntegerDivide,
        Class::Branch | Class::Jump => Operation::Branch,
        Class::Load | Class::Prefetch | Class::Atomic => Operation::Load,
        Class::Store => Operation::Store,
        Class::FpAdd | Class::FpCompare => Operation::FloatAdd,
        Class::FpMul => Operation::FloatMultiply,
        Class::FpFma => Operation::FloatFma,
        Class::FpDiv | Class::FpSqrt | Class::VectorFpDiv | Class::VectorIntDiv => Operation::FloatDivide,
        Class::FpConvert | Class::FpMove | Class::VectorFpConvert => Operation::FloatConvert,
        Class::VectorAlu | Class::VectorCompare | Class::VectorShift | Class::VectorShuffle => {
            Operation::VectorInteger
        }
        Class::VectorIntMul => Operation::FloatMultiply,
        Class::VectorFpAdd | Class::VectorFpMul | Class::VectorFpFma | Class::VectorFpCompare => {
            Operation::VectorFloat
        }
    }
}

fn kind_of(op: Op) -> Kind {
    let writes_memory = op.row().writes.iter().any(|location| matches!(location, Location::Memory(_)));
    match op.row().class {
        Class::Load => Kind::Load,
        Class::Store => Kind::Store,
        Class::Prefetch => Kind::Prefetch,
        Class::Atomic if !writes_memory => Kind::Load,
        Class::Atomic if op.row().orders_memory() => Kind::AtomicBarrier,
        Class::Atomic => Kind::Atomic,
        Class::Barrier if op == Op::Ibar => Kind::Serialize,
        Class::Barrier => Kind::Barrier,
        Class::System if matches!(op, Op::Syscall | Op::Break | Op::Dbcl) => Kind::Serialize,
        _ => Kind::Plain,
    }
}

/// Number of bytes that an instruction accesses; 0 if none.
fn bytes_of(op: Op) -> u8 {
    let row = op.row();
    let bytes = row.reads.iter().chain(row.writes).filter_map(|location| match location {
        Location::Memory(bytes) => Some(*bytes),
        _ => None,
    });
    // A prefetch refers to a whole line; only its address matters.
    bytes.max().unwrap_or(u8::from(has_address(op)))
}

/// Vector width of an instruction, bits; 0 for a scalar instruction.
fn vector_bits_of(op: Op) -> u32 {
    let bits = op.row().operands.iter().map(|operand| match operand {
        Operand::Register(RegisterKind::Vector256, _) => 256,
        Operand::Register(RegisterKind::Vector128, _) => 128,
        _ => 0,
    });
    bits.max().unwrap_or(0)
}

fn branch_of(block: &TracedBlock) -> Branch {
    let none = Branch { kind: BranchKind::None, address: 0, target: 0 };
    let Some(last) = block.instructions.last() else { return none };
    let address = block.start.wrapping_add(4 * (block.instructions.len() as u64 - 1));
    let target = address.wrapping_add(i64::from(last.imm) as u64);
    let fixed = |kind| Branch { kind, address, target };
    match (last.op, last.op.row().class) {
        (_, Class::Branch) => fixed(BranchKind::Conditional),
        (Op::B, _) => fixed(BranchKind::Direct),
        (Op::Bl, _) => fixed(BranchKind::Call),
        (Op::Jirl, _) => Branch { kind: indirect(last), address, target: 0 },
        (_, Class::Jump) => Branch { kind: BranchKind::Indirect, address, target: 0 },
        _ => none,
    }
}

/// Classifies `jirl`: a call if it writes the link register, a return if it jumps to it (LoongArch psABI).
fn indirect(jirl: &Instruction) -> BranchKind {
    match (jirl.d, jirl.j) {
        (1, _) => BranchKind::IndirectCall,
        (0, 1) if jirl.imm == 0 => BranchKind::Return,
        _ => BranchKind::Indirect,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cycles between two operations over all units of a mask.
    fn rate(units: u32, interval: f64) -> f64 {
        let (unit_mask, each) = units_at_rate(units, interval);
        assert_eq!(unit_mask & !units, 0);
        f64::from(each) / f64::from(unit_mask.count_ones())
    }

    #[test]
    fn operations_start_at_the_measured_rate() {
        for interval in [0.25, 0.5, 1.0, 2.0, 3.5, 4.5, 6.5, 7.5, 10.5, 11.5, 12.5, 27.5, 32.0] {
            let found = rate(0b1111, interval);
            assert!((found / interval - 1.0).abs() <= 0.05, "one in {found} cycles, not in {interval}");
        }
    }

    #[test]
    fn only_the_units_needed_for_the_rate_are_kept() {
        assert_eq!(units_at_rate(0b110, 12.5), (0b010, 13));
        assert_eq!(units_at_rate(0b110, 7.5), (0b110, 15));
    }

    #[test]
    fn instructions_faster_than_one_unit_are_no_slower_than_measured() {
        assert_eq!(rate(0b11, 0.87), 0.5);
        assert_eq!(rate(0b1, 0.25), 1.0, "there is only one unit");
    }
}
