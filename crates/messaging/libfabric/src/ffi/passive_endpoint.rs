//! Passive endpoints, which listen for connections, and the requests that they receive.

use super::address_vector::copy_address;
use super::event_queue::{Event, EventQueue, EventQueueObject};
use super::fabric::{self, Fabric};
use super::info;
use super::object::{Object, error_number, fid, fid_operations, give, object, read, status, take};
use crate::abi::constants::*;
use crate::abi::{Fid, FidEp, FidFabric, FidPep, Info, OpsCm, OpsEp, OpsFid, RxAttr, TxAttr};
use crate::core::address::{AddressFormat, Kind, Name};
use crate::core::log::{info, warning};
use longma_locks::IgnorePoison;
use longma_via::{ConnectionRequest, Error, Listener};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// The objects of a listening endpoint.
struct Listening {
    listener: Arc<Listener>,
    thread: JoinHandle<()>,
    /// The process that started the thread.
    creator_pid: u32,
}

#[repr(C)]
struct PassiveEndpointObject {
    fid: FidPep,
    fabric: Fabric,
    name: Mutex<Name>,
    format: AddressFormat,
    caps: u64,
    mr_mode: i32,
    events: Mutex<Option<Arc<EventQueue>>>,
    listening: Mutex<Option<Listening>>,
}

// SAFETY: the object begins with a `FidPep`, and only passive endpoints have this class.
unsafe impl Object for PassiveEndpointObject {
    const CLASS: usize = CLASS_PEP;
}

/// A connection request, which the program accepts with an endpoint, or rejects.
#[repr(C)]
pub(super) struct RequestObject {
    fid: Fid,
    request: Mutex<Option<ConnectionRequest>>,
}

// SAFETY: the object begins with a `Fid`, and only connection requests have this class.
unsafe impl Object for RequestObject {
    const CLASS: usize = CLASS_CONNREQ;
}

static FID: OpsFid = OpsFid { bind, control, ..fid_operations(close) };
static REQUEST_FID: OpsFid = fid_operations(close_request);
static OPERATIONS: OpsEp = OpsEp {
    size: size_of::<OpsEp>(),
    cancel: no_cancel,
    getopt,
    setopt: no_setopt,
    tx_ctx: no_tx_ctx,
    rx_ctx: no_rx_ctx,
    rx_size_left: no_size_left,
    tx_size_left: no_size_left,
};
static CONNECTIONS: OpsCm = OpsCm {
    size: size_of::<OpsCm>(),
    setname,
    getname,
    getpeer: no_getpeer,
    connect: no_connect,
    listen,
    accept: no_accept,
    reject,
    shutdown: no_shutdown,
    join: no_join,
};

unsupported! {
    no_cancel(*mut Fid, *mut c_void) -> isize;
    no_setopt(*mut Fid, i32, i32, *const c_void, usize) -> i32;
    no_tx_ctx(*mut FidEp, i32, *mut TxAttr, *mut *mut FidEp, *mut c_void) -> i32;
    no_rx_ctx(*mut FidEp, i32, *mut RxAttr, *mut *mut FidEp, *mut c_void) -> i32;
    no_size_left(*mut FidEp) -> isize;
    no_getpeer(*mut FidEp, *mut c_void, *mut usize) -> i32;
    no_connect(*mut FidEp, *const c_void, *const c_void, usize) -> i32;
    no_accept(*mut FidEp, *const c_void, usize) -> i32;
    no_shutdown(*mut FidEp, u64) -> i32;
    no_join(*mut FidEp, *const c_void, u64, *mut *mut c_void, *mut c_void) -> i32;
}

