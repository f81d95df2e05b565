//! Memory accesses of the core. They use cached translations where possible. Source: LoongArch Reference Manual, volume
//! 1, section 2.1.4 (memory), chapter 5 (memory management).

use longma_loongarch::{Access, Environment, Fault, FaultCause, Scalar};

use super::{COUNTER_HZ, Core};
use crate::csr::table as csr;
use crate::exception::Exception;
use crate::memory::PAGE_BYTES;
use crate::platform::Effects;

/// Bytes of the widest access.
const WIDEST: usize = 16;

/// Configuration words 0 to 20, as on QEMU's la464, with the binary-translation extension. Source: LoongArch Reference
/// Manual, volume 1, table 3 (CPUCFG).
const CONFIGURATION: [u32; 21] = {
    let mut words = [0; 21];
    // PRID: the processor is a 3A5000.
    words[0] = 0x14_c010;
    // LA64 with paging and IOCSR, 48 bits of physical and virtual addresses, UAL, RI, EP, RPLV, HP, CRC.
    words[1] = 0x3f2_f2fe;
    // FP with single and double version 1, LSX, LASX, stable counter version 1, LBT for x86, Arm and MIPS, page walks,
    // atomics.
    words[2] = 0x7c_c0cf | 7 << 18;
    words[4] = COUNTER_HZ;
    // The stable counter's frequency is words[4] * 1 / 1.
    words[5] = 0x1_0001;
    // The cache hierarchy.
    words[16] = 0x2c3d;
    words[17] = 0x608_0003;
    words[18] = 0x608_0003;
    words[19] = 0x608_000f;
    words[20] = 0x60e_000f;
    words
};

impl Environment for Core {
    #[inline]
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        let misaligned = address & (T::BYTES as u64 - 1) & self.alignment.get();
        match self.readable.find(self.mode.get(), self.entry_generation.get(), address, T::BYTES) {
            // SAFETY: the cache returned a host address with T::BYTES bytes of guest memory, which live as long as self.
            // T is a plain integer, and no other thread accesses the memory.
            Some(host) if misaligned == 0 => Ok(unsafe { host.cast::<T>().read_unaligned() }),
            _ => self.load_slowly(address),
        }
    }

    #[inline]
    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        let misaligned = address & (T::BYTES as u64 - 1) & self.alignment.get();
        match self.writable.find(self.mode.get(), self.entry_generation.get(), address, T::BYTES) {
            Some(host) if misaligned == 0 => {
                // SAFETY: as in `load`. No reference to guest memory exists.
                unsafe { host.cast::<T>().write_unaligned(value) };
                Ok(())
            }
            _ => self.store_slowly(address, value),
        }
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        let fault = |cause| Fault { address, access: Access::Write, cause };
        if !address.is_multiple_of(T::BYTES as u64) {
            return Err(fault(FaultCause::Misaligned));
        }
        if !self.is_writable(address, T::BYTES) && self.translate(address, Access::Write).is_err() {
            return Err(fault(FaultCause::Forbidden));
        }
        // No other core executes between the load and the store.
        let old = self.load(address)?;
        if old == expected {
            self.store(address, new)?;
        }
        Ok(old)
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        let fault = Fault { address, access: Access::Execute, cause: FaultCause::Unmapped };
        let page = self.code_page(address).map_err(|_| fault)?;
        Ok(self.word(page.address + address % PAGE_BYTES))
    }

    /// Cores take turns, and each core performs its accesses in program order.
    fn barrier(&self) {}

    fn stable_counter(&self) -> u64 {
        self.ticks().wrapping_add(self.registers.get(csr::CNTC))
    }

    fn counter_id(&self) -> u64 {
        self.registers.get(csr::TID) as i32 as u64
    }

    fn cpucfg(&self, index: u32) -> u32 {
        CONFIGURATION.get(index as usize).copied().unwrap_or(0)
    }
}

