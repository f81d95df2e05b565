//! What a core did, as timing models read it: which blocks ran, where they accessed memory.
//! Not how long it took.
//! Source: one record a basic block, as ZSim instruments (Sanchez and Kozyrakis, ISCA 2013, section 3.1).

use std::sync::Arc;

use longma_loongarch::{Class, Extension, Instruction, Op, Operand, RegisterKind};

/// A traced block, as its number in a [`Trace`] means it. The number is dense, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockNumber(pub u32);

/// The code of a traced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedBlock {
    /// The guest address of its first instruction.
    pub start: u64,
    /// Its instructions, the one that ends it included.
    pub instructions: Arc<[Instruction]>,
}

/// One run of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Which block.
    pub block: BlockNumber,
    /// How many of its instructions were executed, from the first: fewer than all if a trap or the interpreter came between.
    pub executed: u16,
    /// The guest-virtual address of each executed instruction that accesses memory, in program order. Whether a conditional store
    /// stored is not said.
    pub addresses: &'a [u64],
}

/// What one core did since the trace was last cleared, in program order. Where a block's branch went is the start of the next
/// record's block.
///
/// A record is one word, `block | executed << 32 | addresses << 48`, and that many addresses behind it; translated code writes
/// them.
#[derive(Debug, Default)]
pub struct Trace {
    /// Every word is a number, those behind `used` too: translated code writes ahead of `used`, which the run loop moves.
    words: Vec<u64>,
    used: usize,
}

impl Trace {
    /// An empty trace.
    pub const fn new() -> Self {
        Self { words: Vec::new(), used: 0 }
    }

    /// An empty trace with room for `words` words.
    pub(crate) fn with_room(words: usize) -> Self {
        Self { words: vec![0; words], used: 0 }
    }

    /// The host address of word 0.
    pub(crate) fn address(&mut self) -> u64 {
        self.words.as_mut_ptr() as u64
    }

    /// The word at `index`, whether it is part of a record yet or not.
    pub(crate) fn word(&mut self, index: usize) -> &mut u64 {
        &mut self.words[index]
    }

    /// Makes the first `used` words those of the trace.
    pub(crate) fn set_used(&mut self, used: usize) {
        assert!(used <= self.words.len(), "a record was written beyond the trace's room");
        self.used = used;
    }

    /// True if there is no record.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Makes this trace a copy of `other` that takes no more room than its records.
    pub fn copy_from(&mut self, other: &Self) {
        self.words.clear();
        self.words.extend_from_slice(&other.words[..other.used]);
        self.used = other.used;
    }

    /// Instructions executed in all records.
    pub fn instructions(&self) -> u64 {
        self.records().map(|record| u64::from(record.executed)).sum()
    }

    /// Every record, oldest first.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let mut rest = &self.words[..self.used];
        std::iter::from_fn(move || {
            let (&head, behind) = rest.split_first()?;
            let (addresses, next) = behind.split_at((head >> 48) as usize);
            rest = next;
            Some(Record { block: BlockNumber(head as u32), executed: (head >> 32) as u16, addresses })
        })
    }

    /// Adds a record at the end.
    ///
    /// # Panics
    /// With more than 65,535 addresses: a block has at most 64 instructions.
    pub fn push(&mut self, record: &Record<'_>) {
        let addresses = u16::try_from(record.addresses.len()).expect("one address an instruction at most");
        self.words.truncate(self.used);
        self.words.push(head(record.block, record.executed, addresses));
        self.words.extend_from_slice(record.addresses);
        self.used = self.words.len();
    }
}

/// The first word of a record.
pub(crate) fn head(block: BlockNumber, executed: u16, addresses: u16) -> u64 {
    u64::from(block.0) | u64::from(executed) << 32 | u64::from(addresses) << 48
}

/// True if an instruction has an address in a [`Record`]: loads, stores, atomic operations and prefetches.
pub fn has_address(op: Op) -> bool {
    matches!(op.row().class, Class::Load | Class::Store | Class::Atomic | Class::Prefetch)
}

/// How many of `instructions` have an address.
pub(crate) fn count_addresses(instructions: &[Instruction]) -> u16 {
    instructions.iter().filter(|i| has_address(i.op)).count() as u16
}

/// How an instruction that accesses memory says where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressForm {
    /// Register `j` plus a number of bytes.
    Displaced(i32),
    /// Register `j` plus register `k`.
    Indexed,
    /// Register `j` plus the low sixteen bits of register `k`, signed: `preldx`, whose other bits say how much to fetch.
    Described,
}

