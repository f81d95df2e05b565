//! Timers in simulated time: setitimer, timer_create, timerfd. Timers of processor time use the host, see
//! [`host_clock`]. Source: setitimer(2), timer_create(2), timerfd_create(2), sigevent(7).

use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use longma_guest::Errno;
use longma_guest::host::host_call;
use longma_guest::host::{descriptors, event_count};
use longma_guest::words::{i32_at, u64_at, words_of};
use longma_sim::{Duration, Time};
use serde::{Deserialize, Serialize};

use super::calls::Caller;
use super::clocks::{Clock, UP_S, remaining_ns, timespec_ns, to_timespec, to_timeval};
use super::identity::Identities;
use super::{Arguments, EINVAL, Returned, Simulation, ThreadNumber};
use crate::open_files;

const SI_TIMER: i32 = -2;
const SI_KERNEL: i32 = 0x80;
const SIGEV_SIGNAL: i32 = 0;
const SIGEV_NONE: i32 = 1;
const SIGEV_THREAD_ID: i32 = 4;
/// The first id of a simulated timer. Host timers, which a guest may also have, have small ids.
const FIRST_TIMER: i32 = 1 << 20;
/// The maximum number of timers, so that a hostile program cannot exhaust memory.
const MAX_TIMERS: usize = 4096;
/// The number of timers above which timers with closed timerfds are removed.
const CLEANUP_THRESHOLD: usize = 64;

/// Identifies a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TimerKey {
    /// ITIMER_REAL of setitimer.
    Interval,
    /// A timer of timer_create, by id.
    Posix(i32),
    /// A timerfd, by the kernel's id of its eventfd.
    File(u64),
}

/// The notification of an expired timer.
#[derive(Debug)]
enum Notification {
    Nothing,
    /// A signal to the process or to one thread. `value` is that of the sigevent.
    Signal {
        signal: i32,
        value: u64,
        thread: Option<ThreadNumber>,
    },
    /// Adds to the eventfd of a timerfd.
    Count(OwnedFd),
}

#[derive(Debug)]
struct Timer {
    clock: Clock,
    notification: Notification,
    expires: Option<Time>,
    interval: Duration,
    /// The number of expirations that the last notification did not include.
    overrun: u64,
}

/// A timer as plain data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimerImage {
    /// The id of timer_create; `None` for setitimer.
    pub id: Option<i32>,
    /// The value of its clock at the start of simulated time, in seconds.
    pub clock_s: u64,
    /// Its expiry in picoseconds of simulated time.
    pub expires_ps: Option<u64>,
    /// Its interval in picoseconds; 0 for none.
    pub interval_ps: u64,
    /// The signal, the sigevent's value, and the target thread; `None` for no notification.
    pub signal: Option<(i32, u64, Option<u32>)>,
}

/// The timers of a process.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    all: BTreeMap<TimerKey, Timer>,
    next: Option<Time>,
    next_id: i32,
}

impl Timers {
    /// The expiry of the next timer.
    pub(crate) fn next(&self) -> Option<Time> {
        self.next
    }

    /// The timers without those of timer_create, which execve(2) deletes.
    pub(super) fn kept_across_exec(mut self) -> Self {
        self.all.retain(|key, _| !matches!(key, TimerKey::Posix(_)));
        self.next_id = 0;
        self.refresh();
        self
    }

    fn refresh(&mut self) {
        self.next = self.all.values().filter_map(|timer| timer.expires).min();
    }

    /// The number of timers that timer_create has created.
    pub(crate) fn made(&self) -> i32 {
        self.next_id
    }

    /// The timers as plain data; `None` if there is a timerfd.
    pub(crate) fn image(&self) -> Option<Vec<TimerImage>> {
        let image = |(name, timer): (&TimerKey, &Timer)| {
            let Clock::Wall(clock_s) = timer.clock else { return None };
            Some(TimerImage {
                id: match name {
                    TimerKey::Interval => None,
                    TimerKey::Posix(id) => Some(*id),
                    TimerKey::File(_) => return None,
                },
                clock_s,
                expires_ps: timer.expires.map(Time::ps),
                interval_ps: timer.interval.ps(),
                signal: match &timer.notification {
                    Notification::Nothing => None,
                    Notification::Signal { signal, value, thread } => {
                        Some((*signal, *value, thread.map(|thread| thread.0)))
                    }
                    Notification::Count(_) => return None,
                },
            })
        };
        self.all.iter().map(image).collect()
    }

