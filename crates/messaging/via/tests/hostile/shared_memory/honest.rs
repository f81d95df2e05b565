//! Measures a well-behaved client and its server: the response times, and how much of them was spent waiting for a
//! processor. A client among attackers is compared with one that runs alone.
//!
//! Source: proc(5), /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst): nanoseconds running and
//! nanoseconds waiting for a processor.

use super::campaign::Victim;
use super::trace::Trace;
use super::*;
use std::fmt;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicI32;
use std::sync::mpsc;

/// The maximum additional delay caused by attackers.
pub(super) const MAX_DELAY: Duration = Duration::from_millis(10);

/// The time that a thread has waited for a processor. Zero if the kernel does not report it.
struct Queued(Option<std::fs::File>);

impl Queued {
    fn of(thread: i32) -> Queued {
        Queued(std::fs::File::open(format!("/proc/self/task/{thread}/schedstat")).ok())
    }

    fn so_far(&self) -> Duration {
        let mut bytes = [0; 96];
        let read = self.0.as_ref().and_then(|file| file.read_at(&mut bytes, 0).ok()).unwrap_or(0);
        let text = std::str::from_utf8(&bytes[..read]).unwrap_or_default();
        Duration::from_nanos(text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0))
    }
}

/// The time, in microseconds, for which this process was stopped (SIGSTOP, or a paused virtual machine), detected by a
/// thread that wakes every millisecond, and the time stolen by the host of a virtual machine.
pub(super) struct Halts(AtomicU64);

/// A thread that rarely needs a processor does not wait for one this long.
const HALT: Duration = Duration::from_millis(300);

impl Halts {
    pub(super) const fn new() -> Halts {
        Halts(AtomicU64::new(0))
    }

    fn so_far(&self) -> Duration {
        Duration::from_micros(self.0.load(Order::Acquire))
    }

    /// Watches for stops, and traces late responses, until `stop` is set.
    pub(super) fn look(&self, traces: &[Trace], stop: &AtomicBool) {
        lower_priority();
        let mut before = Instant::now();
        let (mut looked, mut stolen) = (before, stolen_so_far());
        while !stop.load(Order::Acquire) {
            if looked.elapsed() > TICK {
                let now = stolen_so_far();
                let max_stolen = now.iter().zip(&stolen).map(|(now, before)| now - before).max().unwrap_or(0);
                self.0.fetch_add(max_stolen * TICK.as_micros() as u64, Order::AcqRel);
                (looked, stolen) = (Instant::now(), now);
            }
            std::thread::sleep(Duration::from_millis(1));
            let passed = before.elapsed();
            before += passed;
            traces.iter().for_each(Trace::look);
            if passed > HALT {
                self.0.fetch_add(passed.as_micros() as u64, Order::AcqRel);
            }
        }
    }
}

/// The unit of stolen time in the kernel.
const TICK: Duration = Duration::from_millis(10);

/// The stolen time of each processor, in ticks, from /proc/stat.
fn stolen_so_far() -> Vec<u64> {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let of_one = |line: &str| line.split_whitespace().nth(8)?.parse().ok();
    text.lines().skip(1).take_while(|line| line.starts_with("cpu")).filter_map(of_one).collect()
}

/// Waits until a stop that has just ended has been detected.
fn wait_until_halts_are_detected() {
    std::thread::sleep(3 * TICK);
}

/// Sets the priority of this thread to `LONGMA_VIA_HONEST_NICE`, so that a campaign can run at low priority while the
/// measured threads do not.
fn lower_priority() {
    if let Some(nice) = std::env::var("LONGMA_VIA_HONEST_NICE").ok().and_then(|nice| nice.parse().ok()) {
        // SAFETY: the call takes only integers.
        let status = unsafe { libc::setpriority(libc::PRIO_PROCESS, this_thread() as u32, nice) };
        assert_eq!(status, 0, "a priority of {nice} is not permitted");
    }
}

fn this_thread() -> i32 {
    // SAFETY: takes no arguments and returns an integer.
    unsafe { libc::gettid() }
}

/// The response times seen by the client, microseconds: total, and without the time in which the client's and the
/// server's thread waited for a processor or the machine was stopped.
#[derive(Default)]
pub(super) struct Answers {
    elapsed: Vec<u64>,
    net: Vec<u64>,
    /// Those elements of `net` that exceed half of `MAX_DELAY`, each with a trace.
    late: Vec<(u64, String)>,
}

impl Answers {
    /// The longest response time without waits for a processor.
    pub(super) fn longest(&self) -> Duration {
        Duration::from_micros(self.net.iter().copied().max().unwrap_or_default())
    }
}

/// The median, the 99th, 99.9th and 99.99th percentile, and the maximum.
fn percentiles(times: &[u64]) -> [u64; 5] {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    [5000, 9900, 9990, 9999, 10_000]
        .map(|part| sorted.get((sorted.len() * part / 10_000).min(last)).copied().unwrap_or_default())
}

/// The maximum number of late responses to report.
const MAX_REPORTED: usize = 6;

