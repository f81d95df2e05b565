//! System calls on sockets and their addresses. Source: bind(2), connect(2), accept(2), getsockname(2), send(2),
//! recv(2).

use super::address::{AddressUse, HostAddress};
pub(crate) use super::messages::{receive, recvmmsg, send, sendmmsg};
pub(crate) use super::options::{getsockopt, setsockopt};
use crate::Thread;
use crate::arguments::{Arguments, OnWriteFault, Returned, buffer, with_results};
use crate::open_files::socket_option;
use crate::simulated::waits::{BlockingCondition, interruptible};
use longma_guest::Errno;
use longma_guest::host::host_call;
use std::os::fd::RawFd;

const FAULT: Errno = Errno(libc::EFAULT);

/// Returns the error for a descriptor that is not a socket, which takes precedence over errors in other arguments.
pub(super) fn check_socket(descriptor: u64) -> Result<(), Errno> {
    Ok(socket_option::<4>(descriptor as RawFd, libc::SO_TYPE).map(drop)?)
}

pub(crate) fn bind(thread: &mut Thread, [socket, address, length, ..]: Arguments) -> Returned {
    check_socket(socket)?;
    let mut host = HostAddress::read(&thread.process, address, length, AddressUse::Bind)?;
    let (pointer, length) = host.as_mut().map_or((0, length), |host| (host.pointer(), host.length().into()));
    // SAFETY: the address is local or null.
    unsafe { host_call(libc::SYS_bind, [socket, pointer, length, 0, 0, 0]) }
}

pub(crate) fn connect(thread: &mut Thread, [socket, address, length, ..]: Arguments) -> Returned {
    check_socket(socket)?;
    let mut host = HostAddress::read(&thread.process, address, length, AddressUse::Destination)?;
    let (pointer, length) = host.as_mut().map_or((0, length), |host| (host.pointer(), host.length().into()));
    // SAFETY: the address is local or null.
    unsafe {
        interruptible(libc::SYS_connect, BlockingCondition::Connection, [socket, pointer, length, 0, 0, 0])
    }
}

pub(crate) fn accept4(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [socket, address, length, flags, ..] = arguments;
    with_address(thread, address, length, |host, host_length| {
        // SAFETY: the address and its length are local or null.
        unsafe {
            interruptible(
                libc::SYS_accept4,
                BlockingCondition::INPUT,
                [socket, host, host_length, flags, 0, 0],
            )
        }
    })
}

/// getsockname and getpeername.
pub(crate) fn name_of(thread: &Thread, number: i64, [socket, address, length, ..]: Arguments) -> Returned {
    if address == 0 {
        return Err(FAULT);
    }
    with_address(thread, address, length, |host, host_length| {
        // SAFETY: the address and its length are local.
        unsafe { host_call(number, [socket, host, host_length, 0, 0, 0]) }
    })
}

pub(crate) fn sendto(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [socket, data, bytes, flags, address, length] = arguments;
    let data = buffer(thread.process.memory(), data, bytes)?;
    let mut host = HostAddress::read(&thread.process, address, length, AddressUse::Destination)?;
    let (address, length) = host.as_mut().map_or((0, 0), |host| (host.pointer(), host.length()));
    let arguments = [socket, data, bytes, flags, address, length.into()];
    // SAFETY: the data is in guest memory; the address is local or null.
    unsafe { interruptible(libc::SYS_sendto, BlockingCondition::output_message(3), arguments) }
}

pub(crate) fn recvfrom(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [socket, data, bytes, flags, address, length] = arguments;
    let on_write_fault = OnWriteFault::of_receipt(&thread.process, socket, flags);
    with_address(thread, address, length, |host, host_length| {
        with_results(thread.process.memory(), |results| {
            let data = results.buffer(on_write_fault, data, bytes)?;
            let arguments = [socket, data, bytes, flags, host, host_length];
            // SAFETY: the data is in guest memory or `results`; the address and its length are local or null.
            unsafe { interruptible(libc::SYS_recvfrom, BlockingCondition::message(3), arguments) }
        })
    })
}

/// Makes a call that returns an address, which is written to `address` and its length to `length`; both may be null.
/// `call` gets host pointers to both.
fn with_address(
    thread: &Thread,
    address: u64,
    length: u64,
    call: impl FnOnce(u64, u64) -> Returned,
) -> Returned {
    if address == 0 {
        return call(0, 0);
    }
    let memory = thread.process.memory();
    let buffer_bytes: u32 = memory.load(length)?;
    if (buffer_bytes as i32) < 0 {
        return Err(Errno(libc::EINVAL));
    }
    let mut host = HostAddress::empty(buffer_bytes);
    let (pointer, length_pointer) = (host.pointer(), host.length_pointer());
    let returned = call(pointer, length_pointer)?;
    host.rewrite_for_guest(&thread.process);
    host.write(memory, address, buffer_bytes)?;
    memory.store(length, host.length())?;
    Ok(returned)
}