    /// Restores timers from plain data; `None` if they are invalid.
    pub(crate) fn of_image(images: &[TimerImage], created: i32) -> Option<Self> {
        let mut timers = Self { next_id: created, ..Self::default() };
        for image in images {
            let name = match image.id {
                None => TimerKey::Interval,
                Some(id) if (FIRST_TIMER..FIRST_TIMER.saturating_add(created)).contains(&id) => {
                    TimerKey::Posix(id)
                }
                Some(_) => return None,
            };
            let notification = match image.signal {
                None => Notification::Nothing,
                Some((signal, ..)) if !(1..=64).contains(&signal) => return None,
                Some((signal, value, thread)) => {
                    Notification::Signal { signal, value, thread: thread.map(ThreadNumber) }
                }
            };
            let timer = Timer {
                expires: image.expires_ps.map(Time::from_ps),
                interval: Duration::from_ps(image.interval_ps),
                ..Timer::new(Clock::Wall(image.clock_s), notification)
            };
            timers.all.insert(name, timer);
        }
        if timers.all.len() > MAX_TIMERS || !(0..i32::MAX - FIRST_TIMER).contains(&created) {
            return None;
        }
        timers.refresh();
        Some(timers)
    }
}

/// The two times of a `struct itimerspec` in nanoseconds: interval, value.
fn times_of(bytes: [u8; 32]) -> Result<(u64, u64), Errno> {
    let half = |from: usize| timespec_ns(std::array::from_fn(|i| bytes[from + i]));
    Ok((half(0)?, half(16)?))
}

impl Timer {
    fn new(clock: Clock, notification: Notification) -> Self {
        Self { clock, notification, expires: None, interval: Duration::ZERO, overrun: 0 }
    }

    /// Interval and remaining time in nanoseconds.
    fn remaining(&self, simulation: &Simulation) -> (u64, u64) {
        // An armed timer never reports 0.
        let remaining = self.expires.map_or(0, |expires| remaining_ns(simulation, Some(expires)).max(1));
        (self.interval.ps() / 1000, remaining)
    }

    fn set(&mut self, simulation: &Simulation, absolute: bool, (interval, value): (u64, u64)) {
        self.interval = Duration::from_ns(interval).unwrap_or_default();
        self.overrun = 0;
        self.expires = match value {
            0 => None,
            value if absolute => self.clock.at_ns(value),
            value => super::clocks::after_ns(simulation, value),
        };
    }

    /// Counts the expirations until `now` and advances the timer.
    fn expire(&mut self, now: Time) -> u64 {
        let Some(due) = self.expires else { return 0 };
        let Some(late) = now.checked_since(due) else { return 0 };
        let interval = self.interval.ps();
        let Some(more) = late.ps().checked_div(interval) else {
            self.expires = None;
            return 1;
        };
        let step = Duration::from_ps(interval).checked_mul(more + 1);
        self.expires = step.and_then(|step| due.checked_add(step));
        more + 1
    }
}

/// Expires timers due at `now`. Returns whether signals were sent.
pub(crate) fn expire(simulation: &Simulation, now: Time) -> bool {
    let mut timers = simulation.timers.lock().ignore_poison();
    let mut has_sent = false;
    for (name, timer) in &mut timers.all {
        let times = timer.expire(now);
        if times == 0 {
            continue;
        }
        timer.overrun = times - 1;
        match &timer.notification {
            Notification::Nothing => {}
            Notification::Count(file) => {
                event_count::add(file, times);
            }
            Notification::Signal { signal, value, thread } => {
                send(simulation, *name, *signal, *value, *thread, timer.overrun);
                has_sent = true;
            }
        }
    }
    timers.refresh();
    has_sent
}

