//! Endpoints: creation, bindings, options, names.

use super::address_vector::{AddressVectorObject, address_bytes, copy_address};
use super::completion_queue::CompletionQueueObject;
use super::counter::CounterObject;
use super::domain::{Domain, DomainObject};
use super::event_queue::{Event, EventQueue, EventQueueObject};
use super::object::{Object, error_number, fid, fid_operations, give, object, read, result, status, take};
use super::passive_endpoint::take_request;
use super::{atomic, message, remote_memory, tagged};
use crate::abi::constants::*;
use crate::abi::{Fid, FidDomain, FidEp, FidPep, Info, OpsCm, OpsEp, OpsFid, RxAttr, TxAttr};
use crate::core::address::{Kind, Name};
use crate::core::address_vector::AddressVector;
use crate::core::completion::CompletionQueue;
use crate::core::counter::Counter;
use crate::core::endpoint::Endpoint;
use crate::core::environment;
use crate::core::log::warning;
use crate::core::state::{MAX_WAITING, Notice, Notify, Setup};
use longma_locks::IgnorePoison;
use longma_via::ConnectionRequest;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The default of the free space below which a buffer of several messages is released, bytes.
const MIN_MULTI_RECV: usize = 64;

/// Objects that are bound to an endpoint before it is enabled.
#[derive(Default)]
struct Bindings {
    vector: Option<Arc<AddressVector>>,
    transmit: Option<Arc<CompletionQueue>>,
    receive: Option<Arc<CompletionQueue>>,
    counters: Vec<(u64, Arc<Counter>)>,
    events: Option<Arc<EventQueue>>,
}

#[repr(C)]
pub(super) struct EndpointObject {
    fid: FidEp,
    domain: Arc<Domain>,
    name: Mutex<Name>,
    caps: u64,
    /// Whether the endpoint is of type MSG.
    is_connected: bool,
    /// The connection request that it was created for.
    request: Mutex<Option<ConnectionRequest>>,
    peer: Mutex<Option<Name>>,
    bindings: Mutex<Bindings>,
    endpoint: OnceLock<Arc<Endpoint>>,
    /// Flags of operations that specify none.
    pub(super) send_flags: AtomicU64,
    pub(super) receive_flags: AtomicU64,
    /// Whether only operations with `COMPLETION` are reported.
    pub(super) selects_sends: AtomicBool,
    pub(super) selects_receives: AtomicBool,
    pub(super) min_multi_recv: AtomicUsize,
}

// SAFETY: the object begins with a `FidEp`, and only endpoints have this class.
unsafe impl Object for EndpointObject {
    const CLASS: usize = CLASS_EP;
}

static FID: OpsFid = OpsFid { bind, control, ..fid_operations(close) };
static OPERATIONS: OpsEp = OpsEp {
    size: size_of::<OpsEp>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: no_tx_ctx,
    rx_ctx: no_rx_ctx,
    rx_size_left: size_left,
    tx_size_left: size_left,
};
static CONNECTIONS: OpsCm = OpsCm {
    size: size_of::<OpsCm>(),
    setname,
    getname,
    getpeer,
    connect,
    listen: no_listen,
    accept,
    reject: no_reject,
    shutdown,
    join: no_join,
};

unsupported! {
    no_tx_ctx(*mut FidEp, i32, *mut TxAttr, *mut *mut FidEp, *mut c_void) -> i32;
    no_rx_ctx(*mut FidEp, i32, *mut RxAttr, *mut *mut FidEp, *mut c_void) -> i32;
    no_listen(*mut FidPep) -> i32;
    no_reject(*mut FidPep, *mut Fid, *const c_void, usize) -> i32;
    no_join(*mut FidEp, *const c_void, u64, *mut *mut c_void, *mut c_void) -> i32;
}

