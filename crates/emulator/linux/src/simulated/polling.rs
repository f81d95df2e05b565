//! poll, select, epoll and calls that wait for signals, in simulated time. The host determines which files are ready.
//! Source: poll(2), select(2), epoll_wait(2), sigsuspend(2), sigtimedwait(2).

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use longma_guest::Errno;
use longma_guest::host::host_call;
use longma_guest::host::masks::{self, BLOCKABLE, SignalSet};
use longma_guest::host::parker;
use longma_guest::words::i32_at;
use longma_sim::Time;

use super::clocks::{after_ns, remaining_ns, timespec_ns, to_timespec};
use super::{Arguments, AwaitedFile, Context, Returned, Sleep, Wakeup};

const SET_BYTES: u64 = 8;

/// A call that waits for files.
struct Wait<'a> {
    context: &'a Context,
    number: i64,
    arguments: Arguments,
    /// The deadline; `None` for an infinite wait.
    deadline: Option<Time>,
    /// The timeout is zero.
    is_nonblocking: bool,
    mask: Option<SignalSet>,
}

/// Waits for files in simulated time.
///
/// # Safety
/// The arguments are those of ppoll, pselect6, epoll_pwait or epoll_pwait2 as [`crate::events`] passes them: timeouts
/// and masks are local, other pointers are local or in guest memory.
pub(super) unsafe fn wait(context: &Context, number: i64, arguments: Arguments) -> Returned {
    // SAFETY: the caller guarantees that the pointers are local or null.
    let (timeout, mask) = unsafe {
        let timeout = match number {
            libc::SYS_ppoll => read::<16>(arguments[2]),
            libc::SYS_pselect6 => read::<16>(arguments[4]),
            libc::SYS_epoll_pwait2 => read::<16>(arguments[3]),
            _ => match arguments[3] as i32 {
                ms @ 0.. => Some(to_timespec(ms as u64 * 1_000_000)),
                _ => None,
            },
        };
        let mask = match number {
            libc::SYS_ppoll => arguments[3],
            libc::SYS_pselect6 => *(arguments[5] as *const u64),
            _ => arguments[4],
        };
        (timeout, read::<8>(mask).map(SignalSet::from_le_bytes))
    };
    let ns = timeout.map(timespec_ns).transpose()?;
    let deadline = ns.and_then(|ns| after_ns(&context.simulation, ns));
    let wait = Wait { context, number, arguments, deadline, is_nonblocking: ns == Some(0), mask };
    let returned = wait.run();
    let left = match number {
        libc::SYS_ppoll => arguments[2],
        libc::SYS_pselect6 => arguments[4],
        _ => 0,
    };
    if left != 0 {
        let ns = remaining_ns(&context.simulation, deadline);
        // SAFETY: the caller guarantees that the timeout is local and writable.
        unsafe { *(left as *mut [u8; 16]) = to_timespec(ns) };
    }
    returned
}

/// Reads `N` bytes; `None` for a null pointer.
///
/// # Safety
/// `address` is null or valid for `N` bytes.
unsafe fn read<const N: usize>(address: u64) -> Option<[u8; N]> {
    // SAFETY: the caller upholds the contract.
    (address != 0).then(|| unsafe { *(address as *const [u8; N]) })
}

