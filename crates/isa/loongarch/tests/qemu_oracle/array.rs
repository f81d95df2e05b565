//! Memory for tests: a byte array at an address, and the words of a program. Source: the `Environment` trait.

use std::cell::RefCell;

use longma_loongarch::{Access, Environment, Fault, FaultCause, Scalar};

/// Data and code at fixed addresses.
pub struct Array<'a> {
    pub data_base: u64,
    pub data: RefCell<Vec<u8>>,
    pub code_base: u64,
    pub code: &'a [u32],
    pub counter: u64,
}

impl<'a> Array<'a> {
    pub fn new(data_base: u64, data: Vec<u8>, code_base: u64, code: &'a [u32]) -> Self {
        Self { data_base, data: RefCell::new(data), code_base, code, counter: 0 }
    }

    fn range(&self, address: u64, bytes: usize, access: Access) -> Result<std::ops::Range<usize>, Fault> {
        let start = address.wrapping_sub(self.data_base);
        if start > (self.data.borrow().len() - bytes) as u64 {
            return Err(Fault { address, access, cause: FaultCause::Unmapped });
        }
        Ok(start as usize..start as usize + bytes)
    }
}

fn to_number<T: Scalar>(bytes: &[u8]) -> T {
    assert_eq!(bytes.len(), T::BYTES);
    // SAFETY: the slice is as long as `T`, and every bit pattern is a `T` (the trait is for plain integers).
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

fn put_number<T: Scalar>(bytes: &mut [u8], value: T) {
    assert_eq!(bytes.len(), T::BYTES);
    // SAFETY: the slice is as long as `T`, which is a plain integer.
    unsafe { bytes.as_mut_ptr().cast::<T>().write_unaligned(value) }
}

impl Environment for Array<'_> {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        let range = self.range(address, T::BYTES, Access::Read)?;
        Ok(to_number(&self.data.borrow()[range]))
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        let range = self.range(address, T::BYTES, Access::Write)?;
        put_number(&mut self.data.borrow_mut()[range], value);
        Ok(())
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        if !address.is_multiple_of(T::BYTES as u64) {
            return Err(Fault { address, access: Access::Write, cause: FaultCause::Misaligned });
        }
        let current = self.load(address)?;
        if current == expected {
            self.store(address, new)?;
        }
        Ok(current)
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        let index = address.wrapping_sub(self.code_base) / 4;
        let word = self.code.get(index as usize).copied();
        word.ok_or(Fault { address, access: Access::Execute, cause: FaultCause::Unmapped })
    }

    fn stable_counter(&self) -> u64 {
        self.counter
    }

    fn counter_id(&self) -> u64 {
        7
    }

    fn cpucfg(&self, index: u32) -> u32 {
        if index == 1 { 0x83f2_f2f2 } else { 0 }
    }
}
