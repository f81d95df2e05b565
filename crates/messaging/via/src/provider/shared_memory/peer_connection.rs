//! The peer as a socket and a process, while connecting and while connected. Maps the regions that the peer exports,
//! within the quota.
//!
//! Source: unix(7), memfd_create(2).

use super::borrowing;
use super::control_message::{ControlMessage, RegionExport, send};
use super::deferred_close::{PeerFile, PeerSocket};
use super::layout::{EXPORTS, HALF_BYTES, Side};
use super::mapping::{Mapping, map_foreign, map_half, stays_small};
use super::peer_region::{PeerRegion, release_regions};
use super::process::Process;
use super::quota::{Account, Charge, Quotas};
use super::settings::{Allow, Settings, SingleCopy};
use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The mapping of one half of a connection: ours, which is writable, or the peer's, which is read-only.
pub(super) struct Half {
    mapping: Mapping,
    _charge: Charge,
}

impl Half {
    pub(super) fn new(mapping: Mapping, charge: Charge) -> Half {
        assert!(mapping.length() >= HALF_BYTES, "the size of a half is checked before it is mapped");
        Half { mapping, _charge: charge }
    }

    /// A pointer to the `Side`, valid as long as `self` lives. Only our own half may be written to.
    pub(super) fn side(&self) -> *mut Side {
        self.mapping.base().cast()
    }
}

pub(super) struct PeerConnection {
    pub(super) socket: PeerSocket,
    pub(super) process: Process,
    pub(super) account: Arc<Account>,
    /// Whether large messages between the two processes are copied once.
    pub(super) single_copy: bool,
    regions: Mutex<Vec<Arc<PeerRegion>>>,
    /// Regions that the peer has lent and that are still to be borrowed, with their descriptor numbers, by slot.
    /// Entries are dropped when the peer exports or revokes the region or reuses the slot. The lock is held while a
    /// region is being mapped.
    lent: Mutex<BTreeMap<u32, (RegionExport, u32)>>,
    changes: AtomicU32,
    /// The number of exported regions that the peer has not received yet, as far as known; maintained by `unread_exports.rs`.
    pub(super) unread: AtomicU32,
}

/// The peer violated the protocol.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProtocolViolation;

/// A connection that is refused.
pub(super) struct RefusedConnection {
    pub(super) socket: PeerSocket,
    pub(super) reason: String,
    /// Whether a later attempt may succeed.
    pub(super) again: bool,
}

impl PeerConnection {
    /// Creates the connection to the process at the other end of `socket`, if the settings permit it.
    pub(super) fn new(
        socket: PeerSocket,
        settings: &Settings,
        allow: &Allow,
        quota: &Arc<Quotas>,
    ) -> Result<PeerConnection, RefusedConnection> {
        let process = match Process::at_other_end(&socket) {
            Ok(process) => process,
            Err(why) => {
                let reason = format!("no descriptor is available to watch the process: {why}");
                return Err(RefusedConnection { socket, reason, again: true });
            }
        };
        let uid = process.uid;
        if !allow.permits(uid, process.gid) {
            let reason = format!("user {uid} with group {} is not allowed", process.gid);
            return Err(RefusedConnection { socket, reason, again: false });
        }
        // SAFETY: takes no arguments and returns an integer.
        let same_user = uid == unsafe { libc::geteuid() };
        let single_copy = match settings.single_copy {
            SingleCopy::Never => false,
            SingleCopy::SameUser => same_user,
            SingleCopy::BetweenUsers => true,
        };
        let account = match quota.open(uid) {
            Ok(account) => account,
            Err(reason) => return Err(RefusedConnection { socket, reason, again: false }),
        };
        let (regions, lent) = Default::default();
        let socket = socket.with_account(&account);
        let (changes, unread) = (AtomicU32::new(0), AtomicU32::new(0));
        Ok(PeerConnection { socket, process, account, single_copy, regions, lent, changes, unread })
    }

    /// Charges the mapping of a half to the peer's quota.
    ///
    /// # Errors
    /// The reason, if the quota is exceeded.
    pub(super) fn charge_half(&self) -> Result<Charge, String> {
        self.account.charge(HALF_BYTES as u64)
    }

    /// Maps the peer's half.
    pub(super) fn take_half(&self, file: &PeerFile, charge: Charge) -> Result<Half, String> {
        let mapping =
            map_half(file).map_err(|why| format!("the peer's shared half was not mapped: {why}"))?;
        Ok(Half::new(mapping, charge))
    }

