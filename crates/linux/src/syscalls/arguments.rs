//! What the arguments of a system call are: enough to hand most calls to the host as they are, and to print all of them.
//! Not their meaning.
//! Source: man-pages section 2.

use crate::memory::GuestMemory;
use crate::{Errno, Process};

use super::host::host_call;
use crate::host::calls::interruptible;

/// Names of bits or values, for printing.
pub(crate) type Names = &'static [(u64, &'static str)];

/// What an argument is. Indices name another argument of the same call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A 32-bit signed number.
    Int,
    /// A 64-bit signed number.
    Long,
    /// A 64-bit unsigned number.
    Size,
    /// Bits nobody has names for here.
    Hex,
    /// Permission bits.
    Mode,
    /// A file descriptor.
    Fd,
    /// A directory's file descriptor or AT_FDCWD.
    DirFd,
    /// A signal number.
    Signal,
    /// A guest address that the host must not see.
    Address,
    /// A zero-terminated string the call reads.
    Text,
    /// A structure of this many bytes that the call reads; may be null.
    In(u32),
    /// A structure of this many bytes that the call writes; may be null.
    Out(u32),
    /// A structure of this many bytes that the call reads and writes; may be null.
    InOut(u32),
    /// A buffer the call reads; its length in bytes is argument number so-and-so.
    InBuffer(u8),
    /// A buffer the call fills; its length in bytes is argument number so-and-so.
    OutBuffer(u8),
    /// An array of iovec whose buffers the call reads; its length is argument number so-and-so.
    InVectors(u8),
    /// An array of iovec whose buffers the call fills; its length is argument number so-and-so.
    OutVectors(u8),
    /// Named bits.
    Flags(Names),
    /// Named values.
    Choice(Names),
}

/// IOV_MAX.
const MOST_VECTORS: u64 = 1024;

/// A host iovec array with its buffers checked.
pub(crate) struct Vectors(Vec<libc::iovec>);

impl Vectors {
    /// Copies and checks a guest's iovec array; `written`: the call will write to the buffers.
    pub fn new(memory: &GuestMemory, address: u64, count: u64, written: bool) -> Result<Self, Errno> {
        if count > MOST_VECTORS {
            return Err(Errno(libc::EINVAL));
        }
        let mut vectors = Vec::with_capacity(count as usize);
        for index in 0..count {
            let at = address.wrapping_add(16 * index);
            let (base, length) = (memory.load::<u64>(at)?, memory.load::<u64>(at.wrapping_add(8))?);
            if length > isize::MAX as u64 {
                return Err(Errno(libc::EINVAL));
            }
            let pointer = match length {
                0 => std::ptr::null_mut(),
                _ => buffer(memory, base, length, written)? as *mut libc::c_void,
            };
            vectors.push(libc::iovec { iov_base: pointer, iov_len: length as usize });
        }
        Ok(Self(vectors))
    }

    /// The host address of the array.
    pub fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    /// The number of buffers.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// The host address of a guest buffer; null stays null.
pub(crate) fn buffer(memory: &GuestMemory, address: u64, length: u64, written: bool) -> Result<u64, Errno> {
    if address == 0 {
        return Ok(0);
    }
    // Linux clips lengths the same way (MAX_RW_COUNT), and whether all of it is mapped is found by the host.
    let limit = memory.limit();
    if address >= limit {
        return Err(Errno(libc::EFAULT));
    }
    let length = length.min(0x7fff_f000);
    if length > limit - address {
        return Err(Errno(libc::EFAULT));
    }
    if written {
        return Ok(memory.pointer_for_writing(address, length)? as u64);
    }
    memory.pointer(address, length).map(|pointer| pointer as u64).ok_or(Errno(libc::EFAULT))
}

/// Hands a call to the host with its pointers translated.
pub(crate) fn pass(
    process: &Process,
    number: i64,
    waits: bool,
    kinds: &[Kind],
    arguments: &[u64; 6],
) -> Result<u64, Errno> {
    /// More than another thread can have read code from the buffers by chance.
    const TRIES: usize = 1000;
    for _ in 0..TRIES {
        let returned = pass_once(process, number, waits, kinds, arguments);
        if returned != Err(Errno(libc::EFAULT)) || !meets_code(process.memory(), kinds, arguments) {
            return returned;
        }
        // Another thread has read code from where the kernel wanted to write to: nothing has been done, and it is done again.
        std::thread::yield_now();
    }
    Err(Errno(libc::EFAULT))
}

/// Whether the host refuses the kernel a buffer that the guest may write to.
fn meets_code(memory: &GuestMemory, kinds: &[Kind], arguments: &[u64; 6]) -> bool {
    kinds.iter().zip(arguments).any(|(kind, &address)| match *kind {
        Kind::Out(bytes) | Kind::InOut(bytes) => memory.holds_watched_code(address, bytes.into()),
        Kind::OutBuffer(length) => memory.holds_watched_code(address, arguments[usize::from(length)]),
        Kind::OutVectors(count) => (0..arguments[usize::from(count)].min(MOST_VECTORS)).any(|index| {
            let at = address.wrapping_add(16 * index);
            let (base, length) = (memory.load::<u64>(at), memory.load::<u64>(at.wrapping_add(8)));
            matches!((base, length), (Ok(base), Ok(length)) if memory.holds_watched_code(base, length))
        }),
        _ => false,
    })
}

fn pass_once(
    process: &Process,
    number: i64,
    waits: bool,
    kinds: &[Kind],
    arguments: &[u64; 6],
) -> Result<u64, Errno> {
    let memory = process.memory();
    let mut host = *arguments;
    // What the host reads while the call lasts.
    let mut vectors = Vec::new();
    for (index, kind) in kinds.iter().enumerate() {
        let value = arguments[index];
        host[index] = match *kind {
            Kind::Text => buffer(memory, value, 1, false)?,
            Kind::In(bytes) => buffer(memory, value, bytes.into(), false)?,
            Kind::Out(bytes) | Kind::InOut(bytes) => buffer(memory, value, bytes.into(), true)?,
            Kind::InBuffer(length) => buffer(memory, value, arguments[usize::from(length)], false)?,
            Kind::OutBuffer(length) => buffer(memory, value, arguments[usize::from(length)], true)?,
            Kind::InVectors(count) | Kind::OutVectors(count) => {
                let written = matches!(kind, Kind::OutVectors(_));
                let found = Vectors::new(memory, value, arguments[usize::from(count)], written)?;
                let address = found.address();
                vectors.push(found);
                address
            }
            _ => value,
        };
    }
    // SAFETY: every pointer is null, into the reservation, or to `vectors`; rows of the table that are handed over name only calls
    // that touch no other memory of this process, whatever else of it they change (its descriptors, its credentials).
    unsafe { if waits { interruptible(number, host) } else { host_call(number, host) } }
}
