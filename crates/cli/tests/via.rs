//! Tests `longma via`.

mod subcommand;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileTypeExt;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use subcommand::Subcommand;

const VIA: Subcommand = Subcommand("via");

/// A server process; killed when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let child =
            VIA.command(&[&["serve"], args].concat()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap_or_default().to_string();
        assert!(line.starts_with("serving "), "{line}");
        Self { child, address }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a signal to a child of our own that has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    fn wait(&mut self) -> ExitStatus {
        let limit = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < limit, "still serving");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_ping_over_udp_gives_ordered_percentiles_for_each_size() {
    let server = Server::start(&["--provider", "udp", "--at", "127.0.0.1:0"]);
    let sizes = ["--sizes", "8,1400,64KiB", "--iterations", "50", "--time-limit", "60", "--format", "json"];
    let result = VIA.json(&[&["ping", "--provider", "udp", "--to", &server.address], &sizes[..]].concat());
    assert_eq!((&result["provider"], &result["simulated"]), (&"udp".into(), &false.into()));
    let rows = result["results"].as_array().unwrap();
    let bytes: Vec<_> = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
    assert_eq!(bytes, [8, 1400, 65_536]);
    for row in rows {
        let names = ["min_us", "median_us", "p99_us", "p99.9_us", "max_us"];
        let times = names.map(|name| row[name].as_f64().unwrap());
        assert!(times[0] > 0.0 && times.is_sorted(), "{row}");
    }
    // The same server accepts another client and a bandwidth measurement.
    let stream = ["--sizes", "1000", "--iterations", "2000", "--format", "json", "--time-limit", "60"];
    let result =
        VIA.json(&[&["bandwidth", "--provider", "udp", "--to", &server.address], &stream[..]].concat());
    let row = &result["results"][0];
    let (rate, megabytes) = (row["messages_per_second"].as_f64(), row["megabytes_per_second"].as_f64());
    assert!((rate.unwrap() * 1000.0 / 1e6 - megabytes.unwrap()).abs() < 1e-6, "{row}");
}

#[test]
fn a_server_ends_on_ctrl_c_and_a_client_reports_a_missing_server() {
    let mut server = Server::start(&["--provider", "udp", "--at", "127.0.0.1:0", "--wait", "sleep"]);
    let sizes = ["--sizes", "4", "--iterations", "5", "--wait", "sleep", "--time-limit", "60"];
    VIA.success(&[&["ping", "--provider", "udp", "--to", &server.address], &sizes[..]].concat());
    server.signal(libc::SIGINT);
    let status = server.wait();
    assert!(status.success(), "{status}");
    let message = VIA.failure(&["ping", "--provider", "udp", "--to", &server.address, "--time-limit", "20"]);
    assert!(message.contains("start `longma via serve` there"), "{message}");
}

#[test]
fn shared_memory_between_two_processes() {
    let name = format!("cli-test-{}", std::process::id());
    let _server = Server::start(&["--name", &name]);
    let sizes = ["--sizes", "8,100000", "--iterations", "100", "--format", "json", "--time-limit", "60"];
    for measure in ["ping", "bandwidth"] {
        let result = VIA.json(&[&[measure, "--name", &name], &sizes[..]].concat());
        assert_eq!(result["results"].as_array().unwrap().len(), 2, "{result}");
    }
}

#[test]
fn a_server_that_is_terminated_removes_its_name() {
    let names = tempfile::tempdir().unwrap();
    let directory = names.path().to_str().unwrap();
    let mut server = Server::start(&["--names", directory, "--name", "terminated"]);
    let sockets = || {
        let files = std::fs::read_dir(names.path()).unwrap();
        files.filter(|file| file.as_ref().unwrap().file_type().unwrap().is_socket()).count()
    };
    assert_eq!(sockets(), 1);
    server.signal(libc::SIGTERM);
    assert!(server.wait().success());
    assert_eq!(sockets(), 0);
}

#[test]
fn a_server_whose_name_is_taken_does_not_report_that_it_serves() {
    let name = format!("cli-taken-{}", std::process::id());
    let _server = Server::start(&["--name", &name]);
    let second = VIA.command(&["serve", "--name", &name]).output().unwrap();
    assert!(!second.status.success());
    assert_eq!(String::from_utf8_lossy(&second.stdout), "");
}

#[test]
fn the_modelled_myrinet_gives_the_same_numbers_every_time() {
    for firmware in ["bvia", "myvia"] {
        let args = ["ping", "--provider", firmware, "--sizes", "4,4096", "--iterations", "20"];
        let (first, second) = (VIA.success(&args), VIA.success(&args));
        assert_eq!(first, second);
        assert_eq!(first.lines().count(), 3, "{first}");
        let args = [
            "bandwidth",
            "--provider",
            firmware,
            "--sizes",
            "4096",
            "--iterations",
            "300",
            "--format",
            "json",
        ];
        let row = VIA.json(&args)["results"][0].clone();
        let megabytes = row["megabytes_per_second"].as_f64().unwrap();
        assert!(megabytes > 20.0 && megabytes < 110.0, "{row}");
    }
}

#[test]
fn info_lists_the_attributes_of_a_nic() {
    assert_eq!(VIA.json(&["info", "--provider", "bvia", "--format", "json"])["max_transfer_bytes"], 102_400);
    assert!(VIA.success(&["info", "--provider", "udp", "--at", "127.0.0.1:0"]).contains("ReliableReception"));
}

#[test]
fn wrong_requests_name_a_remedy() {
    let cases: [(&[&str], &str); 7] = [
        (&["ping", "--sizes", "64MiB"], "even if the NIC transfers longer ones"),
        (&["ping", "--provider", "bvia", "--sizes", "200KiB"], "longer than the modelled NIC's MTU"),
        (&["ping", "--sizes", "12parsecs"], "write"),
        (&["ping", "--provider", "udp", "--to", "nowhere"], "such as 192.168.0.7:7471"),
        (&["ping", "--provider", "af_xdp"], "--at eth0"),
        (&["ping", "--provider", "af_xdp", "--at", "no-such-if"], "ip link"),
        (&["serve", "--provider", "myvia"], "need no server"),
    ];
    for (args, expected) in cases {
        let message = VIA.failure(args);
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}

#[test]
fn a_time_limit_ends_a_measurement_that_is_too_long() {
    let begin = Instant::now();
    let args =
        ["ping", "--provider", "myvia", "--sizes", "100000", "--iterations", "10000000", "--time-limit", "1"];
    let message = VIA.failure(&args);
    assert!(message.contains("--time-limit"), "{message}");
    assert!(begin.elapsed() < Duration::from_secs(20));
}
