//! New threads and processes: the requests of clone(2). Source: clone(2); Linux kernel/fork.c (copy_process, which
//! combinations are refused).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use longma_guest::Errno;
use longma_guest::host::locks::Mutex;
use longma_guest::host::masks;
use longma_guest::words::words_of;
use longma_loongarch::State;

use super::fork::fork;
use crate::Thread;
use crate::arguments::Arguments;
use crate::process::dispositions::SIGNALS;
use crate::process::{Completion, StartupActions};
use crate::simulated::ThreadNumber;
use crate::simulated::identity::Identities;

const CLONE_VM: u64 = 0x100;
const CLONE_FS: u64 = 0x200;
const CLONE_FILES: u64 = 0x400;
const CLONE_SIGHAND: u64 = 0x800;
const CLONE_PIDFD: u64 = 0x1000;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_THREAD: u64 = 0x1_0000;
const CLONE_SYSVSEM: u64 = 0x4_0000;
const CLONE_SETTLS: u64 = 0x8_0000;
const CLONE_PARENT_SETTID: u64 = 0x10_0000;
const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
const CLONE_DETACHED: u64 = 0x40_0000;
const CLONE_UNTRACED: u64 = 0x80_0000;
const CLONE_CHILD_SETTID: u64 = 0x100_0000;
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
/// The exit signal in the flags of clone.
const CSIGNAL: u64 = 0xff;
/// The flags required for a thread, because host threads share these resources.
const THREAD: u64 = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD;
/// The optional flags for a thread.
const THREAD_OPTIONS: u64 = CLONE_SYSVSEM
    | CLONE_SETTLS
    | CLONE_PARENT_SETTID
    | CLONE_CHILD_CLEARTID
    | CLONE_DETACHED
    | CLONE_UNTRACED
    | CLONE_CHILD_SETTID
    | CSIGNAL;
/// The optional flags for a process.
const PROCESS_OPTIONS: u64 = CLONE_VM
    | CLONE_VFORK
    | CLONE_PIDFD
    | CLONE_SETTLS
    | CLONE_PARENT_SETTID
    | CLONE_CHILD_CLEARTID
    | CLONE_CHILD_SETTID
    | CLONE_DETACHED
    | CLONE_UNTRACED
    | CLONE_CLEAR_SIGHAND
    | CSIGNAL;

const TP: u8 = 2;
const SP: u8 = 3;
const A0: u8 = 4;

/// A request of clone or clone3. Addresses are 0 if their flag is not set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub flags: u64,
    /// The new stack pointer; 0 to keep it.
    pub stack: u64,
    pub thread_pointer: Option<u64>,
    /// Receives the id, in the parent's memory.
    pub parent_tid: u64,
    /// Receives the id, in the child's memory.
    pub child_tid: u64,
    /// Cleared when the child ends.
    pub clear_tid: u64,
    /// Receives the pidfd of the child.
    pub pidfd: u64,
}

impl Request {
    pub(crate) fn waits_for_exec(&self) -> bool {
        self.flags & CLONE_VFORK != 0
    }

    pub(crate) fn shares_memory(&self) -> bool {
        self.flags & CLONE_VM != 0
    }

    pub(crate) fn clears_handlers(&self) -> bool {
        self.flags & CLONE_CLEAR_SIGHAND != 0
    }

    /// Sets the child's initial registers in `state`, a copy of the parent's.
    pub(crate) fn apply(&self, state: &mut State) {
        state.set_r(A0, 0);
        if self.stack != 0 {
            state.set_r(SP, self.stack);
        }
        if let Some(thread_pointer) = self.thread_pointer {
            state.set_r(TP, thread_pointer);
        }
        state.reservation = Default::default();
    }

    fn new(flags: u64, stack: u64, tls: u64, parent_tid: u64, child_tid: u64, pidfd: u64) -> Self {
        let if_set = |flag, address| if flags & flag != 0 { address } else { 0 };
        Self {
            flags,
            stack,
            thread_pointer: (flags & CLONE_SETTLS != 0).then_some(tls),
            parent_tid: if_set(CLONE_PARENT_SETTID, parent_tid),
            child_tid: if_set(CLONE_CHILD_SETTID, child_tid),
            clear_tid: if_set(CLONE_CHILD_CLEARTID, child_tid),
            pidfd: if_set(CLONE_PIDFD, pidfd),
        }
    }
}

pub(crate) fn clone(
    thread: &mut Thread,
    state: &mut State,
    arguments: Arguments,
) -> Result<Completion, Errno> {
    let [flags, stack, parent_tid, child_tid, tls, _] = arguments;
    // The upper half is reserved for clone3.
    let flags = flags & 0xffff_ffff;
    if flags & CLONE_PIDFD != 0 && flags & CLONE_PARENT_SETTID != 0 {
        return Err(Errno(libc::EINVAL));
    }
    make(thread, state, &Request::new(flags, stack, tls, parent_tid, child_tid, parent_tid))
}