fn send(
    simulation: &Simulation,
    name: TimerKey,
    signal: i32,
    value: u64,
    thread: Option<ThreadNumber>,
    overrun: u64,
) {
    let mut info = [0u8; 128];
    info[0..4].copy_from_slice(&signal.to_le_bytes());
    let process = simulation.identities.host_process() as u64;
    let host_thread = thread.map(|thread| simulation.identities.host_thread(thread));
    let number = signal as u64;
    if let TimerKey::Posix(id) = name {
        info[8..12].copy_from_slice(&SI_TIMER.to_le_bytes());
        info[16..20].copy_from_slice(&id.to_le_bytes());
        info[20..24].copy_from_slice(&(overrun.min(i32::MAX as u64) as i32).to_le_bytes());
        info[24..32].copy_from_slice(&value.to_le_bytes());
    } else {
        info[8..12].copy_from_slice(&SI_KERNEL.to_le_bytes());
    }
    let info = info.as_ptr() as u64;
    // SAFETY: the information is live, and the signal goes to this process. A thread that has ended receives no signal.
    unsafe {
        let result = match host_thread {
            Some(None) => Ok(0),
            Some(Some(host)) => {
                host_call(libc::SYS_rt_tgsigqueueinfo, [process, host as u64, number, info, 0, 0])
            }
            None => host_call(libc::SYS_rt_sigqueueinfo, [process, number, info, 0, 0, 0]),
        };
        if result.is_err() {
            // Only the main thread may send codes that are reserved for the kernel.
            let _ = host_call(libc::SYS_kill, [process, number, 0, 0, 0, 0]);
        }
    }
}

/// Reports that a timer follows the host's clock. The call is then forwarded to the host.
fn host_clock(caller: &Caller<'_>) -> Option<Returned> {
    (caller.report_once)(
        "timers of processor time (ITIMER_VIRTUAL, ITIMER_PROF, timer_create with a CPU clock) follow the host's clock, not \
         simulated time",
    );
    None
}

fn replace(
    simulation: &Simulation,
    name: TimerKey,
    absolute: bool,
    new: Option<(u64, u64)>,
) -> Result<(u64, u64), Errno> {
    let mut timers = simulation.timers.lock().ignore_poison();
    let timer = timers.all.get_mut(&name).ok_or(EINVAL)?;
    let old = timer.remaining(simulation);
    if let Some(new) = new {
        timer.set(simulation, absolute, new);
        if let Notification::Count(file) = &timer.notification {
            let mut count = 0u64;
            if open_files::is_ready(file.as_raw_fd(), libc::POLLIN) {
                // SAFETY: `count` is 8 bytes and live. The counter is not zero, so the read does not block.
                unsafe { libc::read(file.as_raw_fd(), (&raw mut count).cast(), 8) };
            }
        }
        timers.refresh();
    }
    Ok(old)
}

fn to_itimerspec((interval, value): (u64, u64)) -> Vec<u8> {
    [to_timespec(interval), to_timespec(value)].concat()
}

/// getitimer, or setitimer if `sets`.
pub(crate) fn itimer(caller: &Caller<'_>, which: u64, new: u64, old: u64, sets: bool) -> Option<Returned> {
    match which as i32 {
        0 => Some(real_timer(caller, new, old, sets)),
        1 | 2 => host_clock(caller),
        _ => Some(Err(EINVAL)),
    }
}

fn real_timer(caller: &Caller<'_>, new: u64, old: u64, sets: bool) -> Returned {
    let memory = caller.memory();
    let value = match sets.then(|| memory.read_optional::<32>(new)).transpose()? {
        None => None,
        // As in the kernel, a null pointer disarms the timer.
        Some(None) => Some((0, 0)),
        Some(Some(bytes)) => {
            let ns = |seconds: u64, us: u64| {
                let is_time = seconds as i64 >= 0 && us < 1_000_000;
                let ns = seconds.saturating_mul(1_000_000_000).saturating_add(us.wrapping_mul(1000));
                is_time.then_some(ns).ok_or(EINVAL)
            };
            let [interval, interval_us, value, value_us] = words_of(&bytes);
            Some((ns(interval, interval_us)?, ns(value, value_us)?))
        }
    };
    caller.simulation.timers.lock().ignore_poison().all.entry(TimerKey::Interval).or_insert_with(|| {
        let notification = Notification::Signal { signal: libc::SIGALRM, value: 0, thread: None };
        Timer::new(Clock::Wall(UP_S), notification)
    });
    let (interval, remaining) = replace(caller.simulation, TimerKey::Interval, false, value)?;
    memory.write_optional(old, &[to_timeval(interval), to_timeval(remaining)].concat())?;
    Ok(0)
}

