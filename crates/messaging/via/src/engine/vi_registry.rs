//! The VIs of a NIC by number, and the thread that polls VIs on behalf of futures and of programs with a completion
//! callback.

use super::endpoint::Endpoint;
use super::memory_table::Region;
use super::waiting::{WakeEvent, sleep};
use crate::attributes::ViState;
use crate::error::Error;
use crate::provider::{Poller, WakeSource};
use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

pub(crate) struct ViRegistry {
    limit: u32,
    next: AtomicU32,
    endpoints: Mutex<BTreeMap<u32, Weak<Endpoint>>>,
    /// The VIs that futures wait for. `None` if the thread is not running.
    watched: Mutex<Option<BTreeMap<u32, Weak<Endpoint>>>>,
    /// The VIs with a completion callback, with the program's call counter at the last poll.
    attended: Mutex<BTreeMap<u32, (Weak<Endpoint>, u32)>>,
    wake_event: Arc<WakeEvent>,
}

/// A VI whose program has made a call since the last poll is left to the program for this long.
const PROGRAM_INTERVAL: Duration = Duration::from_millis(5);
/// A VI on which the program sleeps wakes the program directly, so the thread polls it only at this interval.
const SLEEPER_INTERVAL: Duration = Duration::from_millis(50);
/// Sleeping on a VI costs a barrier on all cores. Beyond this number, VIs are parked, or polled at intervals if they
/// cannot be parked.
const MAX_ARMED: usize = 64;

impl ViRegistry {
    pub(crate) fn new(limit: u32) -> ViRegistry {
        ViRegistry {
            limit,
            next: AtomicU32::new(0),
            endpoints: Mutex::default(),
            watched: Mutex::default(),
            attended: Mutex::default(),
            wake_event: Arc::new(WakeEvent::new()),
        }
    }