impl Wait<'_> {
    fn run(&self) -> Returned {
        let sets = self.sets()?;
        loop {
            let ready = self.try_once()?;
            if ready > 0 || self.is_nonblocking {
                return Ok(ready);
            }
            // The call has cleared the sets.
            self.restore_sets(&sets)?;
            let sleep = Sleep {
                deadline: self.deadline,
                files: self.files(&sets)?,
                reason: "one of several files",
                ..Sleep::default()
            };
            let scheduler = &self.context.simulation.scheduler;
            let sleep_once = || scheduler.sleep(self.context.thread, sleep.clone());
            let wakeup = match self.mask {
                Some(mask) => with_mask(mask, sleep_once),
                None => sleep_once(),
            };
            match wakeup {
                Wakeup::Woken => {}
                Wakeup::TimedOut => return self.try_once(),
                Wakeup::Signalled => return Err(Errno(libc::EINTR)),
                Wakeup::NotBegun => return Err(Errno::RESTART),
            }
        }
    }

    /// Makes the call without blocking.
    fn try_once(&self) -> Returned {
        let mut zero = [0u64; 2];
        let now = zero.as_mut_ptr() as u64;
        let mut arguments = self.arguments;
        match self.number {
            libc::SYS_ppoll => (arguments[2], arguments[3]) = (now, 0),
            libc::SYS_pselect6 => (arguments[4], arguments[5]) = (now, 0),
            libc::SYS_epoll_pwait2 => (arguments[3], arguments[4]) = (now, 0),
            _ => (arguments[3], arguments[4]) = (0, 0),
        }
        // SAFETY: the pointers come from the caller, are to `zero`, which is live, or are null.
        unsafe { host_call(self.number, arguments) }
    }

    /// Reads from an address passed to the host: in guest memory, or in a local buffer (`arguments::with_results`).
    fn read_argument(&self, host: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let memory = &self.context.simulation.memory;
        match memory.guest_address(host as usize) {
            Some(address) => memory.read(address, bytes)?,
            // SAFETY: the caller of `wait` guarantees that a local buffer has the size given by the arguments.
            None => unsafe {
                std::ptr::copy_nonoverlapping(host as *const u8, bytes.as_mut_ptr(), bytes.len())
            },
        }
        Ok(())
    }

    /// Writes to an address passed to the host, as [`Self::read_argument`] reads from it.
    fn write_argument(&self, host: u64, bytes: &[u8]) -> Result<(), Errno> {
        let memory = &self.context.simulation.memory;
        match memory.guest_address(host as usize) {
            Some(address) => memory.write(address, bytes)?,
            // SAFETY: as above.
            None => unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), host as *mut u8, bytes.len()) },
        }
        Ok(())
    }

    /// Copies the three sets of select, which the call overwrites.
    fn sets(&self) -> Result<[Vec<u8>; 3], Errno> {
        let mut sets = [const { Vec::new() }; 3];
        if self.number == libc::SYS_pselect6 {
            for (set, address) in sets.iter_mut().zip(&self.arguments[1..4]) {
                if *address != 0 {
                    *set = vec![0; self.arguments[0].div_ceil(64) as usize * 8];
                    self.read_argument(*address, set)?;
                }
            }
        }
        Ok(sets)
    }

    fn restore_sets(&self, sets: &[Vec<u8>; 3]) -> Result<(), Errno> {
        if self.number == libc::SYS_pselect6 {
            for (set, address) in sets.iter().zip(&self.arguments[1..4]).filter(|(set, _)| !set.is_empty()) {
                self.write_argument(*address, set)?;
            }
        }
        Ok(())
    }

    fn files(&self, sets: &[Vec<u8>; 3]) -> Result<Vec<AwaitedFile>, Errno> {
        match self.number {
            libc::SYS_ppoll => {
                let mut bytes = vec![0; 8 * self.arguments[1] as usize];
                if !bytes.is_empty() {
                    self.read_argument(self.arguments[0], &mut bytes)?;
                }
                let file = |entry: &[u8]| AwaitedFile {
                    descriptor: i32_at(entry, 0),
                    events: i16::from_le_bytes([entry[4], entry[5]]),
                };
                Ok(bytes.chunks_exact(8).map(file).filter(|file| file.descriptor >= 0).collect())
            }
            libc::SYS_pselect6 => {
                let kinds = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
                let bit =
                    |set: &Vec<u8>, n: usize| set.get(n / 8).is_some_and(|byte| byte >> (n % 8) & 1 != 0);
                let file = |n: usize| {
                    let events = sets
                        .iter()
                        .zip(kinds)
                        .filter(|(set, _)| bit(set, n))
                        .fold(0, |all, (_, kind)| all | kind);
                    (events != 0).then_some(AwaitedFile { descriptor: n as RawFd, events })
                };
                Ok((0..self.arguments[0] as usize).filter_map(file).collect())
            }
            _ => Ok(vec![AwaitedFile { descriptor: self.arguments[0] as RawFd, events: libc::POLLIN }]),
        }
    }
}

/// Sleeps with another host signal mask.
fn with_mask(mask: SignalSet, sleep: impl FnOnce() -> Wakeup) -> Wakeup {
    let signals_before = parker::arrived_signals();
    let old_mask = masks::replace(mask);
    let wakeup = sleep();
    masks::replace(BLOCKABLE);
    if matches!(wakeup, Wakeup::Signalled | Wakeup::NotBegun) {
        return wakeup;
    }
    if parker::arrived_signals() & !signals_before != 0 {
        // The signal arrived after the sleep had ended. Further signals are held until it is delivered.
        return Wakeup::Signalled;
    }
    masks::replace(old_mask);
    wakeup
}

/// Waits for a signal in simulated time.
///
/// # Safety
/// The arguments are those of rt_sigsuspend or rt_sigtimedwait with local pointers.
pub(super) unsafe fn wait_for_signal(context: &Context, number: i64, arguments: Arguments) -> Returned {
    // SAFETY: the caller upholds the contract.
    let set = unsafe { read::<8>(arguments[0]) }.map_or(0, SignalSet::from_le_bytes);
    let scheduler = &context.simulation.scheduler;
    if number == libc::SYS_rt_sigsuspend {
        let sleep = Sleep { reason: "a signal", ..Sleep::default() };
        return match with_mask(set, || scheduler.sleep(context.thread, sleep)) {
            Wakeup::NotBegun => Err(Errno::RESTART),
            _ => Err(Errno(libc::EINTR)),
        };
    }
    // SAFETY: the caller upholds the contract.
    let ns = unsafe { read::<16>(arguments[2]) }.map(timespec_ns).transpose()?;
    let deadline = ns.and_then(|ns| after_ns(&context.simulation, ns));
    let watch = signal_file(set)?;
    loop {
        let mut zero = [0u64; 2];
        let peek_arguments = [arguments[0], arguments[1], zero.as_mut_ptr() as u64, SET_BYTES, 0, 0];
        // SAFETY: the caller upholds the contract; `zero` is live.
        match unsafe { host_call(number, peek_arguments) } {
            Err(Errno(libc::EAGAIN)) if ns != Some(0) => {}
            returned => return returned,
        }
        let files = vec![AwaitedFile { descriptor: watch.as_raw_fd(), events: libc::POLLIN }];
        let sleep = Sleep { deadline, files, any_signal: true, has_side_effects: false, reason: "a signal" };
        match scheduler.sleep(context.thread, sleep) {
            Wakeup::Woken => {}
            Wakeup::TimedOut => return Err(Errno(libc::EAGAIN)),
            Wakeup::Signalled => return Err(Errno(libc::EINTR)),
            Wakeup::NotBegun => return Err(Errno::RESTART),
        }
    }
}

/// Creates a file that is readable when one of the signals is pending for this process.
fn signal_file(set: SignalSet) -> Result<OwnedFd, Errno> {
    let flags = (libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as u64;
    // SAFETY: the set is live.
    let descriptor =
        unsafe { host_call(libc::SYS_signalfd4, [u64::MAX, &raw const set as u64, SET_BYTES, flags, 0, 0]) }?;
    // SAFETY: the descriptor is new, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) })
}
