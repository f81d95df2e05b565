//! Writes the execution trace of a core as a ChampSim trace.

use std::io::{self, Write};

use longma_loongarch::{Class, Instruction as Decoded, Location, Op, RegisterKind};
use longma_trace::{BlockNumber, Blocks, Trace, TracedBlock, has_address};

use crate::instruction::{FLAGS, INSTRUCTION_POINTER, Instruction, STACK_POINTER};

/// The number of LoongArch's r0 in ChampSim's numbering here; others follow.
const GENERAL: u8 = 32;
const VECTOR: u8 = 64;
const CONDITION: u8 = 96;
const SCRATCH: u8 = 104;
const CONTROL: u8 = 108;

/// The memory access of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    None,
    Load,
    Store,
    Both,
}

/// A block with its records, apart from addresses and directions.
struct Template {
    records: Vec<(Instruction, Access)>,
}

/// Writes a ChampSim trace.
///
/// Register numbers: 6 is LoongArch's stack pointer r3, 32 + n other general registers, 64 + n floating-point and vector
/// registers, 96 + n condition flags, 25 the flags of the binary-translation extension. A branch has the registers by which
/// ChampSim recognizes its kind; the link register of a call is left out. A prefetch is a load without destination.
pub struct Writer<W: Write> {
    to: W,
    templates: Vec<Option<Template>>,
    /// The last instruction, whose direction follows from the next block.
    pending: Option<Instruction>,
    instructions: u64,
}

impl<W: Write> Writer<W> {
    /// Writes to `to`, uncompressed.
    pub fn new(to: W) -> Self {
        Self { to, templates: Vec::new(), pending: None, instructions: 0 }
    }

    /// The number of instructions so far.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    /// Appends all records of `trace`.
    ///
    /// # Errors
    /// `to` cannot be written.
    pub fn append(&mut self, trace: &Trace, blocks: &impl Blocks) -> io::Result<()> {
        for record in trace.records() {
            let number = record.block.0 as usize;
            if self.templates.get(number).is_none_or(Option::is_none) {
                self.add_template(record.block, blocks);
            }
            let Some(Some(template)) = self.templates.get(number) else { continue };
            let executed = usize::from(record.executed).min(template.records.len());
            let Some((first, _)) = template.records[..executed].first() else { continue };
            if let Some(mut last) = self.pending.take() {
                last.is_taken = last.is_branch && first.ip != last.ip.wrapping_add(4);
                self.to.write_all(&last.to_bytes())?;
            }
            let mut addresses = record.addresses.iter().copied();
            for (index, (mut instruction, access)) in template.records[..executed].iter().copied().enumerate()
            {
                if access != Access::None {
                    let address = addresses.next().unwrap_or(0);
                    instruction.loads[0] = if access == Access::Store { 0 } else { address };
                    instruction.stores[0] = if access == Access::Load { 0 } else { address };
                }
                self.instructions += 1;
                match index + 1 == executed {
                    true => self.pending = Some(instruction),
                    false => self.to.write_all(&instruction.to_bytes())?,
                }
            }
        }
        Ok(())
    }

    /// Writes the last instruction and returns the output. A branch at the end is assumed not taken.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        if let Some(last) = self.pending.take() {
            self.to.write_all(&last.to_bytes())?;
        }
        self.to.flush()?;
        Ok(self.to)
    }

    #[cold]
    fn add_template(&mut self, number: BlockNumber, blocks: &impl Blocks) {
        let index = number.0 as usize;
        if self.templates.len() <= index {
            self.templates.resize_with(index + 1, || None);
        }
        let TracedBlock { start, instructions } = blocks.block(number);
        let records = instructions.iter().zip(0u64..).map(|(instruction, nth)| {
            let ip = start.wrapping_add(4 * nth);
            (record_of(instruction, ip), access_of(instruction.op))
        });
        self.templates[index] = Some(Template { records: records.collect() });
    }
}

fn access_of(op: Op) -> Access {
    match op.row().class {
        _ if !has_address(op) => Access::None,
        Class::Store => Access::Store,
        Class::Atomic => Access::Both,
        _ => Access::Load,
    }
}

fn register(location: Location, instruction: &Decoded) -> Option<u8> {
    let number = |kind, register: u8| match kind {
        RegisterKind::General => match register & 31 {
            0 => 0,
            3 => STACK_POINTER,
            register => GENERAL + register,
        },
        RegisterKind::Float | RegisterKind::Vector128 | RegisterKind::Vector256 => VECTOR + (register & 31),
        RegisterKind::Condition => CONDITION + (register & 7),
        RegisterKind::Scratch => SCRATCH + (register & 3),
        RegisterKind::FloatControl => CONTROL,
    };
    let register = match location {
        Location::Operand(kind, position) => number(kind, instruction.register_at(position)),
        Location::Register(kind, register) => number(kind, register),
        Location::Flags => FLAGS,
        Location::FloatControl
        | Location::Top
        | Location::StackMode
        | Location::Reservation
        | Location::Memory(_) => 0,
    };
    (register != 0).then_some(register)
}

/// The record of an instruction, without addresses and direction.
fn record_of(instruction: &Decoded, address: u64) -> Instruction {
    let row = instruction.op.row();
    let list = |locations: &'static [Location]| -> Vec<u8> {
        locations.iter().filter_map(|location| register(*location, instruction)).collect()
    };
    let (reads, writes) = (list(row.reads), list(row.writes));
    let fill = |to: &mut [u8], from: &[u8]| to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    let mut record = Instruction { ip: address, ..Instruction::default() };
    if !matches!(row.class, Class::Branch | Class::Jump) {
        fill(&mut record.destinations, &writes);
        fill(&mut record.sources, &reads);
        return record;
    }
    record.is_branch = true;
    // Other registers that a branch reads. The stack pointer and the flags have another meaning for ChampSim.
    let mut other: Vec<u8> =
        reads.into_iter().filter(|register| ![STACK_POINTER, FLAGS].contains(register)).collect();
    if other.is_empty() {
        other.push(GENERAL);
    }
    other.truncate(2);
    let (ip, sp) = (INSTRUCTION_POINTER, STACK_POINTER);
    let (destinations, fixed, has_other): (_, &[u8], _) = match (instruction.op, row.class, instruction.d) {
        (_, Class::Branch, _) => ([ip, 0], &[ip], true),
        (Op::B, ..) => ([ip, 0], &[], false),
        (Op::Bl, ..) => ([ip, sp], &[ip, sp], false),
        (Op::Jirl, _, 1) => ([ip, sp], &[ip, sp], true),
        (Op::Jirl, _, 0) if instruction.j == 1 && instruction.imm == 0 => ([ip, sp], &[sp], false),
        _ => ([ip, 0], &[], true),
    };
    record.destinations = destinations;
    let other = if has_other { &other[..] } else { &[] };
    fill(&mut record.sources, &[fixed, other].concat());
    record
}
