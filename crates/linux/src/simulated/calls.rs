//! Which system calls are answered otherwise in simulated time.
//! Not those that only wait otherwise: these are in `waits`.
//! Source: man-pages section 2.

use longma_guest::Errno;
use longma_guest::host::locks::Lazy;

use super::identity::{FIRST_ID, Identities};
use super::{CoreSet, Simulation, ThreadNumber, clocks, futex, standing, timers};
use crate::Thread;

type Arguments = [u64; 6];
type Returned = Result<u64, Errno>;

const INVALID: Errno = Errno(libc::EINVAL);
const NO_SUCH: Errno = Errno(libc::ESRCH);

/// What a call does in simulated time.
#[derive(Clone, Copy)]
enum Instead {
    /// This.
    Call(fn(&mut Thread, &Simulation, Arguments) -> Returned),
    /// This, or what it does otherwise.
    Perhaps(fn(&mut Thread, &Simulation, Arguments) -> Option<Returned>),
    /// What it does otherwise, and it can make no file ready.
    Quiet,
    /// What it does otherwise, and then those it has sent a signal to look.
    Sends,
}
use Instead::{Call, Perhaps, Quiet, Sends};

/// By number. Calls that are not here do what they do otherwise.
#[rustfmt::skip]
const CALLS: &[(u16, Instead)] = &[
    (30, Perhaps(standing::ioprio_set)),
    (31, Perhaps(standing::ioprio_get)),
    (85, Call(timers::timerfd_create)),
    (86, Call(timers::timerfd_settime)),
    (87, Call(timers::timerfd_gettime)),
    (98, Perhaps(futex::futex)),
    (101, Call(clocks::nanosleep)),
    (102, Perhaps(timers::getitimer)),
    (103, Perhaps(timers::setitimer)),
    (107, Perhaps(timers::timer_create)),
    (108, Perhaps(timers::timer_gettime)),
    (109, Perhaps(timers::timer_getoverrun)),
    (110, Perhaps(timers::timer_settime)),
    (111, Perhaps(timers::timer_delete)),
    (113, Call(clocks::clock_gettime)),
    (114, Call(clocks::clock_getres)),
    (115, Call(clocks::clock_nanosleep)),
    (118, Perhaps(standing::sched_setparam)),
    (119, Perhaps(standing::sched_setscheduler)),
    (120, Perhaps(standing::sched_getscheduler)),
    (121, Perhaps(standing::sched_getparam)),
    (122, Call(sched_setaffinity)),
    (123, Call(sched_getaffinity)),
    (124, Call(sched_yield)),
    (127, Perhaps(standing::sched_rr_get_interval)),
    (129, Sends), // kill
    (130, Sends), // tkill
    (131, Sends), // tgkill
    (135, Quiet), // rt_sigprocmask
    (138, Sends), // rt_sigqueueinfo
    (140, Perhaps(standing::setpriority)),
    (141, Perhaps(standing::getpriority)),
    (153, Call(clocks::times)),
    (154, Call(standing::setpgid)),
    (155, Call(standing::getpgid)),
    (156, Call(standing::getsid)),
    (157, Call(standing::setsid)),
    (165, Call(clocks::getrusage)),
    (168, Call(getcpu)),
    (169, Call(clocks::gettimeofday)),
    (171, Call(adjust)),
    (172, Call(getpid)),
    (173, Call(getppid)),
    (178, Call(gettid)),
    (179, Call(clocks::sysinfo)),
    (214, Quiet), // brk
    (215, Quiet), // munmap
    (222, Quiet), // mmap
    (226, Quiet), // mprotect
    (233, Quiet), // madvise
    (240, Sends), // rt_tgsigqueueinfo
    (266, Call(adjust)),
    (274, Perhaps(standing::sched_setattr)),
    (275, Perhaps(standing::sched_getattr)),
    (278, Call(getrandom)),
    (424, Sends), // pidfd_send_signal
    (449, Call(futex::futex_waitv)),
];

fn instead(number: u16) -> Option<Instead> {
    static INDEX: Lazy<[Option<Instead>; 512]> = Lazy::new(|| {
        let mut index = [None; 512];
        CALLS.iter().for_each(|(number, instead)| index[usize::from(*number)] = Some(*instead));
        index
    });
    INDEX[usize::from(number) % 512]
}

