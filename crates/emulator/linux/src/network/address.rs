//! Translates socket addresses between guest and host. Only Unix socket paths need translation. Source: bind(2),
//! unix(7).

use longma_guest::Errno;
use longma_guest::GuestMemory;

use crate::Process;
use crate::files::{Follow, PathUse, ResolvedPath};

/// sizeof(struct sockaddr_storage), the maximum length that the kernel accepts.
pub(super) const MAX_ADDRESS_BYTES: usize = 128;
/// The offset of the path in a Unix socket address.
const SUN_PATH_OFFSET: usize = 2;
/// sizeof(struct sockaddr_un).
const SOCKADDR_UN_BYTES: usize = 110;
/// The prefix of host paths for sockets of a confined guest, see [`HostAddress::rewrite_for_host`].
const PROC_FD_PREFIX: &[u8] = b"/proc/self/fd/";
/// The maximum number of remembered names, so that a guest cannot exhaust memory.
const MAX_NAMES: usize = 4096;

/// How a call uses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressUse {
    /// The address to bind to. Its path must not exist.
    Bind,
    /// The address of another socket, as in connect(2) and sendto(2).
    Destination,
}

/// A socket address for the host.
#[derive(Debug)]
pub(super) struct HostAddress {
    bytes: [u8; MAX_ADDRESS_BYTES],
    length: u32,
    /// Keeps open the descriptor that the path may name.
    _resolved: Option<ResolvedPath>,
}

impl HostAddress {
    /// A buffer for an address that the host writes. `buffer_length` is the guest's buffer size.
    pub(super) fn empty(buffer_length: u32) -> Self {
        Self {
            bytes: [0; MAX_ADDRESS_BYTES],
            length: buffer_length.min(MAX_ADDRESS_BYTES as u32),
            _resolved: None,
        }
    }

    /// Reads the address at `address`; `None` for a null pointer.
    pub(super) fn read(
        process: &Process,
        address: u64,
        length: u64,
        purpose: AddressUse,
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
        let is_unix = bytes.get(..SUN_PATH_OFFSET)? == (libc::AF_UNIX as u16).to_le_bytes();
        let path = bytes[SUN_PATH_OFFSET..].split(|&byte| byte == 0).next().filter(|path| !path.is_empty());
        path.filter(|_| is_unix)
    }

    /// Rewrites a confined guest's path to `/proc/self/fd/N/NAME`, which fits into `sun_path` and cannot leave the
    /// root.
    fn rewrite_for_host(&mut self, process: &Process, purpose: AddressUse) -> Result<(), Errno> {
        if !process.root.is_confined() {
            return Ok(());
        }
        let Some(path) = self.path().map(<[u8]>::to_vec) else { return Ok(()) };
        let (follow, used) = match purpose {
            AddressUse::Bind => (Follow::No, PathUse::Name),
            AddressUse::Destination => (Follow::Yes, PathUse::Read),
        };
        let resolved = ResolvedPath::for_use(process, libc::AT_FDCWD, &path, follow, used)?.joined()?;
        let host = resolved.path_bytes().to_vec();
        self.set_path(&host).ok_or(Errno(libc::ENAMETOOLONG))?;
        self._resolved = Some(resolved);
        if purpose == AddressUse::Bind {
            let mut names = process.socket_names.lock();
            if names.len() < MAX_NAMES {
                names.insert(host, path);
            }
        }
        Ok(())
    }

    /// Replaces the path; `None` if it does not fit.
    fn set_path(&mut self, path: &[u8]) -> Option<()> {
        let end = SUN_PATH_OFFSET + path.len();
        if end >= SOCKADDR_UN_BYTES {
            return None;
        }
        self.bytes[SUN_PATH_OFFSET..].fill(0);
        self.bytes[SUN_PATH_OFFSET..end].copy_from_slice(path);
        self.length = end as u32 + 1;
        Some(())
    }

    /// The host address of the bytes.
    pub(super) fn pointer(&mut self) -> u64 {
        self.bytes.as_mut_ptr() as u64
    }

    /// The host address of the length, a u32.
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

    /// Replaces the host path in an address that the host returned with the path that the guest bound. For a socket
    /// that another process bound, a confined guest sees only the last component of the path.
    pub(super) fn rewrite_for_guest(&mut self, process: &Process) {
        let Some(host) = self.path().filter(|path| path.starts_with(PROC_FD_PREFIX)) else { return };
        let host = host.to_vec();
        if !process.root.is_confined() {
            return;
        }
        let guest_name = process.socket_names.lock().get(&host).cloned();
        let last = || {
            let cut = host.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
            host[cut..].to_vec()
        };
        let _ = self.set_path(&guest_name.unwrap_or_else(last));
    }

    /// Writes the address to the guest, truncated to `buffer_length` bytes.
    pub(super) fn write(&self, memory: &GuestMemory, address: u64, buffer_length: u32) -> Result<(), Errno> {
        let bytes = self.length.min(buffer_length).min(MAX_ADDRESS_BYTES as u32);
        Ok(memory.write(address, &self.bytes[..bytes as usize])?)
    }
}