/// `fi_passive_ep`.
pub(super) unsafe extern "C" fn open(
    fabric: *mut FidFabric,
    info: *mut Info,
    result: *mut *mut FidPep,
    context: *mut c_void,
) -> i32 {
    status(|| {
        // SAFETY: fi_passive_ep requires valid arguments, here and in the blocks below.
        let (fabric, info) = unsafe { (fabric::get(fabric)?, read(info)?) };
        // SAFETY: the attributes are null or those of the information, here and in the blocks below.
        let (kind, mr_mode) = unsafe {
            let kind = info.ep_attr.as_ref().map_or(EP_UNSPEC, |attributes| attributes.r#type);
            (kind, info.domain_attr.as_ref().map_or(0, |attributes| attributes.mr_mode))
        };
        if !matches!(kind, EP_UNSPEC | EP_MSG) {
            return Err(libc::EINVAL);
        }
        let format = info::address_format(info.addr_format).ok_or(libc::EINVAL)?;
        let name = match info.src_addr.is_null() || info.src_addrlen == 0 {
            true => Name::random(),
            false => {
                // SAFETY: as above.
                let address =
                    unsafe { std::slice::from_raw_parts(info.src_addr.cast::<u8>(), info.src_addrlen) };
                Name::from_address(format, address).ok_or(libc::EINVAL)?
            }
        };
        let object = PassiveEndpointObject {
            fid: FidPep {
                fid: fid(CLASS_PEP, context, &FID),
                ops: &raw const OPERATIONS,
                cm: &raw const CONNECTIONS,
            },
            fabric,
            name: Mutex::new(name),
            format,
            caps: info.caps,
            mr_mode,
            events: Mutex::new(None),
            listening: Mutex::new(None),
        };
        // SAFETY: as above.
        unsafe { give(object, result) }
    })
}

unsafe extern "C" fn bind(fid: *mut Fid, queue: *mut Fid, _flags: u64) -> i32 {
    status(|| {
        // SAFETY: fi_pep_bind requires valid arguments.
        let (endpoint, queue) =
            unsafe { (object::<PassiveEndpointObject>(fid)?, object::<EventQueueObject>(queue)?) };
        *endpoint.events.lock().ignore_poison() = Some(queue.queue.clone());
        Ok(0)
    })
}

/// `FI_BACKLOG` has no effect: the number of requests that wait is limited for each user.
unsafe extern "C" fn control(_: *mut Fid, command: i32, _: *mut c_void) -> i32 {
    if command == BACKLOG { 0 } else { -libc::ENOSYS }
}

unsafe extern "C" fn close(fid: *mut Fid) -> i32 {
    status(|| {
        // SAFETY: fi_close requires a valid argument.
        let endpoint = unsafe { take::<PassiveEndpointObject>(fid)? };
        let listening = endpoint.listening.lock().ignore_poison().take();
        if let Some(Listening { listener, thread, creator_pid }) = listening {
            if std::process::id() != creator_pid {
                // A forked child does not have the thread, and the parent still listens.
                std::mem::forget(thread);
                return Ok(0);
            }
            listener.close();
            let _ = thread.join();
            endpoint.fabric.names.lock().ignore_poison().remove(&*endpoint.name.lock().ignore_poison());
        }
        Ok(0)
    })
}

/// The thread of an endpoint that listens.
struct Acceptor {
    listener: Arc<Listener>,
    /// The event queue object has the strong reference. A strong reference here would keep the queue alive in a forked
    /// child, where the thread does not run.
    events: Weak<EventQueue>,
    own: Name,
    format: AddressFormat,
    caps: u64,
    mr_mode: i32,
    /// The address of the object, which lives longer than the thread.
    endpoint: usize,
}

impl Acceptor {
    fn run(self) {
        loop {
            match self.listener.wait(None) {
                Ok(request) => self.announce(request),
                Err(Error::InvalidState(_)) => return,
                Err(error) => {
                    warning!("{} cannot accept connections: {error}", self.own);
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    fn announce(&self, request: ConnectionRequest) {
        // Without the queue, the request is refused.
        let Some(events) = self.events.upgrade() else { return };
        let peer = Name::from_via_address(Kind::Connected, request.remote());
        let object = RequestObject {
            fid: fid(CLASS_CONNREQ, std::ptr::null_mut(), &REQUEST_FID),
            request: Mutex::new(Some(request)),
        };
        let handle = Box::into_raw(Box::new(object)).cast::<Fid>();
        let info = info::of_request(self.caps, self.format, self.own, peer, self.mr_mode, handle);
        if info.is_null() {
            info!("a connection request is dropped: no memory");
            // SAFETY: the request was just created.
            drop(unsafe { take::<RequestObject>(handle) });
            return;
        }
        let endpoint = std::ptr::with_exposed_provenance_mut(self.endpoint);
        events.push(Event::connection(EVENT_CONNREQ, endpoint, info));
    }
}

unsafe extern "C" fn listen(pointer: *mut FidPep) -> i32 {
    status(|| {
        // SAFETY: the argument of fi_listen.
        let endpoint = unsafe { object::<PassiveEndpointObject>(pointer)? };
        let events = endpoint.events.lock().ignore_poison().clone().ok_or(ENOEQ)?;
        let mut listening = endpoint.listening.lock().ignore_poison();
        if listening.is_some() {
            return Err(EOPBADSTATE);
        }
        let own = *endpoint.name.lock().ignore_poison();
        let refused = |error: Error| {
            warning!("fi_listen: {own}: {error}");
            error_number(&error)
        };
        if !endpoint.fabric.names.lock().ignore_poison().insert(own) {
            return Err(libc::EADDRINUSE);
        }
        let start = || {
            let listener = Arc::new(endpoint.fabric.nic.listen(&own.via_address(Kind::Connected))?);
            let acceptor = Acceptor {
                listener: listener.clone(),
                events: Arc::downgrade(&events),
                own,
                format: endpoint.format,
                caps: endpoint.caps,
                mr_mode: endpoint.mr_mode,
                endpoint: pointer.expose_provenance(),
            };
            let thread = std::thread::Builder::new().name("longma-listen".into());
            let thread = thread.spawn(move || acceptor.run());
            let thread = thread.map_err(|error| Error::system("starting a thread that listens", error))?;
            Ok(Listening { listener, thread, creator_pid: std::process::id() })
        };
        match start() {
            Ok(started) => *listening = Some(started),
            Err(error) => {
                endpoint.fabric.names.lock().ignore_poison().remove(&own);
                return Err(refused(error));
            }
        }
        Ok(0)
    })
}

/// Takes the request of a handle in the information for an endpoint.
///
/// # Errors
/// `EINVAL` if it is no request, or was used before.
pub(super) unsafe fn take_request(handle: *mut Fid) -> Result<ConnectionRequest, i32> {
    // SAFETY: the handle of the program's information.
    let object = unsafe { take::<RequestObject>(handle)? };
    let request = object.request.lock().ignore_poison().take();
    request.ok_or(libc::EINVAL)
}

unsafe extern "C" fn close_request(fid: *mut Fid) -> i32 {
    // SAFETY: fi_close requires a valid argument.
    status(|| unsafe { take::<RequestObject>(fid).map(|_| 0) })
}

unsafe extern "C" fn reject(
    pointer: *mut FidPep,
    handle: *mut Fid,
    _data: *const c_void,
    _length: usize,
) -> i32 {
    status(|| {
        // SAFETY: fi_reject requires valid arguments.
        unsafe {
            object::<PassiveEndpointObject>(pointer)?;
            take_request(handle)?.reject();
        }
        Ok(0)
    })
}

unsafe extern "C" fn getopt(
    _fid: *mut Fid,
    level: i32,
    option: i32,
    value: *mut c_void,
    length: *mut usize,
) -> i32 {
    status(|| {
        if (level, option) != (OPT_ENDPOINT, OPT_CM_DATA_SIZE) {
            return Err(libc::ENOPROTOOPT);
        }
        // SAFETY: fi_getopt requires valid arguments, here and in the blocks below.
        let length = unsafe { length.as_mut() }.ok_or(libc::EINVAL)?;
        if value.is_null() || *length < size_of::<usize>() {
            return Err(ETOOSMALL);
        }
        *length = size_of::<usize>();
        // SAFETY: as above.
        unsafe { value.cast::<usize>().write_unaligned(0) };
        Ok(0)
    })
}

unsafe extern "C" fn setname(fid: *mut Fid, address: *mut c_void, length: usize) -> i32 {
    status(|| {
        // SAFETY: fi_setname requires valid arguments, here and in the blocks below.
        let endpoint = unsafe { object::<PassiveEndpointObject>(fid)? };
        if address.is_null() || length == 0 {
            return Err(libc::EINVAL);
        }
        if endpoint.listening.lock().ignore_poison().is_some() {
            return Err(EOPBADSTATE);
        }
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) };
        let name = Name::from_address(endpoint.format, bytes).ok_or(libc::EINVAL)?;
        *endpoint.name.lock().ignore_poison() = name;
        Ok(0)
    })
}

unsafe extern "C" fn getname(fid: *mut Fid, address: *mut c_void, length: *mut usize) -> i32 {
    status(|| {
        // SAFETY: fi_getname requires valid arguments, here and in the blocks below.
        let endpoint = unsafe { object::<PassiveEndpointObject>(fid)? };
        let name = *endpoint.name.lock().ignore_poison();
        // SAFETY: as above.
        unsafe { copy_address(name, endpoint.format, address, length, false) }
    })
}