/// CLONE_ARGS_SIZE_VER0, the smallest size that the kernel accepts.
const MIN_CLONE_ARGS_BYTES: u64 = 64;
/// The fields of `struct clone_args` up to `cgroup`.
const CLONE_ARGS_WORDS: usize = 11;

pub(crate) fn clone3(
    thread: &mut Thread,
    state: &mut State,
    arguments: Arguments,
) -> Result<Completion, Errno> {
    let [address, size, ..] = arguments;
    if size > 4096 {
        return Err(Errno(libc::E2BIG));
    }
    if size < MIN_CLONE_ARGS_BYTES {
        return Err(Errno(libc::EINVAL));
    }
    let mut bytes = vec![0; size as usize];
    thread.process.memory().read(address, &mut bytes)?;
    bytes.resize(bytes.len().max(8 * CLONE_ARGS_WORDS), 0);
    if bytes[8 * CLONE_ARGS_WORDS..].iter().any(|&byte| byte != 0) {
        return Err(Errno(libc::E2BIG));
    }
    let [
        flags,
        pidfd,
        child_tid,
        parent_tid,
        exit_signal,
        stack,
        stack_bytes,
        tls,
        set_tid,
        set_tid_bytes,
        _,
    ] = words_of(&bytes);
    let stack_is_half = (stack == 0) != (stack_bytes == 0);
    if flags & (CSIGNAL | CLONE_DETACHED) != 0 || exit_signal > SIGNALS as u64 || stack_is_half {
        return Err(Errno(libc::EINVAL));
    }
    if flags & CLONE_THREAD != 0 && exit_signal != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if set_tid != 0 || set_tid_bytes != 0 {
        // Choosing ids needs privileges.
        return Err(Errno(libc::EPERM));
    }
    let top = stack.checked_add(stack_bytes).ok_or(Errno(libc::EINVAL))?;
    make(thread, state, &Request::new(flags | exit_signal, top, tls, parent_tid, child_tid, pidfd))
}

fn make(thread: &mut Thread, state: &mut State, request: &Request) -> Result<Completion, Errno> {
    let flags = request.flags;
    if flags & CLONE_THREAD != 0 {
        if flags & THREAD != THREAD || flags & !(THREAD | THREAD_OPTIONS) != 0 {
            return Err(Errno(libc::EINVAL));
        }
        return spawn(thread, state, request).map(|tid| Completion::Value(tid as u64));
    }
    // Memory sharing is emulated with a copy, which is unobservable only while the parent waits.
    let shares_memory = flags & CLONE_VM != 0 && flags & CLONE_VFORK == 0;
    if shares_memory || flags & !PROCESS_OPTIONS != 0 {
        return Err(Errno(libc::EINVAL));
    }
    fork(thread, state, request).map(|pid| Completion::Value(pid as u64))
}

/// Starts a thread of this process and returns its id.
fn spawn(thread: &mut Thread, state: &State, request: &Request) -> Result<i32, Errno> {
    let process = thread.process.clone();
    let engine = process.engine.get().ok_or(Errno(libc::EAGAIN))?;
    let mut child_state = state.clone();
    request.apply(&mut child_state);
    let number = ThreadNumber(process.threads_made.fetch_add(1, Ordering::AcqRel));
    let mut child = Thread::new(process.clone(), number, thread.signals.mask);
    let tid_addresses = [request.parent_tid, request.child_tid];
    let startup = Arc::new(StartupActions { tid_addresses, is_done: Mutex::default() });
    child.clear_child_tid = request.clear_tid;
    child.startup = Some(startup.clone());
    process.threads.fetch_add(1, Ordering::AcqRel);
    // The new host thread inherits this mask, so no signal reaches it before it is ready.
    masks::replace(masks::BLOCKABLE);
    if let Some(simulation) = process.simulation() {
        simulation.scheduler.add(number);
        simulation.sched_attributes.inherit(thread.number, number);
    }
    let spawned = engine.spawn(child, child_state);
    let result = match spawned {
        Ok(host) => {
            let tid = process.simulation().map_or(host, |_| Identities::of(number));
            startup.perform(&process, tid);
            Ok(tid)
        }
        Err(_) => {
            process.threads.fetch_sub(1, Ordering::AcqRel);
            if let Some(simulation) = process.simulation() {
                simulation.scheduler.remove_last(number);
            }
            Err(Errno(libc::EAGAIN))
        }
    };
    thread.signals.release();
    result
}
