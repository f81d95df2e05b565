//! `fi_getinfo`: the provider's offers for a program's hints.
//!
//! The structures are allocated by the C library, since libfabric frees them. Later versions of libfabric have more fields at
//! their ends, so each allocation has further zero bytes.
//!
//! Source: fi_getinfo(3), fi_domain(3), fi_endpoint(3).

use super::object::{read, status};
use super::provider::PROVIDER_VERSION;
use crate::abi::constants::*;
use crate::abi::{DomainAttr, EpAttr, FabricAttr, Fid, Info, RxAttr, TxAttr};
use crate::core::address::{AddressFormat, Name};
use crate::core::buffer::MAX_SEGMENTS;
use crate::core::environment;
use crate::core::log::info;
use crate::core::slots::MAX_PAYLOAD_BYTES;
use crate::core::state::MAX_WAITING;
use std::ffi::{CStr, c_char, c_void};

/// The longest message, bytes.
pub(super) const MAX_MESSAGE_BYTES: usize = 1 << 30;
/// The longest injected message, bytes.
pub(super) const INJECT_BYTES: usize = 4096;
/// The name of the only fabric and of the only domain.
const NAME: &CStr = c"longma";
/// Zero bytes after each structure.
const SPARE_BYTES: usize = 128;

/// Flags that a program may set for all operations of a kind.
pub(super) const SEND_FLAGS: u64 = COMPLETION
    | INJECT
    | INJECT_COMPLETE
    | TRANSMIT_COMPLETE
    | DELIVERY_COMPLETE
    | MATCH_COMPLETE
    | MORE
    | FENCE;
pub(super) const RECEIVE_FLAGS: u64 = COMPLETION | MULTI_RECV | MORE;

const PRIMARY: u64 = MSG | RMA | TAGGED | ATOMIC;
const MODIFIERS: u64 = READ | WRITE | RECV | SEND | REMOTE_READ | REMOTE_WRITE;
const SECONDARY: u64 = MULTI_RECV | LOCAL_COMM | RMA_EVENT | SOURCE | DIRECTED_RECV;
const SENDING: u64 = PRIMARY | READ | WRITE | SEND;
const RECEIVING: u64 =
    PRIMARY | RECV | REMOTE_READ | REMOTE_WRITE | MULTI_RECV | RMA_EVENT | SOURCE | DIRECTED_RECV;
const ORDERS: u64 = ORDER_SAS;

/// The address format with this number in libfabric's interface.
pub(super) fn address_format(number: u32) -> Option<AddressFormat> {
    match number {
        FORMAT_UNSPEC | ADDR_STR => Some(AddressFormat::String),
        PROV_SPECIFIC => Some(AddressFormat::Binary),
        _ => None,
    }
}

/// A program's validated hints.
struct Request {
    caps: u64,
    format: AddressFormat,
    send_flags: u64,
    receive_flags: u64,
    mr_mode: i32,
    av_type: u32,
    threading: u32,
    source: Option<Name>,
    destination: Option<Name>,
    types: Vec<u32>,
}

/// The requested capabilities and the capabilities that they imply.
fn complete_caps(asked: u64) -> u64 {
    let mut caps = if asked & PRIMARY == 0 { asked | PRIMARY } else { asked };
    if caps & (MSG | TAGGED) != 0 && caps & (SEND | RECV) == 0 {
        caps |= SEND | RECV;
    }
    if caps & (RMA | ATOMIC) != 0 && caps & (READ | WRITE | REMOTE_READ | REMOTE_WRITE) == 0 {
        caps |= READ | WRITE | REMOTE_READ | REMOTE_WRITE;
    }
    caps | LOCAL_COMM | SOURCE
}

/// A requirement that is not met, for the log.
fn require(is_met: bool, what: &str) -> Result<(), i32> {
    if is_met {
        return Ok(());
    }
    info!("fi_getinfo: no offer: {what}");
    Err(libc::ENODATA)
}

/// The name that a node and a service denote. The node must be this host.
///
/// # Errors
/// `ENODATA` if the node is another host.
unsafe fn name_of(node: *const c_char, service: *const c_char) -> Result<Option<Name>, i32> {
    let text = |pointer: *const c_char| {
        // SAFETY: the caller's strings end with a zero byte.
        (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_bytes())
    };
    let (node, service) = (text(node), text(service));
    if let Some(name) = node.and_then(|node| node.strip_prefix(crate::core::address::PREFIX.as_bytes())) {
        let name = Name::new(name);
        require(name.is_some(), "the node is not an address of this provider")?;
        return Ok(name);
    }
    if let Some(node) = node {
        let mut own = [0u8; 256];
        // SAFETY: writes at most the given length; the last byte stays zero.
        unsafe { libc::gethostname(own.as_mut_ptr().cast(), own.len() - 1) };
        let own = CStr::from_bytes_until_nul(&own).map_or(&b""[..], CStr::to_bytes);
        let is_here = [&b"localhost"[..], b"127.0.0.1", b"::1", own].contains(&node);
        require(is_here, "the node is another host")?;
    }
    let Some(service) = service else { return Ok(None) };
    let name = Name::new(service);
    require(name.is_some(), "the service is not a name of this provider")?;
    Ok(name)
}

