//! Control registers of a shared cache's line lock: address windows whose lines are not evicted. The device reports
//! each change of a window to the bus; the machine's memory model implements the lock.
//!
//! Source: Loongson 3A5000/3B5000 Processor Reference Manual, SCache lock windows: valid bit, address, mask; at least
//! one way of a set stays unlocked. The offsets inside the page are not from the manual.

use crate::Bus;
use crate::device::{Answer, Device};
use crate::registers::{Block, Field, RegisterMap, registers};
use longma_sim::{Duration, Time};
use serde::{Deserialize, Serialize};

const MAX_WINDOWS: u32 = 16;
const ADDRESS: Field = Field::new("ADDRESS", 0, 48, "required value of the masked bits of a line's address");
const VALID: Field = Field::bit("VALID", 63, "the window is open");
const MASK: Field = Field::new("MASK", 0, 48, "address bits that are compared");
const WINDOWS: Field = Field::new("WINDOWS", 0, 8, "number of windows");
const UNLOCKED: Field = Field::new("UNLOCKED", 8, 8, "ways of each set that cannot be locked");

registers! {
    /// Registers of a window.
    pub(crate) enum WindowRegister, WINDOW {
        /// The window's address and valid bit. Set the mask first: writing this register opens the window.
        Window = "ADDRESS" @ 0x0, 8 bytes, ReadWrite, 0, [ADDRESS, VALID];
        /// Address bits that are compared. Lines inside an open window are not evicted once they are in the cache.
        Mask = "MASK" @ 0x8, 8 bytes, ReadWrite, 0, [MASK];
    }
}

registers! {
    /// Registers of the lock.
    pub(crate) enum LockRegister, LOCK {
        /// Capabilities of the lock.
        Identity = "IDENTITY" @ 0x0, 8 bytes, ReadOnly, 0, [WINDOWS, UNLOCKED];
    }
}

/// The register map of a cache lock.
pub static MAP: RegisterMap = RegisterMap {
    name: "CACHE_LOCK",
    title: "Cache lock",
    bytes: 0x1000,
    blocks: &[
        Block {
            prefix: "WINDOW",
            title: "A lock window",
            base: 0,
            stride: 0x10,
            count: MAX_WINDOWS,
            registers: WINDOW,
        },
        Block { prefix: "", title: "The lock", base: 0x800, stride: 0x800, count: 1, registers: LOCK },
    ],
};

/// Static configuration of a cache lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLockSpec {
    /// Number of windows; at most 16 are accessible.
    pub windows: u32,
    /// Ways of each set that cannot be locked.
    pub min_unlocked_ways: u32,
    /// Duration of a register read, excluding the path to the device.
    pub register_read: Duration,
    /// Duration of a register write, excluding the path to the device.
    pub register_write: Duration,
}

/// The registers of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Window {
    address: u64,
    mask: u64,
}

/// The mutable state of a cache lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLockState {
    windows: Vec<Window>,
}

/// The control registers of a cache lock.
#[derive(Clone, Debug)]
pub struct CacheLock {
    spec: CacheLockSpec,
    state: CacheLockState,
}

impl CacheLock {
    /// Creates a lock with all windows closed.
    pub fn new(spec: CacheLockSpec) -> Self {
        let windows = vec![Window::default(); spec.windows.min(MAX_WINDOWS) as usize];
        Self { spec, state: CacheLockState { windows } }
    }

    /// The state, for a checkpoint.
    pub const fn state(&self) -> &CacheLockState {
        &self.state
    }

    /// Restores a lock from a checkpoint and reports its windows to `bus`. Ignores windows that the lock does not have.
    pub fn restore(spec: CacheLockSpec, state: &CacheLockState, bus: &mut dyn Bus) -> Self {
        let mut lock = Self::new(spec);
        for (number, (window, saved)) in lock.state.windows.iter_mut().zip(&state.windows).enumerate() {
            *window = *saved;
            bus.lock_window(number as u32, window.open_window());
        }
        lock
    }

