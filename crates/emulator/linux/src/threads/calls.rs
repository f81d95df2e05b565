//! System calls on the calling thread: its id, its end, its robust list. Source: exit(2), exit_group(2),
//! set_tid_address(2), get_robust_list(2); Linux kernel/futex/core.c (robust lists).

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
/// ROBUST_LIST_LIMIT: a longer list is a loop.
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
    thread.set_host_robust_list();
    Ok(0)
}

/// Returns the list of the calling thread. Lists of other threads are refused.
pub(crate) fn get_robust_list(thread: &mut Thread, [tid, head, length, ..]: Arguments) -> Returned {
    if tid as i32 != 0 && tid as i32 != thread.tid {
        if (tid as i32) < 0 {
            return Err(Errno(libc::ESRCH));
        }
        // SAFETY: signal 0 only checks whether the thread exists.
        unsafe { host_call(libc::SYS_tkill, [tid, 0, 0, 0, 0, 0]) }?;
        return Err(Errno(libc::EPERM));
    }
    thread.process.memory().store(length, ROBUST_HEAD_BYTES)?;
    thread.process.memory().store(head, thread.robust_list)?;
    Ok(0)
}

pub(crate) fn exit(thread: &mut Thread, _: &mut State, [status, ..]: Arguments) -> Result<Completion, Errno> {
    // Deliver arrived signals first: some were sent to the process and would be lost with the thread.
    thread.hold_signals()?;
    thread.clean_up();
    let status = status as i32 & 0xff;
    let was_last = thread.process.threads.fetch_sub(1, Ordering::AcqRel) == 1;
    if was_last {
        thread.send_writes_to_parent();
    } else {
        thread.signals.forward();
    }
    let outcome = if was_last { Outcome::ExitProcess(status) } else { Outcome::ExitThread(status) };
    Ok(Completion::RegistersSet(outcome))
}

pub(crate) fn exit_group(
    thread: &mut Thread,
    _: &mut State,
    [status, ..]: Arguments,
) -> Result<Completion, Errno> {
    thread.release_robust_list();
    thread.send_writes_to_parent();
    Ok(Completion::RegistersSet(Outcome::ExitProcess(status as i32 & 0xff)))
}

impl Thread {
    /// Cleanup of an ending thread as in the kernel: marks its robust locks and wakes threads that wait for its end.
    fn clean_up(&mut self) {
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

    /// Registers the list with the host, which marks the locks if the process is killed. Possible only if addresses and
    /// ids are equal on host and guest.
    fn set_host_robust_list(&self) {
        if self.process.simulation().is_none() && self.process.memory().base().is_null() {
            let arguments = [self.robust_list, ROBUST_HEAD_BYTES, 0, 0, 0, 0];
            // SAFETY: the host uses the list only when this thread ends, and checks all addresses. It replaces the C
            // library's list, which is for locks that the emulator does not use.
            let _ = unsafe { host_call(libc::SYS_set_robust_list, arguments) };
        }
    }

    /// Marks the locks in the robust list with a dead owner.
    fn release_robust_list(&mut self) {
        let head = std::mem::take(&mut self.robust_list);
        if head != 0 {
            self.set_host_robust_list();
            // The walk ends at an unreadable entry.
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
            // Read the link before releasing the lock, because its next owner may free it.
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

    /// Marks one lock. The lowest bit of `entry` means priority inheritance, for which the kernel does not wake waiters
    /// here.
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
            let old_value = memory.compare_exchange(word, value, value & FUTEX_WAITERS | FUTEX_OWNER_DIED)?;
            if old_value == value {
                if value & FUTEX_WAITERS != 0 && !inherits {
                    wake_one(&self.process, word);
                }
                break;
            }
            value = old_value;
        }
        Ok(())
    }
}
