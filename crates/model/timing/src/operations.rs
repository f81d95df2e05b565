//! Blocks decoded into micro-operations, once: what each does to a pipeline, without the instruction set.
//! Not execution, and no state of a run.
//! Source: LoongArch Reference Manual, volume 1; classes as the machine file gives them, refined by a measured table.

use std::sync::Arc;

use longma_loongarch::{Class, Extension, Instruction, Location, Op, Operand, RegisterKind};
use longma_topology::parts::Operation;
use longma_trace::{AddressForm, TracedBlock, has_address};

use crate::{
    parameters::{ClassTiming, Parameters},
    registers::{self, registers_of},
};

/// What a pipeline does with a micro-operation beyond waiting for its registers and a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Nothing.
    Plain,
    /// Loads.
    Load,
    /// Stores.
    Store,
    /// Reads, changes and writes memory in one: a load, an operation and a store that nothing comes between.
    Atomic,
    /// An [`Atomic`](Self::Atomic) that is also a full barrier.
    AtomicBarrier,
    /// Software prefetch.
    Prefetch,
    /// Earlier memory accesses complete before later ones begin.
    Barrier,
    /// The pipeline is empty before the next instruction is fetched.
    Serialize,
}

/// Where an access is that has some address in a trace. What loads or stores one side of an unaligned number, up to its address or from it
/// on, stays inside the aligned number that this lies in, and is taken to access all of it: so a load waits for it, even one of bytes on its
/// other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessedUnit {
    /// Bits of the address that count for nothing.
    mask: u8,
}

impl AccessedUnit {
    fn of(op: Op) -> Self {
        let row = op.row();
        let is_of_one_side =
            row.extension == Extension::Lbt && matches!(row.class, Class::Load | Class::Store);
        Self { mask: if is_of_one_side { bytes_of(op).saturating_sub(1) } else { 0 } }
    }

    /// Where the access begins.
    #[inline]
    pub fn begin(self, address: u64) -> u64 {
        address & !u64::from(self.mask)
    }
}

/// A micro-operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MicroOperation {
    /// The units that execute it, a bit each.
    pub units: u32,
    /// From issue to a dependent operation's issue; of a load, not counted: the memory says.
    pub latency_cycles: u16,
    /// Cycles its unit takes nothing else.
    pub interval_cycles: u16,
    pub kind: Kind,
    /// Registers read, 0 where there is none.
    pub sources: [u8; 3],
    /// Those of them that the address comes from, a bit each; 0 without an access.
    pub address_sources: u8,
    /// The register written, or [`registers::SINK`].
    pub destination: u8,
    /// Bytes accessed.
    pub bytes: u8,
    pub unit: AccessedUnit,
    /// The issue queue: 0 integer, 1 floating point, 2 memory.
    pub queue: u8,
    /// The register file whose rename register it takes: 0 integer, 1 floating point, 2 none.
    pub file: u8,
}

impl MicroOperation {
    /// True if it loads or stores and needs a translation, of which a prefetch only makes use.
    #[inline]
    pub fn is_access(&self) -> bool {
        self.kind != Kind::Plain
            && matches!(self.kind, Kind::Load | Kind::Store | Kind::Atomic | Kind::AtomicBarrier)
    }
}

/// How a block ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BranchKind {
    /// No branch: the next block follows.
    None,
    /// A conditional branch.
    Conditional,
    /// A jump to a fixed place.
    Direct,
    /// A call of a fixed place.
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
    /// Its own address.
    pub address: u64,
    /// Where it goes if taken; 0 if only a register knows.
    pub target: u64,
}

/// A memory access of a block, for models that need no pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Which instruction of the block.
    pub instruction: u16,
    pub bytes: u8,
    pub unit: AccessedUnit,
    pub kind: Kind,
}

/// A block ready for a timing model.
#[derive(Clone, Debug)]
pub(crate) struct DecodedBlock {
    /// The guest address of the first instruction.
    pub start: u64,
    pub operations: Box<[MicroOperation]>,
    pub accesses: Box<[Access]>,
    pub branch: Branch,
    /// It accesses memory by loads and stores alone, and nothing in it waits for more than its operands.
    pub is_simple: bool,
    /// The longest of its operations but loads, cycles.
    pub longest_cycles: u16,
    /// The instructions themselves, for counts and for people.
    pub instructions: Arc<[Instruction]>,
}

