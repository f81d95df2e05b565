//! The VIs of a NIC by number, and the thread that looks at those that futures wait for.
//! Not their owner: a VI lives as long as the program holds it.
//! Source: none.

use super::endpoint::Endpoint;
use super::memory_table::Region;
use super::waiting::{LocalBell, sleep};
use crate::error::Error;
use crate::provider::Attention;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

pub(crate) struct Roster {
    most: u32,
    next: AtomicU32,
    endpoints: Mutex<BTreeMap<u32, Weak<Endpoint>>>,
    /// VIs that futures wait for. `None`: the thread is not running.
    watched: Mutex<Option<BTreeMap<u32, Weak<Endpoint>>>>,
    bell: Arc<LocalBell>,
}

impl Roster {
    pub(crate) fn new(most: u32) -> Roster {
        Roster {
            most,
            next: AtomicU32::new(0),
            endpoints: Mutex::default(),
            watched: Mutex::default(),
            bell: Arc::new(LocalBell::new()),
        }
    }

    fn endpoints(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<Endpoint>>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the VI that `make` makes a number and remembers it.
    pub(super) fn enter(&self, make: impl FnOnce(u32) -> Arc<Endpoint>) -> Result<Arc<Endpoint>, Error> {
        let mut endpoints = self.endpoints();
        if endpoints.len() >= self.most as usize {
            return Err(Error::Resource(format!("all {} VIs are in use", self.most)));
        }
        let number = loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if !endpoints.contains_key(&number) {
                break number;
            }
        };
        let endpoint = make(number);
        endpoints.insert(number, Arc::downgrade(&endpoint));
        Ok(endpoint)
    }

    pub(super) fn leave(&self, number: u32) {
        self.endpoints().remove(&number);
        // The thread may be asleep with this VI in its hands.
        self.bell.ring();
    }

    /// Tells all VIs that a region is about to go.
    pub(crate) fn retire(&self, region: &Arc<Region>) {
        let endpoints: Vec<_> = self.endpoints().values().filter_map(Weak::upgrade).collect();
        endpoints.iter().for_each(|endpoint| endpoint.hold(region));
    }

    /// Has the thread look after `endpoint` as long as a future waits for it.
    pub(crate) fn watch(self: &Arc<Roster>, endpoint: &Arc<Endpoint>) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.is_none() {
            let (roster, bell) = (Arc::downgrade(self), self.bell.clone());
            let thread = std::thread::Builder::new().name("via-futures".into());
            if thread.spawn(move || watch_for_futures(&roster, &bell)).is_err() {
                // Without the thread the future would never be woken: have it poll itself again.
                drop(watched);
                endpoint.wake_futures();
                return;
            }
        }
        watched.get_or_insert_default().insert(endpoint.number(), Arc::downgrade(endpoint));
        drop(watched);
        self.bell.ring();
    }

    /// Those that futures still wait for. `None` when the thread may end.
    fn still_watched(&self) -> Option<Vec<Arc<Endpoint>>> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let map = watched.as_mut()?;
        let mut live = Vec::with_capacity(map.len());
        map.retain(|_, endpoint| match endpoint.upgrade() {
            Some(endpoint) if endpoint.has_waker() => {
                live.push(endpoint);
                true
            }
            _ => false,
        });
        Some(live)
    }
}

impl Drop for Roster {
    fn drop(&mut self) {
        self.bell.ring();
    }
}

impl Attention for Roster {
    fn look(&self, vi: u32) {
        let endpoint = self.endpoints().get(&vi).and_then(Weak::upgrade);
        if let Some(endpoint) = endpoint {
            endpoint.look_long();
        }
    }
}

/// The thread: sleeps until one of the watched VIs has news, looks at it (which wakes its futures), and so on.
fn watch_for_futures(roster: &Weak<Roster>, bell: &LocalBell) {
    let mut bells = Vec::new();
    loop {
        let heard = bell.value();
        let Some(live) = roster.upgrade().and_then(|roster| roster.still_watched()) else { return };
        bells.clear();
        live.iter().for_each(|endpoint| endpoint.arm(&mut bells));
        live.iter().for_each(|endpoint| endpoint.look());
        if live.is_empty() || live.iter().all(|endpoint| endpoint.has_waker()) {
            sleep(bell, heard, &bells, None);
        }
        live.iter().for_each(|endpoint| endpoint.disarm());
        live.iter().for_each(|endpoint| endpoint.look());
    }
}
