//! System V shared memory, semaphores and message queues, and mq_notify(2) of POSIX message queues. Source: shmget(2),
//! shmat(2), semctl(2), msgsnd(2); Linux include/uapi/asm-generic/{ipcbuf,sembuf,shmbuf,msgbuf}.h.

use std::sync::Arc;

use longma_guest::Errno;
use longma_guest::host::host_call;
use longma_guest::{Backing, MapRequest, Origin, Placement, Protection};

use crate::Thread;
use crate::arguments::{Argument, Arguments, EINVAL, Returned, buffer, with_results};
use crate::simulated::waits::{BlockingCondition, interruptible};

/// `struct msqid64_ds` and `struct shmid64_ds` are the same on host and guest.
const QUEUE_BYTES: u64 = 120;
const SEGMENT_BYTES: u64 = 112;
/// asm-generic's `struct semid64_ds`. x86-64 has an additional word after each time.
const SEMAPHORES_BYTES: usize = 88;
const HOST_SEMAPHORES_BYTES: usize = 104;
/// The index of the number of semaphores in x86-64's structure, in words.
const COUNT_WORD: usize = PERMISSION_BYTES / 8 + 4;
/// `struct ipc64_perm`.
const PERMISSION_BYTES: usize = 48;
const MAX_OPERATIONS: u64 = 500;
const MAX_MESSAGE_BYTES: u64 = 1 << 30;
const SEM_UNDO: u16 = 0x1000;
const SHM_REMAP: u64 = 0o40_000;
const SHM_READ_ONLY: u64 = 0o10_000;
const SHM_EXECUTE: u64 = 0o100_000;
const SHM_ROUND: u64 = 0o20_000;

/// The argument of a msgctl or shmctl command below 11; the two calls have these commands in common. `bytes` is the size
/// of the largest structure.
fn common(command: i32, bytes: u64) -> Option<Argument> {
    match command {
        libc::IPC_RMID => Some(Argument::Number),
        libc::IPC_SET => Some(Argument::In(bytes)),
        libc::IPC_STAT | libc::IPC_INFO => Some(Argument::Out(bytes)),
        _ => None,
    }
}

fn control(
    thread: &Thread,
    number: i64,
    bytes: u64,
    specific: impl Fn(i32) -> Option<Argument>,
    [id, command, address, ..]: Arguments,
) -> Returned {
    // 64-bit kernels ignore IPC_64.
    let command = command & !0x100;
    let argument = common(command as i32, bytes).or_else(|| specific(command as i32)).ok_or(EINVAL)?;
    let address = if argument == Argument::Number { 0 } else { address };
    with_results(thread.process.memory(), |results| {
        let pointer = argument.for_host(results, address)?;
        // SAFETY: zero, or a pointer into the reservation or `results` to the largest structure of the command.
        unsafe { host_call(number, [id, command, pointer, 0, 0, 0]) }
    })
}

pub(super) fn msgctl(thread: &mut Thread, arguments: Arguments) -> Returned {
    // MSG_STAT, MSG_INFO, MSG_STAT_ANY.
    let specific = |command| matches!(command, 11..=13).then_some(Argument::Out(QUEUE_BYTES));
    control(thread, libc::SYS_msgctl, QUEUE_BYTES, specific, arguments)
}

pub(super) fn shmctl(thread: &mut Thread, arguments: Arguments) -> Returned {
    let specific = |command| match command {
        libc::SHM_LOCK | libc::SHM_UNLOCK => Some(Argument::Number),
        // SHM_STAT, SHM_INFO, SHM_STAT_ANY.
        13..=15 => Some(Argument::Out(SEGMENT_BYTES)),
        _ => None,
    };
    control(thread, libc::SYS_shmctl, SEGMENT_BYTES, specific, arguments)
}

pub(super) fn msgsnd(thread: &mut Thread, [id, message, size, flags, ..]: Arguments) -> Returned {
    if size > MAX_MESSAGE_BYTES {
        return Err(EINVAL);
    }
    let message = buffer(thread.process.memory(), message, size + 8)?;
    // SAFETY: the message is in the reservation.
    unsafe { interruptible(libc::SYS_msgsnd, BlockingCondition::Queue(3), [id, message, size, flags, 0, 0]) }
}

pub(super) fn msgrcv(thread: &mut Thread, [id, message, size, kind, flags, _]: Arguments) -> Returned {
    if size > MAX_MESSAGE_BYTES {
        return Err(EINVAL);
    }
    with_results(thread.process.memory(), |results| {
        // The message type, and as much text as the call returns.
        let message = results.message_after(8, message, size + 8)?;
        // SAFETY: the message is in the reservation or `results`.
        unsafe {
            interruptible(libc::SYS_msgrcv, BlockingCondition::Queue(4), [id, message, size, kind, flags, 0])
        }
    })
}

pub(super) fn semtimedop(thread: &mut Thread, [id, operations, count, timeout, ..]: Arguments) -> Returned {
    if count > MAX_OPERATIONS {
        return Err(Errno(libc::E2BIG));
    }
    let memory = thread.process.memory();
    let host_operations = buffer(memory, operations, 6 * count)?;
    let host_timeout = buffer(memory, timeout, 16)?;
    let arguments = [id, host_operations, count, host_timeout, 0, 0];
    // SAFETY: the pointers are null or into the reservation.
    let result = unsafe { interruptible(libc::SYS_semtimedop, BlockingCondition::Unknown, arguments) }?;
    let undoes =
        |index| memory.load::<u16>(operations + 6 * index + 4).is_ok_and(|flags| flags & SEM_UNDO != 0);
    if (0..count).any(undoes) {
        thread.process.record_uncaptured("pending semaphore adjustments (SEM_UNDO)");
    }
    Ok(result)
}