    fn value(&self, slot: &crate::registers::Slot) -> u64 {
        if slot.block > 0 {
            let LockRegister::Identity = LockRegister::ALL[slot.register];
            let windows = self.state.windows.len() as u64;
            return WINDOWS.with(windows) | UNLOCKED.with(self.spec.min_unlocked_ways.into());
        }
        let window = self.state.windows.get(slot.copy).copied().unwrap_or_default();
        match WindowRegister::ALL[slot.register] {
            WindowRegister::Window => window.address,
            WindowRegister::Mask => window.mask,
        }
    }
}

impl Window {
    /// Address and mask if the window is open.
    fn open_window(&self) -> Option<(u64, u64)> {
        VALID.is_set(self.address).then(|| (ADDRESS.of(self.address), MASK.of(self.mask)))
    }
}

impl Device for CacheLock {
    fn registers(&self) -> &'static RegisterMap {
        &MAP
    }

    fn read(&mut self, offset: u64, width: u32, _: Time, _: &mut dyn Bus) -> Answer {
        let value = MAP.find(offset, width).map_or(0, |slot| slot.part(self.value(&slot)));
        Answer { value, takes: self.spec.register_read }
    }

    fn write(&mut self, offset: u64, width: u32, value: u64, _: Time, bus: &mut dyn Bus) -> Duration {
        let takes = self.spec.register_write;
        let Some(slot) = MAP.find(offset, width) else { return takes };
        let Some(value) = slot.merge(self.value(&slot), value) else { return takes };
        let Some(window) = self.state.windows.get_mut(slot.copy).filter(|_| slot.block == 0) else {
            return takes;
        };
        let before = window.open_window();
        match WindowRegister::ALL[slot.register] {
            WindowRegister::Window => window.address = value & (ADDRESS.mask() | VALID.mask()),
            WindowRegister::Mask => window.mask = value & MASK.mask(),
        }
        if window.open_window() != before {
            bus.lock_window(slot.copy as u32, window.open_window());
        }
        takes
    }

    fn next_event(&self) -> Option<Time> {
        None
    }

    fn advance(&mut self, _: Time, _: &mut dyn Bus) {}

    fn interrupts(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlainBus;

    fn lock() -> (CacheLock, PlainBus) {
        let takes = Duration::from_ps(2500);
        let spec =
            CacheLockSpec { windows: 4, min_unlocked_ways: 1, register_read: takes, register_write: takes };
        (CacheLock::new(spec), PlainBus::new())
    }

    #[test]
    fn a_window_opens_and_closes_with_its_valid_bit() {
        let (mut lock, mut bus) = lock();
        lock.write(0x28, 8, 0xffff_ffff_0000, Time::ZERO, &mut bus);
        assert!(bus.windows.is_empty(), "a mask alone does not open a window");
        lock.write(0x20, 8, 1 << 63 | 0x1234_0000, Time::ZERO, &mut bus);
        assert_eq!(bus.windows, [(2, Some((0x1234_0000, 0xffff_ffff_0000)))]);
        let saved = lock.state().clone();
        lock.write(0x24, 4, 0, Time::ZERO, &mut bus);
        assert_eq!(bus.windows, [(2, None)]);

        CacheLock::restore(lock.spec, &saved, &mut bus);
        assert!(bus.windows.contains(&(2, Some((0x1234_0000, 0xffff_ffff_0000)))));
    }

    #[test]
    fn accesses_outside_of_windows_are_answered_without_effect() {
        let (mut lock, mut bus) = lock();
        for offset in [0x40, 0xf0, 0x11, 0x800, 0x7f8, u64::MAX] {
            lock.write(offset, 8, u64::MAX, Time::ZERO, &mut bus);
        }
        assert!(bus.windows.is_empty());
        assert_eq!(lock.read(0x40, 8, Time::ZERO, &mut bus).value, 0);
        assert_eq!(lock.read(0x800, 8, Time::ZERO, &mut bus).value, 0x104);
    }
}
