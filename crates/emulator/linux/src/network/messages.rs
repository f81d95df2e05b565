//! Messages with several buffers and control data. Control data has the same layout on host and guest. Source:
//! sendmsg(2), recvmsg(2), sendmmsg(2), recvmmsg(2), cmsg(3).

use std::time::{Duration, Instant};

use longma_guest::Errno;
use longma_guest::host::descriptors;
use longma_guest::words::{i32_at, u32_at, u64_at, words_of};

use super::address::{AddressUse, HostAddress};
use crate::Thread;
use crate::arguments::{Arguments, OnWriteFault, Results, Returned, Vectors, with_results};
use crate::simulated::waits::{BlockingCondition, interruptible};

/// sizeof(struct msghdr).
const HEADER_BYTES: usize = 56;
/// sizeof(struct mmsghdr): a header, the length of the message, and padding.
const ENTRY_BYTES: u64 = 64;
/// Above all practical values of net.core.optmem_max, the kernel's own limit.
const MAX_CONTROL_BYTES: u64 = 1 << 20;
/// UIO_MAXIOV.
const MAX_MESSAGES: u64 = 1024;

/// A guest's `struct msghdr`.
#[derive(Clone, Copy, Debug)]
struct Header {
    name: u64,
    name_bytes: u32,
    vectors: u64,
    vector_count: u64,
    control: u64,
    control_bytes: u64,
}

impl Header {
    fn read(thread: &Thread, address: u64) -> Result<Self, Errno> {
        let bytes: [u8; HEADER_BYTES] = thread.process.memory().read_array(address)?;
        let [name, name_bytes, vectors, vector_count, control, control_bytes] = words_of(&bytes);
        let name_bytes = name_bytes as u32;
        Ok(Self { name, name_bytes, vectors, vector_count, control, control_bytes })
    }

    /// Converts the header for the host with these buffers, without control data.
    fn for_host(&self, vectors: &Vectors) -> libc::msghdr {
        // SAFETY: all fields may be zero.
        let mut host: libc::msghdr = unsafe { std::mem::zeroed() };
        host.msg_iov = vectors.address() as *mut libc::iovec;
        host.msg_iovlen = vectors.len() as _;
        host
    }

    /// The host's header for a message that the host writes to `results`.
    fn for_results(
        &self,
        results: &mut Results<'_>,
        on_write_fault: OnWriteFault,
    ) -> Result<(libc::msghdr, Vectors), Errno> {
        if self.vector_count > MAX_MESSAGES {
            return Err(Errno(libc::EMSGSIZE));
        }
        let vectors = results.vectors(on_write_fault, self.vectors, self.vector_count)?;
        let mut host = self.for_host(&vectors);
        if self.control != 0 && self.control_bytes != 0 {
            if self.control_bytes > i32::MAX as u64 {
                return Err(Errno(libc::ENOBUFS));
            }
            host.msg_control =
                results.consumable_structure(self.control, self.control_bytes)? as *mut libc::c_void;
            host.msg_controllen = self.control_bytes as _;
        }
        Ok((host, vectors))
    }

    /// Reads the control data to send, as words for alignment. It is a copy, which the guest cannot change after the
    /// check.
    fn control(&self, thread: &Thread) -> Result<Vec<u64>, Errno> {
        if self.control == 0 || self.control_bytes == 0 {
            return Ok(Vec::new());
        }
        if self.control_bytes > MAX_CONTROL_BYTES {
            return Err(Errno(libc::ENOBUFS));
        }
        let mut bytes = vec![0; self.control_bytes as usize];
        thread.process.memory().read(self.control, &mut bytes)?;
        if sends_emulator_descriptor(&bytes) {
            return Err(Errno(libc::EBADF));
        }
        let word = |chunk: &[u8]| {
            u64::from_le_bytes(std::array::from_fn(|byte| chunk.get(byte).copied().unwrap_or(0)))
        };
        Ok(bytes.chunks(8).map(word).collect())
    }
}

/// Whether control data passes a descriptor of the emulator.
fn sends_emulator_descriptor(control: &[u8]) -> bool {
    /// sizeof(struct cmsghdr): length, level, type.
    const HEAD_BYTES: usize = 16;
    let mut rest = control;
    while let Some(head) = rest.get(..HEAD_BYTES) {
        let length = usize::try_from(u64_at(head, 0)).unwrap_or(usize::MAX).min(rest.len());
        if length < HEAD_BYTES {
            return false;
        }
        let is_rights = (i32_at(head, 8), i32_at(head, 12)) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        let mut descriptors_sent = rest[HEAD_BYTES..length].chunks_exact(4);
        let is_reserved =
            |descriptors_sent: &[u8]| descriptors::is_reserved(u32_at(descriptors_sent, 0).into());
        if is_rights && descriptors_sent.any(is_reserved) {
            return true;
        }
        rest = rest.get(length.next_multiple_of(8)..).unwrap_or_default();
    }
    false
}