impl AddressForm {
    /// That of an instruction for which [`has_address`] holds.
    pub fn of(instruction: &Instruction) -> Self {
        let row = instruction.op.row();
        let third = row.operands.get(2);
        match instruction.op {
            // The hint is the first immediate.
            Op::Preld => Self::Displaced(instruction.imm2),
            Op::Preldx => Self::Described,
            // Register `k` is the bound.
            _ if row.extension == Extension::Bound => Self::Displaced(0),
            _ if third == Some(&Operand::Register(RegisterKind::General, 10)) => Self::Indexed,
            _ => Self::Displaced(instruction.imm),
        }
    }
}

/// The guest-virtual address that `instruction` accesses, with the general registers as they are before it.
pub(crate) fn address_of(instruction: &Instruction, registers: &[u64; 32]) -> u64 {
    let base = registers[usize::from(instruction.j)];
    let index = registers[usize::from(instruction.k)];
    base.wrapping_add(match AddressForm::of(instruction) {
        AddressForm::Displaced(bytes) => bytes as i64 as u64,
        AddressForm::Indexed => index,
        AddressForm::Described => index as i16 as u64,
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use longma_loongarch::{
        Environment, Fault, Scalar, State,
        semantics::{is_user_instruction, semantics_of},
    };

    use super::*;

    /// Memory that only notes where it was accessed.
    struct Noting(Cell<Option<u64>>);

    impl Noting {
        fn note<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
            self.0.set(Some(self.0.get().map_or(address, |noted| noted.min(address))));
            Ok(T::default())
        }
    }

    impl Environment for Noting {
        fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
            self.note(address)
        }

        fn store<T: Scalar>(&self, address: u64, _value: T) -> Result<(), Fault> {
            self.note::<T>(address).map(|_| ())
        }

        fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, _new: T) -> Result<T, Fault> {
            self.note::<T>(address).map(|_| expected)
        }

        fn fetch(&self, address: u64) -> Result<u32, Fault> {
            self.note(address)
        }

        fn stable_counter(&self) -> u64 {
            0
        }

        fn cpucfg(&self, _index: u32) -> u32 {
            0
        }
    }

    #[test]
    fn the_address_is_the_one_that_the_reference_semantics_access() {
        let mut accesses = 0;
        for op in Op::all().filter(|op| is_user_instruction(*op)) {
            let (base, index) = (0x1_0000, 0x2000);
            // Bounds: half of these instructions want the address below the bound, half above.
            let bound = if op.mnemonic().contains("gt.") { 0 } else { 0x2_0000 };
            let is_bounded = op.row().extension == Extension::Bound;
            let mut state = State::default();
            state.x[5] = base;
            state.x[6] = if is_bounded { bound } else { index };
            let before = state.clone();
            let is_displaced = op.row().operands.iter().any(|o| matches!(o, Operand::Immediate(_)));
            let imm = if has_address(op) && is_displaced { 0x40 } else { 0 };
            let instruction = Instruction { d: 4, j: 5, k: 6, imm, ..Instruction::new(op) };
            if op.row().class == Class::Atomic {
                // A store-conditional stores only with a reservation; a load-linked makes one.
                state.reservation.address = address_of(&instruction, &state.x);
            }
            let memory = Noting(Cell::new(None));
            let done = semantics_of(op)(&mut state, &instruction, &memory);
            let Some(noted) = memory.0.get() else {
                let silent = matches!(op, Op::Preld | Op::Preldx);
                assert!(!has_address(op) || silent, "{op:?} accesses nothing: {done:?}");
                continue;
            };
            assert!(has_address(op), "{op:?} accesses memory");
            accesses += 1;
            let extended = op.row().extension == Extension::Lbt;
            let expected = address_of(&instruction, &before.x);
            // Loads of one side of an unaligned number touch the bytes up to the address.
            let reach = if extended { 8 } else { 0 };
            assert!(noted <= expected && expected <= noted + reach, "{op:?}: {noted:#x}, not {expected:#x}");
        }
        assert!(accesses > 150, "only {accesses} instructions access memory");
    }

    #[test]
    fn records_come_back_as_they_were_pushed() {
        let records = [
            Record { block: BlockNumber(7), executed: 3, addresses: &[0x10, u64::MAX] },
            Record { block: BlockNumber(u32::MAX), executed: u16::MAX, addresses: &[] },
        ];
        let mut trace = Trace::default();
        records.iter().for_each(|record| trace.push(record));
        assert!(trace.records().eq(records));
    }
}
