//! A second process: the host's fork, and what must be put right in the child.
//! Not execve, and not threads.
//! Source: fork(2), vfork(2), clone(2); Linux kernel/fork.c.

use std::ops::Range;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use longma_loongarch::State;

use crate::host::attention::{Attention, with_attention};
use crate::host::{descriptors, locks, masks, workers};
use crate::syscalls::host_call;
use crate::threads::{Request, host_id};
use crate::{Errno, Thread};

/// How much of its parent's stack a child that shares memory is expected to write to.
const FRAME_BYTES: u64 = 8192;

/// Forks. The parent gets the child's id; the child gets 0 and has its registers and thread set up as `request` says.
pub(crate) fn fork(thread: &mut Thread, state: &mut State, request: &Request) -> Result<i32, Errno> {
    let memory = thread.process.memory();
    if request.pidfd != 0 {
        memory.pointer_for_writing(request.pidfd, 4)?;
    }
    let mut waiting =
        if request.waits_for_exec() { Some(Waiting::new(thread, state, request)?) } else { None };
    masks::replace(masks::HELD);
    // Whatever another thread is in the middle of would stay half done in the child for ever.
    let quiet = locks::quiesce();
    let engine = thread.process.engine.get().cloned();
    if let Some(engine) = &engine {
        engine.before_fork();
    }
    // SAFETY: the C library takes care of its own locks, the lines above of ours.
    let pid = unsafe { libc::fork() };
    let error = std::io::Error::last_os_error();
    drop(quiet);
    if pid == 0 {
        workers::forget_ended();
        if let Some(engine) = &engine {
            engine.after_fork_child();
        }
        thread.become_child(state, request);
        thread.borrowed = waiting.map(Waiting::into_child);
        return Ok(0);
    }
    if let Some(simulation) = thread.process.simulation() {
        simulation.note_fork();
    }
    let returned = if pid < 0 { Err(error.into()) } else { thread.note_child(pid, request) };
    if let Some(waiting) = waiting.take() {
        waiting.wait(thread);
    }
    thread.signals.release();
    returned
}

/// How a parent waits until its child has executed another program or ended: for the end of a pipe whose only writer the child
/// is. Plain numbers, not owned descriptors: guests may close them under us.
#[derive(Debug)]
struct Waiting {
    read: RawFd,
    borrowed: Borrowed,
    /// What was in the frames before.
    before: Vec<u8>,
}

/// What a child that runs in its parent's memory (CLONE_VM) owes it. Here it runs in a copy, so that what it wrote to its parent's
/// stack frames, as posix_spawn's child does to say why execve failed, is sent back at its end.
#[derive(Debug)]
pub(crate) struct Borrowed {
    written: RawFd,
    /// Tells the pipe from what a guest may have opened under its number.
    inode: u64,
    /// From the parent's stack pointer upwards.
    frames: Range<u64>,
}

impl Waiting {
    fn new(thread: &Thread, state: &State, request: &Request) -> Result<Self, Errno> {
        let memory = thread.process.memory();
        let start = state.r(3);
        let mapped = thread.process.space.mapping(start).filter(|_| request.shares_memory());
        let bytes = mapped.map_or(0, |(range, _)| FRAME_BYTES.min(range.end - start));
        let mut before = vec![0; bytes as usize];
        if memory.read(start, &mut before).is_err() {
            before.clear();
        }
        let [read, written] = descriptors::with_room(|| {
            let mut ends = [0; 2];
            // SAFETY: the array takes both descriptors.
            descriptors::done(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
            // SAFETY: they are new and nobody else's.
            Ok(ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) }))
        })?;
        let [read, written] =
            [descriptors::keep(read)?, descriptors::keep(written)?].map(IntoRawFd::into_raw_fd);
        let frames = start..start.wrapping_add(before.len() as u64);
        Ok(Self { read, borrowed: Borrowed { written, inode: inode_of(written), frames }, before })
    }

    /// The child's part.
    fn into_child(self) -> Borrowed {
        close(self.read);
        self.borrowed
    }

    /// The parent's part.
    fn wait(self, thread: &Thread) {
        close(self.borrowed.written);
        let mut after = vec![0; self.before.len() + 1];
        let mut have = 0;
        loop {
            let rest = &mut after[have..];
            // SAFETY: the buffer has that many bytes.
            let got = unsafe { libc::read(self.read, rest.as_mut_ptr().cast(), rest.len()) };
            match got {
                1.. => have += got as usize,
                0 => break,
                _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
                _ => break,
            }
            if have == after.len() {
                break;
            }
        }
        close(self.read);
        if have != self.before.len() {
            return;
        }
        let memory = thread.process.memory();
        for (address, (before, after)) in self.borrowed.frames.zip(self.before.iter().zip(&after)) {
            if before != after {
                // They could be read, and the thread has been waiting since.
                let _ = memory.store(address, *after);
            }
        }
    }
}

fn close(descriptor: RawFd) {
    // SAFETY: the descriptor is ours, or a guest has closed it.
    unsafe { libc::close(descriptor) };
}

/// The inode of an open file, 0 if it is not open.
fn inode_of(descriptor: RawFd) -> u64 {
    // SAFETY: every field of the structure may be zero.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is there to be filled.
    if unsafe { libc::fstat(descriptor, &mut status) } == 0 { status.st_ino } else { 0 }
}

impl Thread {
    /// At the end of a process whose parent waits for it in vfork(2).
    pub(crate) fn return_borrowed_frames(&mut self) {
        let Some(borrowed) = self.borrowed.take() else { return };
        let mut frames = vec![0; (borrowed.frames.end - borrowed.frames.start) as usize];
        let readable = self.process.memory().read(borrowed.frames.start, &mut frames).is_ok();
        if readable && inode_of(borrowed.written) == borrowed.inode {
            // A pipe takes so little at once.
            // SAFETY: the buffer has that many bytes.
            unsafe { libc::write(borrowed.written, frames.as_ptr().cast(), frames.len()) };
        }
    }

    /// In the child: this thread is the only one, and new.
    fn become_child(&mut self, state: &mut State, request: &Request) {
        if let Some(simulation) = self.process.simulation() {
            simulation.leave();
        }
        self.tid = host_id();
        self.process.threads.store(1, Ordering::Release);
        self.robust_list = 0;
        if let Some(borrowed) = self.borrowed.take()
            && inode_of(borrowed.written) == borrowed.inode
        {
            // Its parent waits for this process's parent, not for this one.
            close(borrowed.written);
        }
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
