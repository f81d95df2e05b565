//! Waiting for external events while no guest thread can run. Source: eventfd(2), poll(2).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use longma_guest::host::{descriptors, faults};
use longma_linux::simulated::{AwaitedFile, Scheduler as _};

use super::scheduler::{Holder, Scheduler};

/// The stack size of the idle thread.
const STACK_BYTES: usize = 128 << 10;

/// Creates the eventfd that wakes the idle thread.
pub(super) fn wake_event() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers and only creates a descriptor.
    let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    descriptors::move_to_reserved(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

pub(super) fn signal(wake_event: &OwnedFd) {
    let one = 1u64;
    // SAFETY: passes eight live bytes; the call does not block.
    unsafe { libc::write(wake_event.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Resets the eventfd. Returns true if it was set.
fn reset(wake_event: &OwnedFd) -> bool {
    let mut count = 0u64;
    // SAFETY: passes eight live bytes; the call does not block.
    unsafe { libc::read(wake_event.as_raw_fd(), (&raw mut count).cast(), 8) > 0 }
}

/// The threads that wait for a file that is ready, without duplicates.
pub(super) fn ready(files: &[(u32, AwaitedFile)]) -> Vec<u32> {
    wait(None, files, Some(Duration::ZERO))
}

fn wait(wake_event: Option<&OwnedFd>, files: &[(u32, AwaitedFile)], longest: Option<Duration>) -> Vec<u32> {
    let wake_event = wake_event.map(|wake_event| libc::pollfd {
        fd: wake_event.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    let files_of = files.iter();
    let awaited =
        files_of.map(|(_, file)| libc::pollfd { fd: file.descriptor, events: file.events, revents: 0 });
    let skipped = usize::from(wake_event.is_some());
    let mut poll_fds: Vec<libc::pollfd> = wake_event.into_iter().chain(awaited).collect();
    let limit = longest.map(|longest| libc::timespec {
        tv_sec: longest.as_secs() as i64,
        tv_nsec: longest.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array and the timeout outlive the call.
    let ready_count =
        unsafe { libc::ppoll(poll_fds.as_mut_ptr(), poll_fds.len() as u64, limit, std::ptr::null()) };
    if ready_count <= 0 {
        return Vec::new();
    }
    let mut threads: Vec<u32> = poll_fds[skipped..]
        .iter()
        .zip(files)
        .filter(|(file, _)| file.revents != 0)
        .map(|(_, (thread, _))| *thread)
        .collect();
    threads.dedup();
    threads
}

/// Starts the idle thread, which ends with the scheduler. Returns once the thread has blocked all signals; otherwise a
/// signal that the guest blocks could be delivered there and kill the process.
pub(super) fn start(scheduler: &Arc<Scheduler>) -> io::Result<()> {
    let scheduler = Arc::downgrade(scheduler);
    let (shielded, is_shielded) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("idle".into())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            faults::shield_thread();
            // Devices write to guest memory from this thread.
            faults::prepare_thread();
            let _ = shielded.send(());
            while let Some(scheduler) = Weak::upgrade(&scheduler) {
                idle_once(&scheduler);
            }
        })
        .and_then(|_| is_shielded.recv().map_err(io::Error::other))
}

fn idle_once(scheduler: &Scheduler) {
    let (files, pace) = {
        let state = scheduler.lock();
        if state.holder == Holder::Idler {
            // An external event may make a thread runnable before the next simulated event. Until then, simulated time
            // must not pass faster than host time.
            let left = scheduler.next_event(&state).map(|event| {
                let left = event.checked_since(scheduler.now()).unwrap_or_default();
                Duration::from_nanos(left.ps().div_ceil(1000))
            });
            (scheduler.awaited_files(&state), left)
        } else {
            (Vec::new(), None)
        }
    };
    let began = std::time::Instant::now();
    let ready = wait(Some(&scheduler.wake_event), &files, pace);
    let was_signalled = reset(&scheduler.wake_event);
    let has_timed_out =
        pace.is_some_and(|pace| began.elapsed() >= pace) && !was_signalled && ready.is_empty();
    let mut state = scheduler.lock();
    if state.holder != Holder::Idler {
        return;
    }
    scheduler.wake_sleepers(&mut state, &ready);
    let (state, next) = scheduler.decide(state, None, has_timed_out);
    if let Some(thread) = next {
        Scheduler::give(state, thread);
    }
}
