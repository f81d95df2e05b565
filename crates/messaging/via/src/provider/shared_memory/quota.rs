//! Quotas: accounts for the bytes and mappings used by each peer, each user and the whole NIC, and for connections; and
//! the log of refusals.
//!
//! Source: the limits are configured in `settings.rs`.

use super::settings::{Limits, Refused};
use super::unread_exports::Unread;
use longma_locks::IgnorePoison;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// The number of refusals kept for the program. The oldest are dropped first.
const MAX_REFUSALS: usize = 64;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Usage {
    bytes: u64,
    mappings: u32,
    connections: u32,
}

impl Usage {
    fn is_nothing(&self) -> bool {
        *self == Usage::default()
    }
}

#[derive(Default)]
struct QuotaState {
    all: Usage,
    users: BTreeMap<u32, Usage>,
    refusals: VecDeque<Refused>,
}

impl QuotaState {
    fn connect(&mut self, uid: u32) {
        self.all.connections += 1;
        self.users.entry(uid).or_default().connections += 1;
    }

    fn disconnect(&mut self, uid: u32) {
        self.all.connections -= 1;
        if let Some(user) = self.users.get_mut(&uid) {
            user.connections -= 1;
            if user.is_nothing() {
                self.users.remove(&uid);
            }
        }
    }
}

/// The accounts of one NIC.
pub(super) struct Quotas {
    limits: Limits,
    state: Mutex<QuotaState>,
    /// Regions exported to peers that they have not received yet.
    unread: Unread,
}

/// The account of one connection.
pub(super) struct Account {
    quota: Arc<Quotas>,
    pub(super) uid: u32,
    used: Mutex<Usage>,
}

/// Resources in use; returned when dropped.
pub(super) struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

/// A descriptor received from a user and not closed yet. It is counted as one of the user's connections until it is
/// dropped.
pub(super) struct UnclosedFile {
    quota: Arc<Quotas>,
    uid: u32,
}

impl Quotas {
    pub(super) fn new(limits: Limits) -> Arc<Quotas> {
        Arc::new(Quotas { limits, state: Mutex::default(), unread: Unread::new() })
    }

    fn state(&self) -> MutexGuard<'_, QuotaState> {
        self.state.lock().ignore_poison()
    }

    /// Opens an account for a connection of a user.
    ///
    /// # Errors
    /// The reason, if a limit is reached.
    pub(super) fn open(self: &Arc<Quotas>, uid: u32) -> Result<Arc<Account>, String> {
        let limits = &self.limits;
        let mut state = self.state();
        let user = state.users.get(&uid).copied().unwrap_or_default();
        if user.connections >= limits.user_connections {
            return Err(format!("user {uid} has {} connections, and no more are allowed", user.connections));
        }
        if state.all.connections >= limits.nic_connections {
            return Err(format!("there are {} connections, and no more are allowed", state.all.connections));
        }
        state.connect(uid);
        drop(state);
        Ok(Arc::new(Account { quota: self.clone(), uid, used: Mutex::default() }))
    }

    /// Logs a refusal for the program.
    pub(super) fn note(&self, uid: u32, by_peer: bool, reason: &str) {
        let mut state = self.state();
        if state.refusals.len() == MAX_REFUSALS {
            state.refusals.pop_front();
        }
        state.refusals.push_back(Refused { uid, by_peer, reason: reason.into() });
    }

    pub(super) fn take_refusals(&self) -> Vec<Refused> {
        self.state().refusals.drain(..).collect()
    }
}

fn beyond(who: &str, used: Usage, bytes: u64, limit: (u64, u32)) -> Result<(), String> {
    if used.bytes.checked_add(bytes).is_none_or(|sum| sum > limit.0) {
        return Err(format!(
            "{bytes} bytes in addition to the {} of {who} would exceed the limit of {}",
            used.bytes, limit.0
        ));
    }
    if used.mappings >= limit.1 {
        return Err(format!("{who} has {} mappings, and no more are allowed", used.mappings));
    }
    Ok(())
}

impl Account {
    /// Charges a mapping of `bytes`.
    ///
    /// # Errors
    /// The reason, if a limit is exceeded.
    pub(super) fn charge(self: &Arc<Account>, bytes: u64) -> Result<Charge, String> {
        let limits = &self.quota.limits;
        let mut state = self.quota.state();
        let mut own = self.used.lock().ignore_poison();
        let user = state.users.get(&self.uid).copied().unwrap_or_default();
        beyond("this peer", *own, bytes, (limits.peer_bytes, limits.peer_mappings))?;
        beyond(&format!("user {}", self.uid), user, bytes, (limits.user_bytes, limits.user_mappings))?;
        beyond("this NIC", state.all, bytes, (limits.nic_bytes, limits.nic_mappings))?;
        let user = state.users.entry(self.uid).or_default();
        for used in [&mut *own, user] {
            (used.bytes, used.mappings) = (used.bytes + bytes, used.mappings + 1);
        }
        (state.all.bytes, state.all.mappings) = (state.all.bytes + bytes, state.all.mappings + 1);
        Ok(Charge { account: self.clone(), bytes })
    }

