//! The other side of a connection: its socket, its process, the segment shared with it, and the regions shown each way.
//! Not the data path, which is `link.rs`.
//! Source: unix(7), pidfd_open(2), process_vm_readv(2).

use super::layout::{SEGMENT_BYTES, Side};
use super::letters::{Letter, Probe, Showing, send};
use super::mapping::{Mapping, SharedPages, map_foreign};
use crate::engine::waiting::wake_all;
use crate::provider::RegionFacts;
use crate::vi::ViAttributes;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The most regions of a peer that are mapped at a time.
const MOST_MAPPED: usize = super::layout::EXPORTS;

/// A region of the peer, mapped here.
pub(super) struct PeerRegion {
    pub(super) showing: Showing,
    mapping: Mapping,
}

impl PeerRegion {
    /// Where it is mapped; `showing.length` bytes from there on are.
    pub(super) fn base(&self) -> *mut u8 {
        self.mapping.base()
    }
}

pub(super) struct Peer {
    pub(super) vi: u32,
    tag: u32,
    /// What our VI lets the peer do.
    attributes: ViAttributes,
    pub(super) socket: OwnedFd,
    pub(super) process: Process,
    segment: Mapping,
    /// Whether our half is the first: this side asked for the connection.
    first: bool,
    pub(super) lost: AtomicBool,
    /// Our regions that the peer has: the handle at each place of `exports`.
    shown: Mutex<Vec<u32>>,
    mapped: Mutex<Vec<Arc<PeerRegion>>>,
    mapped_changes: AtomicU32,
}

/// What to make a peer from.
pub(super) struct Meeting {
    pub(super) vi: u32,
    pub(super) tag: u32,
    pub(super) attributes: ViAttributes,
    pub(super) socket: OwnedFd,
    pub(super) segment: Mapping,
    pub(super) first: bool,
}

impl Peer {
    pub(super) fn new(meeting: Meeting) -> Peer {
        let Meeting { vi, tag, attributes, socket, segment, first } = meeting;
        assert!(segment.length() >= SEGMENT_BYTES, "segments are checked before they are mapped");
        let process = Process::behind(&socket);
        Peer {
            vi,
            tag,
            attributes,
            socket,
            process,
            segment,
            first,
            lost: AtomicBool::new(false),
            shown: Mutex::new(Vec::new()),
            mapped: Mutex::default(),
            mapped_changes: AtomicU32::new(0),
        }
    }

    fn side(&self, first: bool) -> *mut Side {
        let index = if first { 0 } else { 1 };
        // SAFETY: the segment has room for two sides, as `new` checked.
        unsafe { self.segment.base().cast::<Side>().add(index) }
    }

    /// What we write.
    pub(super) fn ours(&self) -> &Side {
        // SAFETY: mapped as long as `self`; aligned, since mappings are; all that is reached through the reference is atomics.
        unsafe { &*self.side(self.first) }
    }

    /// What the peer writes.
    pub(super) fn theirs(&self) -> &Side {
        // SAFETY: as above.
        unsafe { &*self.side(!self.first) }
    }

    /// Our arena, for copies by address: no reference to bytes that the peer can change is ever made.
    pub(super) fn our_arena(&self) -> *mut u8 {
        // SAFETY: takes an address inside the mapping.
        unsafe { (&raw mut (*self.side(self.first)).arena).cast() }
    }

    /// The peer's arena.
    pub(super) fn their_arena(&self) -> *mut u8 {
        // SAFETY: takes an address inside the mapping.
        unsafe { (&raw mut (*self.side(!self.first)).arena).cast() }
    }

    /// Wakes whoever sleeps on this connection in this process.
    pub(super) fn ring_ourselves(&self) {
        self.ours().bell.rung.fetch_add(1, Ordering::SeqCst);
        wake_all(&self.ours().bell.rung, false);
    }

    /// Wakes the peer, if it sleeps.
    #[inline]
    pub(super) fn ring_if_asleep(&self) {
        let theirs = self.theirs();
        if theirs.presence.asleep.load(Ordering::Relaxed) != 0 {
            theirs.bell.rung.fetch_add(1, Ordering::SeqCst);
            wake_all(&theirs.bell.rung, false);
        }
    }

    // ---- our regions ------------------------------------------------------------------------------------------------

    /// Lets the peer map a region, if the region and our VI allow it. A peer that does not empty its socket does without.
    pub(super) fn show(&self, region: &RegionFacts) {
        let write = region.rdma_write && self.attributes.rdma_write;
        let read = region.rdma_read && self.attributes.rdma_read;
        // Pages that some may write to cannot be shown to others for reading only.
        let as_it_is = if region.rdma_write { write } else { read };
        if region.tag != self.tag || !as_it_is {
            return;
        }
        let Some(pages) =
            region.memory.as_ref().and_then(|memory| memory.as_any().downcast_ref::<SharedPages>())
        else {
            return;
        };
        let Some(file) = pages.file() else { return };
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let free = shown.iter().position(|handle| *handle == 0);
        let slot = free.unwrap_or(shown.len());
        if slot >= MOST_MAPPED {
            return;
        }
        let showing = Showing {
            handle: region.handle.0,
            address: region.address,
            length: region.length,
            write,
            read,
            slot: slot as u32,
        };
        if send(self.socket.as_raw_fd(), &Letter::Show(showing), Some(file.as_raw_fd())).is_err() {
            return;
        }
        match free {
            Some(slot) => shown[slot] = region.handle.0,
            None => shown.push(region.handle.0),
        }
        self.ours().exports[slot].store(region.handle.0, Ordering::Release);
    }

