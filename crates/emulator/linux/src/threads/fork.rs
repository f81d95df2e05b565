//! Forks the process on the host and adjusts the state of the child. Source: fork(2), vfork(2), clone(2); Linux
//! kernel/fork.c.

use std::sync::atomic::Ordering;

use longma_guest::Errno;
use longma_guest::host::attention::{Attention, with_attention};
use longma_guest::host::host_call;
use longma_guest::host::{descriptors, locks, masks, pinned_file, workers};
use longma_loongarch::State;

use super::clone::Request;
use crate::Thread;
use crate::process::{VforkParent, host_id};

/// Forks this process. Returns the child's process id in the parent and 0 in the child. In the child, the registers and
/// the thread are set up according to `request`.
///
/// # Errors
/// The host refuses the fork, or the address for the pidfd is invalid.
pub(crate) fn fork(thread: &mut Thread, state: &mut State, request: &Request) -> Result<i32, Errno> {
    let memory = thread.process.memory();
    if request.pidfd != 0 {
        memory.pointer_for_writing(request.pidfd, 4)?;
    }
    let mut waiting = if request.waits_for_exec() { Some(VforkParent::new()?) } else { None };
    masks::replace(masks::BLOCKABLE);
    // Quiesce all locks: otherwise an operation of another thread would stay incomplete in the child.
    let quiesced = locks::quiesce();
    let engine = thread.process.engine.get().cloned();
    if let Some(engine) = &engine {
        engine.before_fork();
    }
    // SAFETY: the C library handles its own locks, and ours are quiesced.
    let pid = unsafe { libc::fork() };
    let error = std::io::Error::last_os_error();
    drop(quiesced);
    if pid == 0 {
        workers::forget_ended();
        let vfork_child = waiting.map(|waiting| waiting.into_child(memory, request.shares_memory()));
        pinned_file::close_parents();
        descriptors::reset_raised_limit();
        if let Some(engine) = &engine {
            engine.after_fork_child();
        }
        thread.process.space.invalidate_wiped_code();
        if !request.shares_memory() {
            thread.process.space.unmap_dont_fork();
        }
        thread.become_child(state, request);
        thread.vfork_child = vfork_child;
        return Ok(0);
    }
    if let Some(simulation) = thread.process.simulation() {
        simulation.record_fork();
    }
    let returned = if pid < 0 { Err(error.into()) } else { thread.report_child_id(pid, request) };
    if let Some(waiting) = waiting.take() {
        waiting.wait(thread);
    }
    thread.signals.release();
    returned
}

impl Thread {
    /// Sets up the thread in the child, where it is the only one.
    fn become_child(&mut self, state: &mut State, request: &Request) {
        if let Some(simulation) = self.process.simulation() {
            simulation.disable();
        }
        self.tid = host_id();
        self.process.threads.store(1, Ordering::Release);
        self.robust_list = 0;
        // If this process is itself a vfork child, its parent waits for it, not for the new child.
        self.vfork_child = None;
        self.clear_child_tid = request.clear_tid;
        self.interrupted = None;
        // Signals that have arrived for the parent are not inherited.
        while self.signals.take_from_set(!0).is_some() {}
        with_attention(Attention::clear);
        if request.clears_handlers() {
            self.process.dispositions.reset_handlers();
        }
        request.apply(state);
        let _ = self.process.memory().write_optional(request.child_tid, &self.tid.to_le_bytes());
        self.signals.release();
    }

    /// Runs in the parent: stores the child's id and pidfd where the guest requested them.
    fn report_child_id(&self, pid: i32, request: &Request) -> Result<i32, Errno> {
        let memory = self.process.memory();
        let _ = memory.write_optional(request.parent_tid, &pid.to_le_bytes());
        if request.pidfd != 0 {
            // SAFETY: the call takes no pointers.
            let descriptor = unsafe { host_call(libc::SYS_pidfd_open, [pid as u64, 0, 0, 0, 0, 0]) }?;
            let _ = memory.write(request.pidfd, &(descriptor as i32).to_le_bytes());
        }
        Ok(pid)
    }
}