    /// Counts a descriptor that waits to be closed. This may exceed the limit, because the descriptor has already been
    /// received.
    pub(super) fn unclosed_file(&self) -> UnclosedFile {
        self.quota.state().connect(self.uid);
        UnclosedFile { quota: self.quota.clone(), uid: self.uid }
    }

    /// Whether descriptors are accepted from this user: not while the user's connections and unclosed descriptors
    /// exceed the limit.
    pub(super) fn accepts_files(&self) -> bool {
        let state = self.quota.state();
        state.users.get(&self.uid).is_none_or(|user| user.connections <= self.quota.limits.user_connections)
    }

    /// The exports that the NIC's peers have not received yet.
    pub(super) fn unread(&self) -> &Unread {
        &self.quota.unread
    }

    /// Logs a refusal by either side.
    pub(super) fn note(&self, by_peer: bool, reason: &str) {
        self.quota.note(self.uid, by_peer, reason);
    }
}

impl Charge {
    /// The user charged.
    pub(super) fn uid(&self) -> u32 {
        self.account.uid
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let account = &self.account;
        let mut state = account.quota.state();
        let mut own = account.used.lock().ignore_poison();
        let release = |used: &mut Usage| {
            (used.bytes, used.mappings) = (used.bytes - self.bytes, used.mappings - 1);
        };
        release(&mut own);
        release(&mut state.all);
        if let Some(user) = state.users.get_mut(&account.uid) {
            release(user);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.quota.state().disconnect(self.uid);
    }
}

impl Drop for UnclosedFile {
    fn drop(&mut self) {
        self.quota.state().disconnect(self.uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits {
        peer_bytes: 100,
        user_bytes: 150,
        nic_bytes: 200,
        peer_mappings: 3,
        user_mappings: 5,
        nic_mappings: 6,
        user_connections: 2,
        nic_connections: 3,
    };

    proptest! {
        #[test]
        fn no_limit_is_exceeded_and_everything_is_released(
            steps in prop::collection::vec((0u32..3, 0usize..3, prop_oneof![0u64..80, Just(u64::MAX)]), 1..60),
        ) {
            let quota = Quotas::new(LIMITS);
            let mut peers: Vec<(Arc<Account>, Vec<Charge>)> = Vec::new();
            for (uid, what, bytes) in steps {
                let place = (bytes as usize).checked_rem(peers.len()).unwrap_or(0);
                match what {
                    0 => peers.extend(quota.open(uid).ok().map(|account| (account, Vec::new()))),
                    1 => if let Some((account, charges)) = peers.get_mut(place) {
                        charges.extend(account.charge(bytes).ok());
                    },
                    _ if peers.is_empty() => {}
                    _ if bytes % 2 == 0 => drop(peers.swap_remove(place)),
                    _ => drop(peers[place].1.pop()),
                }
                let state = quota.state();
                prop_assert!(state.all.bytes <= 200 && state.all.mappings <= 6 && state.all.connections <= 3);
                let users = state.users.values();
                prop_assert!(users.clone().all(|used| used.bytes <= 150 && used.mappings <= 5 && used.connections <= 2));
                prop_assert_eq!(users.map(|used| used.bytes).sum::<u64>(), state.all.bytes);
                drop(state);
                for (account, charges) in &peers {
                    let used = *account.used.lock().unwrap();
                    prop_assert!(used.bytes <= 100 && used.mappings <= 3);
                    prop_assert_eq!(used.mappings as usize, charges.len());
                }
            }
            drop(peers);
            prop_assert!(quota.state().all.is_nothing() && quota.state().users.is_empty());
        }
    }

    #[test]
    fn a_refusal_names_the_limit_and_its_owner() {
        let quota = Quotas::new(LIMITS);
        let (first, second) = (quota.open(7).unwrap(), quota.open(7).unwrap());
        assert!(quota.open(7).err().unwrap().contains("user 7 has 2 connections"));
        let _held = first.charge(90).unwrap();
        assert!(
            first
                .charge(20)
                .err()
                .unwrap()
                .contains("20 bytes in addition to the 90 of this peer would exceed the limit of 100")
        );
        assert!(second.charge(70).err().unwrap().contains("of user 7 would exceed the limit of 150"));
    }
}
