//! Translates socket addresses between guest and host. Only Unix socket paths need translation. Source: bind(2),
//! unix(7).

use longma_guest::Errno;
use longma_guest::GuestMemory;

use crate::Process;
use crate::files::{Follow, ResolvedPath, Use};

/// sizeof(struct sockaddr_storage), the maximum length that the kernel accepts.
pub(super) const MAX_ADDRESS_BYTES: usize = 128;
/// The offset of the path in a Unix socket address.
const PATH: usize = 2;
/// sizeof(struct sockaddr_un).
const LOCAL_BYTES: usize = 110;
/// The prefix of host paths for sockets of a confined guest, see [`HostAddress::rewrite_for_host`].
const DESCRIPTORS: &[u8] = b"/proc/self/fd/";
/// The maximum number of remembered names, so that a guest cannot exhaust memory.
const MAX_NAMES: usize = 4096;

/// How a call uses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Binds a socket to a name that must not exist yet.
    Bind,
    /// Refers to another socket.
    Reach,
}

/// A socket address for the host.
#[derive(Debug)]
pub(super) struct HostAddress {
    bytes: [u8; MAX_ADDRESS_BYTES],
    length: u32,
    /// Kept open, because the path may refer to its descriptor.
    _place: Option<ResolvedPath>,
}

impl HostAddress {
    /// A buffer for an address that the host writes. `room` is the guest's buffer size.
    pub(super) fn empty(room: u32) -> Self {
        Self { bytes: [0; MAX_ADDRESS_BYTES], length: room.min(MAX_ADDRESS_BYTES as u32), _place: None }
    }

    /// Reads the address at `address`; `None` for a null pointer.
    pub(super) fn read(
        process: &Process,
        address: u64,
        length: u64,
        purpose: Purpose,
    ) -> Result<Option<Self>, Errno> {
        if address == 0 {
            return Ok(None);
        }
        let length = usize::try_from(length as i32).ok().filter(|&length| length <= MAX_ADDRESS_BYTES);
        let length = length.ok_or(Errno(libc::EINVAL))?;
        let mut host = Self::empty(length as u32);
        process.memory().read(address, &mut host.bytes[..length])?;
        host.rewrite_for_host(process, purpose)?;
        Ok(Some(host))
    }

    /// The path of a Unix socket address; `None` for other families and for unnamed or abstract addresses.
    fn path(&self) -> Option<&[u8]> {
        let bytes = &self.bytes[..(self.length as usize).min(MAX_ADDRESS_BYTES)];
        let is_local = bytes.get(..PATH)? == (libc::AF_UNIX as u16).to_le_bytes();
        let path = bytes[PATH..].split(|&byte| byte == 0).next().filter(|path| !path.is_empty());
        path.filter(|_| is_local)
    }

    /// Rewrites a confined guest's path to go through an emulator descriptor, which keeps it short and inside the root.
    fn rewrite_for_host(&mut self, process: &Process, purpose: Purpose) -> Result<(), Errno> {
        if !process.root.is_confined() {
            return Ok(());
        }
        let Some(path) = self.path().map(<[u8]>::to_vec) else { return Ok(()) };
        let (follow, used) = match purpose {
            Purpose::Bind => (Follow::No, Use::Name),
            Purpose::Reach => (Follow::Yes, Use::Look),
        };
        let place = ResolvedPath::for_use(process, libc::AT_FDCWD, &path, follow, used)?.whole()?;
        let host = place.path_bytes().to_vec();
        self.set_path(&host).ok_or(Errno(libc::ENAMETOOLONG))?;
        self._place = Some(place);
        if purpose == Purpose::Bind {
            let mut names = process.socket_names.lock();
            if names.len() < MAX_NAMES {
                names.insert(host, path);
            }
        }
        Ok(())
    }

    /// Replaces the path; `None` if it does not fit.
    fn set_path(&mut self, path: &[u8]) -> Option<()> {
        let end = PATH + path.len();
        if end >= LOCAL_BYTES {
            return None;
        }
        self.bytes[PATH..].fill(0);
        self.bytes[PATH..end].copy_from_slice(path);
        self.length = end as u32 + 1;
        Some(())
    }

    /// The host address of the bytes.
    pub(super) fn pointer(&mut self) -> u64 {
        self.bytes.as_mut_ptr() as u64
    }

    /// The host address of the length, an u32.
    pub(super) fn length_pointer(&mut self) -> u64 {
        &raw mut self.length as u64
    }

    /// The length of the address, which may exceed the buffer.
    pub(super) fn length(&self) -> u32 {
        self.length
    }

    /// Sets the length that the host returned.
    pub(super) fn set_length(&mut self, length: u32) {
        self.length = length;
    }

    /// Translates an address that the host wrote to the guest's name. For a socket that another process bound, a
    /// confined guest sees only the last component of the path.
    pub(super) fn rewrite_for_guest(&mut self, process: &Process) {
        let Some(host) = self.path().filter(|path| path.starts_with(DESCRIPTORS)) else { return };
        let host = host.to_vec();
        if !process.root.is_confined() {
            return;
        }
        let known = process.socket_names.lock().get(&host).cloned();
        let last = || {
            let cut = host.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
            host[cut..].to_vec()
        };
        let _ = self.set_path(&known.unwrap_or_else(last));
    }

    /// Writes the address to the guest, truncated to `room` bytes.
    pub(super) fn write(&self, memory: &GuestMemory, address: u64, room: u32) -> Result<(), Errno> {
        let bytes = self.length.min(room).min(MAX_ADDRESS_BYTES as u32);
        Ok(memory.write(address, &self.bytes[..bytes as usize])?)
    }
}
