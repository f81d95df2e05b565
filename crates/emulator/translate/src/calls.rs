//! Helpers for the front ends' system calls: tables of call numbers, and access to structures. The front ends'
//! `calls.tsv` files describe their format.

use crate::front_end::UserMemory;

/// `EFAULT`.
const BAD_ADDRESS: u64 = 14;
/// Upper bound of the number of calls, for all architectures.
const MAX_CALLS: usize = 512;

/// The name of a call, and the number of the equivalent LoongArch call, if there is one.
pub type Call = (&'static str, Option<u64>);

/// The system-call table of an architecture.
#[derive(Debug)]
pub struct Calls {
    first: u64,
    rows: Vec<Option<Call>>,
}

impl Calls {
    /// Parses a table. `first` is its lowest number.
    ///
    /// # Panics
    /// If a number in the table is malformed or out of range.
    pub fn parse(table: &'static str, first: u64) -> Self {
        let mut rows = vec![None; MAX_CALLS];
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let mut columns = line.split('\t');
            let number: u64 = columns.next().and_then(|number| number.parse().ok()).expect("a number");
            let name = columns.next().unwrap_or_default();
            let generic = columns.next().and_then(|number| number.parse().ok());
            rows[(number - first) as usize] = Some((name, generic));
        }
        Self { first, rows }
    }

    /// The call with this number.
    pub fn find(&self, number: u64) -> Option<Call> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.rows.get(index).copied().flatten()
    }

    /// The LoongArch number of the call with this name.
    pub fn generic(&self, name: &str) -> Option<u64> {
        self.rows.iter().flatten().find(|row| row.0 == name).and_then(|row| row.1)
    }
}

/// The little-endian 64-bit word at offset `at`.
pub fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

/// Reads a structure.
///
/// # Errors
/// `EFAULT` if it is not readable.
pub fn fetch<const N: usize>(memory: &dyn UserMemory, address: u64) -> Result<[u8; N], u64> {
    let mut bytes = [0; N];
    if memory.read(address, &mut bytes) { Ok(bytes) } else { Err(BAD_ADDRESS) }
}

/// Writes a structure of 64-bit words.
///
/// # Errors
/// `EFAULT` if it is not writable.
pub fn store(memory: &dyn UserMemory, address: u64, words: &[u64]) -> Result<(), u64> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    if memory.write(address, &bytes) { Ok(()) } else { Err(BAD_ADDRESS) }
}

/// Converts `bytes` bytes of entries that getdents64 has written at `address` to those of the older getdents. The
/// entries have equal sizes; the type is in their last byte instead of before the name. Source: getdents(2).
///
/// # Errors
/// `EFAULT` if another thread has unmapped them.
pub fn to_older_directory_entries(memory: &dyn UserMemory, address: u64, bytes: u64) -> Result<(), u64> {
    const LENGTH_AT: usize = 16;
    const KIND_AT: usize = 18;
    let mut entries = vec![0; bytes as usize];
    if !memory.read(address, &mut entries) {
        return Err(BAD_ADDRESS);
    }
    let mut rest = &mut entries[..];
    while rest.len() > KIND_AT {
        let length = usize::from(u16::from_le_bytes([rest[LENGTH_AT], rest[LENGTH_AT + 1]]));
        let Some((entry, next)) = rest.split_at_mut_checked(length).filter(|_| length > KIND_AT) else {
            break;
        };
        entry[KIND_AT..].rotate_left(1);
        rest = next;
    }
    if memory.write(address, &entries) { Ok(()) } else { Err(BAD_ADDRESS) }
}
