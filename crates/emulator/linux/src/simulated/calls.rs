//! System calls with a different implementation in simulated time. The table of calls selects them; `waits` handles
//! blocking host calls. Source: man-pages section 2.

use longma_guest::{AddressSpace, Errno, GuestMemory};

use super::identity::{FIRST_ID, Identities};
use super::{Arguments, CoreSet, EINVAL, Returned, Simulation, ThreadNumber};

const NO_SUCH: Errno = Errno(libc::ESRCH);

/// The part of the calling thread that system calls use.
pub(crate) struct Caller<'a> {
    /// The simulated state of its process.
    pub simulation: &'a Simulation,
    /// Its number.
    pub number: ThreadNumber,
    /// The address space of its process.
    pub space: &'a AddressSpace,
    /// Reports a diagnostic once.
    pub report_once: &'a dyn Fn(&'static str),
}

impl Caller<'_> {
    /// The memory of its process.
    pub fn memory(&self) -> &GuestMemory {
        self.space.memory()
    }
}

/// The implementation of a call in simulated time.
#[derive(Clone, Copy)]
pub(crate) enum Simulated {
    /// Use this function.
    Replace(fn(&Caller<'_>, Arguments) -> Returned),
    /// Use this function unless it returns `None`; then use the normal implementation.
    TryReplace(fn(&Caller<'_>, Arguments) -> Option<Returned>),
    /// Use the normal implementation. The call cannot make a file ready.
    ReadiesNoFile,
    /// Use the normal implementation, and then make the receivers of signals check for them.
    SendsSignals,
}
use Simulated::{ReadiesNoFile, Replace, SendsSignals, TryReplace};

/// Answers a call with its simulated implementation, if there is one.
pub(crate) fn replace_call(
    caller: &Caller<'_>,
    simulated: Option<Simulated>,
    arguments: Arguments,
) -> Option<Returned> {
    match simulated? {
        Replace(call) => Some(call(caller, arguments)),
        TryReplace(call) => call(caller, arguments),
        ReadiesNoFile | SendsSignals => None,
    }
}

/// Notifies other threads of possible effects after a call.
pub(crate) fn notify_other_threads(
    simulation: &Simulation,
    thread: ThreadNumber,
    simulated: Option<Simulated>,
) {
    match simulated {
        None => simulation.scheduler.files_changed(),
        Some(SendsSignals) => {
            simulation.scheduler.signals_sent(thread);
            simulation.scheduler.files_changed();
        }
        Some(_) => {}
    }
}

fn thread_of(caller: &Caller<'_>, id: u64) -> Result<ThreadNumber, Errno> {
    match id as i32 {
        0 => Ok(caller.number),
        id => Identities::thread(id).ok_or(NO_SUCH),
    }
}

pub(crate) fn sched_setaffinity(caller: &Caller<'_>, arguments: Arguments) -> Returned {
    let [id, length, set, ..] = arguments;
    let target = thread_of(caller, id)?;
    let mut bytes = [0; CoreSet::CORES / 8];
    let set_bytes = (length as usize).min(bytes.len());
    caller.memory().read(set, &mut bytes[..set_bytes])?;
    let all = CoreSet::first_n(caller.simulation.scheduler.cores());
    let cores = CoreSet::from_bytes(&bytes).intersection(all);
    if cores.is_empty() {
        return Err(EINVAL);
    }
    if caller.simulation.scheduler.set_affinity(target, cores) { Ok(0) } else { Err(NO_SUCH) }
}

pub(crate) fn sched_getaffinity(caller: &Caller<'_>, arguments: Arguments) -> Returned {
    let [id, length, set, ..] = arguments;
    let target = thread_of(caller, id)?;
    let length = length as u32 as usize;
    let needed = caller.simulation.scheduler.cores().div_ceil(64) * 8;
    if length < needed || !length.is_multiple_of(8) {
        return Err(EINVAL);
    }
    let cores = caller.simulation.scheduler.affinity(target).ok_or(NO_SUCH)?;
    caller.memory().write(set, &cores.to_bytes()[..needed])?;
    Ok(needed as u64)
}

pub(crate) fn sched_yield(caller: &Caller<'_>, _: Arguments) -> Returned {
    caller.simulation.scheduler.yield_now(caller.number);
    Ok(0)
}

pub(crate) fn getcpu(caller: &Caller<'_>, [core, node, ..]: Arguments) -> Returned {
    let core_and_node = caller.simulation.scheduler.core_and_node(caller.number);
    let memory = caller.memory();
    memory.write_optional(core, &(core_and_node.0 as u32).to_le_bytes())?;
    memory.write_optional(node, &(core_and_node.1 as u32).to_le_bytes())?;
    Ok(0)
}

/// The clock cannot be adjusted.
pub(crate) fn adjust(_: &Caller<'_>, _: Arguments) -> Returned {
    Err(Errno(libc::EPERM))
}

pub(crate) fn getpid(_: &Caller<'_>, _: Arguments) -> Returned {
    Ok(FIRST_ID as u64)
}

/// The process that started the simulation is not part of it, so the parent is init, as for an orphan.
pub(crate) fn getppid(_: &Caller<'_>, _: Arguments) -> Returned {
    Ok(1)
}

pub(crate) fn gettid(caller: &Caller<'_>, _: Arguments) -> Returned {
    Ok(Identities::of(caller.number) as u64)
}

pub(crate) fn getrandom(caller: &Caller<'_>, arguments: Arguments) -> Returned {
    const KNOWN: u32 = libc::GRND_NONBLOCK | libc::GRND_RANDOM | libc::GRND_INSECURE;
    /// The kernel returns at most this many bytes at once.
    const MAX_BYTES: u64 = (1 << 25) - 1;
    let [result, length, flags, ..] = arguments;
    if flags as u32 & !KNOWN != 0 {
        return Err(EINVAL);
    }
    let length = length.min(MAX_BYTES);
    let mut bytes = vec![0; length as usize];
    caller.simulation.fill_random(&mut bytes);
    caller.memory().write(result, &bytes)?;
    Ok(length)
}
