//! Priorities, scheduling policy, process group and session of a process in simulated time. They are equal in all runs
//! and do not depend on the process that started the emulator. Forked children use the host's. Source: getpriority(2),
//! sched_setscheduler(2), sched_setattr(2), ioprio_set(2), setpgid(2), setsid(2), ioctl_tty(2).

use longma_locks::IgnorePoison;
use std::collections::BTreeMap;

use longma_guest::Errno;
use longma_guest::host::host_call;
use longma_guest::host::locks::Mutex;
use longma_guest::words::i32_at;

use super::calls::Caller;
use super::identity::{FIRST_ID, Identities};
use super::{Arguments, EINVAL, Returned, Simulation, ThreadNumber};
use crate::fixed_identity::USER;

/// The session of a process that is a child of init.
const SESSION: u64 = 1;
/// The result of getpriority(2) for a nice value of 0.
const NICE_OFFSET: i32 = 20;
/// The best-effort class of ioprio_get(2).
const BEST_EFFORT: i32 = 2 << 13;
/// The time slice of SCHED_OTHER in nanoseconds, for sched_rr_get_interval(2).
const SLICE_NS: u64 = 4_000_000;
/// The size of `struct sched_attr` in its first and in its current version.
const ATTRIBUTES: std::ops::RangeInclusive<u64> = 48..=56;

/// The scheduling attributes of one thread. The model's scheduler ignores them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadAttributes {
    pub nice: i32,
    policy: i32,
    /// The I/O priority as in ioprio_set(2); 0 to derive it from the nice value.
    io: i32,
}

/// Scheduling attributes by thread number.
#[derive(Debug, Default)]
pub(crate) struct SchedAttributes(Mutex<BTreeMap<u32, ThreadAttributes>>);

impl SchedAttributes {
    fn of(&self, thread: ThreadNumber) -> ThreadAttributes {
        self.0.lock().ignore_poison().get(&thread.0).copied().unwrap_or_default()
    }

    /// Copies the attributes of `thread` in an earlier program to the first thread.
    pub(super) fn take_over(&self, earlier: &Self, thread: ThreadNumber) {
        let attributes = earlier.of(thread);
        self.change(ThreadNumber(0), |own| *own = attributes);
    }

    fn change(&self, thread: ThreadNumber, change: impl FnOnce(&mut ThreadAttributes)) {
        change(self.0.lock().ignore_poison().entry(thread.0).or_default());
    }

    /// The attributes of the main thread, which /proc reports for the process.
    pub(crate) fn of_first(&self) -> ThreadAttributes {
        self.of(ThreadNumber(0))
    }

    /// Whether one of these threads has nondefault attributes.
    pub(crate) fn is_changed(&self, threads: &[ThreadNumber]) -> bool {
        threads.iter().any(|thread| self.of(*thread) != ThreadAttributes::default())
    }

    /// Copies the attributes of `parent` to its new thread `child`.
    pub(crate) fn inherit(&self, parent: ThreadNumber, child: ThreadNumber) {
        let attributes = self.of(parent);
        self.0.lock().ignore_poison().insert(child.0, attributes);
    }
}

/// The thread of this process with this id, or the caller for 0; `None` for another process.
fn own(caller: &Caller<'_>, id: u64) -> Option<ThreadNumber> {
    match id as i32 {
        0 => Some(caller.number),
        id => Identities::thread(id)
            .filter(|number| caller.simulation.identities.host_thread(*number).is_some()),
    }
}

/// The threads to which the arguments of getpriority(2) and setpriority(2) refer.
fn threads_of(caller: &Caller<'_>, [which, who, ..]: Arguments) -> Option<Result<Vec<ThreadNumber>, Errno>> {
    let all = || Ok(caller.simulation.identities.alive());
    match (which as i32, who as i32) {
        (0, _) => own(caller, who).map(|number| Ok(vec![number])),
        (1, 0 | FIRST_ID) => Some(all()),
        (1, _) => None,
        (2, who) if who == 0 || who as u64 == USER => Some(all()),
        (2, _) => Some(Err(Errno(libc::ESRCH))),
        _ => Some(Err(EINVAL)),
    }
}

