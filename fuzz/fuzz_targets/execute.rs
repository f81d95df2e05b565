//! Executes random instructions with random state and memory. Execution must change the state or trap, without a panic;
//! r0 stays 0, and a trap keeps the program counter.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use longma_loongarch::{Access, Environment, Fault, FaultCause, Scalar, State, decode, semantics::execute};

/// 64 bytes at address 0x1000.
struct Memory(RefCell<[u8; 64]>);

const BASE: u64 = 0x1000;

impl Memory {
    fn offset<T: Scalar>(address: u64, access: Access) -> Result<usize, Fault> {
        let offset = address.wrapping_sub(BASE);
        if offset > 64 - T::BYTES as u64 {
            return Err(Fault { address, access, cause: FaultCause::Unmapped });
        }
        Ok(offset as usize)
    }
}

impl Environment for Memory {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        let offset = Self::offset::<T>(address, Access::Read)?;
        let mut value = T::default();
        let memory = self.0.borrow();
        // SAFETY: T is a plain integer of T::BYTES bytes, and `offset` has checked that as many bytes exist.
        unsafe {
            std::ptr::copy_nonoverlapping(memory[offset..].as_ptr(), (&raw mut value).cast::<u8>(), T::BYTES);
        }
        Ok(value)
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        let offset = Self::offset::<T>(address, Access::Write)?;
        let mut memory = self.0.borrow_mut();
        // SAFETY: as above.
        unsafe {
            std::ptr::copy_nonoverlapping(
                (&raw const value).cast::<u8>(),
                memory[offset..].as_mut_ptr(),
                T::BYTES,
            );
        }
        Ok(())
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        if !address.is_multiple_of(T::BYTES as u64) {
            return Err(Fault { address, access: Access::Write, cause: FaultCause::Misaligned });
        }
        let old = self.load::<T>(address)?;
        if old == expected {
            self.store(address, new)?;
        }
        Ok(old)
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        Err(Fault { address, access: Access::Execute, cause: FaultCause::Unmapped })
    }

    fn stable_counter(&self) -> u64 {
        7
    }

    fn cpucfg(&self, index: u32) -> u32 {
        index
    }
}

/// Numbers from the fuzzer's bytes; zeros when they are used up.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self) -> u64 {
        let (now, later) = self.0.split_at(self.0.len().min(8));
        self.0 = later;
        let mut bytes = [0; 8];
        bytes[..now.len()].copy_from_slice(now);
        u64::from_le_bytes(bytes)
    }
}

fuzz_target!(|data: &[u8]| {
    let mut numbers = Numbers(data);
    let first = numbers.next();
    let (word, control) = (first as u32, (first >> 32) as u32);
    let Some(instruction) = decode(word) else { return };
    let mut state = State { pc: 0x2000, ..State::default() };
    state.fcsr.0 = control & 0x1f1f_031f;
    state.lbt.eflags = (control >> 5) & 0x8d5;
    state.lbt.top = (control >> 10 & 7) as u8;
    state.lbt.stack_mode = control >> 15 & 1 == 1;
    // Registers repeat a few numbers, two thirds of which are likely addresses.
    let pool: [u64; 6] = std::array::from_fn(|index| {
        let number = numbers.next();
        if index % 3 == 0 { number } else { BASE + number % 80 }
    });
    for (index, register) in state.x.iter_mut().enumerate().skip(1) {
        *register = pool[index % pool.len()];
    }
    for (index, register) in state.v.iter_mut().enumerate() {
        register.0 =
            std::array::from_fn(|lane| pool[(index + lane) % pool.len()].rotate_left(13 * lane as u32));
    }
    let memory = Memory(RefCell::new([0x5a; 64]));
    let outcome = execute(&mut state, &instruction, &memory);
    assert_eq!(state.x[0], 0, "{instruction}");
    if outcome.is_err() {
        assert_eq!(state.pc, 0x2000, "{instruction}");
    }
});
