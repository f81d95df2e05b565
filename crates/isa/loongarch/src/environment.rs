//! What an instruction can see besides its registers: memory, the stable counter, the configuration words.
//! Not an implementation of either; a process's memory is the `linux` crate's, a test's is an array.
//! Source: LoongArch Reference Manual, volume 1, sections 2.1.4 (memory), 2.2.10 (RDTIME, CPUCFG).

/// What an access wanted to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// A load.
    Read,
    /// A store or an atomic operation.
    Write,
    /// An instruction fetch.
    Execute,
}

/// Why memory refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultCause {
    /// Nothing is mapped there.
    Unmapped,
    /// The mapping does not permit this access.
    Forbidden,
    /// The address is not a multiple of what the instruction needs (ALE, ADEF).
    Misaligned,
    /// The mapping's file ends before the address.
    BeyondFile,
}

/// An access that memory refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{access:?} of address {address:#x} failed: {cause:?}")]
pub struct Fault {
    /// The first byte of the access that failed.
    pub address: u64,
    /// What was wanted.
    pub access: Access,
    /// Why it failed.
    pub cause: FaultCause,
}

/// A plain little-endian number in memory.
pub trait Scalar: Copy + Default + PartialEq + Eq + Send + Sync + 'static {
    /// The size in bytes: 1, 2, 4, 8 or 16.
    const BYTES: usize = size_of::<Self>();
}
impl Scalar for u8 {}
impl Scalar for u16 {}
impl Scalar for u32 {}
impl Scalar for u64 {}
impl Scalar for u128 {}

/// What an instruction can see besides its registers.
///
/// Methods take `&self`: many threads share one memory, as on hardware. An access may be misaligned (LoongArch user mode allows
/// it) unless it is atomic.
pub trait Environment {
    /// Loads a number.
    ///
    /// # Errors
    /// The access is not permitted.
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault>;

    /// Stores a number; either all of it or, on error, nothing.
    ///
    /// # Errors
    /// The access is not permitted.
    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault>;

    /// Atomically replaces `expected` by `new` and gives what was there; sequentially consistent.
    /// An access that is not naturally aligned is [`FaultCause::Misaligned`].
    ///
    /// # Errors
    /// The access is not permitted.
    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault>;

    /// Fetches an instruction word.
    ///
    /// # Errors
    /// The address is not a multiple of four, or not executable.
    fn fetch(&self, address: u64) -> Result<u32, Fault>;

    /// Makes all earlier memory accesses visible before all later ones (DBAR).
    fn barrier(&self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// The stable counter, in ticks of the constant frequency that CPUCFG words 4 and 5 give.
    fn stable_counter(&self) -> u64;

    /// The number of the core as `rdtime` gives it.
    fn counter_id(&self) -> u64 {
        0
    }

    /// The configuration word `index`; 0 where there is none.
    fn cpucfg(&self, index: u32) -> u32;
}
