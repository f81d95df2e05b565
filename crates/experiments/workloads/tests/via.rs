//! Measurements of `longma via` between two endpoints in one process, over shared memory.

use longma_via::provider::shared_memory::Settings;
use longma_via::{Address, Nic, Reliability};
use longma_workloads::via::network::{self, Kind, Limits};
use longma_workloads::via::{Endpoint, Measure, MeasurementRequest};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static NEVER_STOP: AtomicBool = AtomicBool::new(false);

fn nic() -> Nic {
    network::open(Kind::SharedMemory, None, Settings::default()).unwrap()
}

/// Runs `client` with a connection to a server that sleeps or polls.
fn with_server(name: &str, server_sleeps: bool, client: impl FnOnce(&mut Endpoint, &Limits<'_>)) {
    let name = format!("workload-{name}-{}", std::process::id());
    let (server, stop) = (nic(), AtomicBool::new(false));
    let listener = server.listen(&Address::local(&name)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| network::serve(&server, &listener, server_sleeps, false, &stop, |_| ()).unwrap());
        let limits = Limits { stop: &NEVER_STOP, begin: Instant::now(), time: Duration::from_secs(120) };
        let nic = nic();
        let level = Reliability::ReliableDelivery;
        let end = network::connect(&nic, &Address::local(&name), 64, level, &limits);
        // Stop the server even if the client panics; otherwise the scope never ends.
        let _stop = Stop(&stop);
        client(&mut end.unwrap(), &limits);
    });
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn measurements_with_more_messages_than_queue_entries_complete() {
    for (client_sleeps, server_sleeps) in [(true, false), (false, true), (true, true)] {
        let name = format!("long-{client_sleeps}-{server_sleeps}");
        with_server(&name, server_sleeps, |end, limits| {
            end.sleeps = client_sleeps;
            let ping = MeasurementRequest {
                measure: Measure::Ping,
                bytes: 8,
                messages: 1500,
                warm_up: 100,
                window: 1,
            };
            assert_eq!(network::measure(end, ping, limits).unwrap().len(), 1500);
            let stream =
                MeasurementRequest { measure: Measure::Bandwidth, messages: 150_000, window: 256, ..ping };
            assert_eq!(network::measure(end, stream, limits).unwrap().len(), 1);
        });
    }
}

/// The CPU time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_polling_server_uses_little_cpu_time_while_the_client_is_idle() {
    // Run in a separate process, because the CPU time includes all threads.
    const ALONE: &str = "LONGMA_VIA_SILENT_CLIENT";
    if std::env::var_os(ALONE).is_none() {
        let me = std::env::current_exe().unwrap();
        let name = "a_polling_server_uses_little_cpu_time_while_the_client_is_idle";
        let outcome =
            std::process::Command::new(me).args(["--exact", name]).env(ALONE, "1").output().unwrap();
        let stdout = String::from_utf8_lossy(&outcome.stdout).into_owned();
        return assert!(outcome.status.success(), "{stdout}");
    }
    // Idle before its first request, and in the middle of a measurement.
    let spent = [false, true].map(|mid_measurement| {
        let mut spent = Duration::ZERO;
        with_server(&format!("silent-{mid_measurement}"), false, |end, _| {
            let request = MeasurementRequest {
                measure: Measure::Ping,
                bytes: 8,
                messages: 1000,
                warm_up: 0,
                window: 1,
            };
            if mid_measurement {
                end.send_request(&request).unwrap();
            }
            let before = cpu_time();
            std::thread::sleep(Duration::from_secs(3));
            spent = cpu_time() - before;
        });
        spent
    });
    assert!(spent.iter().all(|spent| *spent < Duration::from_secs(1)), "{spent:?} in 3 s each");
}