/// `fi_endpoint`.
pub(super) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    info: *mut Info,
    result: *mut *mut FidEp,
    context: *mut c_void,
) -> i32 {
    status(|| {
        // SAFETY: fi_endpoint requires valid arguments, here and in the blocks below.
        let (domain, info) = unsafe { (object::<DomainObject>(domain)?.domain.clone(), read(info)?) };
        // SAFETY: the attributes are null or those of the information, here and in the blocks below.
        let kind = unsafe { info.ep_attr.as_ref() }.map_or(EP_UNSPEC, |attributes| attributes.r#type);
        if !matches!(kind, EP_UNSPEC | EP_RDM | EP_MSG) {
            return Err(libc::EINVAL);
        }
        let name = match info.src_addr.is_null() || info.src_addrlen == 0 {
            true => Name::random(),
            false => {
                // SAFETY: as above.
                let address =
                    unsafe { std::slice::from_raw_parts(info.src_addr.cast::<u8>(), info.src_addrlen) };
                Name::from_address(domain.format, address).ok_or(libc::EINVAL)?
            }
        };
        // SAFETY: as above.
        let (send_flags, receive_flags) = unsafe {
            let of_sends = info.tx_attr.as_ref().map_or(0, |attributes| attributes.op_flags);
            (of_sends, info.rx_attr.as_ref().map_or(0, |attributes| attributes.op_flags))
        };
        let is_connected = kind == EP_MSG;
        // An endpoint for a connection request gets a new name, because the name in the information belongs to the
        // listener.
        let (name, request, peer) = match is_connected && !info.handle.is_null() {
            true => {
                // SAFETY: as above.
                let request = unsafe { take_request(info.handle)? };
                let peer = Name::from_via_address(Kind::Connected, request.remote());
                (Name::random(), Some(request), peer)
            }
            false => (name, None, None),
        };
        let object = EndpointObject {
            is_connected,
            request: Mutex::new(request),
            peer: Mutex::new(peer),
            fid: FidEp {
                fid: fid(CLASS_EP, context, &FID),
                ops: &raw const OPERATIONS,
                cm: &raw const CONNECTIONS,
                msg: &raw const message::OPERATIONS,
                rma: &raw const remote_memory::OPERATIONS,
                tagged: &raw const tagged::OPERATIONS,
                atomic: &raw const atomic::OPERATIONS,
                collective: std::ptr::null(),
            },
            domain,
            name: Mutex::new(name),
            caps: info.caps,
            bindings: Mutex::default(),
            endpoint: OnceLock::new(),
            send_flags: AtomicU64::new(send_flags),
            receive_flags: AtomicU64::new(receive_flags),
            selects_sends: AtomicBool::new(false),
            selects_receives: AtomicBool::new(false),
            min_multi_recv: AtomicUsize::new(MIN_MULTI_RECV),
        };
        // SAFETY: as above.
        unsafe { give(object, result) }
    })
}

/// `fi_endpoint2`, which has no flags here.
pub(super) unsafe extern "C" fn open_with_flags(
    domain: *mut FidDomain,
    info: *mut Info,
    result: *mut *mut FidEp,
    flags: u64,
    context: *mut c_void,
) -> i32 {
    if flags != 0 {
        return -EBADFLAGS;
    }
    // SAFETY: fi_endpoint requires valid arguments.
    unsafe { open(domain, info, result, context) }
}

impl EndpointObject {
    /// The endpoint, which must be enabled.
    ///
    /// # Errors
    /// `EOPBADSTATE`.
    #[inline]
    pub(super) fn enabled(&self) -> Result<&Arc<Endpoint>, i32> {
        self.endpoint.get().ok_or(EOPBADSTATE)
    }

    /// Whether receives name the source.
    pub(super) fn is_directed(&self) -> bool {
        self.caps & DIRECTED_RECV != 0
    }

    fn bind(&self, other: *mut Fid, flags: u64) -> Result<usize, i32> {
        if self.endpoint.get().is_some() {
            return Err(EOPBADSTATE);
        }
        let mut bindings = self.bindings.lock().ignore_poison();
        // SAFETY: the argument of fi_ep_bind; the class is checked.
        let class = unsafe { read(other)? }.fclass;
        match class {
            CLASS_AV => {
                // SAFETY: as above, here and in the blocks below.
                bindings.vector = Some(unsafe { object::<AddressVectorObject>(other)? }.vector.clone());
            }
            CLASS_CQ => {
                // SAFETY: as above.
                let queue = unsafe { &object::<CompletionQueueObject>(other)?.queue };
                if flags & !(SEND | RECV | SELECTIVE_COMPLETION) != 0 {
                    return Err(EBADFLAGS);
                }
                if flags & (SEND | RECV) == 0 {
                    return Err(libc::EINVAL);
                }
                let selects = flags & SELECTIVE_COMPLETION != 0;
                if flags & SEND != 0 {
                    bindings.transmit = Some(queue.clone());
                    self.selects_sends.store(selects, Ordering::Relaxed);
                }
                if flags & RECV != 0 {
                    bindings.receive = Some(queue.clone());
                    self.selects_receives.store(selects, Ordering::Relaxed);
                }
            }
            CLASS_CNTR => {
                // SAFETY: as above.
                let counter = unsafe { &object::<CounterObject>(other)?.counter };
                if flags & !(SEND | RECV | READ | WRITE | REMOTE_READ | REMOTE_WRITE) != 0 {
                    return Err(EBADFLAGS);
                }
                bindings.counters.push((flags, counter.clone()));
            }
            CLASS_EQ => {
                // SAFETY: as above.
                bindings.events = Some(unsafe { object::<EventQueueObject>(other)? }.queue.clone());
            }
            _ => return Err(libc::EINVAL),
        }
        Ok(0)
    }

    fn enable(&self) -> Result<usize, i32> {
        if self.endpoint.get().is_some() {
            return Err(EOPBADSTATE);
        }
        let bindings = self.bindings.lock().ignore_poison();
        let sends = self.caps & (SEND | READ | WRITE) != 0;
        let counts = |kinds: u64| bindings.counters.iter().any(|(counted, _)| counted & kinds != 0);
        if sends && bindings.transmit.is_none() && !counts(SEND | READ | WRITE) {
            return Err(ENOCQ);
        }
        if self.caps & RECV != 0 && bindings.receive.is_none() && !counts(RECV) {
            return Err(ENOCQ);
        }
        let setup = Setup {
            name: *self.name.lock().ignore_poison(),
            vector: match self.is_connected {
                true => None,
                false => Some(bindings.vector.clone().ok_or(ENOAV)?),
            },
            transmit: bindings.transmit.clone(),
            receive: bindings.receive.clone(),
            counters: bindings.counters.clone(),
            max_unexpected: environment::unexpected_bytes(),
            notify: match (&bindings.events, self.is_connected) {
                (_, false) => None,
                (None, true) => return Err(ENOEQ),
                (Some(events), true) => Some(self.notify(events.clone())),
            },
        };
        let name = setup.name;
        let endpoint = Endpoint::open(setup, &self.domain.shared).map_err(|error| {
            warning!("fi_enable: {name}: {error}");
            error_number(&error)
        })?;
        for queue in bindings.transmit.iter().chain(&bindings.receive) {
            queue.watched.add(&endpoint);
        }
        for (_, counter) in &bindings.counters {
            counter.watched.add(&endpoint);
        }
        if let (true, Some(events)) = (self.is_connected, &bindings.events) {
            events.watched.add(&endpoint);
        }
        self.domain.add_endpoint(&endpoint);
        self.endpoint.set(endpoint).map_err(|_| EOPBADSTATE)?;
        Ok(0)
    }

    fn close(&self) {
        let Some(endpoint) = self.endpoint.get() else { return };
        endpoint.close();
        let bindings = self.bindings.lock().ignore_poison();
        for queue in bindings.transmit.iter().chain(&bindings.receive) {
            queue.watched.remove(endpoint);
        }
        for (_, counter) in &bindings.counters {
            counter.watched.remove(endpoint);
        }
        if let Some(events) = &bindings.events {
            events.watched.remove(endpoint);
        }
    }

    /// Reports changes of the connection to an event queue.
    fn notify(&self, events: Arc<EventQueue>) -> Notify {
        let fid = (&raw const self.fid.fid).expose_provenance();
        let context = self.fid.fid.context.expose_provenance();
        Box::new(move |notice| {
            let fid: *mut Fid = std::ptr::with_exposed_provenance_mut(fid);
            events.push(match notice {
                Notice::Connected => Event::connection(EVENT_CONNECTED, fid, std::ptr::null_mut()),
                Notice::Ended => Event::connection(EVENT_SHUTDOWN, fid, std::ptr::null_mut()),
                Notice::Failed(failure) => {
                    Event::failed(fid, std::ptr::with_exposed_provenance_mut(context), failure)
                }
            });
        })
    }
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> i32 {
    // SAFETY: fi_ep_bind requires valid arguments.
    status(|| unsafe { object::<EndpointObject>(fid) }?.bind(other, flags))
}

unsafe extern "C" fn control(fid: *mut Fid, command: i32, argument: *mut c_void) -> i32 {
    status(|| {
        // SAFETY: fi_control requires valid arguments, here and in the blocks below.
        let endpoint = unsafe { object::<EndpointObject>(fid)? };
        if command == ENABLE {
            return endpoint.enable();
        }
        // SAFETY: both other commands have 64 bits of flags.
        let flags = unsafe { argument.cast::<u64>().as_mut() }.ok_or(libc::EINVAL)?;
        let place = match *flags & (SEND | RECV) {
            SEND => &endpoint.send_flags,
            RECV => &endpoint.receive_flags,
            _ => return Err(libc::EINVAL),
        };
        match command {
            GETOPSFLAG => *flags = place.load(Ordering::Relaxed),
            SETOPSFLAG => place.store(*flags & !(SEND | RECV), Ordering::Relaxed),
            _ => return Err(libc::ENOSYS),
        }
        Ok(0)
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> i32 {
    status(|| {
        // SAFETY: fi_close requires a valid argument.
        unsafe { take::<EndpointObject>(fid) }?.close();
        Ok(0)
    })
}

unsafe extern "C" fn cancel(fid: *mut Fid, context: *mut c_void) -> isize {
    result(|| {
        // SAFETY: fi_cancel requires valid arguments.
        let endpoint = unsafe { object::<EndpointObject>(fid)? }.enabled()?;
        match endpoint.state().cancel(context.expose_provenance()) {
            true => Ok(0),
            false => Err(libc::ENOENT),
        }
    })
}

unsafe extern "C" fn getopt(
    fid: *mut Fid,
    level: i32,
    option: i32,
    value: *mut c_void,
    length: *mut usize,
) -> i32 {
    status(|| {
        // SAFETY: fi_getopt requires valid arguments, here and in the blocks below.
        let (endpoint, length) =
            unsafe { (object::<EndpointObject>(fid)?, length.as_mut().ok_or(libc::EINVAL)?) };
        let found = match (level, option) {
            (OPT_ENDPOINT, OPT_MIN_MULTI_RECV) => endpoint.min_multi_recv.load(Ordering::Relaxed),
            (OPT_ENDPOINT, OPT_CM_DATA_SIZE) => 0,
            _ => return Err(libc::ENOPROTOOPT),
        };
        if value.is_null() || *length < size_of::<usize>() {
            return Err(ETOOSMALL);
        }
        *length = size_of::<usize>();
        // SAFETY: as above.
        unsafe { value.cast::<usize>().write_unaligned(found) };
        Ok(0)
    })
}

unsafe extern "C" fn setopt(
    fid: *mut Fid,
    level: i32,
    option: i32,
    value: *const c_void,
    length: usize,
) -> i32 {
    status(|| {
        // SAFETY: fi_setopt requires valid arguments, here and in the blocks below.
        let endpoint = unsafe { object::<EndpointObject>(fid)? };
        if (level, option) != (OPT_ENDPOINT, OPT_MIN_MULTI_RECV) {
            return Err(libc::ENOPROTOOPT);
        }
        if value.is_null() || length != size_of::<usize>() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as above.
        let value = unsafe { value.cast::<usize>().read_unaligned() };
        endpoint.min_multi_recv.store(value, Ordering::Relaxed);
        Ok(0)
    })
}

unsafe extern "C" fn size_left(_: *mut FidEp) -> isize {
    MAX_WAITING as isize
}

unsafe extern "C" fn setname(fid: *mut Fid, address: *mut c_void, length: usize) -> i32 {
    status(|| {
        // SAFETY: fi_setname requires valid arguments, here and in the blocks below.
        let endpoint = unsafe { object::<EndpointObject>(fid)? };
        if address.is_null() || length == 0 {
            return Err(libc::EINVAL);
        }
        if endpoint.endpoint.get().is_some() {
            return Err(EOPBADSTATE);
        }
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) };
        let name = Name::from_address(endpoint.domain.format, bytes).ok_or(libc::EINVAL)?;
        *endpoint.name.lock().ignore_poison() = name;
        Ok(0)
    })
}

unsafe extern "C" fn getname(fid: *mut Fid, address: *mut c_void, length: *mut usize) -> i32 {
    status(|| {
        // SAFETY: fi_getname requires valid arguments, here and in the blocks below.
        let endpoint = unsafe { object::<EndpointObject>(fid)? };
        let name = *endpoint.name.lock().ignore_poison();
        // SAFETY: as above.
        unsafe { copy_address(name, endpoint.domain.format, address, length, false) }
    })
}

/// Connection requests carry no data (`FI_OPT_CM_DATA_SIZE` is 0).
fn check_data(length: usize) -> Result<(), i32> {
    if length == 0 { Ok(()) } else { Err(libc::EINVAL) }
}

unsafe extern "C" fn connect(
    endpoint: *mut FidEp,
    address: *const c_void,
    _data: *const c_void,
    length: usize,
) -> i32 {
    status(|| {
        check_data(length)?;
        // SAFETY: fi_connect requires valid arguments, here and in the blocks below.
        let endpoint = unsafe { object::<EndpointObject>(endpoint)? };
        if !endpoint.is_connected {
            return Err(libc::ENOSYS);
        }
        // SAFETY: as above.
        let bytes = unsafe { address_bytes(endpoint.domain.format, address.cast())? };
        let peer = Name::from_address(endpoint.domain.format, bytes).ok_or(libc::EINVAL)?;
        if endpoint.endpoint.get().is_none() {
            endpoint.enable()?;
        }
        *endpoint.peer.lock().ignore_poison() = Some(peer);
        endpoint.enabled()?.connect_to(peer).map(|()| 0)
    })
}

unsafe extern "C" fn accept(endpoint: *mut FidEp, _data: *const c_void, length: usize) -> i32 {
    status(|| {
        check_data(length)?;
        // SAFETY: the argument of fi_accept.
        let endpoint = unsafe { object::<EndpointObject>(endpoint)? };
        if endpoint.endpoint.get().is_none() {
            endpoint.enable()?;
        }
        let request = endpoint.request.lock().ignore_poison().take().ok_or(EOPBADSTATE)?;
        endpoint.enabled()?.accept(request).map(|()| 0)
    })
}

unsafe extern "C" fn shutdown(endpoint: *mut FidEp, _flags: u64) -> i32 {
    status(|| {
        // SAFETY: the argument of fi_shutdown.
        let endpoint = unsafe { object::<EndpointObject>(endpoint)? };
        if !endpoint.is_connected {
            return Err(libc::ENOSYS);
        }
        endpoint.enabled()?.shut_down().map(|()| 0)
    })
}

unsafe extern "C" fn getpeer(endpoint: *mut FidEp, address: *mut c_void, length: *mut usize) -> i32 {
    status(|| {
        // SAFETY: fi_getpeer requires valid arguments, here and in the blocks below.
        let endpoint = unsafe { object::<EndpointObject>(endpoint)? };
        let peer = (*endpoint.peer.lock().ignore_poison()).ok_or(libc::ENOTCONN)?;
        // SAFETY: as above.
        unsafe { copy_address(peer, endpoint.domain.format, address, length, false) }
    })
}
