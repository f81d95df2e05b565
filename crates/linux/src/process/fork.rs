//! A second process: the host's fork, and what must be put right in the child.
//! Not execve, and not threads.
//! Source: fork(2), vfork(2), clone(2); Linux kernel/fork.c.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::Ordering;

use longma_loongarch::State;

use crate::host::attention::{Attention, with_attention};
use crate::host::masks;
use crate::syscalls::host_call;
use crate::threads::Request;
use crate::{Errno, Thread};

/// Guests close low descriptors by number without asking what they are.
const PRIVATE_DESCRIPTOR: i32 = 900;

/// Forks. The parent gets the child's id; the child gets 0 and has its registers and thread set up as `request` says.
pub(crate) fn fork(thread: &mut Thread, state: &mut State, request: &Request) -> Result<i32, Errno> {
    let memory = thread.process.memory();
    if request.pidfd != 0 {
        memory.pointer_for_writing(request.pidfd, 4)?;
    }
    let waiting = if request.waits_for_exec() { Some(ending_with_exec()?) } else { None };
    let engine = thread.process.engine.get().cloned();
    masks::replace(masks::HELD);
    if let Some(engine) = &engine {
        engine.before_fork();
    }
    // Whatever another thread is in the middle of would stay half done in the child for ever.
    let actions = thread.process.dispositions.lock();
    let names = thread.process.socket_names.lock();
    let told = thread.process.told.lock();
    let frozen = thread.process.space.freeze();
    // SAFETY: the C library takes care of its own locks, the lines above of ours, `before_fork` of the engine's.
    let pid = unsafe { libc::fork() };
    drop((frozen, told, names, actions));
    if pid == 0 {
        if let Some(engine) = &engine {
            engine.after_fork_child();
        }
        thread.become_child(state, request);
        if let Some((_, written)) = waiting {
            // Stays open until this process executes another program or ends.
            std::mem::forget(written);
        }
        return Ok(0);
    }
    let error = std::io::Error::last_os_error();
    if let Some(engine) = &engine {
        engine.after_fork_parent();
    }
    let returned = if pid < 0 { Err(error.into()) } else { thread.note_child(pid, request) };
    if let (Ok(_), Some((mut read, written))) = (&returned, waiting) {
        drop(written);
        // Nothing is ever written: this ends when the last writer is gone.
        let _ = read.read(&mut [0]);
    }
    thread.signals.release();
    returned
}

/// A pipe whose reader sees the end when the child has executed another program or is gone.
fn ending_with_exec() -> Result<(File, File), Errno> {
    let mut ends = [0; 2];
    // SAFETY: the array takes both descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: both are new and nobody else's.
    let [read, written] = ends.map(|end| unsafe { File::from_raw_fd(end) });
    Ok((out_of_reach(read), out_of_reach(written)))
}

/// The same file at a descriptor where guests do not look, if there is one.
fn out_of_reach(file: File) -> File {
    // SAFETY: it only makes a new descriptor.
    let moved = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, PRIVATE_DESCRIPTOR) };
    // SAFETY: it is new and nobody else's.
    if moved < 0 { file } else { unsafe { File::from_raw_fd(moved) } }
}

impl Thread {
    /// In the child: this thread is the only one, and new.
    fn become_child(&mut self, state: &mut State, request: &Request) {
        // SAFETY: gettid has no arguments and cannot fail.
        self.tid = unsafe { libc::gettid() };
        self.process.threads.store(1, Ordering::Release);
        self.robust_list = 0;
        self.clear_child_tid = request.clear_tid;
        self.interrupted = None;
        // What had arrived is the parent's.
        while self.signals.take_among(!0).is_some() {}
        with_attention(Attention::clear);
        if request.clears_handlers() {
            self.process.dispositions.reset_handlers();
        }
        request.apply(state);
        let _ = self.process.memory().write_optional(request.child_tid, &self.tid.to_le_bytes());
        self.signals.release();
    }

    /// In the parent: tells the guest what it wants to know of the child.
    fn note_child(&self, pid: i32, request: &Request) -> Result<i32, Errno> {
        let memory = self.process.memory();
        let _ = memory.write_optional(request.parent_tid, &pid.to_le_bytes());
        if request.pidfd != 0 {
            // SAFETY: it has no pointers.
            let descriptor = unsafe { host_call(libc::SYS_pidfd_open, [pid as u64, 0, 0, 0, 0, 0]) }?;
            let _ = memory.write(request.pidfd, &(descriptor as i32).to_le_bytes());
        }
        Ok(pid)
    }
}