    /// Handles an export: maps the region if permitted, and answers.
    pub(super) fn handle_export(
        &self,
        export: RegionExport,
        file: Option<PeerFile>,
    ) -> Result<(), ProtocolViolation> {
        let file = file.ok_or(ProtocolViolation)?;
        check(&export)?;
        let mut lent = self.lent();
        lent.retain(|slot, (waiting, _)| *slot != export.slot && waiting.handle != export.handle);
        self.take(export, &file);
        Ok(())
    }

    /// Handles a lent region: queues it to be borrowed. It is ignored if single copies are disabled or the kernel
    /// denies access.
    pub(super) fn handle_lend(
        self: &Arc<Self>,
        export: RegionExport,
        number: u32,
    ) -> Result<(), ProtocolViolation> {
        check(&export)?;
        if export.write || export.read {
            return Err(ProtocolViolation);
        }
        if self.single_copy {
            let mut lent = self.lent();
            lent.retain(|_, (waiting, _)| waiting.handle != export.handle);
            lent.insert(export.slot, (export, number));
            drop(lent);
            borrowing::ask(self, export, number);
        }
        Ok(())
    }

    /// Borrows and maps a lent region, unless it has been revoked. After a revocation the descriptor number may belong
    /// to another file and the slot to another region.
    pub(super) fn borrow(&self, export: RegionExport, number: u32) {
        let what = (export, number);
        if self.lent().get(&export.slot) != Some(&what) {
            return;
        }
        let Some(file) = self.process.take_file(number, &self.account) else { return };
        let mut lent = self.lent();
        if lent.get(&export.slot) == Some(&what) {
            lent.remove(&export.slot);
            self.take(export, &file);
        }
    }

    fn take(&self, export: RegionExport, file: &PeerFile) {
        let RegionExport { handle, serial, .. } = export;
        let answer = match self.map(export, file) {
            Ok(()) if self.single_copy => ControlMessage::Mapped { handle, serial },
            // The region is only for our own RDMA. The peer does not expect to use it for messages, so no answer is
            // needed.
            Ok(()) => return,
            Err(reason) => {
                self.account.note(false, &reason);
                ControlMessage::Declined { handle, reason }
            }
        };
        // If the peer does not empty its socket, it does not receive the answer and continues to send in parts.
        let _ = send(self.socket.as_raw_fd(), &answer, None);
    }

    /// Maps a region in place of the one it replaces, in which a message may still be pending. A lookup finds either
    /// the old region or the new one.
    fn map(&self, export: RegionExport, file: &PeerFile) -> Result<(), String> {
        let about = |why| format!("a region of {} bytes was not mapped: {why}", export.length);
        let mut regions = self.regions();
        let old = |region: &RegionExport| region.slot == export.slot || region.handle == export.handle;
        self.give_up_some(&mut regions, old);
        let charge = self.account.charge(export.length).map_err(about)?;
        let mapping = map_foreign(file, export.length, export.write).map_err(about)?;
        let region = PeerRegion::new(export, mapping, charge, !stays_small(file));
        regions.push(Arc::new(region));
        self.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub(super) fn handle_revoke(&self, handle: u32) {
        let mut lent = self.lent();
        lent.retain(|_, (waiting, _)| waiting.handle != handle);
        self.give_up_some(&mut self.regions(), |region| region.handle == handle);
    }

    fn give_up_some(&self, regions: &mut Vec<Arc<PeerRegion>>, which: impl Fn(&RegionExport) -> bool) {
        let released: Vec<_> = regions.extract_if(.., |region| which(&region.export)).collect();
        if !released.is_empty() {
            self.changes.fetch_add(1, Ordering::Release);
            release_regions(released);
        }
    }

    pub(super) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    pub(super) fn mapped(&self) -> Vec<Arc<PeerRegion>> {
        self.regions().clone()
    }

    fn lent(&self) -> MutexGuard<'_, BTreeMap<u32, (RegionExport, u32)>> {
        self.lent.lock().ignore_poison()
    }

    fn regions(&self) -> MutexGuard<'_, Vec<Arc<PeerRegion>>> {
        self.regions.lock().ignore_poison()
    }
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        self.account.unread().forget(self);
        release_regions(std::mem::take(&mut *self.regions()));
    }
}

fn check(export: &RegionExport) -> Result<(), ProtocolViolation> {
    let sound = (export.slot as usize) < EXPORTS && export.address.checked_add(export.length).is_some();
    if sound { Ok(()) } else { Err(ProtocolViolation) }
}

/// Refuses a connection over `socket`.
pub(super) fn refuse(socket: &PeerSocket, reason: &str, again: bool) {
    let _ = send(socket.as_raw_fd(), &ControlMessage::Reject { reason: reason.into(), again }, None);
}
