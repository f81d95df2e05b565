//! Reads and writes of peers' memory.

use super::data::{Memory, Transfer};
use super::info::MAX_MESSAGE_BYTES;
use super::object::{read as structure, result, vector};
use crate::abi::constants::{READ, REMOTE_CQ_DATA, RMA, WRITE};
use crate::abi::{FidEp, MsgRma, OpsRma};
use crate::core::buffer::Buffer;
use crate::core::operation::{Action, Source, Target};
use libc::iovec;
use std::ffi::c_void;

pub(super) static OPERATIONS: OpsRma = OpsRma {
    size: size_of::<OpsRma>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

type Descriptors = *mut *mut c_void;

fn transfer(kind: u64, peer: u64, context: *mut c_void, flags: Option<u64>) -> Transfer {
    Transfer { peer, context, flags, is_injected: false, kind: RMA | kind }
}

fn injected(peer: u64) -> Transfer {
    Transfer { is_injected: true, ..transfer(WRITE, peer, std::ptr::null_mut(), None) }
}

/// Reads from a peer.
unsafe fn start_read(transfer: Transfer, endpoint: *mut FidEp, memory: Memory, target: Target) -> isize {
    result(|| {
        // SAFETY: fi_read requires valid arguments, here and in the blocks below.
        let buffer = unsafe { memory.buffer()? };
        if buffer.len() > MAX_MESSAGE_BYTES {
            return Err(libc::EMSGSIZE);
        }
        let action = Action::Read { target, result: buffer };
        // SAFETY: as above.
        unsafe { transfer.start_from(endpoint, Source::Buffer(Buffer::EMPTY), action) }
    })
}

/// The target of a message structure. The remote memory must have one segment, as long as the local memory.
unsafe fn target_of(message: &MsgRma) -> Result<Target, i32> {
    // SAFETY: an argument of fi_readmsg or fi_writemsg.
    match unsafe { vector(message.rma_iov, message.rma_iov_count)? } {
        [segment] => Ok(Target { key: segment.key, address: segment.addr }),
        _ => Err(libc::EINVAL),
    }
}

// SAFETY of all functions: see the module `ffi`.

unsafe extern "C" fn read(
    endpoint: *mut FidEp,
    buffer: *mut c_void,
    length: usize,
    _: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let memory = Memory::One(buffer, length);
    // SAFETY: fi_read requires valid arguments.
    unsafe { start_read(transfer(READ, peer, context, None), endpoint, memory, Target { key, address }) }
}

unsafe extern "C" fn readv(
    endpoint: *mut FidEp,
    segments: *const iovec,
    _: Descriptors,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let memory = Memory::Vector(segments, count);
    // SAFETY: fi_readv requires valid arguments.
    unsafe { start_read(transfer(READ, peer, context, None), endpoint, memory, Target { key, address }) }
}

unsafe extern "C" fn readmsg(endpoint: *mut FidEp, message: *const MsgRma, flags: u64) -> isize {
    // SAFETY: fi_readmsg requires valid arguments.
    unsafe {
        let found = structure(message).and_then(|message| Ok((message, target_of(message)?)));
        let (message, target) = match found {
            Ok(found) => found,
            Err(code) => return -(code as isize),
        };
        let memory = Memory::Vector(message.msg_iov, message.iov_count);
        start_read(transfer(READ, message.addr, message.context, Some(flags)), endpoint, memory, target)
    }
}

unsafe extern "C" fn write(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    _: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let (memory, target) = (Memory::One(buffer.cast_mut(), length), Target { key, address });
    // SAFETY: fi_write requires valid arguments.
    unsafe {
        transfer(WRITE, peer, context, None).start(endpoint, memory, Action::Write { target, data: None })
    }
}

unsafe extern "C" fn writev(
    endpoint: *mut FidEp,
    segments: *const iovec,
    _: Descriptors,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let (memory, target) = (Memory::Vector(segments, count), Target { key, address });
    // SAFETY: fi_writev requires valid arguments.
    unsafe {
        transfer(WRITE, peer, context, None).start(endpoint, memory, Action::Write { target, data: None })
    }
}

unsafe extern "C" fn writemsg(endpoint: *mut FidEp, message: *const MsgRma, flags: u64) -> isize {
    // SAFETY: fi_writemsg requires valid arguments.
    unsafe {
        let found = structure(message).and_then(|message| Ok((message, target_of(message)?)));
        let (message, target) = match found {
            Ok(found) => found,
            Err(code) => return -(code as isize),
        };
        let memory = Memory::Vector(message.msg_iov, message.iov_count);
        let data = (flags & REMOTE_CQ_DATA != 0).then_some(message.data);
        let transfer = transfer(WRITE, message.addr, message.context, Some(flags));
        transfer.start(endpoint, memory, Action::Write { target, data })
    }
}

unsafe extern "C" fn inject(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    peer: u64,
    address: u64,
    key: u64,
) -> isize {
    let (memory, target) = (Memory::One(buffer.cast_mut(), length), Target { key, address });
    // SAFETY: fi_inject_write requires valid arguments.
    unsafe { injected(peer).start(endpoint, memory, Action::Write { target, data: None }) }
}

unsafe extern "C" fn writedata(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    _: *mut c_void,
    data: u64,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let (memory, target) = (Memory::One(buffer.cast_mut(), length), Target { key, address });
    let action = Action::Write { target, data: Some(data) };
    // SAFETY: fi_writedata requires valid arguments.
    unsafe { transfer(WRITE, peer, context, None).start(endpoint, memory, action) }
}

unsafe extern "C" fn injectdata(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    data: u64,
    peer: u64,
    address: u64,
    key: u64,
) -> isize {
    let (memory, target) = (Memory::One(buffer.cast_mut(), length), Target { key, address });
    // SAFETY: fi_inject_writedata requires valid arguments.
    unsafe { injected(peer).start(endpoint, memory, Action::Write { target, data: Some(data) }) }
}
