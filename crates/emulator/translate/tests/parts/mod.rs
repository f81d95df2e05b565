//! Memory of a few separate ranges for test programs: source code, translation and tables. Also the sets of
//! optimizations that tests iterate over.

use std::cell::{Ref, RefCell};
use std::ops::Range;

use longma_loongarch::{Access, Environment, Fault, FaultCause, Scalar};
use longma_translate::front_end::{Memory, Structures};
use longma_translate::parts::{Part, Parts as Choice};

/// No optimizations, the default with each one switched, each one alone, and LBT without fusion, which leaves it more
/// to do.
#[allow(dead_code, reason = "not every test that has this memory looks at more than the usual choice")]
pub fn choices() -> Vec<Choice> {
    let usual = Choice::default();
    let other = Part::ALL.map(|part| usual.with(part, !part.is_default()));
    let alone = Part::ALL.map(|part| Choice::NONE.with(part, true));
    let unfused = usual.with(Part::Lbt, true).with(Part::Fusion, false);
    let unfused = [unfused, unfused.with(Part::Forms, false), unfused.with(Part::FlagsAcross, false)];
    [&[Choice::NONE][..], &other, &alone, &unfused, &unfused].concat()
}

/// Memory in separate ranges.
pub struct Parts(Vec<(u64, RefCell<Vec<u8>>)>);

impl Parts {
    /// Creates memory with these start addresses and contents.
    pub fn new(parts: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Self {
        Self(parts.into_iter().map(|(start, bytes)| (start, bytes.into())).collect())
    }

    /// The contents of range `index`.
    #[allow(dead_code, reason = "not every test that has these parts looks at them as they lie")]
    pub fn bytes(&self, index: usize) -> Ref<'_, Vec<u8>> {
        self.0[index].1.borrow()
    }

    fn part(&self, address: u64, bytes: usize, access: Access) -> Result<(&RefCell<Vec<u8>>, usize), Fault> {
        let fits = |start: u64, length: usize| {
            address >= start && address.saturating_add(bytes as u64) <= start + length as u64
        };
        let found = self.0.iter().find(|(start, part)| fits(*start, part.borrow().len()));
        let fault = Fault { address, access, cause: FaultCause::Unmapped };
        found.map(|(start, part)| (part, (address - start) as usize)).ok_or(fault)
    }
}

impl Environment for Parts {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        let (part, at) = self.part(address, size_of::<T>(), Access::Read)?;
        // SAFETY: the range contains the whole scalar, and every bit pattern is valid.
        Ok(unsafe { part.borrow()[at..].as_ptr().cast::<T>().read_unaligned() })
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        let (part, at) = self.part(address, size_of::<T>(), Access::Write)?;
        // SAFETY: the range contains the whole scalar.
        unsafe { part.borrow_mut()[at..].as_mut_ptr().cast::<T>().write_unaligned(value) };
        Ok(())
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        let found = self.load(address)?;
        if found == expected {
            self.store(address, new)?;
        }
        Ok(found)
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        self.load(address)
    }

    fn stable_counter(&self) -> u64 {
        0
    }

    fn cpucfg(&self, _: u32) -> u32 {
        0
    }
}

impl Memory for Parts {
    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        self.load(address)
    }

    fn place(&self, address: u64, words: &[u32]) -> Result<(), Fault> {
        (address..).step_by(4).zip(words).try_for_each(|(address, word)| self.store(address, *word))
    }

    fn placed(&self, address: u64) -> Option<u32> {
        self.load(address).ok()
    }

    fn forget(&self, _: Range<u64>) -> Result<(), Fault> {
        Ok(())
    }
}

impl Structures for Parts {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let Ok((part, at)) = self.part(address, bytes.len(), Access::Read) else { return false };
        bytes.copy_from_slice(&part.borrow()[at..at + bytes.len()]);
        true
    }

    fn write(&self, address: u64, bytes: &[u8]) -> bool {
        let Ok((part, at)) = self.part(address, bytes.len(), Access::Write) else { return false };
        part.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        true
    }

    fn writable(&self, address: u64, bytes: u64) -> u64 {
        if self.part(address, bytes as usize, Access::Write).is_ok() { bytes } else { 0 }
    }

    fn clock_ns(&self) -> u64 {
        0
    }
}
