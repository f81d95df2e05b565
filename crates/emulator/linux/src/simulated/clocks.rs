//! Clocks and sleeping in simulated time. Timers are in `timers`. Source: clock_gettime(2), clock_nanosleep(2),
//! times(2), getrusage(2), sysinfo(2).

use longma_guest::Errno;
use longma_guest::words::{bytes_of, words_of};
use longma_sim::{Duration, Time};

use super::calls::Caller;
use super::{Arguments, EINVAL, Returned, Simulation, Sleep, ThreadNumber, Wakeup, identity::Identities};

const NS_PER_SECOND: u64 = 1_000_000_000;
const PS_PER_NS: u64 = 1000;

/// CLOCK_REALTIME at the start of simulated time: 2026-01-01 00:00:00 UTC. The date must be after the build of the
/// programs and before certificates expire.
pub const EPOCH_S: u64 = 1_767_225_600;
/// CLOCK_MONOTONIC and similar clocks at the start. It is not 0, because programs interpret 0 as a clock that does
/// not work.
pub const UP_S: u64 = 100;

/// The time that a clock shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Simulated time plus this many seconds.
    Wall(u64),
    /// The run time of the process, or of one thread.
    Processor(Option<ThreadNumber>),
}

impl Clock {
    /// The clock with this number, for calls by thread `caller`.
    pub(crate) fn of(number: i32, caller: ThreadNumber) -> Result<Self, Errno> {
        Ok(match number {
            libc::CLOCK_REALTIME
            | libc::CLOCK_REALTIME_COARSE
            | libc::CLOCK_REALTIME_ALARM
            | libc::CLOCK_TAI => Self::Wall(EPOCH_S),
            libc::CLOCK_MONOTONIC
            | libc::CLOCK_MONOTONIC_RAW
            | libc::CLOCK_MONOTONIC_COARSE
            | libc::CLOCK_BOOTTIME
            | libc::CLOCK_BOOTTIME_ALARM => Self::Wall(UP_S),
            libc::CLOCK_PROCESS_CPUTIME_ID => Self::Processor(None),
            libc::CLOCK_THREAD_CPUTIME_ID => Self::Processor(Some(caller)),
            // The clock of a process or thread (posix-timers.h). The complement of its id is above the low three bits.
            // Bit 2 is set for a thread. The lowest two bits select the kind; 3 is an open file, which is not
            // supported.
            _ if number < 0 && number & 3 != 3 => {
                let id = !(number >> 3);
                match (number & 4 != 0, Identities::thread(id)) {
                    (_, None) if id == 0 => Self::Processor((number & 4 != 0).then_some(caller)),
                    (_, None) => return Err(EINVAL),
                    (false, Some(_)) => Self::Processor(None),
                    (true, thread) => Self::Processor(thread),
                }
            }
            _ => return Err(EINVAL),
        })
    }

    fn read_ns(self, simulation: &Simulation) -> u64 {
        match self {
            Self::Wall(offset_s) => {
                let offset_ns = offset_s.saturating_mul(NS_PER_SECOND);
                offset_ns.saturating_add(simulation.shown_time().ps() / PS_PER_NS)
            }
            Self::Processor(thread) => simulation.scheduler.run_time(thread).ps() / PS_PER_NS,
        }
    }

    /// The simulated time at which this clock shows `ns`; the start for times before it.
    pub(crate) fn at_ns(self, ns: u64) -> Option<Time> {
        match self {
            Self::Wall(offset_s) => Some(Time::from_ps(
                ns.saturating_sub(offset_s.saturating_mul(NS_PER_SECOND)).saturating_mul(PS_PER_NS),
            )),
            Self::Processor(_) => None,
        }
    }
}

/// Nanoseconds of a `struct timespec`.
pub(crate) fn timespec_ns(bytes: [u8; 16]) -> Result<u64, Errno> {
    let [seconds, ns] = words_of(&bytes).map(|word| word as i64);
    if seconds < 0 || !(0..NS_PER_SECOND as i64).contains(&ns) {
        return Err(EINVAL);
    }
    Ok((seconds as u64).saturating_mul(NS_PER_SECOND).saturating_add(ns as u64))
}

