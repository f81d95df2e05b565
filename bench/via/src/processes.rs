//! Runs a measurement between two pinned processes.
//! Source: fork(2), sched_setaffinity(2).

use std::time::Instant;

/// Time limit of a measurement in seconds.
const TIMEOUT_SECONDS: u32 = 60;

/// The cores of the two processes.
#[derive(Clone, Copy)]
pub struct Cores(pub usize, pub usize);

pub fn pin(core: usize) {
    // SAFETY: plain old data, filled by the macros and read by the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

fn child(core: usize, body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: this process has one thread, so the copy is complete.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        pin(core);
        // SAFETY: ends this process if it hangs.
        unsafe { libc::alarm(TIMEOUT_SECONDS) };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: ends the copy without running the original's cleanup.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    pid
}

/// Runs `server` on the second core and `client` on the first; returns the client's figure.
pub fn measure(cores: Cores, server: impl FnOnce(), client: impl FnOnce() -> f64) -> Option<f64> {
    let server = std::cell::Cell::new(Some(server));
    measure_many(cores, 1, |_| server.take().into_iter().for_each(|server| server()), client)
}

/// The same with several servers, which share the second core. Each receives its number.
pub fn measure_many(
    cores: Cores,
    servers: usize,
    server: impl Fn(usize),
    client: impl FnOnce() -> f64,
) -> Option<f64> {
    let mut pipe = [0; 2];
    // SAFETY: writes two descriptors.
    if unsafe { libc::pipe(pipe.as_mut_ptr()) } < 0 {
        return None;
    }
    let others: Vec<_> = (0..servers).map(|index| child(cores.1, || server(index))).collect();
    let first = child(cores.0, || {
        let bytes = client().to_le_bytes();
        // SAFETY: writes eight bytes of this process.
        unsafe { libc::write(pipe[1], bytes.as_ptr().cast(), 8) };
    });
    let mut status = 0;
    // SAFETY: waits for our own children and closes our own descriptors.
    let got = unsafe {
        libc::close(pipe[1]);
        libc::waitpid(first, &raw mut status, 0);
        for other in others {
            libc::kill(other, libc::SIGTERM);
            libc::waitpid(other, &raw mut status, 0);
        }
        let mut bytes = [0u8; 8];
        let count = libc::read(pipe[0], bytes.as_mut_ptr().cast(), 8);
        libc::close(pipe[0]);
        (count == 8).then(|| f64::from_le_bytes(bytes))
    };
    got.filter(|figure| figure.is_finite())
}

/// Duration of `body` in nanoseconds.
pub fn time_ns(body: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    body();
    begin.elapsed().as_nanos() as f64
}

/// Number of parts of a measurement.
const PARTS: u64 = 60;

/// Duration of `rounds` rounds in nanoseconds: the median part times the number of parts, so that occasional
/// disturbances do not count.
pub fn rounds_ns(rounds: u64, mut round: impl FnMut(u64)) -> f64 {
    let mut begin = Instant::now();
    let mut parts = Vec::with_capacity(PARTS as usize);
    for part in 0..PARTS {
        let (first, end) = (rounds * part / PARTS, rounds * (part + 1) / PARTS);
        (first..end).for_each(&mut round);
        let now = Instant::now();
        if end > first {
            parts.push((now - begin).as_nanos() as f64 / (end - first) as f64);
        }
        begin = now;
    }
    parts.sort_by(f64::total_cmp);
    parts[parts.len() / 2] * rounds as f64
}

/// A name that no other run uses.
pub fn fresh_name(what: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Zeroed memory shared with child processes.
pub fn shared_memory(bytes: usize) -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    assert!(base != libc::MAP_FAILED, "no memory");
    base.cast()
}
