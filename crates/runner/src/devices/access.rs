//! A program's accesses to device registers. Register windows are mapped inaccessible; the instruction that traps is
//! executed with the device in place of memory. Source: registers are strongly-ordered uncached memory, accessed in
//! order and never speculatively (LoongArch Reference Manual, volume 1, 2.1.7).

use std::cell::RefCell;

use longma_core::Cpu;
use longma_guest::{GuestMemory, Window};
use longma_loongarch::{Access, Environment, Fault, FaultCause, Scalar, Trap, decode, semantics};
use longma_memory::MemorySystem;
use longma_sim::{Duration, Time};

use super::Devices;

/// The environment of an instruction that accesses registers.
struct Registers<'a> {
    devices: RefCell<(&'a mut Devices, &'a mut MemorySystem, Duration)>,
    guest: GuestMemory,
    core: usize,
    at: Time,
}

/// A core's access to a register.
struct RegisterAccess {
    /// The device.
    number: u16,
    offset: u64,
    /// Bytes.
    width: u32,
    core: usize,
    at: Time,
}

fn refused(address: u64, access: Access) -> Fault {
    Fault { address, access, cause: FaultCause::BeyondFile }
}

impl Registers<'_> {
    /// The device and offset of an access, if the mapping permits it; `None` for ordinary memory.
    fn find(&self, address: u64, access: Access) -> Result<Option<(u16, u64)>, Fault> {
        let Some((Window::Registers(number), offset, protection)) = self.guest.window_at(address) else {
            return Ok(None);
        };
        let permitted = if access == Access::Write { protection.write } else { protection.readable() };
        let forbidden = Fault { address, access, cause: FaultCause::Forbidden };
        if permitted { Ok(Some((number, offset))) } else { Err(forbidden) }
    }
}

impl Environment for Registers<'_> {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        let Some((number, offset)) = self.find(address, Access::Read)? else {
            return self.guest.load(address);
        };
        if T::BYTES > 8 {
            return Err(refused(address, Access::Read));
        }
        let access = RegisterAccess { number, offset, width: T::BYTES as u32, core: self.core, at: self.at };
        let (devices, memory, takes) = &mut *self.devices.borrow_mut();
        let (value, took) = devices.read(memory, &access);
        *takes = took;
        // SAFETY: `T` is an unsigned integer of at most eight bytes, and the host is little-endian.
        Ok(unsafe { std::mem::transmute_copy(&value) })
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        let Some((number, offset)) = self.find(address, Access::Write)? else {
            return self.guest.store(address, value);
        };
        if T::BYTES > 8 {
            return Err(refused(address, Access::Write));
        }
        let mut wide = 0u64;
        // SAFETY: `T` is an unsigned integer of at most eight bytes, and the host is little-endian.
        unsafe {
            let to = (&raw mut wide).cast::<u8>();
            std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to, T::BYTES);
        }
        let access = RegisterAccess { number, offset, width: T::BYTES as u32, core: self.core, at: self.at };
        let (devices, memory, takes) = &mut *self.devices.borrow_mut();
        *takes = devices.write(memory, &access, wide);
        Ok(())
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, _: T, _: T) -> Result<T, Fault> {
        Err(refused(address, Access::Write))
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        self.guest.fetch(address)
    }

    fn stable_counter(&self) -> u64 {
        0
    }

    fn cpucfg(&self, _: u32) -> u32 {
        0
    }
}

impl Devices {
    /// Executes the instruction at the program counter, which accesses registers from core number `core` at time `at`.
    /// Returns the duration of the access.
    ///
    /// # Errors
    /// The instruction cannot access registers, or the mapping does not permit it.
    pub fn execute(
        &mut self,
        memory: &mut MemorySystem,
        cpu: &mut Cpu,
        core: usize,
        at: Time,
    ) -> Result<Duration, Trap> {
        let guest = self.guest.clone().ok_or(Trap::IllegalInstruction)?;
        let word = guest.fetch(cpu.state.pc)?;
        let instruction = decode(word).ok_or(Trap::IllegalInstruction)?;
        let devices = RefCell::new((self, memory, Duration::ZERO));
        let registers = Registers { devices, guest, core, at };
        semantics::execute(&mut cpu.state, &instruction, &registers)?;
        Ok(registers.devices.into_inner().2)
    }

    /// The latency from core `core` to part `number`, and the arrival time of an access that starts at `at`.
    fn arrival(&self, number: usize, core: usize, at: Time) -> (Duration, Time) {
        let delay = self.parts.get(number).and_then(|part| part.way.get(core)).copied().unwrap_or_default();
        (delay, at.checked_add(delay).unwrap_or(at))
    }

    fn read(&mut self, memory: &mut MemorySystem, access: &RegisterAccess) -> (u64, Duration) {
        let &RegisterAccess { number, offset, width, core, at } = access;
        let number = usize::from(number);
        let (latency, arrival) = self.arrival(number, core, at);
        self.advance(arrival, memory);
        self.accesses += 1;
        if number >= self.parts.len() {
            return (0, latency);
        }
        let answer =
            self.act(number, memory, |model, bus| model.device_mut().read(offset, width, arrival, bus));
        self.settle(number);
        self.publish();
        (answer.value, Duration::from_ps(2 * latency.ps() + answer.takes.ps()))
    }

    fn write(&mut self, memory: &mut MemorySystem, access: &RegisterAccess, value: u64) -> Duration {
        let &RegisterAccess { number, offset, width, core, at } = access;
        let number = usize::from(number);
        let (latency, arrival) = self.arrival(number, core, at);
        self.advance(arrival, memory);
        self.accesses += 1;
        if number >= self.parts.len() {
            return latency;
        }
        let takes = self
            .act(number, memory, |model, bus| model.device_mut().write(offset, width, value, arrival, bus));
        let part = &mut self.parts[number];
        part.clear_released(&self.files);
        part.lines
            .iter_mut()
            .zip(&part.files)
            .for_each(|(line, file)| line.reassert(arrival, &self.files[*file]));
        self.settle(number);
        self.publish();
        Duration::from_ps(latency.ps() + takes.ps())
    }
}