    fn endpoints(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<Endpoint>>> {
        self.endpoints.lock().ignore_poison()
    }

    /// Registers the VI created by `make` under a new number.
    pub(super) fn enter(&self, make: impl FnOnce(u32) -> Arc<Endpoint>) -> Result<Arc<Endpoint>, Error> {
        let mut endpoints = self.endpoints();
        if endpoints.len() >= self.limit as usize {
            return Err(Error::Resource(format!("all {} VIs are in use", self.limit)));
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

    fn attended(&self) -> MutexGuard<'_, BTreeMap<u32, (Weak<Endpoint>, u32)>> {
        self.attended.lock().ignore_poison()
    }

    pub(super) fn leave(&self, number: u32) {
        self.endpoints().remove(&number);
        self.attended().remove(&number);
        // The thread may be sleeping on this VI.
        self.wake_event.signal();
    }

    /// Informs all VIs that a region is being deregistered.
    pub(crate) fn retire(&self, region: &Arc<Region>) {
        let endpoints: Vec<_> = self.endpoints().values().filter_map(Weak::upgrade).collect();
        endpoints.iter().for_each(|endpoint| endpoint.hold(region));
    }

    /// Makes the thread poll `endpoint` as long as a future waits for it.
    pub(crate) fn watch(self: &Arc<ViRegistry>, endpoint: &Arc<Endpoint>) {
        let mut watched = self.watched.lock().ignore_poison();
        if !self.has_thread(&mut watched) {
            // Without the thread the future would never be woken: make it poll again.
            drop(watched);
            endpoint.wake_futures();
            return;
        }
        watched.get_or_insert_default().insert(endpoint.number(), Arc::downgrade(endpoint));
        drop(watched);
        self.wake_event.signal();
    }

    /// Makes the thread poll `endpoint` whenever the program does not. If the thread cannot be started, only the
    /// program's calls poll it.
    pub(super) fn attend(self: &Arc<ViRegistry>, endpoint: &Arc<Endpoint>) {
        let mut watched = self.watched.lock().ignore_poison();
        if self.has_thread(&mut watched) {
            drop(watched);
            self.attended().insert(endpoint.number(), (Arc::downgrade(endpoint), 0));
            self.wake_event.signal();
        }
    }

    /// Starts the thread if it is not running. Returns whether it is running.
    fn has_thread(self: &Arc<ViRegistry>, watched: &mut Option<BTreeMap<u32, Weak<Endpoint>>>) -> bool {
        if watched.is_none() {
            let (vi_registry, wake_event) = (Arc::downgrade(self), self.wake_event.clone());
            let thread = std::thread::Builder::new().name("via-futures".into());
            if thread.spawn(move || poll_loop(&vi_registry, &wake_event)).is_ok() {
                *watched = Some(BTreeMap::new());
            }
        }
        watched.is_some()
    }

    /// Makes the thread check again which VIs it must poll.
    pub(super) fn wake(&self) {
        self.wake_event.signal();
    }

    /// The VIs with a callback that their programs are not polling, and the time after which the others must be checked
    /// again.
    fn idle_vis(&self) -> (Vec<Arc<Endpoint>>, Option<Duration>) {
        let (mut alone, mut again) = (Vec::new(), None::<Duration>);
        for (endpoint, seen) in self.attended().values_mut() {
            let Some(endpoint) = endpoint.upgrade() else { continue };
            let calls = endpoint.calls();
            let pause = match std::mem::replace(seen, calls) {
                // The provider's thread reports arrivals for a parked VI.
                _ if endpoint.state() != ViState::Connected || endpoint.is_parked() => continue,
                _ if endpoint.is_waited_for() => SLEEPER_INTERVAL,
                before if before != calls => PROGRAM_INTERVAL,
                _ => {
                    alone.push(endpoint);
                    continue;
                }
            };
            again = Some(again.map_or(pause, |again| again.min(pause)));
        }
        (alone, again)
    }

    /// The VIs that futures still wait for. `None` if the thread may end.
    fn still_watched(&self) -> Option<Vec<Arc<Endpoint>>> {
        let mut watched = self.watched.lock().ignore_poison();
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

impl Drop for ViRegistry {
    fn drop(&mut self) {
        self.wake_event.signal();
    }
}

impl Poller for ViRegistry {
    fn poll(&self, vi: u32) {
        let endpoint = self.endpoints().get(&vi).and_then(Weak::upgrade);
        if let Some(endpoint) = endpoint {
            ignore_panic(|| endpoint.poll_for_provider());
        }
    }
}

/// Polls a VI in a thread that also serves other VIs, ignoring a panic of the program's callback.
fn ignore_panic(poll: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(poll));
}

/// The thread: sleeps until one of its VIs has an event, and then polls it, which wakes its futures or calls its
/// callback.
fn poll_loop(vi_registry: &Weak<ViRegistry>, wake_event: &WakeEvent) {
    let mut wake_sources = Vec::new();
    loop {
        let seen = wake_event.value();
        let Some((live, (alone, again))) = vi_registry
            .upgrade()
            .and_then(|vi_registry| Some((vi_registry.still_watched()?, vi_registry.idle_vis())))
        else {
            return;
        };
        wake_sources.clear();
        live.iter().for_each(|endpoint| endpoint.arm_for_others(&mut wake_sources));
        live.iter().for_each(|endpoint| ignore_panic(|| endpoint.poll_for_registry()));
        let (armed, again) = arm_idle(alone, again, &mut wake_sources);
        if live.iter().all(|endpoint| endpoint.has_waker()) {
            sleep(wake_event, seen, &wake_sources, again.map(|again| Instant::now() + again));
        }
        for endpoint in live.iter().chain(&armed) {
            endpoint.disarm_for_others();
            ignore_panic(|| endpoint.poll_for_registry());
        }
    }
}

/// Polls the given VIs after arming as many of them as is worthwhile. Returns the armed ones.
fn arm_idle(
    alone: Vec<Arc<Endpoint>>,
    mut again: Option<Duration>,
    wake_sources: &mut Vec<WakeSource>,
) -> (Vec<Arc<Endpoint>>, Option<Duration>) {
    let mut armed = Vec::new();
    for endpoint in alone {
        if armed.len() == MAX_ARMED {
            if endpoint.park() {
                continue;
            }
            again = Some(PROGRAM_INTERVAL);
            ignore_panic(|| endpoint.poll_for_registry());
        } else if endpoint.arm_for_registry(wake_sources) {
            ignore_panic(|| endpoint.poll_for_registry());
            armed.push(endpoint);
        }
    }
    (armed, again)
}
