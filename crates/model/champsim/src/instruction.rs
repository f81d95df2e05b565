//! One record of a trace.

/// The size of a record in bytes.
pub const RECORD_BYTES: usize = 64;

/// ChampSim's number of the stack pointer.
pub(crate) const STACK_POINTER: u8 = 6;
/// The register that ChampSim treats as the flags register.
pub(crate) const FLAGS: u8 = 25;
/// ChampSim's number of the instruction pointer. Instructions that write this register are branches.
pub(crate) const INSTRUCTION_POINTER: u8 = 26;

/// An executed instruction. Register 0 and address 0 mean none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// Its address.
    pub ip: u64,
    /// Whether it is a branch.
    pub is_branch: bool,
    /// Whether the branch was taken.
    pub is_taken: bool,
    /// The registers that it writes.
    pub destinations: [u8; 2],
    /// The registers that it reads.
    pub sources: [u8; 4],
    /// The addresses that it writes.
    pub stores: [u64; 2],
    /// The addresses that it reads.
    pub loads: [u64; 4],
}

/// The type of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BranchKind {
    /// A jump to a fixed address.
    Direct,
    /// A jump to an address in a register or in memory.
    Indirect,
    /// A jump that depends on flags or registers.
    Conditional,
    /// A call of a fixed address.
    DirectCall,
    /// A call of an address in a register or in memory.
    IndirectCall,
    /// A return.
    Return,
    /// Any other instruction that writes the instruction pointer.
    Other,
}

/// The bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} of the record is {value}, and must be 0 or 1")]
pub struct RecordError {
    at: usize,
    value: u8,
}

impl Instruction {
    /// The record as bytes, in the order of the fields of ChampSim's `input_instr`, little-endian.
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.ip.to_le_bytes());
        (bytes[8], bytes[9]) = (self.is_branch.into(), self.is_taken.into());
        bytes[10..12].copy_from_slice(&self.destinations);
        bytes[12..16].copy_from_slice(&self.sources);
        let addresses = self.stores.iter().chain(&self.loads);
        for (word, address) in bytes[16..].chunks_exact_mut(8).zip(addresses) {
            word.copy_from_slice(&address.to_le_bytes());
        }
        bytes
    }

    /// The record in `bytes`.
    ///
    /// # Errors
    /// One of the two flags is neither 0 nor 1.
    pub fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Result<Self, RecordError> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let flag = |at: usize| match bytes[at] {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(RecordError { at, value }),
        };
        Ok(Self {
            ip: word(0),
            is_branch: flag(8)?,
            is_taken: flag(9)?,
            destinations: [bytes[10], bytes[11]],
            sources: [bytes[12], bytes[13], bytes[14], bytes[15]],
            stores: [16, 24].map(word),
            loads: [32, 40, 48, 56].map(word),
        })
    }

    /// The type of branch that ChampSim infers from the registers; `None` if the instruction does not write the
    /// instruction pointer.
    pub fn branch_kind(&self) -> Option<BranchKind> {
        let writes = |register| self.destinations.contains(&register);
        let reads = |register| self.sources.contains(&register);
        if !writes(INSTRUCTION_POINTER) {
            return None;
        }
        let is_other = |register: &u8| ![0, STACK_POINTER, FLAGS, INSTRUCTION_POINTER].contains(register);
        let other = self.sources.iter().any(is_other);
        let (stack, flags, ip) = (reads(STACK_POINTER), reads(FLAGS), reads(INSTRUCTION_POINTER));
        let pushes = writes(STACK_POINTER);
        Some(match (stack, ip, flags, other) {
            (false, _, false, false) => BranchKind::Direct,
            (false, false, false, true) => BranchKind::Indirect,
            (false, true, _, _) if !pushes => BranchKind::Conditional,
            (true, true, false, false) if pushes => BranchKind::DirectCall,
            (true, true, false, true) if pushes => BranchKind::IndirectCall,
            (true, false, _, _) if pushes => BranchKind::Return,
            _ => BranchKind::Other,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn any_instruction() -> impl Strategy<Value = Instruction> {
        (
            any::<u64>(),
            any::<[bool; 2]>(),
            any::<[u8; 2]>(),
            any::<[u8; 4]>(),
            any::<[u64; 2]>(),
            any::<[u64; 4]>(),
        )
            .prop_map(|(ip, [is_branch, is_taken], destinations, sources, stores, loads)| {
                Instruction { ip, is_branch, is_taken, destinations, sources, stores, loads }
            })
    }

    proptest! {
        #[test]
        fn a_written_record_is_read_back(instruction in any_instruction()) {
            prop_assert_eq!(Instruction::from_bytes(&instruction.to_bytes()), Ok(instruction));
        }

        #[test]
        fn other_bytes_are_a_record_or_an_error(bytes in prop::collection::vec(any::<u8>(), RECORD_BYTES)) {
            let bytes: [u8; RECORD_BYTES] = bytes.try_into().unwrap();
            let is_valid = bytes[8] < 2 && bytes[9] < 2;
            prop_assert_eq!(Instruction::from_bytes(&bytes).is_ok(), is_valid);
        }
    }

    #[test]
    fn the_fields_are_where_champsim_has_them() {
        let instruction = Instruction {
            ip: 0x1122,
            is_branch: true,
            is_taken: false,
            destinations: [26, 6],
            sources: [6, 26, 3, 0],
            stores: [0x7fff_0008, 0],
            loads: [0x99, 0, 0, 0x77],
        };
        let bytes = instruction.to_bytes();
        assert_eq!(bytes[..16], [0x22, 0x11, 0, 0, 0, 0, 0, 0, 1, 0, 26, 6, 6, 26, 3, 0]);
        assert_eq!((bytes[16], bytes[19], bytes[32], bytes[56]), (8, 0x7f, 0x99, 0x77));
        assert_eq!(instruction.branch_kind(), Some(BranchKind::IndirectCall));
    }
}
