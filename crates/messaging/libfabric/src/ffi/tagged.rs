//! Messages with tags.

use super::data::{Memory, Post, Transfer};
use super::object::read;
use crate::abi::constants::{REMOTE_CQ_DATA, SEND, TAGGED};
use crate::abi::{FidEp, MsgTagged, OpsTagged};
use crate::core::operation::Action;
use libc::iovec;
use std::ffi::c_void;

pub(super) static OPERATIONS: OpsTagged = OpsTagged {
    size: size_of::<OpsTagged>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

type Descriptors = *mut *mut c_void;

fn post(source: u64, tag: u64, ignore: u64, context: *mut c_void, flags: Option<u64>) -> Post {
    Post { source, tag, ignore, is_tagged: true, context, flags }
}

fn transfer(peer: u64, context: *mut c_void, flags: Option<u64>) -> Transfer {
    Transfer { peer, context, flags, is_injected: false, kind: TAGGED | SEND }
}

fn injected(peer: u64) -> Transfer {
    Transfer { is_injected: true, ..transfer(peer, std::ptr::null_mut(), None) }
}

fn message(tag: u64, data: Option<u64>) -> Action {
    Action::Message { tag: Some(tag), data, acknowledged: false }
}

// SAFETY of all functions: see the module `ffi`.

unsafe extern "C" fn recv(
    endpoint: *mut FidEp,
    buffer: *mut c_void,
    length: usize,
    _: *mut c_void,
    source: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_trecv requires valid arguments.
    unsafe { post(source, tag, ignore, context, None).post(endpoint, Memory::One(buffer, length)) }
}

unsafe extern "C" fn recvv(
    endpoint: *mut FidEp,
    segments: *const iovec,
    _: Descriptors,
    count: usize,
    source: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_trecvv requires valid arguments.
    unsafe { post(source, tag, ignore, context, None).post(endpoint, Memory::Vector(segments, count)) }
}

unsafe extern "C" fn recvmsg(endpoint: *mut FidEp, message: *const MsgTagged, flags: u64) -> isize {
    // SAFETY: fi_trecvmsg requires valid arguments.
    unsafe {
        let Ok(message) = read(message) else { return -(libc::EINVAL as isize) };
        let memory = Memory::Vector(message.msg_iov, message.iov_count);
        post(message.addr, message.tag, message.ignore, message.context, Some(flags)).post(endpoint, memory)
    }
}

unsafe extern "C" fn send(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    _: *mut c_void,
    peer: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let memory = Memory::One(buffer.cast_mut(), length);
    // SAFETY: fi_tsend requires valid arguments.
    unsafe { transfer(peer, context, None).start(endpoint, memory, message(tag, None)) }
}

unsafe extern "C" fn sendv(
    endpoint: *mut FidEp,
    segments: *const iovec,
    _: Descriptors,
    count: usize,
    peer: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let memory = Memory::Vector(segments, count);
    // SAFETY: fi_tsendv requires valid arguments.
    unsafe { transfer(peer, context, None).start(endpoint, memory, message(tag, None)) }
}

unsafe extern "C" fn sendmsg(endpoint: *mut FidEp, pointer: *const MsgTagged, flags: u64) -> isize {
    // SAFETY: fi_tsendmsg requires valid arguments.
    unsafe {
        let Ok(argument) = read(pointer) else { return -(libc::EINVAL as isize) };
        let memory = Memory::Vector(argument.msg_iov, argument.iov_count);
        let data = (flags & REMOTE_CQ_DATA != 0).then_some(argument.data);
        transfer(argument.addr, argument.context, Some(flags)).start(
            endpoint,
            memory,
            message(argument.tag, data),
        )
    }
}

unsafe extern "C" fn inject(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    peer: u64,
    tag: u64,
) -> isize {
    let memory = Memory::One(buffer.cast_mut(), length);
    // SAFETY: fi_tinject requires valid arguments.
    unsafe { injected(peer).start(endpoint, memory, message(tag, None)) }
}

unsafe extern "C" fn senddata(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    _: *mut c_void,
    data: u64,
    peer: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let memory = Memory::One(buffer.cast_mut(), length);
    // SAFETY: fi_tsenddata requires valid arguments.
    unsafe { transfer(peer, context, None).start(endpoint, memory, message(tag, Some(data))) }
}

unsafe extern "C" fn injectdata(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    data: u64,
    peer: u64,
    tag: u64,
) -> isize {
    let memory = Memory::One(buffer.cast_mut(), length);
    // SAFETY: fi_tinjectdata requires valid arguments.
    unsafe { injected(peer).start(endpoint, memory, message(tag, Some(data))) }
}
