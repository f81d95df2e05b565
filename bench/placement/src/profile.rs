//! Where the time from a request to its durable answer goes, and how long the disk takes to sync.

use crate::load::percentile;
use longma_placement::store::ChangeTimes;
use serde_json::{Map, Value, json};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of syncs that are measured at a time.
const SYNCS: u64 = 500;

/// Times of fdatasync on an otherwise idle disk: a lower bound for durable answers.
pub fn sync_times(folder: &Path) -> Vec<Duration> {
    let path = folder.join(format!("syncs-{}", std::process::id()));
    let file = std::fs::File::create(&path).expect("a file can be created");
    file.write_all_at(&vec![1; 1 << 20], 0).and_then(|()| file.sync_all()).expect("the file can be written");
    let sync = |turn: u64| {
        let began = Instant::now();
        file.write_all_at(&[turn as u8; 8192], turn % 128 * 8192)
            .and_then(|()| file.sync_data())
            .expect("it syncs");
        began.elapsed()
    };
    let times = (0..SYNCS).map(sync).collect();
    // A remaining file does no harm.
    let _ = std::fs::remove_file(path);
    times
}

/// Times of one request, from when it was due to its answer.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimes {
    /// Delay until it began.
    pub late: Duration,
    /// Parsing its JSON.
    pub parse: Duration,
    /// The decision, and handing it to the store.
    pub decide: Duration,
    /// From then to the durable answer as JSON.
    pub durable: Duration,
}

impl RequestTimes {
    pub fn total(&self) -> Duration {
        self.late + self.parse + self.decide + self.durable
    }
}

/// Names of the stages of a request. Those from `queued` to `commit` are the store's.
const STAGES: [&str; 8] = ["late", "parse", "decide", "queued", "statements", "batch", "commit", "answer"];

fn stages(request: &RequestTimes, change: &ChangeTimes) -> [Duration; 8] {
    let ChangeTimes { queued, statements, batch, commit } = *change;
    let RequestTimes { late, parse, decide, durable } = *request;
    let answer = durable.saturating_sub(queued + statements + batch + commit);
    [late, parse, decide, queued, statements, batch, commit, answer]
}

/// Median, 99th percentile, 99.9th percentile and maximum, us.
pub fn percentiles(times: impl Iterator<Item = Duration>) -> Value {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    json!([0.5, 0.99, 0.999, 1.0].map(|part| percentile(&times, part).round()))
}

/// Latencies as multiples of the disk's sync, and the stages of the requests: of all, and the mean of the slowest hundredth.
/// `changes` are the store's times of the same requests in the same order.
pub fn report(requests: &[RequestTimes], changes: &[ChangeTimes], syncs: &[Duration]) -> Value {
    let (all, sync) =
        (percentiles(requests.iter().map(RequestTimes::total)), percentiles(syncs.iter().copied()));
    let multiple =
        |at: usize| (all[at].as_f64().zip(sync[at].as_f64())).map(|(a, s)| (a / s * 10.0).round() / 10.0);
    let mut report = json!({
        "latency_us": all, "fdatasync_us": sync,
        "multiple_of_fdatasync": { "p50": multiple(0), "p99": multiple(1) },
    });
    if requests.len() == changes.len() {
        let mut times: Vec<_> =
            requests.iter().zip(changes).map(|(request, change)| stages(request, change)).collect();
        times.sort_unstable_by_key(|one| one.iter().sum::<Duration>());
        let slowest = &times[times.len() - times.len().div_ceil(100)..];
        let stage = |(at, name): (usize, &&str)| {
            let sum: Duration = slowest.iter().map(|one| one[at]).sum();
            let mean = (sum.as_secs_f64() * 1e6 / slowest.len().max(1) as f64).round();
            let all = percentiles(times.iter().map(|one| one[at]));
            (name.to_string(), json!({ "all": all, "mean_of_slowest_hundredth": mean }))
        };
        report["stages_us"] = Value::Object(STAGES.iter().enumerate().map(stage).collect::<Map<_, _>>());
    }
    report
}
