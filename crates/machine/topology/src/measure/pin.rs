//! Threads on CPUs of our choice.
//! Not a scheduler: one thread, one CPU, for the time of a measurement.
//! Source: sched_setaffinity(2).

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Time this thread has spent on a processor.
pub(super) fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Threads that wanted a processor in the last minute, on average.
pub(super) fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// CPUs this process may use.
pub(super) fn allowed() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).map(|c| c as u32).collect()
}

/// Moves this thread to `cpu`; false if the system refuses.
pub(super) fn this_thread(cpu: u32) -> bool {
    if cpu as usize >= CpuSet::MAX_CPU {
        return false;
    }
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    sched_setaffinity(None, &set).is_ok()
}

/// Runs `work` in a thread of its own on `cpu`, so that the caller's affinity stays as it was.
pub(super) fn on<T: Send>(cpu: Option<u32>, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            if let Some(cpu) = cpu {
                this_thread(cpu);
            }
            work()
        });
        match thread.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