impl DecodedBlock {
    /// The address of the last instruction.
    #[inline]
    pub fn last_address(&self) -> u64 {
        self.start.wrapping_add(4 * (self.operations.len() as u64).saturating_sub(1))
    }
}

/// The micro-operations of `block` on a core with `parameters`.
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
        is_simple: operations.iter().all(|it| matches!(it.kind, Kind::Plain | Kind::Load | Kind::Store)),
        longest_cycles: operations
            .iter()
            .filter(|it| it.kind != Kind::Load)
            .map(|it| it.latency_cycles)
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
        // What is wider than the unit goes through it in parts, one after another. What was measured has that in it.
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

/// Those of `sources` that the address of an access comes from, a bit each.
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

/// The lowest units of `units`, and the interval on each, that together start one operation every `interval` cycles: what is
/// slower than all units could do executes on the fewest of them whose rate is within a twentieth of it, and what is quicker than one
/// unit never on so few that it would be slower.
fn units_at_rate(units: u32, interval: f64) -> (u32, u32) {
    let most = units.count_ones();
    let on = |count: u32| (interval * f64::from(count)).round().max(1.0);
    let fits = |count: &u32| (on(*count) / f64::from(*count) / interval - 1.0).abs() <= 0.05;
    let otherwise = if interval < 1.0 { ((1.0 / interval).ceil() as u32).clamp(1, most) } else { 1 };
    let count = (1..=most).find(fits).unwrap_or(otherwise);
    let each = if interval < 1.0 { 1.0 } else { on(count) };
    let mut chosen = 0;
    for _ in 0..count {
        let rest = units & !chosen;
        chosen |= rest & rest.wrapping_neg();
    }
    (chosen, each as u32)
}

/// The machine file's class for the instruction table's.
fn operation_of(class: Class) -> Operation {
    match class {
        Class::Alu
        | Class::Shift
        | Class::Bit
        | Class::Move
        | Class::System
        | Class::Barrier
        | Class::Lbt => Operation::Integer,
        // A CRC step is a carry-less multiplication, and takes a multiplier's time on the cores that publish it (Fog: crc32 3).
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
    let writes_memory = op.row().writes.iter().any(|it| matches!(it, Location::Memory(_)));
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

/// How many bytes an instruction accesses; 0 if none.
fn bytes_of(op: Op) -> u8 {
    let row = op.row();
    let bytes = row.reads.iter().chain(row.writes).filter_map(|location| match location {
        Location::Memory(bytes) => Some(*bytes),
        _ => None,
    });
    // A prefetch names a line; its address is what counts.
    bytes.max().unwrap_or(u8::from(has_address(op)))
}

/// How wide the vectors of an instruction are, bits; 0 if it has none.
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

/// `jirl` calls if it writes the link register, and returns if it jumps to it (LoongArch psABI).
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

    /// Cycles between two operations, over all units of a mask.
    fn rate(units: u32, interval: f64) -> f64 {
        let (chosen, each) = units_at_rate(units, interval);
        assert_eq!(chosen & !units, 0);
        f64::from(each) / f64::from(chosen.count_ones())
    }

    #[test]
    fn operations_start_as_often_as_was_measured() {
        for interval in [0.25, 0.5, 1.0, 2.0, 3.5, 4.5, 6.5, 7.5, 10.5, 11.5, 12.5, 27.5, 32.0] {
            let found = rate(0b1111, interval);
            assert!((found / interval - 1.0).abs() <= 0.05, "one in {found} cycles, not in {interval}");
        }
    }

    #[test]
    fn they_keep_no_more_units_than_they_need() {
        assert_eq!(units_at_rate(0b110, 12.5), (0b010, 13));
        assert_eq!(units_at_rate(0b110, 7.5), (0b110, 15));
    }

    #[test]
    fn what_is_quicker_than_one_unit_is_no_slower_than_was_measured() {
        assert_eq!(rate(0b11, 0.87), 0.5);
        assert_eq!(rate(0b1, 0.25), 1.0, "there is only one unit");
    }
}
