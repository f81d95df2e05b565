//! Traces late responses: the activity of this process's threads, and where in the kernel they wait. Only responses
//! that are already late are sampled, once per millisecond, and only the first few samples are kept.
//!
//! Source: proc(5), /proc/PID/task/TID/stat and wchan; /proc/stat, steal (the time that the host of virtual machines
//! gave to others).

use super::*;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::AtomicI32;

/// Responses that take longer are sampled.
const LATE: Duration = Duration::from_millis(6);
/// The maximum number of samples.
const MAX_SAMPLES: usize = 3;

/// A request of a client, with the samples taken so far.
pub(super) struct Trace {
    client: AtomicI32,
    open: Mutex<Option<Question>>,
}

struct Question {
    server: i32,
    begin: Instant,
    sights: Vec<String>,
    /// The stolen time of all processors at the first sample, hundredths of a second.
    stolen: u64,
}

impl Trace {
    pub(super) fn new() -> Trace {
        Trace { client: AtomicI32::new(0), open: Mutex::new(None) }
    }

    /// Called by the client when it has sent a request to the server thread.
    pub(super) fn ask(&self, client: i32, server: i32) {
        self.client.store(client, Order::Relaxed);
        let question = Question { server, begin: Instant::now(), sights: Vec::new(), stolen: 0 };
        *self.open.lock().unwrap() = Some(question);
    }

    /// Ends the request. Returns the samples if the response was late.
    pub(super) fn answered(&self) -> Option<String> {
        let question = self.open.lock().unwrap().take().filter(|question| !question.sights.is_empty())?;
        let stolen = (stolen_so_far() - question.stolen) * 10;
        Some(format!("{} [{stolen} ms stolen since the first sample]", question.sights.join("; ")))
    }

    /// Samples the threads if the response is late.
    pub(super) fn look(&self) {
        let mut open = self.open.lock().unwrap();
        let Some(question) = open.as_mut() else { return };
        let age = question.begin.elapsed();
        if age < LATE || question.sights.len() == MAX_SAMPLES {
            return;
        }
        if question.sights.is_empty() {
            question.stolen = stolen_so_far();
        }
        let roles = [(question.server, "server"), (self.client.load(Order::Relaxed), "client")];
        question.sights.push(format!("{age:.1?}:{}", threads(&roles)));
    }
}

/// The stolen time of all processors, hundredths of a second.
fn stolen_so_far() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    text.split_whitespace().nth(8).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

/// Describes the two threads and all others that are not sleeping: the state (R means running or runnable) and where
/// they wait.
fn threads(roles: &[(i32, &str)]) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let stat = read("stat");
        let Some((name, rest)) = stat.rsplit_once(") ") else { continue };
        let state = &rest[..rest.len().min(1)];
        let thread: i32 = entry.file_name().to_string_lossy().parse().unwrap_or(0);
        let role = roles.iter().find(|role| role.0 == thread).map(|role| role.1);
        if role.is_none() && state == "S" {
            continue;
        }
        let name = role.unwrap_or(name.split_once('(').map_or("?", |name| name.1));
        let _ = write!(text, " {name} {state} {}", read("wchan"));
    }
    text
}

#[test]
fn a_late_answer_is_reported_with_both_threads_activity() {
    // SAFETY: takes no arguments and returns an integer.
    let this = unsafe { libc::gettid() };
    let trace = Trace::new();
    trace.ask(this, this);
    trace.look();
    assert_eq!(trace.answered(), None);
    trace.ask(this, 1);
    std::thread::sleep(LATE);
    (0..2 * MAX_SAMPLES).for_each(|_| trace.look());
    let seen = trace.answered().unwrap();
    assert_eq!(seen.matches(" client R ").count(), MAX_SAMPLES, "{seen}");
    assert!(seen.ends_with("ms stolen since the first sample]"), "{seen}");
}
