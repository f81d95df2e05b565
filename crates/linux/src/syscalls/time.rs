//! Reading clocks, by way of the host's vDSO: programs do it so often that a host system call would show.
//! Not sleeping and timers, which are in `events`.
//! Source: clock_gettime(2), gettimeofday(2), getcpu(2).

use longma_loongarch::State;

use super::{buffer, host_call};
use crate::{Errno, Thread};

type Arguments = [u64; 6];
type Returned = Result<u64, Errno>;

fn pair(first: i64, second: i64) -> u128 {
    u128::from(first as u64) | u128::from(second as u64) << 64
}

pub(super) fn clock_gettime(thread: &mut Thread, _: &mut State, [clock, result, ..]: Arguments) -> Returned {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is live.
    if unsafe { libc::clock_gettime(clock as i32, &raw mut time) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    thread.process.memory().store(result, pair(time.tv_sec, time.tv_nsec))?;
    Ok(0)
}

pub(super) fn gettimeofday(thread: &mut Thread, _: &mut State, [result, zone, ..]: Arguments) -> Returned {
    let memory = thread.process.memory();
    if zone != 0 {
        let (result, zone) = (buffer(memory, result, 16, true)?, buffer(memory, zone, 8, true)?);
        // SAFETY: null, or pointers into the reservation.
        return unsafe { host_call(libc::SYS_gettimeofday, [result, zone, 0, 0, 0, 0]) };
    }
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: the pointer is live; with a valid pointer the call cannot fail.
    unsafe { libc::gettimeofday(&raw mut time, std::ptr::null_mut()) };
    if result != 0 {
        memory.store(result, pair(time.tv_sec, time.tv_usec))?;
    }
    Ok(0)
}
