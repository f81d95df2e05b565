//! Way partitioning of a shared cache: which ways each requester may fill. Hits are not restricted.
//!
//! Source: Intel Cache Allocation Technology (Software Developer's Manual, volume 3, section 17.19).

/// The originator of a fill in a shared cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// A core of the host.
    Core(usize),
    /// Any device.
    Device,
}

/// The way mask of each requester.
#[derive(Clone, Debug)]
pub(crate) struct Partition {
    cores: Vec<u64>,
    device: u64,
}

impl Partition {
    /// Creates a partition in which `cores` cores and all devices may fill every way.
    pub fn new(cores: usize) -> Self {
        Self { cores: vec![u64::MAX; cores], device: u64::MAX }
    }

    /// Returns the mask of ways that `requester` may fill.
    #[inline]
    pub fn ways(&self, requester: Requester) -> u64 {
        match requester {
            Requester::Core(core) => self.cores.get(core).copied().unwrap_or(u64::MAX),
            Requester::Device => self.device,
        }
    }

    /// Sets the mask of ways that `requester` may fill.
    pub fn set(&mut self, requester: Requester, ways: u64) {
        match requester {
            Requester::Core(core) => {
                if let Some(mask) = self.cores.get_mut(core) {
                    *mask = ways;
                }
            }
            Requester::Device => self.device = ways,
        }
    }
}
