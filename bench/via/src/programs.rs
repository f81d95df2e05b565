//! Runs the peers' own benchmarks, if installed: `ucx_perftest` (Debian's ucx-utils), `fi_pingpong` (libfabric-bin).
//! Source: their manual pages.

use crate::processes::Cores;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

static PORT: AtomicU16 = AtomicU16::new(13_500);

fn on_core(core: usize, program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string(), "timeout", "30", program]);
    command.stderr(Stdio::null()).env("UCX_WARN_UNUSED_ENV_VARS", "n").env("UCX_LOG_LEVEL", "fatal");
    command
}

/// Runs both sides; returns the client's output.
fn pair(mut server: Command, mut client: Command) -> Option<String> {
    let mut server = server.stdout(Stdio::null()).spawn().ok()?;
    std::thread::sleep(Duration::from_millis(400));
    let output = client.stdout(Stdio::piped()).output();
    let _ = server.kill();
    let _ = server.wait();
    let output = output.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The numbers of an output line: iterations; median, mean and overall latency (us); bandwidths (MiB/s); message rates
/// (per second).
fn ucx(cores: Cores, transports: &str, test: &str, bytes: usize, iterations: u64) -> Option<Vec<f64>> {
    let port = PORT.fetch_add(1, Ordering::Relaxed).to_string();
    let mut server = on_core(cores.1, "ucx_perftest");
    server.args(["-p", &port]).env("UCX_TLS", transports);
    let mut client = on_core(cores.0, "ucx_perftest");
    client.args(["127.0.0.1", "-p", &port, "-t", test, "-f", "-v"]).env("UCX_TLS", transports);
    client.args(["-s", &bytes.to_string(), "-n", &iterations.to_string()]);
    let text = pair(server, client)?;
    let last = text.lines().rfind(|line| line.starts_with(|first: char| first.is_ascii_digit()))?;
    let numbers: Vec<f64> = last.split(',').filter_map(|number| number.trim().parse().ok()).collect();
    (numbers.len() == 8).then_some(numbers)
}

const SHARED: &str = "posix,self";
const SHARED_AND_CMA: &str = "posix,cma,self";

/// One-way latency of a tag send, ns.
pub fn ucx_tag_ns(cores: Cores, bytes: usize) -> Option<f64> {
    ucx(cores, SHARED, "tag_lat", bytes, 200_000).map(|numbers| numbers[3] * 1e3)
}

/// One-way latency of a put, ns.
pub fn ucx_put_ns(cores: Cores, bytes: usize) -> Option<f64> {
    ucx(cores, SHARED, "ucp_put_lat", bytes, 200_000).map(|numbers| numbers[3] * 1e3)
}

/// Rate of tag sends of `bytes`, millions per second.
pub fn ucx_tag_mps(cores: Cores, bytes: usize) -> Option<f64> {
    ucx(cores, SHARED, "tag_bw", bytes, 3_000_000).map(|numbers| numbers[7] / 1e6)
}

/// Bandwidth of tag sends of `bytes`, GB/s; with `cma` by single copy.
pub fn ucx_tag_gbps(cores: Cores, bytes: usize, cma: bool) -> Option<f64> {
    let transports = if cma { SHARED_AND_CMA } else { SHARED };
    let iterations = ((1u64 << 30) / bytes as u64).max(1000);
    ucx(cores, transports, "tag_bw", bytes, iterations).map(|numbers| numbers[5] * 1.048_576e-3)
}

/// A shared-memory provider of libfabric, ping-pong of `bytes`: (one-way ns, GB/s). `run` builds ours.
pub fn libfabric(cores: Cores, provider: &str, bytes: usize) -> Option<(f64, f64)> {
    let port = PORT.fetch_add(1, Ordering::Relaxed).to_string();
    let iterations = (20_000 / (bytes / 1024).max(1)).max(500).to_string();
    let mut server = on_core(cores.1, "fi_pingpong");
    server.args(["-p", provider, "-e", "rdm", "-S", &bytes.to_string(), "-I", &iterations, "-B", &port]);
    let mut client = on_core(cores.0, "fi_pingpong");
    client.args([
        "-p",
        provider,
        "-e",
        "rdm",
        "-S",
        &bytes.to_string(),
        "-I",
        &iterations,
        "-P",
        &port,
        "127.0.0.1",
    ]);
    let text = pair(server, client)?;
    let words: Vec<&str> = text.lines().last()?.split_whitespace().collect();
    let number = |index: usize| words.get(index)?.parse::<f64>().ok();
    Some((number(6)? * 1e3, number(5)? / 1e3))
}