    /// Takes a region back: an honest peer sees it before its next transfer.
    pub(super) fn hide(&self, handle: u32) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for (slot, place) in shown.iter_mut().enumerate().filter(|(_, place)| **place == handle) {
            *place = 0;
            self.ours().exports[slot].store(0, Ordering::SeqCst);
            let _ = send(self.socket.as_raw_fd(), &Letter::Hide { handle }, None);
        }
    }

    /// Whether the peer has that region of ours.
    #[inline]
    pub(super) fn has_shown(&self, handle: u32) -> bool {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).contains(&handle)
    }

    // ---- the peer's regions -----------------------------------------------------------------------------------------

    /// Maps what the peer shows. `None`: the letter breaks the protocol. What cannot be mapped is reached by messages instead.
    pub(super) fn map(&self, showing: Showing, file: Option<OwnedFd>) -> Option<()> {
        let file = file?;
        if showing.slot as usize >= super::layout::EXPORTS
            || showing.address.checked_add(showing.length).is_none()
        {
            return None;
        }
        let Ok(mapping) = map_foreign(&file, usize::try_from(showing.length).ok()?, showing.write) else {
            return Some(());
        };
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        mapped
            .retain(|region| region.showing.slot != showing.slot && region.showing.handle != showing.handle);
        if mapped.len() < MOST_MAPPED {
            mapped.push(Arc::new(PeerRegion { showing, mapping }));
        }
        self.mapped_changes.fetch_add(1, Ordering::Release);
        Some(())
    }

    pub(super) fn unmap(&self, handle: u32) {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.retain(|region| region.showing.handle != handle);
        self.mapped_changes.fetch_add(1, Ordering::Release);
    }

    pub(super) fn mapped_changes(&self) -> u32 {
        self.mapped_changes.load(Ordering::Acquire)
    }

    pub(super) fn mapped(&self) -> Vec<Arc<PeerRegion>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The process at the other end of a socket.
pub(super) struct Process {
    id: libc::pid_t,
    /// Readable when it has ended.
    pub(super) file: Option<OwnedFd>,
}

/// From Linux 6.5 on; not in every header yet.
const SO_PEERPIDFD: i32 = 77;

impl Process {
    fn behind(socket: &OwnedFd) -> Process {
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let socket = socket.as_raw_fd();
        // SAFETY: writes at most `length` bytes to the structure.
        unsafe {
            let place = (&raw mut credentials).cast();
            libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut length)
        };
        let mut file: RawFd = -1;
        let mut length = size_of::<RawFd>() as libc::socklen_t;
        // SAFETY: writes at most four bytes to `file`.
        let got = unsafe {
            libc::getsockopt(socket, libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut file).cast(), &raw mut length)
        };
        if got < 0 && credentials.pid > 0 {
            // SAFETY: numbers only.
            file = unsafe { libc::syscall(libc::SYS_pidfd_open, credentials.pid, 0) } as RawFd;
        }
        // SAFETY: just opened, and nobody else has it.
        let file = (file >= 0).then(|| unsafe { OwnedFd::from_raw_fd(file) });
        Process { id: credentials.pid, file }
    }

    /// Copies from the process's memory into ours, all pieces in order. `false`: not all of it could be read.
    ///
    /// # Safety
    /// The local pieces must be writable memory.
    pub(super) unsafe fn read(&self, local: &mut [libc::iovec], remote: &mut [libc::iovec]) -> bool {
        if self.id <= 0 {
            return false;
        }
        let (mut local, mut remote) = (local, remote);
        loop {
            let (pieces, others) = (local.len().min(1024), remote.len().min(1024));
            if pieces == 0 || others == 0 {
                return true;
            }
            // SAFETY: the local pieces are writable, as the caller says; the remote ones are the kernel's to check.
            let count = unsafe {
                libc::process_vm_readv(
                    self.id,
                    local.as_ptr(),
                    pieces as u64,
                    remote.as_ptr(),
                    others as u64,
                    0,
                )
            };
            let Ok(count @ 1..) = usize::try_from(count) else { return false };
            local = skip(local, count);
            remote = skip(remote, count);
        }
    }

    /// Whether it is known to have ended.
    pub(super) fn has_ended(&self) -> bool {
        let Some(file) = &self.file else { return false };
        let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, of ours; does not wait.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    /// Whether this process may read that one's memory: tries the word that it told us about.
    pub(super) fn can_be_read(&self, probe: Probe) -> bool {
        let mut word = 0u64;
        let mut local = [libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 }];
        let mut remote = [libc::iovec { iov_base: probe.address as *mut libc::c_void, iov_len: 8 }];
        // SAFETY: the local piece is `word`.
        let read = unsafe { self.read(&mut local, &mut remote) };
        read && word == probe.cookie
    }
}

/// What is left of the pieces after `count` bytes.
fn skip(pieces: &mut [libc::iovec], mut count: usize) -> &mut [libc::iovec] {
    let mut done = 0;
    for piece in pieces.iter_mut() {
        if count < piece.iov_len {
            piece.iov_base = piece.iov_base.wrapping_byte_add(count);
            piece.iov_len -= count;
            break;
        }
        count -= piece.iov_len;
        done += 1;
    }
    &mut pieces[done..]
}

/// The word that peers try to read.
pub(super) fn own_probe() -> Probe {
    static WORD: OnceLock<Box<u64>> = OnceLock::new();
    let word = WORD.get_or_init(|| {
        let mut bytes = [0u8; 8];
        // SAFETY: writes at most eight bytes to `bytes`.
        unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        Box::new(u64::from_ne_bytes(bytes))
    });
    Probe { address: std::ptr::from_ref::<u64>(word) as u64, cookie: **word }
}