unsafe fn name_at(format: AddressFormat, address: *const c_void, length: usize) -> Result<Option<Name>, i32> {
    if address.is_null() || length == 0 {
        return Ok(None);
    }
    // SAFETY: the address has this length.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) };
    let name = Name::from_address(format, bytes);
    require(name.is_some(), "an address in the hints has another provider's format")?;
    Ok(name)
}

impl Request {
    fn unrestricted() -> Self {
        Self {
            caps: complete_caps(PRIMARY | MULTI_RECV | RMA_EVENT | DIRECTED_RECV),
            format: AddressFormat::String,
            send_flags: 0,
            receive_flags: 0,
            mr_mode: 0,
            av_type: AV_TABLE,
            threading: THREAD_SAFE,
            source: None,
            destination: None,
            types: vec![EP_RDM, EP_MSG],
        }
    }

    /// # Safety
    /// The hints are valid.
    unsafe fn from_hints(hints: &Info) -> Result<Self, i32> {
        let mut request = Self::unrestricted();
        let unsupported = hints.caps & !(PRIMARY | MODIFIERS | SECONDARY);
        require(unsupported & !REMOTE_COMM == 0, &format!("the capabilities {unsupported:#x}"))?;
        let reaches_all = unsupported == 0 || environment::all_peers_are_here();
        require(
            reaches_all,
            "FI_REMOTE_COMM, except with FI_LONGMA_REMOTE_COMM=1 and in MPI jobs on one host",
        )?;
        if hints.caps != 0 {
            request.caps = complete_caps(hints.caps);
        }
        let format = address_format(hints.addr_format);
        require(format.is_some(), "the format of addresses")?;
        request.format = format.unwrap_or(AddressFormat::String);
        // SAFETY: the caller ensures that the hints and all structures that they refer to are valid.
        unsafe {
            request.source = name_at(request.format, hints.src_addr, hints.src_addrlen)?;
            request.destination = name_at(request.format, hints.dest_addr, hints.dest_addrlen)?;
            if let Ok(attributes) = read(hints.ep_attr) {
                request.check_endpoint(attributes)?;
            }
            if let Ok(attributes) = read(hints.tx_attr) {
                request.check_sending(attributes)?;
            }
            if let Ok(attributes) = read(hints.rx_attr) {
                request.check_receiving(attributes)?;
            }
            if let Ok(attributes) = read(hints.domain_attr) {
                request.check_domain(attributes)?;
            }
            if let Ok(attributes) = read(hints.fabric_attr) {
                require(is_name(attributes.name), "the name of the fabric")?;
            }
        }
        Ok(request)
    }

    fn check_endpoint(&mut self, attributes: &EpAttr) -> Result<(), i32> {
        if attributes.r#type != EP_UNSPEC {
            self.types.retain(|&kind| kind == attributes.r#type);
            require(!self.types.is_empty(), "the type of endpoint")?;
        }
        require(matches!(attributes.protocol, 0 | PROV_SPECIFIC), "the protocol")?;
        require(attributes.max_msg_size <= MAX_MESSAGE_BYTES, "the longest message")?;
        require(attributes.tx_ctx_cnt <= 1 && attributes.rx_ctx_cnt <= 1, "several contexts of an endpoint")?;
        require(attributes.auth_key_size == 0, "an authorization key")
    }

    fn check_sending(&mut self, attributes: &TxAttr) -> Result<(), i32> {
        require(attributes.caps & !(SENDING | SECONDARY | MODIFIERS) == 0, "a capability of sending")?;
        require(attributes.op_flags & !SEND_FLAGS == 0, "a flag of sending")?;
        require(attributes.msg_order & !ORDERS == 0, "the order of messages")?;
        require(attributes.comp_order == 0, "the order of completions")?;
        require(attributes.inject_size <= INJECT_BYTES, "the size of injected messages")?;
        require(
            attributes.iov_limit <= MAX_SEGMENTS && attributes.rma_iov_limit <= 1,
            "the number of segments",
        )?;
        require(attributes.size <= MAX_WAITING, "the number of operations in progress")?;
        self.send_flags = attributes.op_flags;
        Ok(())
    }