pub(crate) fn timer_create(caller: &Caller<'_>, [clock, event, id, ..]: Arguments) -> Option<Returned> {
    match Clock::of(clock as i32, caller.number) {
        Ok(Clock::Processor(_)) => host_clock(caller),
        Ok(clock) => Some(create(caller, clock, event, id)),
        Err(error) => Some(Err(error)),
    }
}

fn create(caller: &Caller<'_>, clock: Clock, event: u64, result: u64) -> Returned {
    let memory = caller.memory();
    let event = memory.read_optional::<24>(event)?;
    let mut timers = caller.simulation.timers.lock().ignore_poison();
    if timers.all.len() >= MAX_TIMERS {
        return Err(Errno(libc::EAGAIN));
    }
    let id = FIRST_TIMER + timers.next_id;
    let notification = match event {
        None => Notification::Signal { signal: libc::SIGALRM, value: id as u64, thread: None },
        Some(bytes) => {
            let value = u64_at(&bytes, 0);
            let (signal, kind, target) = (i32_at(&bytes, 8), i32_at(&bytes, 12), i32_at(&bytes, 16));
            let thread = Identities::thread(target)
                .filter(|thread| caller.simulation.identities.host_thread(*thread).is_some());
            match kind {
                SIGEV_NONE => Notification::Nothing,
                _ if !(1..=64).contains(&signal) => return Err(EINVAL),
                SIGEV_SIGNAL => Notification::Signal { signal, value, thread: None },
                SIGEV_THREAD_ID if thread.is_some() => Notification::Signal { signal, value, thread },
                _ => return Err(EINVAL),
            }
        }
    };
    memory.store(result, id as u32)?;
    timers.next_id += 1;
    timers.all.insert(TimerKey::Posix(id), Timer::new(clock, notification));
    Ok(0)
}

/// A simulated timer; `None` for a host timer.
fn posix(id: u64) -> Option<TimerKey> {
    (id as i32 >= FIRST_TIMER).then_some(TimerKey::Posix(id as i32))
}

pub(crate) fn timer_settime(caller: &Caller<'_>, [id, flags, new, old, ..]: Arguments) -> Option<Returned> {
    Some(set(caller, posix(id)?, flags, new, old))
}

fn set(caller: &Caller<'_>, name: TimerKey, flags: u64, new: u64, old: u64) -> Returned {
    let memory = caller.memory();
    let new = times_of(memory.read_array(new)?)?;
    let previous = replace(caller.simulation, name, flags as i32 & 1 != 0, Some(new))?;
    memory.write_optional(old, &to_itimerspec(previous))?;
    Ok(0)
}

pub(crate) fn timer_gettime(caller: &Caller<'_>, [id, result, ..]: Arguments) -> Option<Returned> {
    Some(get(caller, posix(id)?, result))
}

fn get(caller: &Caller<'_>, name: TimerKey, result: u64) -> Returned {
    let remaining = replace(caller.simulation, name, false, None)?;
    caller.memory().write(result, &to_itimerspec(remaining))?;
    Ok(0)
}

pub(crate) fn timer_getoverrun(caller: &Caller<'_>, [id, ..]: Arguments) -> Option<Returned> {
    let name = posix(id)?;
    let timers = caller.simulation.timers.lock().ignore_poison();
    Some(timers.all.get(&name).map(|timer| timer.overrun).ok_or(EINVAL))
}

pub(crate) fn timer_delete(caller: &Caller<'_>, [id, ..]: Arguments) -> Option<Returned> {
    let name = posix(id)?;
    let mut timers = caller.simulation.timers.lock().ignore_poison();
    let removed = timers.all.remove(&name);
    timers.refresh();
    Some(removed.map(|_| 0).ok_or(EINVAL))
}

