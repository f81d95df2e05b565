//! Waiting for several files: poll, select, epoll, signalfd. eventfd and timerfd need only their rows in the table of
//! calls. Source: poll(2), select(2), epoll_ctl(2), epoll_wait(2), signalfd(2); Linux include/uapi/linux/eventpoll.h
//! (packed on x86-64 only).

use longma_guest::Errno;
use longma_guest::host::host_call;
use longma_guest::host::masks::SignalSet;
use longma_guest::host_address;
use longma_guest::words::{u32_at, u64_at, words_of};

use crate::Thread;
use crate::arguments::{Arguments, EINVAL, Returned, with_results};
use crate::simulated::waits::{BlockingCondition, interruptible};

const SET_BYTES: u64 = 8;
/// sizeof(struct epoll_event) in the guest: `events`, four bytes of padding, `data`.
const EVENT_BYTES: u64 = 16;
/// The size on x86-64, which has no padding.
const HOST_EVENT_BYTES: u64 = 12;
/// Maximum number of events returned at once. The next call returns the others.
const MAX_EVENTS: u64 = 4096;
const POLLFD_BYTES: u64 = 8;

pub(crate) fn epoll_ctl(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [set, operation, file, event, ..] = arguments;
    let mut host = libc::epoll_event { events: 0, u64: 0 };
    if operation as i32 != libc::EPOLL_CTL_DEL {
        let bytes: [u8; EVENT_BYTES as usize] = thread.process.memory().read_array(event)?;
        host.events = u32_at(&bytes, 0);
        host.u64 = u64_at(&bytes, 8);
    }
    // SAFETY: the event is local.
    unsafe { host_call(libc::SYS_epoll_ctl, [set, operation, file, &raw mut host as u64, 0, 0]) }
}

pub(crate) fn epoll_pwait(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [set, events, count, timeout, mask, mask_size] = arguments;
    wait_for_events(thread, libc::SYS_epoll_pwait, set, (events, count), timeout, (mask, mask_size))
}

pub(crate) fn epoll_pwait2(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [set, events, count, timeout, mask, mask_size] = arguments;
    let timeout = thread.process.memory().read_optional::<16>(timeout)?;
    let timeout = host_address(&timeout);
    wait_for_events(thread, libc::SYS_epoll_pwait2, set, (events, count), timeout, (mask, mask_size))
}

/// Waits for events. `timeout` is in the host's format.
fn wait_for_events(
    thread: &mut Thread,
    number: i64,
    set: u64,
    (events, count): (u64, u64),
    timeout: u64,
    (mask, mask_size): (u64, u64),
) -> Returned {
    let count = u64::try_from(count as i32).ok().filter(|&count| count > 0).ok_or(EINVAL)?.min(MAX_EVENTS);
    let mask = thread.read_mask(mask, mask_size)?;
    let process = thread.process.clone();
    let memory = process.memory();
    // The host's events are shorter than the guest's and fit into the same buffer. The kernel writes to the
    // guest's buffer directly, because events that it cannot write there stay in the set. The count is limited to
    // the guest events that fit into writable memory. If none fits, the call is made with an address at the end of the
    // writable memory, where it fails.
    let writable = memory.writable(events, count * EVENT_BYTES);
    let (at, count) = match writable / EVENT_BYTES {
        0 => (events.wrapping_add(writable.min(EVENT_BYTES - HOST_EVENT_BYTES)), 1),
        fitting => (events, fitting),
    };
    let ready = with_results(memory, |results| {
        let host_events = results.in_place(at, count * HOST_EVENT_BYTES)?;
        thread.with_mask(mask, |_, mask| {
            let arguments = [set, host_events, count, timeout, address_of(&mask), SET_BYTES];
            // SAFETY: the events are in guest memory; the timeout and the mask are local or null.
            unsafe { interruptible(number, BlockingCondition::Files, arguments) }
        })
    })?;
    let mut host = vec![0; (HOST_EVENT_BYTES * ready) as usize];
    process.space.read_after_syscall(at, &mut host);
    let guest = host.chunks_exact(HOST_EVENT_BYTES as usize).flat_map(|event| {
        let (events, data) = event.split_at(4);
        events.iter().chain(&[0; 4]).chain(data)
    });
    let mut guest: Vec<u8> = guest.copied().collect();
    process.space.write_after_syscall(events, &mut guest);
    Ok(ready)
}

/// The address of a mask; null if there is none.
fn address_of(mask: &Option<SignalSet>) -> u64 {
    mask.as_ref().map_or(0, |mask| std::ptr::from_ref(mask) as u64)
}

pub(crate) fn ppoll(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [files, count, timeout, mask, mask_size, _] = arguments;
    let process = thread.process.clone();
    let memory = process.memory();
    let bytes = count.checked_mul(POLLFD_BYTES).filter(|&bytes| bytes < 1 << 32).ok_or(EINVAL)?;
    let mut left = memory.read_optional::<16>(timeout)?;
    let mask = thread.read_mask(mask, mask_size)?;
    let returned = with_results(memory, |results| {
        let files = if count == 0 { 0 } else { results.structure(files, bytes)? };
        thread.with_mask(mask, |_, mask| {
            let left = left.as_mut().map_or(0, |left| left.as_mut_ptr() as u64);
            let arguments = [files, count, left, address_of(&mask), SET_BYTES, 0];
            // SAFETY: the files are in guest memory or `results`; the other pointers are local or null.
            unsafe { interruptible(libc::SYS_ppoll, BlockingCondition::Files, arguments) }
        })
    });
    write_back(thread, timeout, &left);
    returned
}

pub(crate) fn pselect6(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [count, reads, writes, exceptions, timeout, mask] = arguments;
    let process = thread.process.clone();
    let memory = process.memory();
    let count = u64::try_from(count as i32).map_err(|_| EINVAL)?;
    // The kernel accesses no more than the highest possible descriptor, but a set must not extend beyond guest memory.
    let bytes = count.div_ceil(64) * 8;
    let mut left = memory.read_optional::<16>(timeout)?;
    let mask = match memory.read_optional::<16>(mask)? {
        None => None,
        Some(pair) => {
            let [set, size] = words_of(&pair);
            thread.read_mask(set, size)?
        }
    };
    let returned = with_results(memory, |results| {
        let mut sets = [0; 3];
        for (set, address) in sets.iter_mut().zip([reads, writes, exceptions]) {
            *set = results.structure(address, bytes)?;
        }
        let [reads, writes, exceptions] = sets;
        thread.with_mask(mask, |_, mask| {
            let left = left.as_mut().map_or(0, |left| left.as_mut_ptr() as u64);
            let pair = [address_of(&mask), SET_BYTES];
            let arguments = [count, reads, writes, exceptions, left, pair.as_ptr() as u64];
            // SAFETY: the sets are in guest memory or `results`; the other pointers are local or null.
            unsafe { interruptible(libc::SYS_pselect6, BlockingCondition::Files, arguments) }
        })
    });
    write_back(thread, timeout, &left);
    returned
}

/// Writes the remaining timeout to the guest. As in the kernel, a failed write is not an error.
fn write_back(thread: &Thread, address: u64, left: &Option<[u8; 16]>) {
    if let Some(left) = left {
        let _ = thread.process.memory().write(address, left);
    }
}

pub(crate) fn signalfd4(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [file, mask, size, flags, ..] = arguments;
    let mask = thread.read_mask(mask, size)?;
    if mask.is_none() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the mask is local.
    unsafe { host_call(libc::SYS_signalfd4, [file, address_of(&mask), SET_BYTES, flags, 0, 0]) }
}