    fn check_receiving(&mut self, attributes: &RxAttr) -> Result<(), i32> {
        require(attributes.caps & !(RECEIVING | SECONDARY | MODIFIERS) == 0, "a capability of receiving")?;
        require(attributes.op_flags & !RECEIVE_FLAGS == 0, "a flag of receiving")?;
        require(attributes.msg_order & !ORDERS == 0, "the order of messages")?;
        require(attributes.comp_order == 0, "the order of completions")?;
        require(attributes.iov_limit <= MAX_SEGMENTS, "the number of segments")?;
        self.receive_flags = attributes.op_flags;
        Ok(())
    }

    unsafe fn check_domain(&mut self, attributes: &DomainAttr) -> Result<(), i32> {
        // SAFETY: the hints are valid.
        require(unsafe { is_name(attributes.name) }, "the name of the domain")?;
        require(attributes.threading <= THREAD_ENDPOINT, "the threading")?;
        require(attributes.data_progress != PROGRESS_AUTO, "progress without calls")?;
        require(attributes.mr_key_size <= 8 && attributes.cq_data_size <= 8, "the size of keys or data")?;
        require(attributes.caps & !(LOCAL_COMM | REMOTE_COMM) == 0, "a capability of the domain")?;
        require(
            attributes.max_ep_tx_ctx <= 1 && attributes.max_ep_rx_ctx <= 1,
            "several contexts of an endpoint",
        )?;
        require(attributes.auth_key_size == 0, "an authorization key")?;
        require(attributes.av_type <= AV_TABLE, "the type of address vector")?;
        self.mr_mode = if attributes.mr_mode & MR_BASIC != 0 { MR_BASIC } else { 0 };
        if attributes.av_type != AV_UNSPEC {
            self.av_type = attributes.av_type;
        }
        if attributes.threading != 0 {
            self.threading = attributes.threading;
        }
        Ok(())
    }

    fn info(&self, kind: u32) -> *mut Info {
        let caps = self.caps;
        let address = |name: Option<Name>| name.map(|name| name.to_address(self.format));
        let (source, destination) = (address(self.source), address(self.destination));
        let sending = TxAttr {
            caps: caps & SENDING,
            mode: 0,
            op_flags: self.send_flags,
            msg_order: ORDERS,
            comp_order: 0,
            inject_size: INJECT_BYTES,
            size: MAX_WAITING,
            iov_limit: MAX_SEGMENTS,
            rma_iov_limit: 1,
            tclass: 0,
        };
        let receiving = RxAttr {
            caps: caps & RECEIVING,
            mode: 0,
            op_flags: self.receive_flags,
            msg_order: ORDERS,
            comp_order: 0,
            total_buffered_recv: MAX_PAYLOAD_BYTES,
            size: 1 << 16,
            iov_limit: MAX_SEGMENTS,
        };
        allocated(Info {
            next: std::ptr::null_mut(),
            caps,
            mode: 0,
            addr_format: if self.format == AddressFormat::String { ADDR_STR } else { PROV_SPECIFIC },
            src_addrlen: source.as_ref().map_or(0, Vec::len),
            dest_addrlen: destination.as_ref().map_or(0, Vec::len),
            src_addr: allocated_bytes(source.as_deref()).cast(),
            dest_addr: allocated_bytes(destination.as_deref()).cast(),
            handle: std::ptr::null_mut(),
            tx_attr: allocated(sending),
            rx_attr: allocated(receiving),
            ep_attr: allocated(endpoint_attributes(kind)),
            domain_attr: allocated(self.domain_attributes()),
            fabric_attr: allocated(FabricAttr {
                fabric: std::ptr::null_mut(),
                name: allocated_bytes(Some(NAME.to_bytes_with_nul())).cast(),
                // libfabric adds the provider's name.
                prov_name: std::ptr::null_mut(),
                prov_version: PROVIDER_VERSION,
                api_version: INTERFACE_VERSION,
            }),
            nic: std::ptr::null_mut(),
        })
    }

    fn domain_attributes(&self) -> DomainAttr {
        DomainAttr {
            domain: std::ptr::null_mut(),
            name: allocated_bytes(Some(NAME.to_bytes_with_nul())).cast(),
            threading: self.threading,
            control_progress: PROGRESS_AUTO,
            data_progress: PROGRESS_MANUAL,
            resource_mgmt: RM_ENABLED,
            av_type: self.av_type,
            mr_mode: self.mr_mode,
            mr_key_size: 8,
            cq_data_size: 8,
            cq_cnt: 1 << 16,
            ep_cnt: 1 << 10,
            tx_ctx_cnt: 1 << 10,
            rx_ctx_cnt: 1 << 10,
            max_ep_tx_ctx: 1,
            max_ep_rx_ctx: 1,
            max_ep_stx_ctx: 0,
            max_ep_srx_ctx: 0,
            cntr_cnt: 1 << 16,
            mr_iov_limit: MAX_SEGMENTS,
            caps: LOCAL_COMM,
            mode: 0,
            auth_key: std::ptr::null_mut(),
            auth_key_size: 0,
            max_err_data: 0,
            mr_cnt: 1 << 16,
            tclass: 0,
        }
    }
}

