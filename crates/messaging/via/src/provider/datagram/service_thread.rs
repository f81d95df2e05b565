//! The thread of a datagram NIC. It serves connections while programs do not poll, and wakes sleeping threads.
//!
//! Source: poll(2), eventfd(2).

use super::node::Node;
use crate::error::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// While programs poll, the thread leaves the medium to them and checks only at this interval.
pub(super) const LEAVE_TO_PROGRAMS: Duration = Duration::from_millis(1);

/// A program that polled within this time is expected to poll again.
const STILL_POLLING: Duration = Duration::from_millis(2);

/// The number of rounds before the thread pauses although VIs still have events, and the length of the pause. Without
/// the pause, a VI that never takes its events would keep the thread busy.
const MAX_ROUNDS: u32 = 64;
const PAUSE: Duration = Duration::from_millis(1);

/// The maximum sleep, in milliseconds. Nothing waits for its end: it only bounds the damage of a missed wake-up. Tests
/// raise it, so that a missed wake-up fails instead of being late.
static MAX_SLEEP_MS: AtomicU64 = AtomicU64::new(200);

/// Changes the maximum sleep of all service threads of this process.
pub(crate) fn set_max_sleep(limit: Duration) {
    MAX_SLEEP_MS.store(limit.as_millis() as u64, Ordering::Relaxed);
}

fn max_sleep() -> Duration {
    Duration::from_millis(MAX_SLEEP_MS.load(Ordering::Relaxed))
}

/// Wakes the thread.
pub(super) struct Wakeup {
    event: OwnedFd,
    is_signalled: AtomicBool,
}

impl Wakeup {
    pub(super) fn new() -> Result<Self, Error> {
        // SAFETY: only creates a new descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::last_system("creating an event descriptor"));
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        Ok(Self { event: unsafe { OwnedFd::from_raw_fd(fd) }, is_signalled: AtomicBool::new(false) })
    }

    pub(super) fn signal(&self) {
        if !self.is_signalled.swap(true, Ordering::AcqRel) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: writes eight bytes of a local array to a descriptor owned by `self`.
            unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    fn drain(&self) {
        let mut count = [0u8; 8];
        // SAFETY: reads eight bytes into a local array; the descriptor is nonblocking.
        unsafe { libc::read(self.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        self.is_signalled.store(false, Ordering::Release);
    }
}

/// Starts the thread of a node. It ends soon after the node is closed.
pub(super) fn start(node: &Arc<Node>) -> Result<JoinHandle<()>, Error> {
    let weak = Arc::downgrade(node);
    let thread = std::thread::Builder::new().name("via-datagrams".into());
    thread.spawn(move || run(&weak)).map_err(|error| Error::system("starting the NIC's thread", error))
}

fn run(weak: &Weak<Node>) {
    while let Some(node) = weak.upgrade().filter(|node| !node.is_closed.load(Ordering::Acquire)) {
        let pause = work_once(&node);
        sleep(&node, pause);
    }
}

/// Serves the medium and polls the VIs that have events, until no VI has any. Returns the length of a pause if some VIs
/// still have events after the maximum number of rounds.
fn work_once(node: &Node) -> Option<Duration> {
    let poller = node.poller.get().and_then(Weak::upgrade);
    for _ in 0..MAX_ROUNDS {
        let vis_with_events = node.poll_for_service();
        let poller = poller.as_ref().filter(|_| !vis_with_events.is_empty())?;
        vis_with_events.into_iter().for_each(|vi| poller.poll(vi));
    }
    Some(PAUSE)
}

/// Decides whether the medium is left to programs, and how long to sleep. `polled` is the time of the last poll by a
/// program, zero if there was none.
fn rest(now: Duration, sleepers: u32, polled: Duration, deadline: Option<Duration>) -> (bool, Duration) {
    let programs_poll =
        sleepers == 0 && polled > Duration::ZERO && now.saturating_sub(polled) < STILL_POLLING;
    // Check again soon: that poll may have been the program's last one.
    let due = deadline.map_or(max_sleep(), |at| at.saturating_sub(now).min(max_sleep()));
    (programs_poll, if programs_poll { LEAVE_TO_PROGRAMS } else { due })
}

fn sleep(node: &Node, pause: Option<Duration>) {
    let (socket, programs_poll, limit) = {
        let mut state = node.lock();
        let now = node.now();
        let deadline = pause.map(|pause| now + pause).or(state.next_due());
        let (programs_poll, limit) = rest(now, state.sleepers, state.polled, deadline);
        state.sleeps_until = now + limit;
        (state.readable(), programs_poll, limit)
    };
    let pollfd = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut files = [pollfd(node.wakeup.event.as_raw_fd()), pollfd(socket)];
    let count = if programs_poll { 1 } else { 2 };
    let limit = libc::timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    // SAFETY: the array is local and at least as long as given; the timeout lives through the call.
    unsafe { libc::ppoll(files.as_mut_ptr(), count, &raw const limit, std::ptr::null()) };
    if files[0].revents != 0 {
        node.wakeup.drain();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_medium_left_to_programs_is_polled_again_soon() {
        let now = Duration::from_secs(5);
        let just_now = now - STILL_POLLING / 2;
        for deadline in [None, Some(now), Some(now + max_sleep())] {
            assert_eq!(rest(now, 0, just_now, deadline), (true, LEAVE_TO_PROGRAMS), "{deadline:?}");
        }
        // The thread polls the medium itself if a program sleeps, or if no program has polled lately.
        for (sleepers, polled) in [(1, just_now), (0, now - STILL_POLLING), (0, Duration::ZERO)] {
            assert_eq!(rest(now, sleepers, polled, None), (false, max_sleep()));
            assert_eq!(rest(now, sleepers, polled, Some(now + PAUSE)), (false, PAUSE));
        }
    }
}
