//! Memory of a few separate ranges for test programs: source code, translation and tables. Also the sets of
//! optimizations that tests iterate over.

use std::cell::{Ref, RefCell};
use std::ops::Range;

use longma_loongarch::{Access, Environment, Fault, FaultCause, Scalar};
use longma_translate::front_end::{DataMemory, Memory, UserMemory};
use longma_translate::optimizations::{Optimization, Optimizations};

/// No optimizations, the default with each one toggled, each one alone, and LBT without fusion (with fusion, little
/// code uses LBT).
pub fn choices() -> Vec<Optimizations> {
    let usual = Optimizations::default();
    let other = Optimization::ALL.map(|segment| usual.with(segment, !segment.is_default()));
    let single = Optimization::ALL.map(|segment| Optimizations::NONE.with(segment, true));
    let unfused = usual.with(Optimization::Lbt, true).with(Optimization::Fusion, false);
    let unfused =
        [unfused, unfused.with(Optimization::Forms, false), unfused.with(Optimization::FlagsAcross, false)];
    [&[Optimizations::NONE][..], &other, &single, &unfused, &unfused].concat()
}

/// Memory in separate ranges.
pub struct TestMemory(Vec<(u64, RefCell<Vec<u8>>)>);

impl TestMemory {
    /// Creates memory with these start addresses and contents.
    pub fn new(segments: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Self {
        Self(segments.into_iter().map(|(start, bytes)| (start, bytes.into())).collect())
    }

    /// The contents of range `index`.
    pub fn bytes(&self, index: usize) -> Ref<'_, Vec<u8>> {
        self.0[index].1.borrow()
    }

    fn segment(
        &self,
        address: u64,
        bytes: usize,
        access: Access,
    ) -> Result<(&RefCell<Vec<u8>>, usize), Fault> {
        let fits = |start: u64, length: usize| {
            address >= start && address.saturating_add(bytes as u64) <= start + length as u64
        };
        let segment_found = self.0.iter().find(|(start, segment)| fits(*start, segment.borrow().len()));
        let fault = Fault { address, access, cause: FaultCause::Unmapped };
        segment_found.map(|(start, segment)| (segment, (address - start) as usize)).ok_or(fault)
    }
}

impl Environment for TestMemory {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        let (segment, at) = self.segment(address, size_of::<T>(), Access::Read)?;
        // SAFETY: the range contains the whole scalar, and every bit pattern is valid.
        Ok(unsafe { segment.borrow()[at..].as_ptr().cast::<T>().read_unaligned() })
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        let (segment, at) = self.segment(address, size_of::<T>(), Access::Write)?;
        // SAFETY: the range contains the whole scalar.
        unsafe { segment.borrow_mut()[at..].as_mut_ptr().cast::<T>().write_unaligned(value) };
        Ok(())
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        let current = self.load(address)?;
        if current == expected {
            self.store(address, new)?;
        }
        Ok(current)
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

    fn permits_private(&self) -> bool {
        true
    }
}

impl Memory for TestMemory {
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

impl UserMemory for TestMemory {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let Ok((segment, at)) = self.segment(address, bytes.len(), Access::Read) else { return false };
        bytes.copy_from_slice(&segment.borrow()[at..at + bytes.len()]);
        true
    }

    fn write(&self, address: u64, bytes: &[u8]) -> bool {
        let Ok((segment, at)) = self.segment(address, bytes.len(), Access::Write) else { return false };
        segment.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        true
    }

    fn writable(&self, address: u64, bytes: u64) -> u64 {
        if self.segment(address, bytes as usize, Access::Write).is_ok() { bytes } else { 0 }
    }

    fn clock_ns(&self) -> u64 {
        0
    }
}

/// A [`TestMemory`] for interpreted instructions.
pub struct InterpreterView<'a>(pub &'a TestMemory);

impl DataMemory for InterpreterView<'_> {
    fn load(&self, address: u64, bytes: u8) -> Option<u64> {
        let mut value = [0; 8];
        self.0.read(address, &mut value[..usize::from(bytes)]).then(|| u64::from_le_bytes(value))
    }

    fn store(&self, address: u64, bytes: u8, value: u64) -> bool {
        self.0.write(address, &value.to_le_bytes()[..usize::from(bytes)])
    }

    fn load_wide(&self, address: u64) -> Option<[u64; 2]> {
        let mut value = [0; 16];
        let is_read = self.0.read(address, &mut value);
        let value = u128::from_le_bytes(value);
        is_read.then_some([value as u64, (value >> 64) as u64])
    }

    fn store_wide(&self, address: u64, [low, high]: [u64; 2]) -> bool {
        self.0.write(address, &(u128::from(low) | u128::from(high) << 64).to_le_bytes())
    }

    fn code_has_changed(&self) -> bool {
        false
    }
}
