//! Messages without tags.

use super::data::{Memory, Post, Transfer};
use super::object::read;
use crate::abi::constants::{MSG, REMOTE_CQ_DATA, SEND};
use crate::abi::{FidEp, Msg, OpsMsg};
use crate::core::operation::Action;
use libc::iovec;
use std::ffi::c_void;

pub(super) static OPERATIONS: OpsMsg = OpsMsg {
    size: size_of::<OpsMsg>(),
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

fn post(source: u64, context: *mut c_void, flags: Option<u64>) -> Post {
    Post { source, tag: 0, ignore: u64::MAX, is_tagged: false, context, flags }
}

fn transfer(peer: u64, context: *mut c_void, flags: Option<u64>) -> Transfer {
    Transfer { peer, context, flags, is_injected: false, kind: MSG | SEND }
}

fn injected(peer: u64) -> Transfer {
    Transfer { is_injected: true, ..transfer(peer, std::ptr::null_mut(), None) }
}

fn message(data: Option<u64>) -> Action {
    Action::Message { tag: None, data, acknowledged: false }
}

// SAFETY of all functions: see the module `ffi`.

unsafe extern "C" fn recv(
    endpoint: *mut FidEp,
    buffer: *mut c_void,
    length: usize,
    _: *mut c_void,
    source: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_recv requires valid arguments.
    unsafe { post(source, context, None).post(endpoint, Memory::One(buffer, length)) }
}

unsafe extern "C" fn recvv(
    endpoint: *mut FidEp,
    segments: *const iovec,
    _: Descriptors,
    count: usize,
    source: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: fi_recvv requires valid arguments.
    unsafe { post(source, context, None).post(endpoint, Memory::Vector(segments, count)) }
}

unsafe extern "C" fn recvmsg(endpoint: *mut FidEp, message: *const Msg, flags: u64) -> isize {
    // SAFETY: fi_recvmsg requires valid arguments.
    unsafe {
        let Ok(message) = read(message) else { return -(libc::EINVAL as isize) };
        let memory = Memory::Vector(message.msg_iov, message.iov_count);
        post(message.addr, message.context, Some(flags)).post(endpoint, memory)
    }
}

unsafe extern "C" fn send(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    _: *mut c_void,
    peer: u64,
    context: *mut c_void,
) -> isize {
    let memory = Memory::One(buffer.cast_mut(), length);
    // SAFETY: fi_send requires valid arguments.
    unsafe { transfer(peer, context, None).start(endpoint, memory, message(None)) }
}

unsafe extern "C" fn sendv(
    endpoint: *mut FidEp,
    segments: *const iovec,
    _: Descriptors,
    count: usize,
    peer: u64,
    context: *mut c_void,
) -> isize {
    let memory = Memory::Vector(segments, count);
    // SAFETY: fi_sendv requires valid arguments.
    unsafe { transfer(peer, context, None).start(endpoint, memory, message(None)) }
}

unsafe extern "C" fn sendmsg(endpoint: *mut FidEp, pointer: *const Msg, flags: u64) -> isize {
    // SAFETY: fi_sendmsg requires valid arguments.
    unsafe {
        let Ok(argument) = read(pointer) else { return -(libc::EINVAL as isize) };
        let memory = Memory::Vector(argument.msg_iov, argument.iov_count);
        let data = (flags & REMOTE_CQ_DATA != 0).then_some(argument.data);
        transfer(argument.addr, argument.context, Some(flags)).start(endpoint, memory, message(data))
    }
}

unsafe extern "C" fn inject(endpoint: *mut FidEp, buffer: *const c_void, length: usize, peer: u64) -> isize {
    let memory = Memory::One(buffer.cast_mut(), length);
    // SAFETY: fi_inject requires valid arguments.
    unsafe { injected(peer).start(endpoint, memory, message(None)) }
}

unsafe extern "C" fn senddata(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    _: *mut c_void,
    data: u64,
    peer: u64,
    context: *mut c_void,
) -> isize {
    let memory = Memory::One(buffer.cast_mut(), length);
    // SAFETY: fi_senddata requires valid arguments.
    unsafe { transfer(peer, context, None).start(endpoint, memory, message(Some(data))) }
}

unsafe extern "C" fn injectdata(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    data: u64,
    peer: u64,
) -> isize {
    let memory = Memory::One(buffer.cast_mut(), length);
    // SAFETY: fi_injectdata requires valid arguments.
    unsafe { injected(peer).start(endpoint, memory, message(Some(data))) }
}
