//! The system calls about the calling thread: its id, its end, its robust list.
//! Not its creation: that is in `clone`.
//! Source: exit(2), exit_group(2), set_tid_address(2), get_robust_list(2); Linux kernel/futex/core.c (robust lists).

use std::sync::atomic::Ordering;

use longma_guest::Errno;
use longma_guest::host::host_call;
use longma_loongarch::State;

use super::futex::wake_one;
use crate::arguments::{Arguments, Returned};
use crate::process::Completion;
use crate::{Outcome, Thread};

pub(crate) use super::clone::{clone, clone3};
pub(crate) use super::futex::{futex, futex_waitv};

/// sizeof(struct robust_list_head).
const ROBUST_HEAD_BYTES: u64 = 24;
/// ROBUST_LIST_LIMIT: a list longer than this is a loop.
const ROBUST_LIMIT: usize = 2048;
const FUTEX_WAITERS: u32 = 0x8000_0000;
const FUTEX_OWNER_DIED: u32 = 0x4000_0000;
const FUTEX_TID_MASK: u32 = 0x3fff_ffff;

pub(crate) fn set_tid_address(thread: &mut Thread, [address, ..]: Arguments) -> Returned {
    thread.clear_child_tid = address;
    Ok(thread.tid as u64)
}

pub(crate) fn set_robust_list(thread: &mut Thread, [head, length, ..]: Arguments) -> Returned {
    if length != ROBUST_HEAD_BYTES {
        return Err(Errno(libc::EINVAL));
    }
    thread.robust_list = head;
    thread.tell_host_of_robust_list();
    Ok(0)
}

/// Only a thread's own list: those of others are not this thread's to read.
pub(crate) fn get_robust_list(thread: &mut Thread, [tid, head, length, ..]: Arguments) -> Returned {
    if tid as i32 != 0 && tid as i32 != thread.tid {
        if (tid as i32) < 0 {
            return Err(Errno(libc::ESRCH));
        }
        // SAFETY: signal 0 only asks whether there is such a thread.
        unsafe { host_call(libc::SYS_tkill, [tid, 0, 0, 0, 0, 0]) }?;
        return Err(Errno(libc::EPERM));
    }
    thread.process.memory().store(length, ROBUST_HEAD_BYTES)?;
    thread.process.memory().store(head, thread.robust_list)?;
    Ok(0)
}

pub(crate) fn exit(thread: &mut Thread, _: &mut State, [status, ..]: Arguments) -> Result<Completion, Errno> {
    // Signals that are here go first: some were sent to the process, and would be lost with the thread.
    thread.hold_signals()?;
    thread.leave();
    let status = status as i32 & 0xff;
    let was_last = thread.process.threads.fetch_sub(1, Ordering::AcqRel) == 1;
    if was_last {
        thread.give_back();
    } else {
        thread.signals.hand_on();
    }
    let outcome = if was_last { Outcome::ExitProcess(status) } else { Outcome::ExitThread(status) };
    Ok(Completion::AsLeft(outcome))
}

pub(crate) fn exit_group(
    thread: &mut Thread,
    _: &mut State,
    [status, ..]: Arguments,
) -> Result<Completion, Errno> {
    thread.release_robust_list();
    thread.give_back();
    Ok(Completion::AsLeft(Outcome::ExitProcess(status as i32 & 0xff)))
}

impl Thread {
    /// What the kernel does for a thread that ends: its robust locks are marked, and who waits for its end is woken.
    fn leave(&mut self) {
        self.release_robust_list();
        let address = std::mem::take(&mut self.clear_child_tid);
        let memory = self.process.memory();
        if address != 0 && memory.store(address, 0u32).is_ok() {
            wake_one(&self.process, address);
        }
        if let Some(simulation) = self.process.simulation() {
            simulation.identities.set(self.number, 0);
        }
    }

    /// A process that is killed marks nothing itself: the host does, where its addresses and ids are the guest's.
    fn tell_host_of_robust_list(&self) {
        if self.process.simulation().is_none() && self.process.memory().base().is_null() {
            let arguments = [self.robust_list, ROBUST_HEAD_BYTES, 0, 0, 0, 0];
            // SAFETY: the host follows the list only when this thread ends, and then checks every address. The list it had, the
            // C library's, is for locks that this program has none of.
            let _ = unsafe { host_call(libc::SYS_set_robust_list, arguments) };
        }
    }

    /// Marks the locks in the robust list as left by a dead owner.
    fn release_robust_list(&mut self) {
        let head = std::mem::take(&mut self.robust_list);
        if head != 0 {
            self.tell_host_of_robust_list();
            // A list that cannot be read ends where it cannot.
            let _ = self.walk_robust_list(head);
        }
    }

    fn walk_robust_list(&self, head: u64) -> Result<(), longma_loongarch::Fault> {
        let memory = self.process.memory();
        let offset: u64 = memory.load(head.wrapping_add(8))?;
        let pending: u64 = memory.load(head.wrapping_add(16))?;
        let mut entry: u64 = memory.load(head)?;
        for _ in 0..ROBUST_LIMIT {
            if entry & !1 == head {
                break;
            }
            // Before the lock is given away: its next owner may free it.
            let next = memory.load(entry & !1);
            if entry & !1 != pending & !1 {
                self.mark_owner_died(entry, offset, false)?;
            }
            entry = next?;
        }
        if pending & !1 != 0 {
            self.mark_owner_died(pending, offset, true)?;
        }
        Ok(())
    }

    /// `entry`'s lowest bit says that the lock inherits priority: the host's kernel does not wake for those.
    fn mark_owner_died(&self, entry: u64, offset: u64, pending: bool) -> Result<(), longma_loongarch::Fault> {
        let memory = self.process.memory();
        let inherits = entry & 1 != 0;
        let word = (entry & !1).wrapping_add(offset);
        let mut value: u32 = memory.load(word)?;
        if pending && !inherits && value == 0 {
            wake_one(&self.process, word);
            return Ok(());
        }
        while value & FUTEX_TID_MASK == self.tid as u32 {
            let found = memory.compare_exchange(word, value, value & FUTEX_WAITERS | FUTEX_OWNER_DIED)?;
            if found == value {
                if value & FUTEX_WAITERS != 0 && !inherits {
                    wake_one(&self.process, word);
                }
                break;
            }
            value = found;
        }
        Ok(())
    }
}
