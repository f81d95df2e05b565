//! Reads clocks through the host's vDSO, because a host system call for each read would be noticeably slower. Source:
//! clock_gettime(2), gettimeofday(2), getcpu(2).

use longma_guest::Errno;
use longma_guest::host::host_call;
use longma_guest::words::{bytes_of, words_of};

use crate::Thread;
use crate::arguments::{Arguments, EINVAL, Returned, with_results};
use crate::simulated::clocks::timespec_ns;

fn pair(first: i64, second: i64) -> u128 {
    u128::from(first as u64) | u128::from(second as u64) << 64
}

pub(super) fn clock_gettime(thread: &mut Thread, [clock, result, ..]: Arguments) -> Returned {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is live.
    if unsafe { libc::clock_gettime(clock as i32, &raw mut time) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    thread.process.memory().store(result, pair(time.tv_sec, time.tv_nsec))?;
    Ok(0)
}

/// Refuses to set the host's clock, after the argument errors that a privileged process would also get.
pub(super) fn clock_settime(thread: &mut Thread, [clock, time, ..]: Arguments) -> Returned {
    if clock as i32 != libc::CLOCK_REALTIME {
        return Err(EINVAL);
    }
    timespec_ns(thread.process.memory().read_array(time)?)?;
    Err(Errno(libc::EPERM))
}

/// Reads the state of clock_adjtime. Changes are refused, because the clock is the host's.
pub(super) fn adjust(thread: &Thread, clock: u64, pointer: u64) -> Returned {
    /// Values of the `modes` field of `struct timex` that only read.
    const READING: [u32; 2] = [0, 0xa001];
    let memory = thread.process.memory();
    let mut copy: [u64; 26] = words_of(&memory.read_array::<208>(pointer)?);
    if !READING.contains(&(copy[0] as u32)) {
        return Err(Errno(libc::EPERM));
    }
    // SAFETY: the structure is live and has its full size.
    let returned =
        unsafe { host_call(libc::SYS_clock_adjtime, [clock, copy.as_mut_ptr() as u64, 0, 0, 0, 0]) }?;
    memory.write(pointer, &bytes_of::<208>(&copy))?;
    Ok(returned)
}

pub(super) fn gettimeofday(thread: &mut Thread, [result, zone, ..]: Arguments) -> Returned {
    let memory = thread.process.memory();
    if zone != 0 {
        return with_results(memory, |results| {
            let (result, zone) = (results.structure(result, 16)?, results.structure(zone, 8)?);
            // SAFETY: the pointers are null, or into the reservation or `results`.
            unsafe { host_call(libc::SYS_gettimeofday, [result, zone, 0, 0, 0, 0]) }
        });
    }
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: the pointer is live; with a valid pointer the call cannot fail.
    unsafe { libc::gettimeofday(&raw mut time, std::ptr::null_mut()) };
    if result != 0 {
        memory.store(result, pair(time.tv_sec, time.tv_usec))?;
    }
    Ok(0)
}
