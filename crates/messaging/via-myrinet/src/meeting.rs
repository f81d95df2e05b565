//! The state shared by all NICs of a network: the simulated world, and pending connection requests.

use super::world::World;
use longma_via::{Address, ViAttributes};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub(super) struct Shared {
    world: Mutex<World>,
    meeting: Mutex<Meeting>,
    pub(super) changed: Condvar,
}

/// The listening addresses with their pending requests.
#[derive(Default)]
pub(super) struct Meeting {
    pub(super) waiting: BTreeMap<(usize, Vec<u8>), VecDeque<Wish>>,
    /// The requests waiting for an answer, with the answer once it is known.
    pub(super) answers: BTreeMap<u64, Option<Answer>>,
    pub(super) next: u64,
}

pub(super) struct Wish {
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
pub(super) type Place = (usize, usize);

impl Shared {
    pub(super) fn new(world: World) -> Self {
        Self { world: Mutex::new(world), meeting: Mutex::default(), changed: Condvar::new() }
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn meeting(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change. Returns `false` when the deadline has passed.
    pub(super) fn pause<'a>(
        &self,
        meeting: MutexGuard<'a, Meeting>,
        deadline: Option<Instant>,
    ) -> (MutexGuard<'a, Meeting>, bool) {
        let Some(deadline) = deadline else {
            return (self.changed.wait(meeting).unwrap_or_else(PoisonError::into_inner), true);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return (meeting, false);
        }
        let waited = self.changed.wait_timeout(meeting, left);
        (waited.unwrap_or_else(PoisonError::into_inner).0, true)
    }
}