pub(crate) fn getpriority(caller: &Caller<'_>, arguments: Arguments) -> Option<Returned> {
    Some(threads_of(caller, arguments)?.map(|threads| {
        let nice = threads.into_iter().map(|number| caller.simulation.sched_attributes.of(number).nice).min();
        (NICE_OFFSET - nice.unwrap_or(0)) as u64
    }))
}

pub(crate) fn setpriority(caller: &Caller<'_>, arguments: Arguments) -> Option<Returned> {
    let nice = (arguments[2] as i32).clamp(-20, 19);
    Some(threads_of(caller, arguments)?.and_then(|threads| {
        threads.into_iter().try_for_each(|number| set_nice(caller.simulation, number, nice)).map(|()| 0)
    }))
}

/// Sets the nice value. Only a privileged process may decrease it.
fn set_nice(simulation: &Simulation, number: ThreadNumber, nice: i32) -> Result<(), Errno> {
    if nice < simulation.sched_attributes.of(number).nice {
        return Err(Errno(libc::EACCES));
    }
    simulation.sched_attributes.change(number, |attributes| attributes.nice = nice);
    Ok(())
}

pub(crate) fn ioprio_get(caller: &Caller<'_>, arguments: Arguments) -> Option<Returned> {
    let [which, who, ..] = arguments;
    let number = own(caller, who).filter(|_| which == 1)?;
    let ThreadAttributes { nice, io, .. } = caller.simulation.sched_attributes.of(number);
    Some(Ok(if io == 0 { BEST_EFFORT | ((nice + NICE_OFFSET) / 5) } else { io } as u64))
}

pub(crate) fn ioprio_set(caller: &Caller<'_>, arguments: Arguments) -> Option<Returned> {
    let [which, who, io_priority, ..] = arguments;
    let number = own(caller, who).filter(|_| which == 1)?;
    let io_priority = io_priority as i32;
    Some(match (io_priority >> 13, io_priority & 0x1fff) {
        (0, 0) | (2, 0..8) | (3, _) => {
            caller.simulation.sched_attributes.change(number, |attributes| attributes.io = io_priority);
            Ok(0)
        }
        (1, 0..8) => Err(Errno(libc::EPERM)),
        _ => Err(EINVAL),
    })
}

/// Sets a normal policy. Others need privileges.
fn set_policy(simulation: &Simulation, number: ThreadNumber, policy: i32, priority: i32) -> Returned {
    match policy & !libc::SCHED_RESET_ON_FORK {
        kind @ (libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE) if priority == 0 => {
            simulation.sched_attributes.change(number, |attributes| attributes.policy = kind);
            Ok(0)
        }
        libc::SCHED_FIFO | libc::SCHED_RR if (1..100).contains(&priority) => Err(Errno(libc::EPERM)),
        _ => Err(EINVAL),
    }
}

pub(crate) fn sched_setscheduler(
    caller: &Caller<'_>,
    [id, policy, parameter, ..]: Arguments,
) -> Option<Returned> {
    let number = own(caller, id)?;
    let priority = caller.memory().load::<u32>(parameter).map_err(Errno::from);
    Some(priority.and_then(|priority| set_policy(caller.simulation, number, policy as i32, priority as i32)))
}

pub(crate) fn sched_setparam(caller: &Caller<'_>, [id, parameter, ..]: Arguments) -> Option<Returned> {
    let policy = caller.simulation.sched_attributes.of(own(caller, id)?).policy;
    sched_setscheduler(caller, [id, policy as u64, parameter, 0, 0, 0])
}

pub(crate) fn sched_getscheduler(caller: &Caller<'_>, [id, ..]: Arguments) -> Option<Returned> {
    Some(Ok(caller.simulation.sched_attributes.of(own(caller, id)?).policy as u64))
}

pub(crate) fn sched_getparam(caller: &Caller<'_>, [id, result, ..]: Arguments) -> Option<Returned> {
    own(caller, id)?;
    Some(caller.memory().store(result, 0u32).map(|()| 0).map_err(Into::into))
}

pub(crate) fn sched_rr_get_interval(caller: &Caller<'_>, [id, result, ..]: Arguments) -> Option<Returned> {
    own(caller, id)?;
    let interval = [0, SLICE_NS].map(u64::to_le_bytes).concat();
    Some(caller.memory().write(result, &interval).map(|()| 0).map_err(Into::into))
}

