//! The kinds of system call arguments: enough to forward most calls to the host and to print all of them. The table in
//! `syscalls` lists the calls. Source: man-pages section 2.

mod on_write_fault;
mod results;

pub(crate) use on_write_fault::OnWriteFault;
pub(crate) use results::{Results, with_results};

use longma_guest::Errno;
use longma_guest::GuestMemory;
use longma_guest::host::host_call;

use crate::Process;
use crate::simulated::identity::Id;
use crate::simulated::waits::{BlockingCondition, interruptible};

pub(crate) use crate::simulated::{Arguments, EINVAL, Returned};

/// Names of bits or values, for printing.
pub(crate) type Names = &'static [(u64, &'static str)];

/// The kind of an argument. Indices refer to another argument of the same call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A 32-bit signed integer.
    Int,
    /// A 64-bit signed integer.
    Long,
    /// A 64-bit unsigned integer.
    Size,
    /// Bits without names.
    Hex,
    /// Permission bits.
    Mode,
    /// A file descriptor.
    Fd,
    /// A directory's file descriptor or AT_FDCWD.
    DirFd,
    /// The id of a process or thread.
    Id(Id),
    /// A signal number.
    Signal,
    /// A guest address that is not passed to the host.
    Address,
    /// A NUL-terminated string that the call reads.
    Text,
    /// A structure of this many bytes that the call reads; may be null.
    In(u32),
    /// A structure of this many bytes that the call writes; may be null.
    Out(u32),
    /// A structure of this many bytes that the call reads and writes; may be null.
    InOut(u32),
    /// A buffer that the call reads. Its length in bytes is in the argument with this index.
    InBuffer(u8),
    /// A buffer that the call fills from the start; the return value is the number of bytes. Its length in bytes is in
    /// the argument with this index.
    OutBuffer(u8),
    /// An array of iovec whose buffers the call reads. Its length is in the argument with this index.
    InVectors(u8),
    /// An array of iovec whose buffers the call fills. Its length is in the argument with this index.
    OutVectors(u8),
    /// Named bits.
    Flags(Names),
    /// Named values.
    Choice(Names),
}

/// The maximum number of buffers of a call: IOV_MAX of Linux.
pub(crate) const MAX_VECTORS: u64 = 1024;

/// A host iovec array whose buffers have been checked.
pub(crate) struct Vectors(Vec<libc::iovec>);

impl Vectors {
    /// Copies and checks an iovec array of the guest whose buffers the call reads.
    pub fn new(memory: &GuestMemory, address: u64, count: u64) -> Result<Self, Errno> {
        Self::of(memory, address, count, |base, length| buffer(memory, base, length))
    }

    /// Copies an iovec array of the guest. `host_address` returns the host address of a buffer, which is not empty.
    fn of(
        memory: &GuestMemory,
        address: u64,
        count: u64,
        mut host_address: impl FnMut(u64, u64) -> Result<u64, Errno>,
    ) -> Result<Self, Errno> {
        if count > MAX_VECTORS {
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
                _ => host_address(base, length)? as *mut libc::c_void,
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

/// Checks that the used part of a guest buffer is in the guest's address range. Returns its address and length.
fn in_range(memory: &GuestMemory, address: u64, length: u64) -> Result<(u64, u64), Errno> {
    // Linux clips lengths in the same way (MAX_RW_COUNT). The host checks whether the buffer is mapped.
    let limit = memory.limit();
    let length = length.min(0x7fff_f000);
    if address >= limit || length > limit - address {
        Err(Errno(libc::EFAULT))
    } else {
        Ok((address, length))
    }
}

/// The host address of a guest buffer that the host reads; null stays null. For buffers that the host writes, use
/// [`with_results`].
pub(crate) fn buffer(memory: &GuestMemory, address: u64, length: u64) -> Result<u64, Errno> {
    if address == 0 {
        return Ok(0);
    }
    let (address, length) = in_range(memory, address, length)?;
    memory.pointer(address, length).map(|pointer| pointer as u64).ok_or(Errno(libc::EFAULT))
}

/// The argument of a command in a multiplexed call such as fcntl or ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// A number, or unused.
    Number,
    /// A structure of this many bytes that the host reads.
    In(u64),
    /// A structure of this many bytes that the host writes.
    Out(u64),
    /// A structure of this many bytes that the host reads and writes.
    InOut(u64),
}

impl Argument {
    /// Converts `value` for the host.
    pub fn for_host(self, results: &mut Results<'_>, value: u64) -> Result<u64, Errno> {
        match self {
            Self::Number => Ok(value),
            Self::In(bytes) => buffer(results.memory(), value, bytes),
            Self::Out(bytes) | Self::InOut(bytes) => results.structure(value, bytes),
        }
    }
}

/// Forwards a call to the host with translated pointers.
pub(crate) fn forward(
    process: &Process,
    number: i64,
    waits: Option<BlockingCondition>,
    kinds: &[Kind],
    arguments: &[u64; 6],
) -> Result<u64, Errno> {
    let memory = process.memory();
    let on_write_fault = match number {
        libc::SYS_read | libc::SYS_readv | libc::SYS_preadv2 => OnWriteFault::of_read(process, arguments[0]),
        libc::SYS_mq_timedreceive => OnWriteFault::of_message(process),
        _ => OnWriteFault::Remains,
    };
    with_results(memory, |results| {
        let mut host = *arguments;
        // Arrays that the host reads during the call.
        let mut vectors = Vec::new();
        for (index, kind) in kinds.iter().enumerate() {
            let value = arguments[index];
            let bytes = |argument: u8| arguments[usize::from(argument)];
            host[index] = match *kind {
                Kind::Text => buffer(memory, value, 1)?,
                Kind::In(bytes) => buffer(memory, value, bytes.into())?,
                Kind::InBuffer(length) => buffer(memory, value, bytes(length))?,
                Kind::Out(bytes) | Kind::InOut(bytes) => results.structure(value, bytes.into())?,
                Kind::OutBuffer(length) => results.buffer(on_write_fault, value, bytes(length))?,
                Kind::InVectors(count) | Kind::OutVectors(count) => {
                    let host_argument = match kind {
                        Kind::OutVectors(_) => results.vectors(on_write_fault, value, bytes(count)),
                        _ => Vectors::new(memory, value, bytes(count)),
                    }?;
                    let address = host_argument.address();
                    vectors.push(host_argument);
                    address
                }
                _ => value,
            };
        }
        // SAFETY: each pointer is null, in the reservation, or to `vectors` or `results`. Forwarded rows of the table
        // name only calls that access no other memory of this process. Such calls may change its descriptors or
        // credentials.
        unsafe {
            match waits {
                Some(waits_for) => interruptible(number, waits_for, host),
                None => host_call(number, host),
            }
        }
    })
}