/// Answers call `number` if simulated time does that otherwise.
pub(crate) fn answer(
    thread: &mut Thread,
    simulation: &Simulation,
    number: u16,
    arguments: Arguments,
) -> Option<Returned> {
    match instead(number)? {
        Call(call) => Some(call(thread, simulation, arguments)),
        Perhaps(call) => call(thread, simulation, arguments),
        Quiet | Sends => None,
    }
}

/// Lets others see what call `number`, which is done, may have changed for them.
pub(crate) fn settle(simulation: &Simulation, thread: ThreadNumber, number: u16) {
    match instead(number) {
        None => simulation.scheduler.files_changed(),
        Some(Sends) => {
            simulation.scheduler.signals_sent(thread);
            simulation.scheduler.files_changed();
        }
        Some(_) => {}
    }
}

fn thread_of(thread: &Thread, id: u64) -> Result<ThreadNumber, Errno> {
    match id as i32 {
        0 => Ok(thread.number),
        id => Identities::thread(id).ok_or(NO_SUCH),
    }
}

fn sched_setaffinity(thread: &mut Thread, simulation: &Simulation, arguments: Arguments) -> Returned {
    let [id, length, set, ..] = arguments;
    let of = thread_of(thread, id)?;
    let mut bytes = [0; CoreSet::CORES / 8];
    let given = (length as usize).min(bytes.len());
    thread.process.memory().read(set, &mut bytes[..given])?;
    let there = CoreSet::first(simulation.scheduler.cores());
    let cores = CoreSet::from_bytes(&bytes).and(there);
    if cores.is_empty() {
        return Err(INVALID);
    }
    if simulation.scheduler.allow(of, cores) { Ok(0) } else { Err(NO_SUCH) }
}

fn sched_getaffinity(thread: &mut Thread, simulation: &Simulation, arguments: Arguments) -> Returned {
    let [id, length, set, ..] = arguments;
    let of = thread_of(thread, id)?;
    let length = length as u32 as usize;
    let needed = simulation.scheduler.cores().div_ceil(64) * 8;
    if length < needed || !length.is_multiple_of(8) {
        return Err(INVALID);
    }
    let cores = simulation.scheduler.allowed(of).ok_or(NO_SUCH)?;
    thread.process.memory().write(set, &cores.to_bytes()[..needed])?;
    Ok(needed as u64)
}

fn sched_yield(thread: &mut Thread, simulation: &Simulation, _: Arguments) -> Returned {
    simulation.scheduler.yield_now(thread.number);
    Ok(0)
}

fn getcpu(thread: &mut Thread, simulation: &Simulation, [core, node, ..]: Arguments) -> Returned {
    let place = simulation.scheduler.place(thread.number);
    let memory = thread.process.memory();
    memory.write_optional(core, &(place.0 as u32).to_le_bytes())?;
    memory.write_optional(node, &(place.1 as u32).to_le_bytes())?;
    Ok(0)
}

/// The clock cannot be adjusted, and nobody does.
fn adjust(_: &mut Thread, _: &Simulation, _: Arguments) -> Returned {
    Err(Errno(libc::EPERM))
}

fn getpid(_: &mut Thread, _: &Simulation, _: Arguments) -> Returned {
    Ok(FIRST_ID as u64)
}

/// Whoever started the simulation is no process of the model: the parent is init, as that of one whose parent is over.
fn getppid(_: &mut Thread, _: &Simulation, _: Arguments) -> Returned {
    Ok(1)
}

fn gettid(thread: &mut Thread, _: &Simulation, _: Arguments) -> Returned {
    Ok(thread.tid as u64)
}

fn getrandom(thread: &mut Thread, simulation: &Simulation, arguments: Arguments) -> Returned {
    const KNOWN: u32 = libc::GRND_NONBLOCK | libc::GRND_RANDOM | libc::GRND_INSECURE;
    /// The kernel gives no more at once.
    const MOST: u64 = (1 << 25) - 1;
    let [result, length, flags, ..] = arguments;
    if flags as u32 & !KNOWN != 0 {
        return Err(INVALID);
    }
    let length = length.min(MOST);
    let mut bytes = vec![0; length as usize];
    simulation.fill_random(&mut bytes);
    thread.process.memory().write(result, &bytes)?;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_are_in_order_and_each_stands_once() {
        assert!(CALLS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
