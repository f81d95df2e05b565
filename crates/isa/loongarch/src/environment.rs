//! The environment of an instruction: memory, the stable counter and the configuration words. The caller implements it.
//! Source: LoongArch Reference Manual, volume 1, sections 2.1.4 (memory), 2.2.10 (RDTIME, CPUCFG).

/// The type of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// A load.
    Read,
    /// A store or an atomic operation.
    Write,
    /// An instruction fetch.
    Execute,
}

/// Why memory refused an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultCause {
    /// The address is not mapped.
    Unmapped,
    /// The mapping does not permit this access.
    Forbidden,
    /// The address is not aligned as the instruction requires (ALE, ADEF).
    Misaligned,
    /// The address is beyond the end of the mapped file.
    BeyondFile,
}

/// A refused memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{access:?} of address {address:#x} failed: {cause:?}")]
pub struct Fault {
    /// The first byte that failed.
    pub address: u64,
    /// The kind of access.
    pub access: Access,
    /// Why it failed.
    pub cause: FaultCause,
}

/// A little-endian integer in memory.
pub trait Scalar: Copy + Default + PartialEq + Eq + Send + Sync + 'static {
    /// The size in bytes: 1, 2, 4, 8 or 16.
    const BYTES: usize = size_of::<Self>();
}
impl Scalar for u8 {}
impl Scalar for u16 {}
impl Scalar for u32 {}
impl Scalar for u64 {}
impl Scalar for u128 {}

/// The state outside registers that an instruction can access.
///
/// Methods take `&self`, because threads share memory as on hardware. Accesses may be misaligned, which LoongArch
/// permits in user mode, unless they are atomic.
pub trait Environment {
    /// Loads an integer.
    ///
    /// # Errors
    /// The access is not permitted.
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault>;

    /// Stores an integer. On error memory is unchanged.
    ///
    /// # Errors
    /// The access is not permitted.
    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault>;

    /// Atomically replaces `expected` with `new` and returns the old value; sequentially consistent. An access that is
    /// not naturally aligned fails with [`FaultCause::Misaligned`].
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

    /// The stable counter in ticks. CPUCFG words 4 and 5 define its constant frequency.
    fn stable_counter(&self) -> u64;

    /// The core number that `rdtime` returns.
    fn counter_id(&self) -> u64 {
        0
    }

    /// The configuration word `index`; 0 if it does not exist.
    fn cpucfg(&self, index: u32) -> u32;

    /// Whether the instructions of [`Extension::Private`](crate::Extension::Private) execute: the code was translated from
    /// another architecture.
    fn permits_private(&self) -> bool {
        false
    }
}