impl fmt::Display for Answers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let late = |times: &[u64]| times.iter().filter(|us| u128::from(**us) > MAX_DELAY.as_micros()).count();
        write!(
            out,
            "{} answers; median, 99 %, 99.9 %, 99.99 %, longest in us, and how many over 10 ms: {:?}, {}; without waits for a \
             processor: {:?}, {}",
            self.elapsed.len(),
            percentiles(&self.elapsed),
            late(&self.elapsed),
            percentiles(&self.net),
            late(&self.net),
        )?;
        self.late.iter().try_for_each(|(net, seen)| write!(out, "\n  {net} us without waits: {seen}"))
    }
}

/// Repeatedly sends a message and waits for the answer of the server's `thread`, with pauses.
pub(super) fn run_honest_client(
    nic: &Nic,
    name: &str,
    thread: &AtomicI32,
    (halts, trace): (&Halts, &Trace),
    stop: &AtomicBool,
) -> Answers {
    lower_priority();
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let memory = nic.allocate(4096, MemoryAttributes::local(tag)).unwrap();
    vi.connect(&Address::local("honest"), &Address::local(name), TIMEOUT).unwrap();
    // The server has accepted this client, so its thread is running.
    let threads = [Queued::of(this_thread()), Queued::of(thread.load(Order::Acquire))];
    let waited = || threads.iter().map(Queued::so_far).sum::<Duration>() + halts.so_far();
    let mut answers = Answers::default();
    while !stop.load(Order::Acquire) {
        vi.post_receive(&Descriptor::receive(&[memory.segment(0, 64)])).unwrap();
        trace.ask(this_thread(), thread.load(Order::Relaxed));
        let (waited_before, begin) = (waited(), Instant::now());
        vi.post_send(&Descriptor::send(&[memory.segment(64, 8)])).unwrap();
        let halted_before = halts.so_far();
        let answer = loop {
            match vi.receive_wait(TIMEOUT) {
                Ok(answer) => break answer,
                Err(error) => {
                    std::thread::sleep(HALT / 10);
                    assert!(halts.so_far() > halted_before, "no answer within ten seconds: {error}");
                }
            }
        };
        let (elapsed, seen) = (begin.elapsed(), trace.answered());
        assert!(answer.is_success(), "{answer:?}");
        if elapsed > MAX_DELAY / 2 {
            wait_until_halts_are_detected();
        }
        let net = elapsed.saturating_sub(waited() - waited_before);
        answers.elapsed.push(elapsed.as_micros() as u64);
        answers.net.push(net.as_micros() as u64);
        if let Some(seen) = seen.filter(|_| net > MAX_DELAY / 2) {
            answers.late.push((net.as_micros() as u64, seen));
            answers.late.sort_unstable_by_key(|late| std::cmp::Reverse(late.0));
            answers.late.truncate(MAX_REPORTED);
        }
        while vi.send_done().is_some() {}
        std::thread::sleep(Duration::from_micros(200));
    }
    answers
}

/// The measurements of a server.
pub(super) struct Served {
    /// The number of clients, including the well-behaved one.
    pub(super) accepted: usize,
    /// Without waits for a processor.
    pub(super) longest_turn: Duration,
}

/// Serves all clients in one thread, which it stores in `thread`, until `stop` is set. A client that delays it delays
/// all others.
pub(super) fn run_server(victim: &Victim, thread: &AtomicI32, halts: &Halts, stop: &AtomicBool) -> Served {
    thread.store(this_thread(), Order::Release);
    let queued = Queued::of(this_thread());
    let (mut vis, mut turn) = (Vec::new(), 0);
    let mut served = Served { accepted: 0, longest_turn: Duration::ZERO };
    while !stop.load(Order::Acquire) {
        let (waited_before, begin) = (queued.so_far() + halts.so_far(), Instant::now());
        let before = vis.len();
        victim.take_in(&mut vis);
        served.accepted += vis.len() - before;
        // The first client is the well-behaved one, which only gets answers.
        let mut first = true;
        vis.retain(|vi| {
            let turn = if std::mem::take(&mut first) { 1 } else { turn };
            victim.serve(vi, turn)
        });
        turn += 1;
        let elapsed = begin.elapsed();
        if elapsed > served.longest_turn {
            if elapsed > MAX_DELAY / 2 {
                wait_until_halts_are_detected();
            }
            let net = elapsed.saturating_sub(queued.so_far() + halts.so_far() - waited_before);
            served.longest_turn = served.longest_turn.max(net);
        }
        std::thread::yield_now();
    }
    served
}

/// Aborts the process unless the returned sender is dropped within the given time. Unwinding would not suffice, because
/// a hung thread may hold a lock that the test's threads need.
pub(super) fn end_if_it_hangs(after: Duration) -> mpsc::Sender<()> {
    let (alive, watched) = mpsc::channel();
    std::thread::spawn(move || {
        if watched.recv_timeout(after) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("something hangs: not over after {after:?}");
            std::process::abort();
        }
    });
    alive
}