pub(crate) fn sched_getattr(
    caller: &Caller<'_>,
    [id, result, size, flags, ..]: Arguments,
) -> Option<Returned> {
    /// The maximum of the utilization clamp.
    const MAX_UTILISATION: u32 = 1024;
    let attributes = caller.simulation.sched_attributes.of(own(caller, id)?);
    if flags != 0 || size < *ATTRIBUTES.start() {
        return Some(Err(EINVAL));
    }
    let size = size.min(*ATTRIBUTES.end()) as usize;
    let mut bytes = [0; *ATTRIBUTES.end() as usize];
    let fields = [
        (0, size as u32),
        (4, attributes.policy as u32),
        (16, attributes.nice as u32),
        (52, MAX_UTILISATION),
    ];
    for (at, value) in fields {
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    Some(caller.memory().write(result, &bytes[..size]).map(|()| 0).map_err(Into::into))
}

pub(crate) fn sched_setattr(caller: &Caller<'_>, [id, wanted, flags, ..]: Arguments) -> Option<Returned> {
    let number = own(caller, id)?;
    if flags != 0 {
        return Some(Err(EINVAL));
    }
    let bytes: Result<[u8; 48], _> = caller.memory().read_array(wanted);
    Some(bytes.map_err(Errno::from).and_then(|bytes| {
        set_policy(caller.simulation, number, i32_at(&bytes, 4), i32_at(&bytes, 20))?;
        set_nice(caller.simulation, number, i32_at(&bytes, 16).clamp(-20, 19)).map(|()| 0)
    }))
}

/// The host's process group of this process.
fn host_group() -> i32 {
    // SAFETY: the call takes no arguments and cannot fail.
    unsafe { libc::getpgrp() }
}

/// Converts a process group for the host.
pub(crate) fn group_on_host(group: i32) -> i32 {
    if group == FIRST_ID { host_group() } else { group }
}

/// Converts a process group for the guest.
pub(crate) fn group_for_guest(group: i32) -> i32 {
    if group == host_group() { FIRST_ID } else { group }
}

/// Whether `id` refers to this process: 0, or the id of a live thread.
fn is_reserved(simulation: &Simulation, id: u64) -> bool {
    let is_alive = |number| simulation.identities.host_thread(number).is_some();
    id as i32 == 0 || Identities::thread(id as i32).is_some_and(is_alive)
}

pub(crate) fn setpgid(caller: &Caller<'_>, [id, group, ..]: Arguments) -> Returned {
    let group = group as i32;
    if is_reserved(caller.simulation, id) {
        // The process is a group leader.
        return match group {
            0 | FIRST_ID => Ok(0),
            ..0 => Err(EINVAL),
            _ => Err(Errno(libc::EPERM)),
        };
    }
    let group = i64::from(group_on_host(group)) as u64;
    // SAFETY: the call takes no pointers.
    unsafe { host_call(libc::SYS_setpgid, [id, group, 0, 0, 0, 0]) }
}

pub(crate) fn getpgid(caller: &Caller<'_>, [id, ..]: Arguments) -> Returned {
    if is_reserved(caller.simulation, id) {
        return Ok(FIRST_ID as u64);
    }
    // SAFETY: the call takes no pointers.
    let group = unsafe { host_call(libc::SYS_getpgid, [id, 0, 0, 0, 0, 0]) }?;
    Ok(group_for_guest(group as i32) as u64)
}

pub(crate) fn getsid(caller: &Caller<'_>, [id, ..]: Arguments) -> Returned {
    if is_reserved(caller.simulation, id) {
        return Ok(SESSION);
    }
    // SAFETY: the call takes no pointers.
    let (session, own) =
        unsafe { (host_call(libc::SYS_getsid, [id, 0, 0, 0, 0, 0])?, host_call(libc::SYS_getsid, [0; 6])?) };
    Ok(if session == own { SESSION } else { session })
}

/// A group leader cannot start a session.
pub(crate) fn setsid(_: &Caller<'_>, _: Arguments) -> Returned {
    Err(Errno(libc::EPERM))
}