pub(super) fn semctl(thread: &mut Thread, [id, index, command, value, ..]: Arguments) -> Returned {
    let memory = thread.process.memory();
    let command = command & !0x100;
    let call = |value: u64| {
        // SAFETY: a number, or a pointer to the argument of the command.
        unsafe { host_call(libc::SYS_semctl, [id, index, command, value, 0, 0]) }
    };
    match command as i32 {
        libc::IPC_RMID | libc::GETVAL | libc::GETPID | libc::GETNCNT | libc::GETZCNT => call(0),
        libc::SETVAL => call(value),
        libc::GETALL | libc::SETALL => {
            let mut host = [0u64; HOST_SEMAPHORES_BYTES / 8];
            let arguments = [id, 0, libc::IPC_STAT as u64, host.as_mut_ptr() as u64, 0, 0];
            // SAFETY: the structure is live.
            unsafe { host_call(libc::SYS_semctl, arguments) }?;
            let bytes = 2 * host[COUNT_WORD];
            match command as i32 {
                libc::GETALL => with_results(memory, |results| call(results.structure(value, bytes)?)),
                _ => call(buffer(memory, value, bytes)?),
            }
        }
        // IPC_INFO, SEM_INFO: ten numbers.
        3 | 19 => with_results(memory, |results| call(results.structure(value, 40)?)),
        libc::IPC_SET => {
            let mut host = [0u8; HOST_SEMAPHORES_BYTES];
            memory.read(value, &mut host[..PERMISSION_BYTES])?;
            call(host.as_mut_ptr() as u64)
        }
        libc::IPC_STAT | 18 | 20 => {
            let mut host = [0u64; HOST_SEMAPHORES_BYTES / 8];
            let returned = call(host.as_mut_ptr() as u64)?;
            // Permission, operation time, spare, change time, spare, count, two spares.
            let words = PERMISSION_BYTES / 8;
            let mut guest = host[..words].to_vec();
            guest.extend([host[words], host[words + 2], host[COUNT_WORD], 0, 0]);
            let bytes: Vec<u8> = guest.into_iter().flat_map(u64::to_le_bytes).collect();
            memory.write(value, &bytes[..SEMAPHORES_BYTES])?;
            Ok(returned)
        }
        _ => Err(EINVAL),
    }
}

pub(super) fn mq_notify(thread: &mut Thread, [queue, event, ..]: Arguments) -> Returned {
    /// The offset of `sigev_notify` in `struct sigevent`.
    const NOTIFY: usize = 12;
    const SIGEV_THREAD: u32 = 2;
    let memory = thread.process.memory();
    let mut copy = [0u8; 64];
    if event != 0 {
        memory.read(event, &mut copy)?;
    }
    // For SIGEV_THREAD the host would follow a pointer in the structure.
    if copy[NOTIFY..NOTIFY + 4] == SIGEV_THREAD.to_le_bytes() {
        return Err(EINVAL);
    }
    let pointer = if event == 0 { 0 } else { copy.as_ptr() as u64 };
    // SAFETY: null, or a live structure of a kind without pointers.
    unsafe { host_call(libc::SYS_mq_notify, [queue, pointer, 0, 0, 0, 0]) }
}

pub(super) fn shmat(thread: &mut Thread, [id, address, flags, ..]: Arguments) -> Returned {
    // SAFETY: `libc::shmid_ds` is plain data.
    let mut segment: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is live.
    unsafe {
        let pointer = (&raw mut segment) as u64;
        host_call(libc::SYS_shmctl, [id, libc::IPC_STAT as u64, pointer, 0, 0, 0])
    }?;
    let placement = match address {
        0 => Placement::Hint(0),
        _ => {
            let start =
                if flags & SHM_ROUND != 0 { thread.process.space.page_down(address) } else { address };
            if flags & SHM_REMAP != 0 { Placement::Fixed(start) } else { Placement::FixedNoReplace(start) }
        }
    };
    let protection =
        Protection { read: true, write: flags & SHM_READ_ONLY == 0, execute: flags & SHM_EXECUTE != 0 };
    let name = format!("/SYSV{id:08x}");
    let origin = Arc::new(Origin { name, inode: id, ..Origin::default() });
    let backing = Backing::Segment { id, read_only: flags & SHM_READ_ONLY != 0, origin };
    thread.process.space.map(&MapRequest {
        placement,
        length: segment.shm_segsz as u64,
        protection,
        shared: true,
        backing,
        flags: libc::MAP_NORESERVE,
        grows_down: false,
    })
}

pub(super) fn shmdt(thread: &mut Thread, [address, ..]: Arguments) -> Returned {
    let space = &thread.process.space;
    let pieces = space.attached_at(address);
    if pieces.is_empty() {
        return Err(EINVAL);
    }
    // Mapping other memory over the pieces detaches them without leaving a hole in the reservation.
    pieces.into_iter().try_for_each(|piece| space.unmap(piece.start, piece.end - piece.start))?;
    Ok(0)
}