/// Encodes a `struct timespec`.
pub(crate) fn to_timespec(ns: u64) -> [u8; 16] {
    bytes_of(&[ns / NS_PER_SECOND, ns % NS_PER_SECOND])
}

/// Encodes a `struct timeval`.
pub(crate) fn to_timeval(ns: u64) -> [u8; 16] {
    bytes_of(&[ns / NS_PER_SECOND, ns % NS_PER_SECOND / 1000])
}

/// The time `ns` from now; `None` if it exceeds the range. The repeated wait of a restored thread keeps its original
/// deadline.
pub(crate) fn after_ns(simulation: &Simulation, ns: u64) -> Option<Time> {
    if let Some(deadline) = simulation.take_resumed_deadline() {
        return Some(deadline);
    }
    simulation.scheduler.now().checked_add(Duration::from_ns(ns)?)
}

/// The remaining time until `deadline` in nanoseconds.
pub(crate) fn remaining_ns(simulation: &Simulation, deadline: Option<Time>) -> u64 {
    deadline.map_or(0, |deadline| {
        deadline.checked_since(simulation.scheduler.now()).map_or(0, |left| left.ps() / PS_PER_NS)
    })
}

pub(crate) fn clock_gettime(caller: &Caller<'_>, [clock, result, ..]: Arguments) -> Returned {
    let ns = Clock::of(clock as i32, caller.number)?.read_ns(caller.simulation);
    caller.memory().write(result, &to_timespec(ns))?;
    Ok(0)
}

pub(crate) fn clock_getres(caller: &Caller<'_>, [clock, result, ..]: Arguments) -> Returned {
    Clock::of(clock as i32, caller.number)?;
    caller.memory().write_optional(result, &to_timespec(1))?;
    Ok(0)
}

pub(crate) fn gettimeofday(caller: &Caller<'_>, [result, zone, ..]: Arguments) -> Returned {
    let ns = Clock::Wall(EPOCH_S).read_ns(caller.simulation);
    let memory = caller.memory();
    memory.write_optional(result, &to_timeval(ns))?;
    memory.write_optional(zone, &[0; 8])?;
    Ok(0)
}

pub(crate) fn nanosleep(caller: &Caller<'_>, [wanted, left, ..]: Arguments) -> Returned {
    let ns = timespec_ns(caller.memory().read_array(wanted)?)?;
    sleep_until(caller, after_ns(caller.simulation, ns), left)
}

pub(crate) fn clock_nanosleep(caller: &Caller<'_>, [clock, flags, wanted, left, ..]: Arguments) -> Returned {
    let clock = Clock::of(clock as i32, caller.number)?;
    let ns = timespec_ns(caller.memory().read_array(wanted)?)?;
    match (clock, flags as i32 & libc::TIMER_ABSTIME != 0) {
        // A sleeping thread does not run, so only other threads could advance this clock. Not supported.
        (Clock::Processor(_), _) => Err(Errno(libc::ENOTSUP)),
        (_, true) => sleep_until(caller, clock.at_ns(ns), 0),
        (_, false) => sleep_until(caller, after_ns(caller.simulation, ns), left),
    }
}

fn sleep_until(caller: &Caller<'_>, deadline: Option<Time>, left: u64) -> Returned {
    let sleep = Sleep { deadline, reason: "a sleep", ..Sleep::default() };
    match caller.simulation.scheduler.sleep(caller.number, sleep) {
        Wakeup::NotBegun => Err(Errno::RESTART_ALWAYS),
        Wakeup::Signalled => {
            let ns = remaining_ns(caller.simulation, deadline);
            caller.memory().write_optional(left, &to_timespec(ns))?;
            Err(Errno(libc::EINTR))
        }
        Wakeup::TimedOut | Wakeup::Woken => Ok(0),
    }
}

