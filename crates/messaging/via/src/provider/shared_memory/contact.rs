//! The other side as a socket and a process, before and while a VI is connected to it: what it shows us is mapped here, within limits.
//! Not what we show it (`peer.rs`) nor how the two came together (`rendezvous.rs`).
//! Source: unix(7), memfd_create(2).

use super::borrowing;
use super::closing::{Channel, Foreign};
use super::layout::{EXPORTS, HALF_BYTES, Side};
use super::ledger::{Account, Charge, Ledger};
use super::letters::{Letter, Showing, send};
use super::mapping::{Mapping, map_foreign, map_half, stays_small};
use super::peer_region::{PeerRegion, give_up};
use super::process::Process;
use super::settings::{Allow, Settings, SingleCopy};
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A half of what two connected VIs share, as it is mapped here: ours to write, or the peer's to read.
pub(super) struct Half {
    mapping: Mapping,
    _charge: Charge,
}

impl Half {
    pub(super) fn new(mapping: Mapping, charge: Charge) -> Half {
        assert!(mapping.length() >= HALF_BYTES, "halves are checked before they are mapped");
        Half { mapping, _charge: charge }
    }

    /// Room for a `Side`, as long as this is there. Only ours can be written to.
    pub(super) fn side(&self) -> *mut Side {
        self.mapping.base().cast()
    }
}

pub(super) struct Contact {
    pub(super) socket: Channel,
    pub(super) process: Process,
    pub(super) account: Arc<Account>,
    /// Whether large messages are copied once between the two.
    pub(super) single_copy: bool,
    regions: Mutex<Vec<Arc<PeerRegion>>>,
    /// Regions that were lent and are still to be borrowed, with their descriptors' numbers, by their place, until the peer says something
    /// else of it or of them. Whoever maps a region has this meanwhile.
    lent: Mutex<BTreeMap<u32, (Showing, u32)>>,
    changes: AtomicU32,
    /// Regions of ours that it was shown and has not heard of, as far as is known; `unread.rs` counts them.
    pub(super) unread: AtomicU32,
}

/// The peer broke the protocol.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// Whoever is at the other end of a socket is not let in.
pub(super) struct Denied {
    pub(super) socket: Channel,
    pub(super) reason: String,
    /// It may be otherwise soon, whoever goes until then.
    pub(super) again: bool,
}

impl Contact {
    /// Whoever is at the other end of `socket`, if the settings let them; or why not.
    pub(super) fn new(
        socket: Channel,
        settings: &Settings,
        allow: &Allow,
        ledger: &Arc<Ledger>,
    ) -> Result<Contact, Denied> {
        let process = match Process::behind(&socket) {
            Ok(process) => process,
            Err(why) => {
                let reason = format!("there is no descriptor to watch the process with: {why}");
                return Err(Denied { socket, reason, again: true });
            }
        };
        let uid = process.uid;
        if !allow.permits(uid, process.gid) {
            let reason = format!("user {uid} with group {} is not allowed", process.gid);
            return Err(Denied { socket, reason, again: false });
        }
        // SAFETY: asks for a number.
        let same_user = uid == unsafe { libc::geteuid() };
        let single_copy = match settings.single_copy {
            SingleCopy::Never => false,
            SingleCopy::SameUser => same_user,
            SingleCopy::BetweenUsers => true,
        };
        let account = match ledger.open(uid) {
            Ok(account) => account,
            Err(reason) => return Err(Denied { socket, reason, again: false }),
        };
        let (regions, lent) = Default::default();
        let socket = socket.with_account(&account);
        let (changes, unread) = (AtomicU32::new(0), AtomicU32::new(0));
        Ok(Contact { socket, process, account, single_copy, regions, lent, changes, unread })
    }

    /// Enters the mapping of a half, or says why there may be none.
    pub(super) fn charge_half(&self) -> Result<Charge, String> {
        self.account.charge(HALF_BYTES as u64)
    }

    /// Maps the half that the peer made.
    pub(super) fn take_half(&self, file: &Foreign, charge: Charge) -> Result<Half, String> {
        let mapping = map_half(file)
            .map_err(|why| format!("the peer's half of what both share is not mapped: {why}"))?;
        Ok(Half::new(mapping, charge))
    }

