//! The memory and the open files of a server process.

mod support;

use longma_zoned::device::{FileDevice, Geometry};
use longma_zoned::{Options, Store};
use longma_zoned_server::{Limits, Server, Settings};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use support::{Client, Reply, encoded};

/// Names the file of the map, for the process that is measured.
const MAP: &str = "LONGMA_TEST_MEASURED_MAP";
/// The limit on open files of that process.
const FILES: &str = "LONGMA_TEST_FILES";
const CLIENTS: usize = 64;

/// The process that is measured. Run by the other test; does nothing otherwise.
#[test]
fn serving_process() {
    let Some(path) = std::env::var_os(MAP) else { return };
    if let Some(files) = std::env::var(FILES).ok().and_then(|files| files.parse().ok()) {
        let limit = Rlimit { current: Some(files), maximum: Some(files) };
        setrlimit(Resource::Nofile, limit).unwrap();
    }
    let limits = Limits { buffer_bytes: 1 << 20, ..Limits::default() };
    let server =
        Server::bind("127.0.0.1:0".parse().unwrap(), Settings { limits, ..Settings::default() }).unwrap();
    println!("\naddress {}", server.address());
    let device = FileDevice::open_or_create(Path::new(&path), Geometry::with_capacity(256 << 20)).unwrap();
    let map = Store::open_or_create(device, Options::with_cache(1 << 20)).unwrap();
    server.run(map, &AtomicBool::new(false)).unwrap();
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Resident memory, MiB: the highest so far (`VmHWM`) or now (`VmRSS`).
    fn mib(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    }
}

/// Starts a process that may open this many files.
fn start(folder: &Path, files: &str) -> (Process, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "serving_process", "--nocapture"]);
    command.env(MAP, folder.join("map")).env(FILES, files).stdout(Stdio::piped());
    let mut process = Process(command.spawn().unwrap());
    let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    let address = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("address ")?.parse().ok());
    (process, address.expect("the server has not started"))
}

#[test]
fn clients_beyond_the_limit_on_open_files_are_refused_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (_process, address) = start(folder.path(), "40");
    let mut clients: Vec<Client> = (0..60).map(|_| Client::new(address)).collect();
    let (mut served, mut refused) = (0, 0);
    for client in &mut clients {
        match client.try_reply_to("PING") {
            Some(Reply::Simple(_)) => served += 1,
            Some(Reply::Error(reason)) => {
                assert!(reason.contains("too many open files"), "{reason}");
                refused += 1;
            }
            // The server resets the connection if a request arrives after the refusal.
            _ => refused += 1,
        }
    }
    assert!(served >= 20 && refused >= 20, "{served} served, {refused} refused");
}

fn requests(client: &mut Client) -> u64 {
    let text = String::from_utf8(client.ask("INFO").bytes()).unwrap();
    text.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).unwrap().parse().unwrap()
}

#[test]
fn clients_that_do_not_read_take_no_more_memory_than_the_limit_and_return_it() {
    let folder = tempfile::tempdir().unwrap();
    let (process, address) = start(folder.path(), "1000");
    let mut observer = Client::new(address);
    assert_eq!(observer.ask_words(&[&b"SET"[..], b"v", &vec![7; 1_000_000]]), Reply::ok());
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::new(address)).collect();
    clients.iter_mut().for_each(|client| client.send(&encoded(&["GET", "v"]).repeat(50)));
    // Wait until the server serves only this client.
    let (mut quiet, mut last) = (0, 0);
    while quiet < 10 {
        std::thread::sleep(Duration::from_millis(50));
        let now = requests(&mut observer);
        quiet = if now == last + 1 { quiet + 1 } else { 0 };
        last = now;
    }
    // 16 values that are read at a time, 150 KiB for each client, 1 MiB of buffers, and the map.
    let most = process.mib("VmHWM");
    assert!(most < 100, "{most} MiB");
    drop(clients);
    for _ in 0..1200 {
        std::thread::sleep(Duration::from_millis(50));
        if process.mib("VmRSS") < 50 {
            return;
        }
    }
    panic!("{} MiB remain", process.mib("VmRSS"));
}