/// The tick rate of times(2).
const TICKS_PER_SECOND: u64 = 100;

pub(crate) fn times(caller: &Caller<'_>, [result, ..]: Arguments) -> Returned {
    let ticks = |ns: u64| ns / (NS_PER_SECOND / TICKS_PER_SECOND);
    let run = ticks(Clock::Processor(None).read_ns(caller.simulation));
    // All time is user time: the model has no kernel time and no children.
    caller.memory().write_optional(result, &bytes_of::<32>(&[run, 0, 0, 0]))?;
    Ok(ticks(Clock::Wall(UP_S).read_ns(caller.simulation)))
}

pub(crate) fn getrusage(caller: &Caller<'_>, [who, result, ..]: Arguments) -> Returned {
    const RUSAGE_BYTES: usize = 144;
    let subject = match who as i32 {
        libc::RUSAGE_SELF => Some(None),
        libc::RUSAGE_THREAD => Some(Some(caller.number)),
        libc::RUSAGE_CHILDREN => None,
        _ => return Err(EINVAL),
    };
    let mut bytes = [0; RUSAGE_BYTES];
    if let Some(subject) = subject {
        bytes[..16].copy_from_slice(&to_timeval(Clock::Processor(subject).read_ns(caller.simulation)));
    }
    caller.memory().write(result, &bytes)?;
    Ok(0)
}

pub(crate) fn sysinfo(caller: &Caller<'_>, [result, ..]: Arguments) -> Returned {
    // SAFETY: `libc::sysinfo` is plain data.
    let mut host: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: `host` is valid for writes.
    unsafe { libc::sysinfo(&raw mut host) };
    // Replace values that differ between runs or hosts.
    (host.totalram, host.totalswap, host.totalhigh, host.mem_unit) =
        (caller.simulation.memory_bytes, 0, 0, 1);
    host.uptime = (Clock::Wall(UP_S).read_ns(caller.simulation) / NS_PER_SECOND) as _;
    host.loads = [0; 3];
    host.procs = 1;
    (host.freeram, host.sharedram, host.bufferram) = (host.totalram, 0, 0);
    (host.freeswap, host.freehigh) = (host.totalswap, host.totalhigh);
    // SAFETY: the structure is plain data, and its padding is zeroed.
    let bytes =
        unsafe { std::slice::from_raw_parts((&raw const host).cast::<u8>(), size_of::<libc::sysinfo>()) };
    caller.memory().write(result, bytes)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_found_by_number_and_by_thread_id() {
        let own = ThreadNumber(3);
        assert_eq!(Clock::of(libc::CLOCK_MONOTONIC, own), Ok(Clock::Wall(UP_S)));
        assert_eq!(Clock::of(libc::CLOCK_THREAD_CPUTIME_ID, own), Ok(Clock::Processor(Some(own))));
        let of_thread = |number, bits: i32| !Identities::of(ThreadNumber(number)) << 3 | bits;
        assert_eq!(Clock::of(of_thread(5, 6), own), Ok(Clock::Processor(Some(ThreadNumber(5)))));
        assert_eq!(Clock::of(of_thread(0, 2), own), Ok(Clock::Processor(None)));
        assert_eq!(Clock::of(!1 << 3 | 2, own), Err(EINVAL));
        assert_eq!(Clock::of(77, own), Err(EINVAL));
        assert_eq!(Clock::of(-1, own), Err(EINVAL));
    }

    #[test]
    fn a_timespec_round_trips_through_guest_memory() {
        let ns = 12 * NS_PER_SECOND + 345;
        assert_eq!(timespec_ns(to_timespec(ns)), Ok(ns));
        let mut negative = to_timespec(ns);
        negative[7] = 0x80;
        assert_eq!(timespec_ns(negative), Err(EINVAL));
        assert_eq!(timespec_ns([0xff; 16].map(|byte: u8| byte >> 1)), Err(EINVAL));
    }
}