/// Creates an eventfd, which behaves like a timerfd once it has expired: it is readable, and a read returns the number
/// of expirations.
pub(crate) fn timerfd_create(caller: &Caller<'_>, [clock, flags, ..]: Arguments) -> Returned {
    let clock = match Clock::of(clock as i32, caller.number)? {
        Clock::Processor(_) => return Err(EINVAL),
        clock => clock,
    };
    if flags as i32 & !(libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) != 0 {
        return Err(EINVAL);
    }
    let mut timers = caller.simulation.timers.lock().ignore_poison();
    if timers.all.len() >= CLEANUP_THRESHOLD {
        timers.remove_closed();
    }
    if timers.all.len() >= MAX_TIMERS {
        return Err(Errno(libc::EMFILE));
    }
    // TFD_CLOEXEC and TFD_NONBLOCK equal EFD_CLOEXEC and EFD_NONBLOCK. SAFETY: the call takes no pointers.
    let made = unsafe { host_call(libc::SYS_eventfd2, [0, flags, 0, 0, 0, 0]) }?;
    let descriptor = made as RawFd;
    let (Ok(private), Some(number)) = (descriptors::duplicate(descriptor), number_of(descriptor)) else {
        // SAFETY: the descriptor was created above, and no other code has it.
        unsafe { libc::close(descriptor) };
        return Err(Errno(libc::EMFILE));
    };
    timers.all.insert(TimerKey::File(number), Timer::new(clock, Notification::Count(private)));
    Ok(made)
}

impl Timers {
    /// Removes timers whose guest descriptors are all closed.
    pub(crate) fn remove_closed(&mut self) {
        if !self.all.keys().any(|name| matches!(name, TimerKey::File(_))) {
            return;
        }
        let Ok(open) = open_files::all() else { return };
        let private: Vec<RawFd> = self
            .all
            .values()
            .filter_map(|timer| match &timer.notification {
                Notification::Count(file) => Some(file.as_raw_fd()),
                _ => None,
            })
            .collect();
        let alive: Vec<u64> =
            open.iter().filter(|fd| !private.contains(fd)).filter_map(|fd| number_of(*fd)).collect();
        self.all.retain(|name, _| !matches!(name, TimerKey::File(number) if !alive.contains(number)));
        self.refresh();
    }
}

/// The kernel's id of an eventfd; `None` for other files.
fn number_of(descriptor: RawFd) -> Option<u64> {
    open_files::fact(&open_files::facts(descriptor).ok()?, "eventfd-id")?.parse().ok()
}

fn file(descriptor: u64) -> Result<TimerKey, Errno> {
    // SAFETY: the call takes no pointers.
    if unsafe { libc::fcntl(descriptor as i32, libc::F_GETFD) } < 0 {
        return Err(Errno(libc::EBADF));
    }
    number_of(descriptor as RawFd).map(TimerKey::File).ok_or(EINVAL)
}

pub(crate) fn timerfd_settime(caller: &Caller<'_>, [descriptor, flags, new, old, ..]: Arguments) -> Returned {
    set(caller, file(descriptor)?, flags, new, old)
}

pub(crate) fn timerfd_gettime(caller: &Caller<'_>, [descriptor, result, ..]: Arguments) -> Returned {
    get(caller, file(descriptor)?, result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timer(expires: u64, interval: u64) -> Timer {
        Timer {
            expires: Some(Time::from_ps(expires)),
            interval: Duration::from_ps(interval),
            ..Timer::new(Clock::Wall(0), Notification::Nothing)
        }
    }

    #[test]
    fn a_timer_without_an_interval_expires_once() {
        let mut timer = timer(100, 0);
        assert_eq!(timer.expire(Time::from_ps(99)), 0);
        assert_eq!(timer.expire(Time::from_ps(500)), 1);
        assert_eq!((timer.expires, timer.expire(Time::from_ps(600))), (None, 0));
    }

    #[test]
    fn a_late_timer_counts_missed_expirations_and_keeps_its_period() {
        let mut timer = timer(100, 30);
        assert_eq!(timer.expire(Time::from_ps(165)), 3);
        assert_eq!(timer.expires, Some(Time::from_ps(190)));
    }
}
