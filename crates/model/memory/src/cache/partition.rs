//! Way partition: which ways of a shared cache each requester may fill. Hits are not restricted.
//! Not a policy that chooses the partition.
//! Source: as Intel's Cache Allocation Technology defines it (Software Developer's Manual, volume 3, section 17.19).

/// Who fills a line of a shared cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// A core of the host.
    Core(usize),
    /// Any device.
    Device,
}

/// The ways of each requester.
#[derive(Clone, Debug)]
pub(crate) struct Partition {
    cores: Vec<u64>,
    device: u64,
}

impl Partition {
    /// Every way to every one of `cores` cores and to devices.
    pub fn new(cores: usize) -> Self {
        Self { cores: vec![u64::MAX; cores], device: u64::MAX }
    }

    /// The mask of ways that `requester` may fill.
    #[inline]
    pub fn ways(&self, requester: Requester) -> u64 {
        match requester {
            Requester::Core(core) => self.cores.get(core).copied().unwrap_or(u64::MAX),
            Requester::Device => self.device,
        }
    }

    /// Changes the ways of `requester`.
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