/// sendmsg.
pub(crate) fn send(thread: &Thread, socket: u64, address: u64, flags: u64) -> Returned {
    let header = Header::read(thread, address)?;
    if header.vector_count > MAX_MESSAGES {
        return Err(Errno(libc::EMSGSIZE));
    }
    let vectors = Vectors::new(thread.process.memory(), header.vectors, header.vector_count)?;
    let mut host = header.for_host(&vectors);
    let mut control = header.control(thread)?;
    if !control.is_empty() {
        host.msg_control = control.as_mut_ptr().cast();
        host.msg_controllen = header.control_bytes as _;
    }
    let mut name =
        HostAddress::read(&thread.process, header.name, header.name_bytes.into(), AddressUse::Destination)?;
    if let Some(name) = &mut name {
        host.msg_name = name.pointer() as *mut libc::c_void;
        host.msg_namelen = name.length();
    }
    let arguments = [socket, &raw mut host as u64, flags, 0, 0, 0];
    // SAFETY: the header, its name, its control data and its vectors are local; the buffers are in guest memory.
    unsafe { interruptible(libc::SYS_sendmsg, BlockingCondition::output_message(2), arguments) }
}

/// recvmsg.
pub(crate) fn receive(thread: &Thread, socket: u64, address: u64, flags: u64) -> Returned {
    let header = Header::read(thread, address)?;
    let memory = thread.process.memory();
    if (header.name_bytes as i32) < 0 {
        return Err(Errno(libc::EINVAL));
    }
    let mut name = HostAddress::empty(header.name_bytes);
    // The fields of the header that the host writes: the lengths of the name and of the control data, and the flags.
    let (mut name_bytes, mut control_bytes, mut message_flags) = (0, 0, 0);
    let on_write_fault = OnWriteFault::of_receipt(&thread.process, socket, flags);
    let returned = with_results(memory, |results| {
        let (mut host, _vectors) = header.for_results(results, on_write_fault)?;
        if header.name != 0 {
            host.msg_name = name.pointer() as *mut libc::c_void;
            host.msg_namelen = name.length();
        }
        let arguments = [socket, &raw mut host as u64, flags, 0, 0, 0];
        // SAFETY: the header, its name and its vectors are local; the buffers are in guest memory or `results`.
        let returned = unsafe { interruptible(libc::SYS_recvmsg, BlockingCondition::message(2), arguments) };
        (name_bytes, control_bytes, message_flags) = (host.msg_namelen, host.msg_controllen, host.msg_flags);
        returned
    })?;
    if header.name != 0 {
        name.set_length(name_bytes);
        name.rewrite_for_guest(&thread.process);
        name.write(memory, header.name, header.name_bytes)?;
        memory.store(address.wrapping_add(8), name.length())?;
    }
    memory.store(address.wrapping_add(40), control_bytes as u64)?;
    memory.store(address.wrapping_add(48), message_flags as u32)?;
    Ok(returned)
}

pub(crate) fn sendmmsg(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [socket, entries, count, flags, ..] = arguments;
    for_each_message(thread, entries, count, |_, address| send(thread, socket, address, flags), || false)
}

pub(crate) fn recvmmsg(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [socket, entries, count, flags, timeout, _] = arguments;
    let deadline = match thread.process.memory().read_optional::<16>(timeout)? {
        None => None,
        Some(bytes) => {
            let [seconds, nanoseconds] = words_of(&bytes);
            let nanoseconds = u32::try_from(nanoseconds).ok().filter(|&n| n < 1_000_000_000);
            let timeout = Duration::new(seconds, nanoseconds.ok_or(Errno(libc::EINVAL))?);
            Instant::now().checked_add(timeout)
        }
    };
    let waits_for_one = flags as i32 & libc::MSG_WAITFORONE != 0;
    let flags = flags & !(libc::MSG_WAITFORONE as u64);
    let receive_one = |index, address| {
        let nonblocking = if waits_for_one && index > 0 { libc::MSG_DONTWAIT as u64 } else { 0 };
        receive(thread, socket, address, flags | nonblocking)
    };
    for_each_message(thread, entries, count, receive_one, || {
        deadline.is_some_and(|deadline| Instant::now() >= deadline)
    })
}

/// Sends or receives messages until one fails or `enough` returns true, and returns their number. If the first one
/// fails, returns its error.
fn for_each_message(
    thread: &Thread,
    entries: u64,
    count: u64,
    transfer: impl Fn(u64, u64) -> Returned,
    enough: impl Fn() -> bool,
) -> Returned {
    let count = (count & 0xffff_ffff).min(MAX_MESSAGES);
    for index in 0..count {
        let entry = entries.wrapping_add(ENTRY_BYTES * index);
        match transfer(index, entry) {
            Ok(bytes) => {
                let length = entry.wrapping_add(HEADER_BYTES as u64);
                thread.process.memory().store(length, bytes as u32)?;
            }
            Err(error) if index == 0 => return Err(error),
            Err(_) => return Ok(index),
        }
        if enough() {
            return Ok(index + 1);
        }
    }
    Ok(count)
}
