//! Which instructions have an address in a [`Record`](crate::Record), and how the address is computed.

use longma_loongarch::{Class, Extension, Instruction, Op, Operand, RegisterKind};

/// Returns whether an instruction has an address in a [`Record`](crate::Record): loads, stores, atomic operations and
/// prefetches.
#[inline]
pub fn has_address(op: Op) -> bool {
    matches!(op.row().class, Class::Load | Class::Store | Class::Atomic | Class::Prefetch)
}

/// Number of `instructions` that have an address.
pub fn count_addresses(instructions: &[Instruction]) -> u16 {
    instructions.iter().filter(|i| has_address(i.op)).count() as u16
}

/// How an instruction forms its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressForm {
    /// Register `j` plus an immediate offset in bytes.
    Displaced(i32),
    /// Register `j` plus register `k`.
    Indexed,
    /// Register `j` plus the sign-extended low 16 bits of register `k`. Used by `preldx`, whose other bits of `k`
    /// describe how much to prefetch.
    Described,
}

impl AddressForm {
    /// The form of an instruction for which [`has_address`] is true.
    pub fn of(instruction: &Instruction) -> Self {
        let row = instruction.op.row();
        let third = row.operands.get(2);
        match instruction.op {
            // The first immediate is the hint.
            Op::Preld => Self::Displaced(instruction.imm2),
            Op::Preldx => Self::Described,
            // Register `k` holds the bound.
            _ if row.extension == Extension::Bound => Self::Displaced(0),
            _ if third == Some(&Operand::Register(RegisterKind::General, 10)) => Self::Indexed,
            _ => Self::Displaced(instruction.imm),
        }
    }
}

/// The guest virtual address that `instruction` accesses, given the general registers before its execution.
#[inline]
pub fn address_of(instruction: &Instruction, registers: &[u64; 32]) -> u64 {
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

    /// A memory that only records the lowest accessed address.
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

        fn permits_private(&self) -> bool {
            true
        }
    }

    #[test]
    fn the_address_is_the_one_that_the_reference_semantics_access() {
        let mut accesses = 0;
        for op in Op::all().filter(|op| is_user_instruction(*op)) {
            let (base, index) = (0x1_0000, 0x2000);
            // Bound checks: half of these instructions require an address below the bound, half above.
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
                // A store-conditional needs a reservation, which a load-linked creates.
                state.reservation.address = address_of(&instruction, &state.x);
            }
            let memory = Noting(Cell::new(None));
            let result = semantics_of(op)(&mut state, &instruction, &memory);
            let Some(noted) = memory.0.get() else {
                let silent = matches!(op, Op::Preld | Op::Preldx);
                assert!(!has_address(op) || silent, "{op:?} must access memory: {result:?}");
                continue;
            };
            assert!(has_address(op), "{op:?} accesses memory");
            accesses += 1;
            let extended = op.row().extension == Extension::Lbt;
            let expected = address_of(&instruction, &before.x);
            // Unaligned partial loads access the bytes up to the address.
            let reach = if extended { 8 } else { 0 };
            assert!(noted <= expected && expected <= noted + reach, "{op:?}: {noted:#x}, not {expected:#x}");
        }
        assert!(accesses > 150, "only {accesses} instructions access memory");
    }
}
