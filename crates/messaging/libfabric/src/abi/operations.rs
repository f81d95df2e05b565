//! Function tables, with libfabric's field names.
//!
//! Return values: 0 or a count, or a negative error number.

use super::structures::*;
use libc::{iovec, ssize_t};
use std::ffi::{c_char, c_void};

type Pointer = *mut c_void;
/// `desc` of one buffer, which this provider does not need.
type Descriptor = *mut c_void;
type Descriptors = *mut *mut c_void;
type Bytes = *const c_void;

/// `getinfo` of `struct fi_provider`.
pub(crate) type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> i32;
/// `fabric` of `struct fi_provider`.
pub(crate) type OpenFabric = unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, Pointer) -> i32;

/// Declares a table; its first field is its size in bytes.
macro_rules! tables {
    ($($(#[$attribute:meta])* $name:ident { $($field:ident: ($($argument:ty),*) -> $result:ty,)* })*) => {
        $(
            $(#[$attribute])*
            #[repr(C)]
            pub(crate) struct $name {
                pub(crate) size: usize,
                $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            }

            #[cfg(test)]
            impl super::layout_tests::Layout for $name {
                fn fields() -> Vec<(&'static str, usize)> {
                    vec![("size", 0), $((stringify!($field), std::mem::offset_of!($name, $field)),)*]
                }
            }
        )*
    };
}

tables! {
    /// `struct fi_ops`.
    OpsFid {
        close: (*mut Fid) -> i32,
        bind: (*mut Fid, *mut Fid, u64) -> i32,
        control: (*mut Fid, i32, Pointer) -> i32,
        ops_open: (*mut Fid, *const c_char, u64, *mut Pointer, Pointer) -> i32,
        tostr: (*const Fid, *mut c_char, usize) -> i32,
        ops_set: (*mut Fid, *const c_char, u64, Pointer, Pointer) -> i32,
    }
    /// `struct fi_ops_fabric`.
    OpsFabric {
        domain: (*mut FidFabric, *mut Info, *mut *mut FidDomain, Pointer) -> i32,
        passive_ep: (*mut FidFabric, *mut Info, *mut *mut FidPep, Pointer) -> i32,
        eq_open: (*mut FidFabric, *mut EqAttr, *mut *mut FidEq, Pointer) -> i32,
        wait_open: (*mut FidFabric, Pointer, *mut Pointer) -> i32,
        trywait: (*mut FidFabric, *mut *mut Fid, i32) -> i32,
        domain2: (*mut FidFabric, *mut Info, *mut *mut FidDomain, u64, Pointer) -> i32,
    }
    /// `struct fi_ops_domain`.
    OpsDomain {
        av_open: (*mut FidDomain, *mut AvAttr, *mut *mut FidAv, Pointer) -> i32,
        cq_open: (*mut FidDomain, *mut CqAttr, *mut *mut FidCq, Pointer) -> i32,
        endpoint: (*mut FidDomain, *mut Info, *mut *mut FidEp, Pointer) -> i32,
        scalable_ep: (*mut FidDomain, *mut Info, *mut *mut FidEp, Pointer) -> i32,
        cntr_open: (*mut FidDomain, *mut CntrAttr, *mut *mut FidCntr, Pointer) -> i32,
        poll_open: (*mut FidDomain, Pointer, *mut Pointer) -> i32,
        stx_ctx: (*mut FidDomain, *mut TxAttr, *mut Pointer, Pointer) -> i32,
        srx_ctx: (*mut FidDomain, *mut RxAttr, *mut *mut FidEp, Pointer) -> i32,
        query_atomic: (*mut FidDomain, u32, u32, *mut AtomicAttr, u64) -> i32,
        query_collective: (*mut FidDomain, u32, Pointer, u64) -> i32,
        endpoint2: (*mut FidDomain, *mut Info, *mut *mut FidEp, u64, Pointer) -> i32,
    }
    /// `struct fi_ops_mr`.
    OpsMr {
        reg: (*mut Fid, Bytes, usize, u64, u64, u64, u64, *mut *mut FidMr, Pointer) -> i32,
        regv: (*mut Fid, *const iovec, usize, u64, u64, u64, u64, *mut *mut FidMr, Pointer) -> i32,
        regattr: (*mut Fid, *const MrAttr, u64, *mut *mut FidMr) -> i32,
    }
    /// `struct fi_ops_av`.
    OpsAv {
        insert: (*mut FidAv, Bytes, usize, *mut u64, u64, Pointer) -> i32,
        insertsvc: (*mut FidAv, *const c_char, *const c_char, *mut u64, u64, Pointer) -> i32,
        insertsym: (*mut FidAv, *const c_char, usize, *const c_char, usize, *mut u64, u64, Pointer) -> i32,
        remove: (*mut FidAv, *mut u64, usize, u64) -> i32,
        lookup: (*mut FidAv, u64, Pointer, *mut usize) -> i32,
        straddr: (*mut FidAv, Bytes, *mut c_char, *mut usize) -> *const c_char,
        av_set: (*mut FidAv, Pointer, *mut Pointer, Pointer) -> i32,
    }
    /// `struct fi_ops_eq`.
    OpsEq {
        read: (*mut FidEq, *mut u32, Pointer, usize, u64) -> ssize_t,
        readerr: (*mut FidEq, *mut EqErrEntry, u64) -> ssize_t,
        write: (*mut FidEq, u32, Bytes, usize, u64) -> ssize_t,
        sread: (*mut FidEq, *mut u32, Pointer, usize, i32, u64) -> ssize_t,
        strerror: (*mut FidEq, i32, Bytes, *mut c_char, usize) -> *const c_char,
    }
    /// `struct fi_ops_cq`.
    OpsCq {
        read: (*mut FidCq, Pointer, usize) -> ssize_t,
        readfrom: (*mut FidCq, Pointer, usize, *mut u64) -> ssize_t,
        readerr: (*mut FidCq, *mut CqErrEntry, u64) -> ssize_t,
        sread: (*mut FidCq, Pointer, usize, Bytes, i32) -> ssize_t,
        sreadfrom: (*mut FidCq, Pointer, usize, *mut u64, Bytes, i32) -> ssize_t,
        signal: (*mut FidCq) -> i32,
        strerror: (*mut FidCq, i32, Bytes, *mut c_char, usize) -> *const c_char,
    }
    /// `struct fi_ops_cntr`.
    OpsCntr {
        read: (*mut FidCntr) -> u64,
        readerr: (*mut FidCntr) -> u64,
        add: (*mut FidCntr, u64) -> i32,
        set: (*mut FidCntr, u64) -> i32,
        wait: (*mut FidCntr, u64, i32) -> i32,
        adderr: (*mut FidCntr, u64) -> i32,
        seterr: (*mut FidCntr, u64) -> i32,
    }
    /// `struct fi_ops_ep`.
    OpsEp {
        cancel: (*mut Fid, Pointer) -> ssize_t,
        getopt: (*mut Fid, i32, i32, Pointer, *mut usize) -> i32,
        setopt: (*mut Fid, i32, i32, Bytes, usize) -> i32,
        tx_ctx: (*mut FidEp, i32, *mut TxAttr, *mut *mut FidEp, Pointer) -> i32,
        rx_ctx: (*mut FidEp, i32, *mut RxAttr, *mut *mut FidEp, Pointer) -> i32,
        rx_size_left: (*mut FidEp) -> ssize_t,
        tx_size_left: (*mut FidEp) -> ssize_t,
    }
    /// `struct fi_ops_cm`.
    OpsCm {
        setname: (*mut Fid, Pointer, usize) -> i32,
        getname: (*mut Fid, Pointer, *mut usize) -> i32,
        getpeer: (*mut FidEp, Pointer, *mut usize) -> i32,
        connect: (*mut FidEp, Bytes, Bytes, usize) -> i32,
        listen: (*mut FidPep) -> i32,
        accept: (*mut FidEp, Bytes, usize) -> i32,
        reject: (*mut FidPep, *mut Fid, Bytes, usize) -> i32,
        shutdown: (*mut FidEp, u64) -> i32,
        join: (*mut FidEp, Bytes, u64, *mut Pointer, Pointer) -> i32,
    }
    /// `struct fi_ops_msg`.
    OpsMsg {
        recv: (*mut FidEp, Pointer, usize, Descriptor, u64, Pointer) -> ssize_t,
        recvv: (*mut FidEp, *const iovec, Descriptors, usize, u64, Pointer) -> ssize_t,
        recvmsg: (*mut FidEp, *const Msg, u64) -> ssize_t,
        send: (*mut FidEp, Bytes, usize, Descriptor, u64, Pointer) -> ssize_t,
        sendv: (*mut FidEp, *const iovec, Descriptors, usize, u64, Pointer) -> ssize_t,
        sendmsg: (*mut FidEp, *const Msg, u64) -> ssize_t,
        inject: (*mut FidEp, Bytes, usize, u64) -> ssize_t,
        senddata: (*mut FidEp, Bytes, usize, Descriptor, u64, u64, Pointer) -> ssize_t,
        injectdata: (*mut FidEp, Bytes, usize, u64, u64) -> ssize_t,
    }
    /// `struct fi_ops_tagged`.
    OpsTagged {
        recv: (*mut FidEp, Pointer, usize, Descriptor, u64, u64, u64, Pointer) -> ssize_t,
        recvv: (*mut FidEp, *const iovec, Descriptors, usize, u64, u64, u64, Pointer) -> ssize_t,
        recvmsg: (*mut FidEp, *const MsgTagged, u64) -> ssize_t,
        send: (*mut FidEp, Bytes, usize, Descriptor, u64, u64, Pointer) -> ssize_t,
        sendv: (*mut FidEp, *const iovec, Descriptors, usize, u64, u64, Pointer) -> ssize_t,
        sendmsg: (*mut FidEp, *const MsgTagged, u64) -> ssize_t,
        inject: (*mut FidEp, Bytes, usize, u64, u64) -> ssize_t,
        senddata: (*mut FidEp, Bytes, usize, Descriptor, u64, u64, u64, Pointer) -> ssize_t,
        injectdata: (*mut FidEp, Bytes, usize, u64, u64, u64) -> ssize_t,
    }
    /// `struct fi_ops_rma`.
    OpsRma {
        read: (*mut FidEp, Pointer, usize, Descriptor, u64, u64, u64, Pointer) -> ssize_t,
        readv: (*mut FidEp, *const iovec, Descriptors, usize, u64, u64, u64, Pointer) -> ssize_t,
        readmsg: (*mut FidEp, *const MsgRma, u64) -> ssize_t,
        write: (*mut FidEp, Bytes, usize, Descriptor, u64, u64, u64, Pointer) -> ssize_t,
        writev: (*mut FidEp, *const iovec, Descriptors, usize, u64, u64, u64, Pointer) -> ssize_t,
        writemsg: (*mut FidEp, *const MsgRma, u64) -> ssize_t,
        inject: (*mut FidEp, Bytes, usize, u64, u64, u64) -> ssize_t,
        writedata: (*mut FidEp, Bytes, usize, Descriptor, u64, u64, u64, u64, Pointer) -> ssize_t,
        injectdata: (*mut FidEp, Bytes, usize, u64, u64, u64, u64) -> ssize_t,
    }
    /// `struct fi_ops_atomic`.
    OpsAtomic {
        write: (*mut FidEp, Bytes, usize, Descriptor, u64, u64, u64, u32, u32, Pointer) -> ssize_t,
        writev: (*mut FidEp, *const Ioc, Descriptors, usize, u64, u64, u64, u32, u32, Pointer) -> ssize_t,
        writemsg: (*mut FidEp, *const MsgAtomic, u64) -> ssize_t,
        inject: (*mut FidEp, Bytes, usize, u64, u64, u64, u32, u32) -> ssize_t,
        readwrite: (*mut FidEp, Bytes, usize, Descriptor, Pointer, Descriptor, u64, u64, u64, u32, u32, Pointer) -> ssize_t,
        readwritev: (*mut FidEp, *const Ioc, Descriptors, usize, *mut Ioc, Descriptors, usize, u64, u64, u64, u32, u32, Pointer) -> ssize_t,
        readwritemsg: (*mut FidEp, *const MsgAtomic, *mut Ioc, Descriptors, usize, u64) -> ssize_t,
        compwrite: (*mut FidEp, Bytes, usize, Descriptor, Bytes, Descriptor, Pointer, Descriptor, u64, u64, u64, u32, u32, Pointer) -> ssize_t,
        compwritev: (*mut FidEp, *const Ioc, Descriptors, usize, *const Ioc, Descriptors, usize, *mut Ioc, Descriptors, usize, u64, u64, u64, u32, u32, Pointer) -> ssize_t,
        compwritemsg: (*mut FidEp, *const MsgAtomic, *const Ioc, Descriptors, usize, *mut Ioc, Descriptors, usize, u64) -> ssize_t,
        writevalid: (*mut FidEp, u32, u32, *mut usize) -> i32,
        readwritevalid: (*mut FidEp, u32, u32, *mut usize) -> i32,
        compwritevalid: (*mut FidEp, u32, u32, *mut usize) -> i32,
    }
}
