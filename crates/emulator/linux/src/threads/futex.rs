//! Futexes, forwarded to the host with the host addresses of guest memory. Source: futex(2), futex_waitv(2), Linux
//! include/uapi/linux/futex.h.

use longma_guest::Errno;
use longma_guest::host::host_call;
use longma_guest::host_address;
use longma_guest::words::u64_at;

use crate::arguments::{Arguments, Results, Returned, with_results};
use crate::simulated::futex::{MAX_WAITERS, WAITER_BYTES};
use crate::simulated::waits::{BlockingCondition, interruptible};
use crate::{Process, Thread};

const FUTEX_WAKE: u64 = 1;
/// FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME, which are forwarded unchanged.
const OPTIONS: u32 = 128 | 256;
/// How a futex operation uses its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operation {
    /// The fourth argument is a timeout, and the call may block.
    waits: bool,
    /// The fifth argument is a second futex.
    has_second: bool,
}

/// The operation with this number; `None` for invalid numbers.
fn operation(number: u32) -> Option<Operation> {
    let valid = |waits, has_second| Some(Operation { waits, has_second });
    match number {
        // WAIT, LOCK_PI, WAIT_BITSET, LOCK_PI2
        0 | 6 | 9 | 13 => valid(true, false),
        // WAKE, UNLOCK_PI, TRYLOCK_PI, WAKE_BITSET
        1 | 7 | 8 | 10 => valid(false, false),
        // REQUEUE, CMP_REQUEUE, WAKE_OP, CMP_REQUEUE_PI
        3 | 4 | 5 | 12 => valid(false, true),
        // WAIT_REQUEUE_PI
        11 => valid(true, true),
        _ => None,
    }
}

/// The host address of the futex at `address`, which the kernel may change.
fn word(results: &mut Results<'_>, address: u64) -> Result<u64, Errno> {
    if !address.is_multiple_of(4) {
        return Err(Errno(libc::EINVAL));
    }
    results.in_place(address, 4)
}

pub(crate) fn futex(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [address, command, value, timeout, second, third] = arguments;
    let Operation { waits, has_second } = operation(command as u32 & !OPTIONS).ok_or(Errno(libc::ENOSYS))?;
    let memory = thread.process.memory();
    let copy = if waits { memory.read_optional::<16>(timeout)? } else { None };
    with_results(memory, |results| {
        let address = word(results, address)?;
        let second = if has_second { word(results, second)? } else { 0 };
        if !waits {
            // SAFETY: the kernel checks both addresses, which are in guest memory.
            return unsafe { host_call(libc::SYS_futex, [address, command, value, timeout, second, third]) };
        }
        let arguments = [address, command, value, host_address(&copy), second, third];
        // SAFETY: as above; the timeout is a copy or null.
        unsafe { interruptible(libc::SYS_futex, BlockingCondition::Unknown, arguments) }
    })
}

pub(crate) fn futex_waitv(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [waiters, count, flags, timeout, clock, _] = arguments;
    if count == 0 || count > MAX_WAITERS || waiters == 0 {
        return Err(Errno(libc::EINVAL));
    }
    let memory = thread.process.memory();
    let mut entries = vec![0; (WAITER_BYTES * count) as usize];
    memory.read(waiters, &mut entries)?;
    let timeout = memory.read_optional::<16>(timeout)?;
    with_results(memory, |results| {
        let mut list = entries.clone();
        for waiter in list.chunks_exact_mut(WAITER_BYTES as usize) {
            let address = u64_at(waiter, 8);
            waiter[8..16].copy_from_slice(&word(results, address)?.to_le_bytes());
        }
        let arguments = [list.as_ptr() as u64, count, flags, host_address(&timeout), clock, 0];
        // SAFETY: the list and the timeout are copies; the kernel checks the addresses in the list, which are in guest
        // memory.
        unsafe { interruptible(libc::SYS_futex_waitv, BlockingCondition::Unknown, arguments) }
    })
}

/// Wakes one thread of any process that waits for the futex at `address`.
pub(super) fn wake_one(process: &Process, address: u64) {
    if let Some(simulation) = process.simulation() {
        simulation.wake_futex(address, 1, u32::MAX);
    }
    // It is not an error if no thread waits.
    let _ = with_results(process.memory(), |results| {
        let address = word(results, address)?;
        // SAFETY: the kernel checks the address, which is in guest memory.
        unsafe { host_call(libc::SYS_futex, [address, FUTEX_WAKE, 1, 0, 0, 0]) }
    });
}