    /// A region is shown: maps it, if it may be, and answers.
    pub(super) fn hear_show(&self, showing: Showing, file: Option<Foreign>) -> Result<(), Broken> {
        let file = file.ok_or(Broken)?;
        check(&showing)?;
        let mut lent = self.lent();
        lent.retain(|slot, (waiting, _)| *slot != showing.slot && waiting.handle != showing.handle);
        self.take(showing, &file);
        Ok(())
    }

    /// A region is lent for single copies: asks for it. Nothing is said where they are not wanted, or the kernel does not let us.
    pub(super) fn hear_lend(self: &Arc<Self>, showing: Showing, number: u32) -> Result<(), Broken> {
        check(&showing)?;
        if showing.write || showing.read {
            return Err(Broken);
        }
        if self.single_copy {
            let mut lent = self.lent();
            lent.retain(|_, (waiting, _)| waiting.handle != showing.handle);
            lent.insert(showing.slot, (showing, number));
            drop(lent);
            borrowing::ask(self, showing, number);
        }
        Ok(())
    }

    /// Takes and maps what was lent, unless it was taken back since: its descriptor's number may be another file's by now, and its place
    /// another region's.
    pub(super) fn borrow(&self, showing: Showing, number: u32) {
        let what = (showing, number);
        if self.lent().get(&showing.slot) != Some(&what) {
            return;
        }
        let Some(file) = self.process.take_file(number, &self.account) else { return };
        let mut lent = self.lent();
        if lent.get(&showing.slot) == Some(&what) {
            lent.remove(&showing.slot);
            self.take(showing, &file);
        }
    }

    fn take(&self, showing: Showing, file: &Foreign) {
        let Showing { handle, serial, .. } = showing;
        let answer = match self.map(showing, file) {
            Ok(()) if self.single_copy => Letter::Mapped { handle, serial },
            // For RDMA of ours only: that no message is to lie there is what the peer takes for granted.
            Ok(()) => return,
            Err(reason) => {
                self.account.note(false, &reason);
                Letter::Declined { handle, reason }
            }
        };
        // A peer that does not empty its socket does not learn of it, and sends in parts.
        let _ = send(self.socket.as_raw_fd(), &answer, None);
    }

    /// Maps a region in the place of what it replaces, in which a message may lie: whoever looks for that finds the one or the other.
    fn map(&self, showing: Showing, file: &Foreign) -> Result<(), String> {
        let about = |why| format!("a region of {} bytes is not mapped: {why}", showing.length);
        let mut regions = self.regions();
        let old = |region: &Showing| region.slot == showing.slot || region.handle == showing.handle;
        self.give_up_some(&mut regions, old);
        let charge = self.account.charge(showing.length).map_err(about)?;
        let mapping = map_foreign(file, showing.length, showing.write).map_err(about)?;
        let region = PeerRegion::new(showing, mapping, charge, !stays_small(file));
        regions.push(Arc::new(region));
        self.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub(super) fn hear_hide(&self, handle: u32) {
        let mut lent = self.lent();
        lent.retain(|_, (waiting, _)| waiting.handle != handle);
        self.give_up_some(&mut self.regions(), |region| region.handle == handle);
    }

    fn give_up_some(&self, regions: &mut Vec<Arc<PeerRegion>>, which: impl Fn(&Showing) -> bool) {
        let gone: Vec<_> = regions.extract_if(.., |region| which(&region.showing)).collect();
        if !gone.is_empty() {
            self.changes.fetch_add(1, Ordering::Release);
            give_up(gone);
        }
    }

    pub(super) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    pub(super) fn mapped(&self) -> Vec<Arc<PeerRegion>> {
        self.regions().clone()
    }

    fn lent(&self) -> MutexGuard<'_, BTreeMap<u32, (Showing, u32)>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn regions(&self) -> MutexGuard<'_, Vec<Arc<PeerRegion>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Contact {
    fn drop(&mut self) {
        self.account.unread().forget(self);
        give_up(std::mem::take(&mut *self.regions()));
    }
}

fn check(showing: &Showing) -> Result<(), Broken> {
    let sound = (showing.slot as usize) < EXPORTS && showing.address.checked_add(showing.length).is_some();
    if sound { Ok(()) } else { Err(Broken) }
}

/// Refuses a connection over `socket`.
pub(super) fn refuse(socket: &Channel, reason: &str, again: bool) {
    let _ = send(socket.as_raw_fd(), &Letter::Reject { reason: reason.into(), again }, None);
}
