//! Atomic operations on peers' memory.

use super::data::{Memory, Transfer};
use super::object::{read, result, status, vector};
use crate::abi::constants::{ATOMIC, EBADFLAGS, READ, WRITE};
use crate::abi::{AtomicAttr, FidDomain, FidEp, Ioc, MsgAtomic, OpsAtomic};
use crate::core::atomics::{Operation, is_supported, size_of_type};
use crate::core::buffer::Buffer;
use crate::core::operation::{Action, Source, Target};
use crate::core::wire::AtomicRequest;
use libc::iovec;
use std::ffi::c_void;

/// The most bytes of values that one operation can have.
const MAX_BYTES: usize = 2048;
/// A flag of `fi_query_atomic`: an operation that fetches.
const FETCH_ATOMIC: u64 = 1 << 58;
/// A flag of `fi_query_atomic`: an operation that compares.
const COMPARE_ATOMIC: u64 = 1 << 59;

pub(super) static OPERATIONS: OpsAtomic = OpsAtomic {
    size: size_of::<OpsAtomic>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

type Descriptors = *mut *mut c_void;

/// The values of an argument.
#[derive(Clone, Copy)]
enum Values {
    None,
    One(*const c_void, usize),
    Vector(*const Ioc, usize),
}

impl Values {
    /// The memory of values of `size` bytes each.
    unsafe fn buffer(self, size: usize) -> Result<Buffer, i32> {
        let bytes = |count: usize| count.checked_mul(size).ok_or(libc::EINVAL);
        // SAFETY: the pointers are arguments of an atomic function of libfabric, which requires valid ones.
        unsafe {
            match self {
                Self::None => Ok(Buffer::EMPTY),
                Self::One(start, count) => Memory::One(start.cast_mut(), bytes(count)?).buffer(),
                Self::Vector(values, count) => {
                    let mut segments = Vec::new();
                    for values in vector(values, count)? {
                        segments.push(iovec { iov_base: values.addr, iov_len: bytes(values.count)? });
                    }
                    Memory::Vector(segments.as_ptr(), segments.len()).buffer()
                }
            }
        }
    }
}

/// An atomic operation of the program.
struct Call {
    target: Target,
    datatype: u32,
    operation: u32,
    operands: Values,
    compares: Option<Values>,
    results: Option<Values>,
}

impl Call {
    fn is_valid(&self) -> bool {
        let compares = Operation::from_number(self.operation).is_some_and(Operation::compares);
        is_supported(self.operation, self.datatype)
            && compares == self.compares.is_some()
            && (self.operation != Operation::Read as u32 || self.results.is_some())
    }

    /// Checks the operation and starts it.
    // SAFETY: `endpoint` and the program's arrays are those of an atomic call of libfabric.
    unsafe fn start(self, endpoint: *mut FidEp, transfer: Transfer) -> isize {
        result(|| {
            if !self.is_valid() {
                return Err(libc::EOPNOTSUPP);
            }
            let size = size_of_type(self.datatype).ok_or(libc::EOPNOTSUPP)?;
            // SAFETY: functions of atomics require valid arguments, here and in the blocks below.
            let (operands, compares, results) = unsafe {
                (
                    self.operands.buffer(size)?,
                    self.compares.unwrap_or(Values::None).buffer(size)?,
                    self.results.unwrap_or(Values::None).buffer(size)?,
                )
            };
            let is_read = self.operation == Operation::Read as u32;
            let length = if is_read { results.len() } else { operands.len() };
            let agrees = |buffer: &Buffer, is_used: bool| !is_used || buffer.len() == length;
            if !agrees(&compares, self.compares.is_some()) || !agrees(&results, self.results.is_some()) {
                return Err(libc::EINVAL);
            }
            if length > MAX_BYTES || length == 0 {
                return Err(libc::EMSGSIZE);
            }
            let mut bytes = vec![0; length + compares.len()];
            if !is_read {
                operands.read(&mut bytes[..length]);
            }
            compares.read(&mut bytes[length..]);
            let request = AtomicRequest {
                operation: self.operation as u8,
                datatype: self.datatype as u8,
                fetches: self.results.is_some(),
            };
            let action = Action::Atomic { target: self.target, request, result: results };
            // SAFETY: as above.
            unsafe { transfer.start_from(endpoint, Source::Copied(bytes), action) }
        })
    }
}

fn transfer(kind: u64, peer: u64, context: *mut c_void, flags: Option<u64>) -> Transfer {
    Transfer { peer, context, flags, is_injected: false, kind: ATOMIC | kind }
}

/// A call with a message structure.
// SAFETY: fi_atomicmsg and its variants require valid pointers.
unsafe fn from_message(
    endpoint: *mut FidEp,
    message: *const MsgAtomic,
    compares: Option<Values>,
    results: Option<Values>,
    flags: u64,
) -> isize {
    // SAFETY: fi_atomicmsg and its variants require valid arguments.
    unsafe {
        let Ok(message) = read(message) else { return -(libc::EINVAL as isize) };
        let Ok([target]) = vector(message.rma_iov, message.rma_iov_count) else {
            return -(libc::EINVAL as isize);
        };
        let kind = if results.is_some() { READ } else { WRITE };
        let call = Call {
            target: Target { key: target.key, address: target.addr },
            datatype: message.datatype,
            operation: message.op,
            operands: Values::Vector(message.msg_iov, message.iov_count),
            compares,
            results,
        };
        call.start(endpoint, transfer(kind, message.addr, message.context, Some(flags)))
    }
}

// SAFETY of all functions: see the module `ffi`.

unsafe extern "C" fn write(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    count: usize,
    _: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: *mut c_void,
) -> isize {
    let operands = Values::One(buffer, count);
    let target = Target { key, address };
    let call = Call { target, datatype, operation, operands, compares: None, results: None };
    // SAFETY: fi_atomic requires valid arguments.
    unsafe { call.start(endpoint, transfer(WRITE, peer, context, None)) }
}

unsafe extern "C" fn writev(
    endpoint: *mut FidEp,
    values: *const Ioc,
    _: Descriptors,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: *mut c_void,
) -> isize {
    let operands = Values::Vector(values, count);
    let target = Target { key, address };
    let call = Call { target, datatype, operation, operands, compares: None, results: None };
    // SAFETY: fi_atomicv requires valid arguments.
    unsafe { call.start(endpoint, transfer(WRITE, peer, context, None)) }
}

unsafe extern "C" fn writemsg(endpoint: *mut FidEp, message: *const MsgAtomic, flags: u64) -> isize {
    // SAFETY: fi_atomicmsg requires valid arguments.
    unsafe { from_message(endpoint, message, None, None, flags) }
}

unsafe extern "C" fn inject(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: u32,
    operation: u32,
) -> isize {
    let operands = Values::One(buffer, count);
    let target = Target { key, address };
    let call = Call { target, datatype, operation, operands, compares: None, results: None };
    let injected = Transfer { is_injected: true, ..transfer(WRITE, peer, std::ptr::null_mut(), None) };
    // SAFETY: fi_inject_atomic requires valid arguments.
    unsafe { call.start(endpoint, injected) }
}

unsafe extern "C" fn readwrite(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    count: usize,
    _: *mut c_void,
    results: *mut c_void,
    _: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: *mut c_void,
) -> isize {
    let call = Call {
        target: Target { key, address },
        datatype,
        operation,
        operands: Values::One(buffer, if operation == Operation::Read as u32 { 0 } else { count }),
        compares: None,
        results: Some(Values::One(results, count)),
    };
    // SAFETY: fi_fetch_atomic requires valid arguments.
    unsafe { call.start(endpoint, transfer(READ, peer, context, None)) }
}

unsafe extern "C" fn readwritev(
    endpoint: *mut FidEp,
    values: *const Ioc,
    _: Descriptors,
    count: usize,
    results: *mut Ioc,
    _: Descriptors,
    result_count: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: *mut c_void,
) -> isize {
    let call = Call {
        target: Target { key, address },
        datatype,
        operation,
        operands: Values::Vector(values, count),
        compares: None,
        results: Some(Values::Vector(results, result_count)),
    };
    // SAFETY: fi_fetch_atomicv requires valid arguments.
    unsafe { call.start(endpoint, transfer(READ, peer, context, None)) }
}

unsafe extern "C" fn readwritemsg(
    endpoint: *mut FidEp,
    message: *const MsgAtomic,
    results: *mut Ioc,
    _: Descriptors,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: fi_fetch_atomicmsg requires valid arguments.
    unsafe { from_message(endpoint, message, None, Some(Values::Vector(results, result_count)), flags) }
}

unsafe extern "C" fn compwrite(
    endpoint: *mut FidEp,
    buffer: *const c_void,
    count: usize,
    _: *mut c_void,
    compares: *const c_void,
    _: *mut c_void,
    results: *mut c_void,
    _: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: *mut c_void,
) -> isize {
    let call = Call {
        target: Target { key, address },
        datatype,
        operation,
        operands: Values::One(buffer, count),
        compares: Some(Values::One(compares, count)),
        results: Some(Values::One(results, count)),
    };
    // SAFETY: fi_compare_atomic requires valid arguments.
    unsafe { call.start(endpoint, transfer(READ, peer, context, None)) }
}

unsafe extern "C" fn compwritev(
    endpoint: *mut FidEp,
    values: *const Ioc,
    _: Descriptors,
    count: usize,
    compares: *const Ioc,
    _: Descriptors,
    compare_count: usize,
    results: *mut Ioc,
    _: Descriptors,
    result_count: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: u32,
    operation: u32,
    context: *mut c_void,
) -> isize {
    let call = Call {
        target: Target { key, address },
        datatype,
        operation,
        operands: Values::Vector(values, count),
        compares: Some(Values::Vector(compares, compare_count)),
        results: Some(Values::Vector(results, result_count)),
    };
    // SAFETY: fi_compare_atomicv requires valid arguments.
    unsafe { call.start(endpoint, transfer(READ, peer, context, None)) }
}

unsafe extern "C" fn compwritemsg(
    endpoint: *mut FidEp,
    message: *const MsgAtomic,
    compares: *const Ioc,
    _: Descriptors,
    compare_count: usize,
    results: *mut Ioc,
    _: Descriptors,
    result_count: usize,
    flags: u64,
) -> isize {
    let (compares, results) =
        (Values::Vector(compares, compare_count), Values::Vector(results, result_count));
    // SAFETY: fi_compare_atomicmsg requires valid arguments.
    unsafe { from_message(endpoint, message, Some(compares), Some(results), flags) }
}

/// The number of values that one operation can have.
fn valid(datatype: u32, operation: u32, fetches: bool, compares: bool) -> Result<(usize, usize), i32> {
    let is_comparing = Operation::from_number(operation).is_some_and(Operation::compares);
    let is_read = operation == Operation::Read as u32;
    if !is_supported(operation, datatype) || is_comparing != compares || (is_read && !fetches) {
        return Err(libc::EOPNOTSUPP);
    }
    let size = size_of_type(datatype).ok_or(libc::EOPNOTSUPP)?;
    Ok((MAX_BYTES / size, size))
}

unsafe fn give_count(count: *mut usize, found: Result<(usize, usize), i32>) -> i32 {
    status(|| {
        let (found, _) = found?;
        // SAFETY: the argument of fi_atomicvalid.
        *unsafe { count.as_mut() }.ok_or(libc::EINVAL)? = found;
        Ok(0)
    })
}

unsafe extern "C" fn writevalid(_: *mut FidEp, datatype: u32, operation: u32, count: *mut usize) -> i32 {
    // SAFETY: fi_atomicvalid requires valid arguments.
    unsafe { give_count(count, valid(datatype, operation, false, false)) }
}

unsafe extern "C" fn readwritevalid(_: *mut FidEp, datatype: u32, operation: u32, count: *mut usize) -> i32 {
    // SAFETY: fi_fetch_atomicvalid requires valid arguments.
    unsafe { give_count(count, valid(datatype, operation, true, false)) }
}

unsafe extern "C" fn compwritevalid(_: *mut FidEp, datatype: u32, operation: u32, count: *mut usize) -> i32 {
    // SAFETY: fi_compare_atomicvalid requires valid arguments.
    unsafe { give_count(count, valid(datatype, operation, true, true)) }
}

/// `fi_query_atomic`.
pub(super) unsafe extern "C" fn query(
    _: *mut FidDomain,
    datatype: u32,
    operation: u32,
    attributes: *mut AtomicAttr,
    flags: u64,
) -> i32 {
    status(|| {
        if flags & !(FETCH_ATOMIC | COMPARE_ATOMIC) != 0 {
            return Err(EBADFLAGS);
        }
        let compares = flags & COMPARE_ATOMIC != 0;
        let (count, size) = valid(datatype, operation, compares || flags & FETCH_ATOMIC != 0, compares)?;
        // SAFETY: the argument of fi_query_atomic.
        let attributes = unsafe { attributes.as_mut() }.ok_or(libc::EINVAL)?;
        (attributes.count, attributes.size) = (count, size);
        Ok(0)
    })
}
