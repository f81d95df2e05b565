//! Socket addresses on their way between guest and host.
//! Not their families: all but the local one go through as they are.
//! Source: bind(2), unix(7).

use longma_guest::Errno;
use longma_guest::GuestMemory;

use crate::Process;
use crate::files::{Follow, Place, Use};

/// sizeof(struct sockaddr_storage): the kernel takes none that is longer.
pub(super) const LONGEST: usize = 128;
/// Where the path of a local address begins, after the family.
const PATH: usize = 2;
/// sizeof(struct sockaddr_un).
const LOCAL_BYTES: usize = 110;
/// How the host's names for the sockets of a confined guest begin, see [`HostAddress::lead_into_root`].
const DESCRIPTORS: &[u8] = b"/proc/self/fd/";
/// More names than this are not remembered: a guest could make them grow without end.
const MOST_NAMES: usize = 4096;

/// What the address of a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A name for a socket, which must not exist yet.
    Bind,
    /// The name of another socket.
    Reach,
}

/// A socket address for the host.
#[derive(Debug)]
pub(super) struct HostAddress {
    bytes: [u8; LONGEST],
    length: u32,
    /// Kept open: the address may lead through it.
    _place: Option<Place>,
}

impl HostAddress {
    /// Room for one that the host writes; `room` is what the guest has for it.
    pub(super) fn empty(room: u32) -> Self {
        Self { bytes: [0; LONGEST], length: room.min(LONGEST as u32), _place: None }
    }

    /// The address at `address`, `None` for a null pointer.
    pub(super) fn read(
        process: &Process,
        address: u64,
        length: u64,
        purpose: Purpose,
    ) -> Result<Option<Self>, Errno> {
        if address == 0 {
            return Ok(None);
        }
        let length = usize::try_from(length as i32).ok().filter(|&length| length <= LONGEST);
        let length = length.ok_or(Errno(libc::EINVAL))?;
        let mut host = Self::empty(length as u32);
        process.memory().read(address, &mut host.bytes[..length])?;
        host.lead_into_root(process, purpose)?;
        Ok(Some(host))
    }

    /// The path of a local address; `None` for other families, and for local ones without a name in the file system.
    fn path(&self) -> Option<&[u8]> {
        let bytes = &self.bytes[..(self.length as usize).min(LONGEST)];
        let is_local = bytes.get(..PATH)? == (libc::AF_UNIX as u16).to_le_bytes();
        let path = bytes[PATH..].split(|&byte| byte == 0).next().filter(|path| !path.is_empty());
        path.filter(|_| is_local)
    }

    /// A confined guest's path becomes one that leads through a descriptor of ours, and so stays short and inside the root.
    fn lead_into_root(&mut self, process: &Process, purpose: Purpose) -> Result<(), Errno> {
        if !process.root.is_confined() {
            return Ok(());
        }
        let Some(path) = self.path().map(<[u8]>::to_vec) else { return Ok(()) };
        let (follow, used) = match purpose {
            Purpose::Bind => (Follow::No, Use::Name),
            Purpose::Reach => (Follow::Yes, Use::Look),
        };
        let place = Place::for_use(process, libc::AT_FDCWD, &path, follow, used)?.whole()?;
        let host = place.path_bytes().to_vec();
        self.set_path(&host).ok_or(Errno(libc::ENAMETOOLONG))?;
        self._place = Some(place);
        if purpose == Purpose::Bind {
            let mut names = process.socket_names.lock();
            if names.len() < MOST_NAMES {
                names.insert(host, path);
            }
        }
        Ok(())
    }

    /// Puts `path` in; `None` if it does not fit.
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

    /// The number of bytes the address has, which may be more than there was room for.
    pub(super) fn length(&self) -> u32 {
        self.length
    }

    /// Notes how long the address is that the host wrote.
    pub(super) fn set_length(&mut self, length: u32) {
        self.length = length;
    }

    /// What the host wrote, as the guest knows it. Of a socket that somebody else bound, a confined guest learns the last part
    /// of the name only.
    pub(super) fn lead_out_of_root(&mut self, process: &Process) {
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

    /// Writes what the host gave: as much as fits into `room` bytes.
    pub(super) fn write(&self, memory: &GuestMemory, address: u64, room: u32) -> Result<(), Errno> {
        let bytes = self.length.min(room).min(LONGEST as u32);
        Ok(memory.write(address, &self.bytes[..bytes as usize])?)
    }
}
