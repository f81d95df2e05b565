//! The state shared by all NICs of a network: the simulated world, and pending connection requests.

use super::world::World;
use longma_locks::IgnorePoison;
use longma_via::{Address, ViAttributes};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

pub(super) struct Shared {
    world: Mutex<World>,
    requests: Mutex<Requests>,
    pub(super) changed: Condvar,
}

/// The listening addresses with their pending requests.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) waiting: BTreeMap<(usize, Vec<u8>), VecDeque<PendingRequest>>,
    /// The requests that wait for an answer, with the answer once it is known.
    pub(super) answers: BTreeMap<u64, Option<Answer>>,
    pub(super) next: u64,
}

pub(super) struct PendingRequest {
    pub(super) number: u64,
    pub(super) from: Address,
    pub(super) station: usize,
    pub(super) slot: usize,
    pub(super) attributes: ViAttributes,
}

pub(super) enum Answer {
    Accepted { slot: usize, attributes: ViAttributes },
    Rejected,
}

/// A VI: its station and its number there.
pub(super) type ViAddress = (usize, usize);

impl Shared {
    pub(super) fn new(world: World) -> Self {
        Self { world: Mutex::new(world), requests: Mutex::default(), changed: Condvar::new() }
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().ignore_poison()
    }

    pub(super) fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().ignore_poison()
    }

    /// Waits for a change. Returns `false` when the deadline has passed.
    pub(super) fn pause<'a>(
        &self,
        requests: MutexGuard<'a, Requests>,
        deadline: Option<Instant>,
    ) -> (MutexGuard<'a, Requests>, bool) {
        let Some(deadline) = deadline else {
            return (self.changed.wait(requests).ignore_poison(), true);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return (requests, false);
        }
        let waited = self.changed.wait_timeout(requests, left);
        (waited.ignore_poison().0, true)
    }
}
