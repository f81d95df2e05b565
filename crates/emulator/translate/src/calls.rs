//! What the front ends' system calls have alike: a table of numbers and names, and the words of structures.
//! Not what a call means: that is its architecture's.
//! Source: the headers of the front ends' `calls.tsv` say what stands in them.

use crate::front_end::Structures;

/// EFAULT.
const BAD_ADDRESS: u64 = 14;
/// No architecture has more calls.
const MOST_CALLS: usize = 512;

/// A call's name, and the number of the call that LoongArch knows by it, if it does.
pub type Call = (&'static str, Option<u64>);

/// An architecture's calls.
#[derive(Debug)]
pub struct Calls {
    first: u64,
    rows: Vec<Option<Call>>,
}

impl Calls {
    /// Reads a table, whose lowest number is `first`.
    ///
    /// # Panics
    /// A number in the table is no number, or out of bounds.
    pub fn parse(table: &'static str, first: u64) -> Self {
        let mut rows = vec![None; MOST_CALLS];
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let mut columns = line.split('\t');
            let number: u64 = columns.next().and_then(|number| number.parse().ok()).expect("a number");
            let name = columns.next().unwrap_or_default();
            let generic = columns.next().and_then(|number| number.parse().ok());
            rows[(number - first) as usize] = Some((name, generic));
        }
        Self { first, rows }
    }

    /// The call of a number.
    pub fn find(&self, number: u64) -> Option<Call> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.rows.get(index).copied().flatten()
    }

    /// The number of LoongArch's call of a name.
    pub fn generic(&self, name: &str) -> Option<u64> {
        self.rows.iter().flatten().find(|row| row.0 == name).and_then(|row| row.1)
    }
}

/// The eight bytes at `at`.
pub fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

/// Reads a structure.
///
/// # Errors
/// EFAULT.
pub fn fetch<const N: usize>(memory: &dyn Structures, address: u64) -> Result<[u8; N], u64> {
    let mut bytes = [0; N];
    if memory.read(address, &mut bytes) { Ok(bytes) } else { Err(BAD_ADDRESS) }
}

/// Writes a structure of words.
///
/// # Errors
/// EFAULT.
pub fn store(memory: &dyn Structures, address: u64, words: &[u64]) -> Result<(), u64> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    if memory.write(address, &bytes) { Ok(()) } else { Err(BAD_ADDRESS) }
}