impl Core {
    #[cold]
    fn load_slowly<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        self.check_alignment(address, T::BYTES, Access::Read)?;
        let mut bytes = [0; WIDEST];
        for part in self.parts(address, T::BYTES, Access::Read)?.into_iter().flatten() {
            self.load_part(part, &mut bytes[part.offset..][..part.bytes])?;
        }
        // SAFETY: T is a plain integer of at most WIDEST bytes.
        Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }

    #[cold]
    fn store_slowly<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        self.check_alignment(address, T::BYTES, Access::Write)?;
        let mut bytes = [0; WIDEST];
        // SAFETY: T is a plain integer of at most WIDEST bytes.
        unsafe { bytes.as_mut_ptr().cast::<T>().write_unaligned(value) };
        for part in self.parts(address, T::BYTES, Access::Write)?.into_iter().flatten() {
            self.store_part(part, &bytes[part.offset..][..part.bytes])?;
        }
        Ok(())
    }

    /// Whether a cached translation permits the store.
    fn is_writable(&self, address: u64, bytes: usize) -> bool {
        self.writable.find(self.mode.get(), self.entry_generation.get(), address, bytes).is_some()
    }

    fn check_alignment(&self, address: u64, bytes: usize, access: Access) -> Result<(), Fault> {
        match address & (bytes as u64 - 1) & self.alignment.get() {
            0 => Ok(()),
            _ => Err(Fault { address, access, cause: FaultCause::Misaligned }),
        }
    }

    /// Translates an access, which may cross a page boundary. Both pages are checked before either is accessed.
    fn parts(&self, address: u64, bytes: usize, access: Access) -> Result<[Option<PagePart>; 2], Fault> {
        let here = bytes.min((PAGE_BYTES - address % PAGE_BYTES) as usize);
        let first = self.part(address, 0, here, access)?;
        let second = match bytes - here {
            0 => None,
            rest => Some(self.part(address.wrapping_add(here as u64), here, rest, access)?),
        };
        Ok([Some(first), second])
    }

    fn part(&self, virt: u64, offset: usize, bytes: usize, access: Access) -> Result<PagePart, Fault> {
        let physical = self.translate(virt, access).map_err(|_| Fault {
            address: virt,
            access,
            cause: FaultCause::Unmapped,
        })?;
        let host = self.bus.memory.page(physical);
        Ok(PagePart { virt, physical, host, offset, bytes })
    }

    fn load_part(&self, part: PagePart, bytes: &mut [u8]) -> Result<(), Fault> {
        let Some(host) = part.host else { return self.load_device(part, bytes) };
        if self.bus.debug.watches_page(part.virt) {
            self.note_part(part, Access::Read)?;
        } else {
            self.readable.insert(self.mode.get(), self.entry_generation.get(), part.virt, host);
        }
        // SAFETY: `host` is a whole page of guest memory, and `part` does not leave the page.
        unsafe {
            let from = host.add((part.physical % PAGE_BYTES) as usize);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
        Ok(())
    }

    fn store_part(&self, part: PagePart, bytes: &[u8]) -> Result<(), Fault> {
        let Some(host) = part.host else { return self.store_device(part, bytes) };
        let page = part.physical & !(PAGE_BYTES - 1);
        if !self.is_alone.get() && self.bus.code.borrow().contains(page) {
            return Err(Fault { address: part.virt, access: Access::Write, cause: FaultCause::Unmapped });
        }
        if self.bus.code.borrow_mut().invalidate(page) {
            // The page may contain the current instruction.
            self.announce_code();
            self.attend();
        }
        if self.bus.debug.watches_page(part.virt) {
            self.note_part(part, Access::Write)?;
        } else {
            self.writable.insert(self.mode.get(), self.entry_generation.get(), part.virt, host);
        }
        // SAFETY: as in `load_part`. `bytes` is not guest memory.
        unsafe {
            let to = host.add((part.physical % PAGE_BYTES) as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(())
    }

    /// Records an access to a page with a watchpoint. The access is refused if its instruction does not execute alone.
    fn note_part(&self, part: PagePart, access: Access) -> Result<(), Fault> {
        if !self.is_alone.get() {
            return Err(Fault { address: part.virt, access, cause: FaultCause::Unmapped });
        }
        self.note_access(part.virt, part.bytes, access);
        Ok(())
    }

    /// Reads a device in aligned accesses of at most 8 bytes.
    fn load_device(&self, part: PagePart, bytes: &mut [u8]) -> Result<(), Fault> {
        let unanswered = Fault { address: part.virt, access: Access::Read, cause: FaultCause::Unmapped };
        if !self.is_alone.get() {
            return Err(unanswered);
        }
        let width = device_width(part.physical, bytes.len());
        for (index, chunk) in bytes.chunks_mut(width).enumerate() {
            let address = part.physical + (index * width) as u64;
            let value = self.bus.platform.borrow_mut().read(address, width, self.elapsed_ns());
            chunk.copy_from_slice(&value.ok_or(unanswered)?.to_le_bytes()[..width]);
        }
        self.update_lines();
        Ok(())
    }

    fn store_device(&self, part: PagePart, bytes: &[u8]) -> Result<(), Fault> {
        let unanswered = Fault { address: part.virt, access: Access::Write, cause: FaultCause::Unmapped };
        if !self.is_alone.get() {
            return Err(unanswered);
        }
        let width = device_width(part.physical, bytes.len());
        for (index, chunk) in bytes.chunks(width).enumerate() {
            let address = part.physical + (index * width) as u64;
            let mut value = [0; 8];
            value[..width].copy_from_slice(chunk);
            let value = u64::from_le_bytes(value);
            let written =
                self.bus.platform.borrow_mut().write(address, width, value, self.bus.memory.guest());
            self.take_effects(&written.ok_or(unanswered)?);
        }
        self.update_lines();
        Ok(())
    }

    /// Applies the effects of a device access: its duration, and the memory that the device has written, which may hold
    /// decoded code.
    pub(crate) fn take_effects(&self, effects: &Effects) {
        self.advance_clock(effects.cycles);
        let mut code = self.bus.code.borrow_mut();
        for (start, end) in &effects.written {
            if code.invalidate_range(*start, *end) {
                self.announce_code();
                self.attend();
            }
        }
    }

    /// The exception that a store of `bytes` bytes at `address` would raise, if any.
    pub(crate) fn refused_store(&self, address: u64, bytes: usize) -> Option<Exception> {
        if !address.is_multiple_of(bytes as u64) {
            return Some(Exception::Misaligned);
        }
        if self.is_writable(address, bytes) {
            return None;
        }
        self.translate(address, Access::Write).err()
    }
}

/// The part of an access that is on one page.
#[derive(Clone, Copy)]
struct PagePart {
    virt: u64,
    physical: u64,
    /// The page in host memory; `None` if the address is not memory.
    host: Option<*mut u8>,
    /// The offset of this part in the access.
    offset: usize,
    bytes: usize,
}

/// The width of device accesses: the whole access, or 8 bytes of it at a time, if that is aligned; else single bytes.
fn device_width(address: u64, bytes: usize) -> usize {
    let whole = bytes.min(8);
    if whole.is_power_of_two() && address.is_multiple_of(whole as u64) && bytes.is_multiple_of(whole) {
        whole
    } else {
        1
    }
}