/// The information for a connection request that an endpoint with this information has received: `handle` is the request.
pub(super) fn of_request(
    caps: u64,
    format: AddressFormat,
    own: Name,
    peer: Option<Name>,
    mr_mode: i32,
    handle: *mut Fid,
) -> *mut Info {
    let request =
        Request { caps, format, mr_mode, source: Some(own), destination: peer, ..Request::unrestricted() };
    let info = request.info(EP_MSG);
    // SAFETY: `info` was just allocated.
    unsafe {
        if let Some(info) = info.as_mut() {
            info.handle = handle;
            if let Some(fabric) = info.fabric_attr.as_mut() {
                fabric.prov_name = allocated_bytes(Some(NAME.to_bytes_with_nul())).cast();
            }
        }
    }
    info
}

fn endpoint_attributes(kind: u32) -> EpAttr {
    EpAttr {
        r#type: kind,
        protocol: PROV_SPECIFIC,
        protocol_version: 1,
        max_msg_size: MAX_MESSAGE_BYTES,
        msg_prefix_size: 0,
        max_order_raw_size: 0,
        max_order_war_size: 0,
        max_order_waw_size: 0,
        // The program may use all bits of a tag.
        mem_tag_format: 0xaaaa_aaaa_aaaa_aaaa,
        tx_ctx_cnt: 1,
        rx_ctx_cnt: 1,
        auth_key_size: 0,
        auth_key: std::ptr::null_mut(),
    }
}

/// Whether a name in hints is that of the fabric and domain, or absent.
unsafe fn is_name(name: *const c_char) -> bool {
    // SAFETY: the caller's strings end with a zero byte.
    name.is_null() || unsafe { CStr::from_ptr(name) } == NAME
}

/// A copy in memory that the C library allocates, with zero bytes after it.
fn allocated<T: Copy>(value: T) -> *mut T {
    // SAFETY: the memory is large enough and aligned for any type.
    unsafe {
        let memory = libc::calloc(1, size_of::<T>() + SPARE_BYTES).cast::<T>();
        if !memory.is_null() {
            memory.write(value);
        }
        memory
    }
}

/// A copy of the bytes in memory that the C library allocates; null if there are no bytes.
fn allocated_bytes(bytes: Option<&[u8]>) -> *mut u8 {
    let Some(bytes) = bytes else { return std::ptr::null_mut() };
    // SAFETY: the memory is large enough.
    unsafe {
        let memory = libc::calloc(1, bytes.len() + 1).cast::<u8>();
        if !memory.is_null() {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len());
        }
        memory
    }
}

/// A flag of libfabric's own requests for a provider below a utility provider such as ofi_rxm. This provider has the
/// features that utility providers add to connected endpoints, but libfabric would prefer the utility providers.
/// Source: the log and source of libfabric 1.17.
const CORE_PROVIDER_ONLY: u64 = 1 << 59;

/// `getinfo` of the provider.
pub(super) unsafe extern "C" fn getinfo(
    _version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    result: *mut *mut Info,
) -> i32 {
    status(|| {
        if result.is_null() {
            return Err(libc::EINVAL);
        }
        require(flags & CORE_PROVIDER_ONLY == 0, "a utility provider asked")?;
        // SAFETY: the arguments are those of fi_getinfo.
        let mut request = match unsafe { hints.as_ref() } {
            // SAFETY: as above.
            Some(hints) => unsafe { Request::from_hints(hints)? },
            None => Request::unrestricted(),
        };
        // SAFETY: as above.
        if let Some(name) = unsafe { name_of(node, service)? } {
            let place = if flags & SOURCE != 0 { &mut request.source } else { &mut request.destination };
            *place = Some(name);
        }
        let mut first = std::ptr::null_mut();
        for &kind in request.types.iter().rev() {
            let info = request.info(kind);
            // SAFETY: `info` was just allocated.
            match unsafe { info.as_mut() } {
                Some(info) => info.next = first,
                None => return Err(libc::ENOMEM),
            }
            first = info;
        }
        // SAFETY: checked above.
        unsafe { *result = first };
        Ok(0)
    })
}
