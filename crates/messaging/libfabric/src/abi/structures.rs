//! Structures, with libfabric's field names.

use super::operations::*;
use std::ffi::{c_char, c_void};

/// Declares structures whose fields are all visible in the crate.
macro_rules! structures {
    ($($(#[$attribute:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$attribute])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(crate) struct $name { $(pub(crate) $field: $type,)* }

            #[cfg(test)]
            impl super::layout_tests::Layout for $name {
                fn fields() -> Vec<(&'static str, usize)> {
                    vec![$((stringify!($field), std::mem::offset_of!($name, $field)),)*]
                }
            }
        )*
    };
}

structures! {
    /// `struct fi_context`.
    Context { internal: [*mut c_void; 4], }
    /// `struct fi_provider`.
    Provider {
        version: u32,
        fi_version: u32,
        context: Context,
        name: *const c_char,
        getinfo: GetInfo,
        fabric: OpenFabric,
        cleanup: unsafe extern "C" fn(),
    }
    /// `struct fid`: the start of every object.
    Fid { fclass: usize, context: *mut c_void, ops: *const OpsFid, }
    /// `struct fid_fabric`.
    FidFabric { fid: Fid, ops: *const OpsFabric, api_version: u32, }
    /// `struct fid_domain`.
    FidDomain { fid: Fid, ops: *const OpsDomain, mr: *const OpsMr, }
    /// `struct fid_av`.
    FidAv { fid: Fid, ops: *const OpsAv, }
    /// `struct fid_eq`.
    FidEq { fid: Fid, ops: *const OpsEq, }
    /// `struct fid_cq`.
    FidCq { fid: Fid, ops: *const OpsCq, }
    /// `struct fid_cntr`.
    FidCntr { fid: Fid, ops: *const OpsCntr, }
    /// `struct fid_mr`.
    FidMr { fid: Fid, mem_desc: *mut c_void, key: u64, }
    /// `struct fid_ep`.
    FidEp {
        fid: Fid,
        ops: *const OpsEp,
        cm: *const OpsCm,
        msg: *const OpsMsg,
        rma: *const OpsRma,
        tagged: *const OpsTagged,
        atomic: *const OpsAtomic,
        collective: *const c_void,
    }
    /// `struct fid_pep`.
    FidPep { fid: Fid, ops: *const OpsEp, cm: *const OpsCm, }

    /// `struct fi_tx_attr`.
    TxAttr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        inject_size: usize,
        size: usize,
        iov_limit: usize,
        rma_iov_limit: usize,
        tclass: u32,
    }
    /// `struct fi_rx_attr`.
    RxAttr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        total_buffered_recv: usize,
        size: usize,
        iov_limit: usize,
    }
    /// `struct fi_ep_attr`.
    EpAttr {
        r#type: u32,
        protocol: u32,
        protocol_version: u32,
        max_msg_size: usize,
        msg_prefix_size: usize,
        max_order_raw_size: usize,
        max_order_war_size: usize,
        max_order_waw_size: usize,
        mem_tag_format: u64,
        tx_ctx_cnt: usize,
        rx_ctx_cnt: usize,
        auth_key_size: usize,
        auth_key: *mut u8,
    }
    /// `struct fi_domain_attr`.
    DomainAttr {
        domain: *mut FidDomain,
        name: *mut c_char,
        threading: u32,
        control_progress: u32,
        data_progress: u32,
        resource_mgmt: u32,
        av_type: u32,
        mr_mode: i32,
        mr_key_size: usize,
        cq_data_size: usize,
        cq_cnt: usize,
        ep_cnt: usize,
        tx_ctx_cnt: usize,
        rx_ctx_cnt: usize,
        max_ep_tx_ctx: usize,
        max_ep_rx_ctx: usize,
        max_ep_stx_ctx: usize,
        max_ep_srx_ctx: usize,
        cntr_cnt: usize,
        mr_iov_limit: usize,
        caps: u64,
        mode: u64,
        auth_key: *mut u8,
        auth_key_size: usize,
        max_err_data: usize,
        mr_cnt: usize,
        tclass: u32,
    }
    /// `struct fi_fabric_attr`.
    FabricAttr {
        fabric: *mut FidFabric,
        name: *mut c_char,
        prov_name: *mut c_char,
        prov_version: u32,
        api_version: u32,
    }
    /// `struct fi_info`.
    Info {
        next: *mut Info,
        caps: u64,
        mode: u64,
        addr_format: u32,
        src_addrlen: usize,
        dest_addrlen: usize,
        src_addr: *mut c_void,
        dest_addr: *mut c_void,
        handle: *mut Fid,
        tx_attr: *mut TxAttr,
        rx_attr: *mut RxAttr,
        ep_attr: *mut EpAttr,
        domain_attr: *mut DomainAttr,
        fabric_attr: *mut FabricAttr,
        nic: *mut c_void,
    }

    /// `struct fi_av_attr`.
    AvAttr {
        r#type: u32,
        rx_ctx_bits: i32,
        count: usize,
        ep_per_node: usize,
        name: *const c_char,
        map_addr: *mut c_void,
        flags: u64,
    }
    /// `struct fi_cq_attr`.
    CqAttr {
        size: usize,
        flags: u64,
        format: u32,
        wait_obj: u32,
        signaling_vector: i32,
        wait_cond: u32,
        wait_set: *mut c_void,
    }
    /// `struct fi_cntr_attr`.
    CntrAttr { events: u32, wait_obj: u32, wait_set: *mut c_void, flags: u64, }
    /// `struct fi_eq_attr`.
    EqAttr { size: usize, flags: u64, wait_obj: u32, signaling_vector: i32, wait_set: *mut c_void, }
    /// `struct fi_mr_attr`.
    MrAttr {
        mr_iov: *const libc::iovec,
        iov_count: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        context: *mut c_void,
        auth_key_size: usize,
        auth_key: *mut u8,
        iface: u32,
        device: u64,
    }
    /// `struct fi_cq_tagged_entry`, of which the shorter formats are prefixes.
    CqTaggedEntry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
        tag: u64,
    }
    /// `struct fi_cq_err_entry`.
    CqErrEntry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
        tag: u64,
        olen: usize,
        err: i32,
        prov_errno: i32,
        err_data: *mut c_void,
        err_data_size: usize,
    }
    /// `struct fi_eq_entry`.
    EqEntry { fid: *mut Fid, context: *mut c_void, data: u64, }
    /// `struct fi_eq_cm_entry`, without the data at its end.
    EqCmEntry { fid: *mut Fid, info: *mut Info, }
    /// `struct fi_eq_err_entry`.
    EqErrEntry {
        fid: *mut Fid,
        context: *mut c_void,
        data: u64,
        err: i32,
        prov_errno: i32,
        err_data: *mut c_void,
        err_data_size: usize,
    }
    /// `struct fi_msg`.
    Msg {
        msg_iov: *const libc::iovec,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: u64,
        context: *mut c_void,
        data: u64,
    }
    /// `struct fi_msg_tagged`.
    MsgTagged {
        msg_iov: *const libc::iovec,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: u64,
        tag: u64,
        ignore: u64,
        context: *mut c_void,
        data: u64,
    }
    /// `struct fi_rma_iov`.
    RmaIov { addr: u64, len: usize, key: u64, }
    /// `struct fi_msg_rma`.
    MsgRma {
        msg_iov: *const libc::iovec,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: u64,
        rma_iov: *const RmaIov,
        rma_iov_count: usize,
        context: *mut c_void,
        data: u64,
    }
    /// `struct fi_ioc`.
    Ioc { addr: *mut c_void, count: usize, }
    /// `struct fi_rma_ioc`.
    RmaIoc { addr: u64, count: usize, key: u64, }
    /// `struct fi_msg_atomic`.
    MsgAtomic {
        msg_iov: *const Ioc,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: u64,
        rma_iov: *const RmaIoc,
        rma_iov_count: usize,
        datatype: u32,
        op: u32,
        context: *mut c_void,
        data: u64,
    }
    /// `struct fi_atomic_attr`.
    AtomicAttr { count: usize, size: usize, }
}
