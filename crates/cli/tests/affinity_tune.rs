//! Tests `longma affinity tune` with real flows over a veth pair: it separates the reader and the queue, and restores
//! their settings.

mod subcommand;
mod veth;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use subcommand::text;
use veth::{Network, end_with_test, signal};

/// Time limit of every wait.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether this host can create namespaces and has two CPUs. Prints the missing prerequisite, so that a skipped test is
/// visible.
fn can_tune() -> bool {
    let works = |name: &str, words: &[&str]| {
        Command::new(name).args(words).output().is_ok_and(|output| output.status.success())
    };
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get());
    let can = rustix::process::geteuid().is_root()
        && cpus > 1
        && works("ip", &["-V"])
        && works("unshare", &["--net", "true"]);
    if !can {
        eprintln!("skipped: tuning needs root, ip and two CPUs");
    }
    can
}

/// Moves the calling thread into a network namespace.
fn enter(namespace: &str) {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open(format!("/var/run/netns/{namespace}")).unwrap();
    // SAFETY: setns on an open descriptor.
    assert_eq!(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
}

/// Sends tens of MB per second to every client until dropped.
struct Sender(Arc<AtomicBool>);

impl Sender {
    fn new(namespace: &str, port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (namespace, asked) = (namespace.to_string(), stop.clone());
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            enter(&namespace);
            let listener = TcpListener::bind(("198.18.1.1", port)).unwrap();
            listener.set_nonblocking(true).unwrap();
            ready.send(()).unwrap();
            while !asked.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let asked = asked.clone();
                        std::thread::spawn(move || send(stream, &asked));
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(10)),
                }
            }
        });
        is_ready.recv_timeout(TEST_TIMEOUT).unwrap();
        Self(stop)
    }
}

fn send(mut stream: TcpStream, stop: &AtomicBool) {
    stream.set_nonblocking(false).unwrap();
    while !stop.load(Ordering::Relaxed) && stream.write_all(&[0; 1 << 16]).is_ok() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends tens of MB per second in datagrams to the first client until dropped.
struct DatagramSender(Arc<AtomicBool>);

impl DatagramSender {
    fn new(namespace: &str, port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (namespace, asked) = (namespace.to_string(), stop.clone());
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            enter(&namespace);
            let socket = UdpSocket::bind(("198.18.1.1", port)).unwrap();
            socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
            ready.send(()).unwrap();
            let (_, client) = socket.recv_from(&mut [0; 16]).unwrap();
            while !asked.load(Ordering::Relaxed) {
                // The client may have ended.
                (0..64).for_each(|_| drop(socket.send_to(&[0; 1400], client)));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        is_ready.recv_timeout(TEST_TIMEOUT).unwrap();
        Self(stop)
    }
}

impl Drop for DatagramSender {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A program that reads a flow; killed when dropped.
struct Reader(Child);

impl Reader {
    fn new(network: &Network, port: u16, before: &str) -> Self {
        let script = format!("exec {before} cat < /dev/tcp/198.18.1.1/{port} > /dev/null");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network.names[0], "bash", "-c", &script]).stdin(Stdio::null());
        end_with_test(&mut command);
        Self(command.spawn().unwrap())
    }

    /// Reads datagrams that a [`DatagramSender`] sends.
    fn of_datagrams(network: &Network, port: u16) -> Self {
        let script = format!("exec 3<> /dev/udp/198.18.1.1/{port}; echo >&3; exec cat <&3 > /dev/null");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network.names[0], "bash", "-c", &script]).stdin(Stdio::null());
        end_with_test(&mut command);
        Self(command.spawn().unwrap())
    }

    /// The CPUs that it may run on, as a mask.
    fn cpus(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:")).unwrap();
        u64::from_str_radix(&mask.trim().replace(',', ""), 16).unwrap()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tune(network: &Network, words: &[&str]) -> Child {
    let mut command = network.longma(&["tune", "--interface", "in0"]);
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    // The log gets its first line when watching starts.
    wait("it does not begin", || {
        std::fs::metadata(network.path("decisions")).is_ok_and(|file| file.len() > 0)
    });
    child
}

fn wait(what: &str, mut until: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !until() {
        assert!(begin.elapsed() < TEST_TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    begin.elapsed()
}

/// Whether the queue's CPUs and the reader's CPUs are disjoint.
fn are_apart(network: &Network, reader: &Reader) -> bool {
    let flow = u64::from(network.rps());
    flow != 0 && flow & reader.cpus() == 0
}

fn ended(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn new_flows_are_separated_from_their_readers_and_settings_are_restored() {
    if !can_tune() {
        return;
    }
    for asked in [libc::SIGTERM, libc::SIGINT] {
        let network = Network::bare("a");
        let sender = Sender::new(&network.names[1], 7001);
        let before = network.settings();
        let tune = tune(&network, &[]);
        let mut times = Vec::new();
        let mut reader = None;
        for _ in 0..3 {
            drop(reader.take());
            let new = Reader::new(&network, 7001, "");
            times.push(wait("flow and reader are not kept apart", || are_apart(&network, &new)));
            reader = Some(new);
        }
        println!("apart after {times:?}");
        // Other load may delay this test, but hardly three times in a row.
        assert!(times.iter().min().unwrap() < &Duration::from_secs(2), "{times:?}");
        let reader = reader.unwrap();
        let bound = reader.cpus();
        signal(&tune, asked);
        let (code, stdout) = ended(tune);
        assert_eq!(code, Some(0), "{stdout}");
        assert!(stdout.contains("moved") && stdout.contains("where they arrive"), "{stdout}");
        let last = stdout.rsplit("ended").next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(last.contains("restored; ") && !last.contains(".;"), "{last}");
        assert_eq!(network.settings(), before, "{stdout}");
        assert_ne!(reader.cpus(), bound, "{stdout}");
        let why = text(&network.longma(&["why"]).output().unwrap().stdout);
        assert!(why.contains("cat (") && why.contains("ended"), "{why}");
        drop(sender);
    }
}

/// The kernel does not count the bytes of a UDP socket, so its rate is an estimate.
#[test]
fn a_udp_reader_is_separated_from_its_queue_and_restored() {
    if !can_tune() {
        return;
    }
    let network = Network::bare("u");
    let sender = DatagramSender::new(&network.names[1], 7009);
    let before = network.settings();
    let reader = Reader::of_datagrams(&network, 7009);
    let own = reader.cpus();
    let tune = tune(&network, &["--min-rate", "20"]);
    wait("flow and reader are not kept apart", || are_apart(&network, &reader));
    signal(&tune, libc::SIGTERM);
    let (code, stdout) = ended(tune);
    assert_eq!(code, Some(0), "{stdout}");
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("cat (") && words.contains("(UDP, estimated)"), "{stdout}");
    assert_eq!((network.settings(), reader.cpus()), (before, own), "{stdout}");
    drop(sender);
}

#[test]
fn restore_recovers_queue_and_reader_after_sigkill() {
    if !can_tune() {
        return;
    }
    let network = Network::bare("k");
    let _sender = Sender::new(&network.names[1], 7002);
    let before = network.settings();
    let reader = Reader::new(&network, 7002, "");
    let free = reader.cpus();
    let mut tune = tune(&network, &[]);
    wait("flow and reader are not kept apart", || are_apart(&network, &reader));
    signal(&tune, libc::SIGKILL);
    tune.wait().unwrap();
    assert_ne!((network.settings(), reader.cpus()), (before.clone(), free));
    let restored = network.longma(&["restore"]).output().unwrap();
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    assert_eq!((network.settings(), reader.cpus()), (before, free));
}

#[test]
fn pinned_and_excluded_threads_and_dry_runs_change_nothing() {
    if !can_tune() {
        return;
    }
    for (before, words, output) in [
        ("taskset -c 0", &["--for", "4"][..], "another program has bound it"),
        ("", &["--for", "4", "--exclude-process", "cat"], "it is excluded"),
        ("", &["--for", "4", "--dry-run"], "would move"),
        ("", &["--for", "4", "--exclude-port", "7003"], "ended"),
    ] {
        let network = Network::bare("x");
        network.set_rps("1");
        let settings = network.settings();
        let _sender = Sender::new(&network.names[1], 7003);
        let reader = Reader::new(&network, 7003, before);
        std::thread::sleep(Duration::from_millis(500));
        let cpus = reader.cpus();
        let mut tune = tune(&network, words);
        let begin = Instant::now();
        while tune.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < TEST_TIMEOUT);
            // The test has steered the queue itself, so `tune` must leave it alone.
            assert_eq!((network.settings(), reader.cpus()), (settings.clone(), cpus), "{words:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let (code, all) = ended(tune);
        assert_eq!(code, Some(0), "{all}");
        assert!(all.contains(output), "{output}: {all}");
        assert_eq!((network.settings(), reader.cpus()), (settings, cpus));
    }
}

#[test]
fn a_queue_changed_by_another_program_keeps_its_value() {
    if !can_tune() {
        return;
    }
    let network = Network::bare("w");
    let _sender = Sender::new(&network.names[1], 7004);
    let reader = Reader::new(&network, 7004, "");
    let tune = tune(&network, &[]);
    wait("flow and reader are not kept apart", || are_apart(&network, &reader));
    network.set_rps("3");
    let log = network.path("decisions");
    wait("it does not notice the other program", || {
        std::fs::read_to_string(&log).unwrap().contains("another program")
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(network.rps(), 3);
    signal(&tune, libc::SIGTERM);
    ended(tune);
    assert_eq!(network.rps(), 3);
}

/// Measures the daemon's CPU time with 1000 flows from another host, 32 of them busy, for LONGMA_TUNE_SECONDS.
#[test]
fn a_thousand_flows_cost_little_cpu_time() {
    if !can_tune() {
        return;
    }
    let seconds = std::env::var("LONGMA_TUNE_SECONDS").unwrap_or("10".into());
    let limit = rustix::process::Rlimit { current: Some(8192), maximum: Some(8192) };
    if rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).is_err() {
        return eprintln!("skipped: a thousand flows need 4,000 descriptors");
    }
    let network = Network::bare("c");
    let [own, other] = network.names.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let (asked, (ready, is_ready)) = (stop.clone(), std::sync::mpsc::channel());
    let flows = std::thread::spawn(move || {
        enter(&other);
        let listener = TcpListener::bind("198.18.1.1:0").unwrap();
        enter(&own);
        let pair = |_| {
            let receiver = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (listener.accept().unwrap().0, receiver)
        };
        let mut pairs: Vec<(TcpStream, TcpStream)> = (0..1000).map(pair).collect();
        ready.send(()).unwrap();
        while !asked.load(Ordering::Relaxed) {
            // Each of 32 flows carries 3 MB/s.
            for (sender, receiver) in pairs.iter_mut().take(32) {
                sender.write_all(&[0; 1 << 15]).unwrap();
                receiver.read_exact(&mut [0; 1 << 15]).unwrap();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    is_ready.recv_timeout(TEST_TIMEOUT).unwrap();
    let words = ["tune", "--interface", "in0", "--dry-run", "--for", &seconds, "--format", "json"];
    let output = network.longma(&words).output().unwrap();
    stop.store(true, Ordering::Relaxed);
    flows.join().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let last: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    let why = last["why"].as_str().unwrap();
    println!("{why}");
    assert!(why.contains("up to 1000 flows"), "{why}");
    let percent: f64 = why.rsplit_once("time, ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
    // A build without optimization takes several times as long.
    assert!(percent < if cfg!(debug_assertions) { 5.0 } else { 0.5 }, "{why}");
}

#[test]
fn a_second_tuner_of_an_interface_is_refused_before_it_changes_anything() {
    if !can_tune() {
        return;
    }
    let network = Network::bare("2");
    let first = tune(&network, &[]);
    let journal = network.path("other");
    let words = ["tune", "--interface", "in0", "--for", "1", "--journal", journal.to_str().unwrap()];
    let second = network.longma(&words).output().unwrap();
    let complaint = text(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("another longma") && complaint.contains("/sys/class/net/in0"), "{complaint}");
    signal(&first, libc::SIGTERM);
    assert_eq!(ended(first).0, Some(0));
    assert!(network.longma(&words).output().unwrap().status.success());
}

/// Runs the unit's commands as systemd does: the second one after the first one is killed.
#[test]
fn the_installed_unit_restores_after_sigkill_and_starts_again() {
    if !can_tune() {
        return;
    }
    let network = Network::bare("u");
    let folder = network.path("");
    let install = format!("--install={}", folder.display());
    let installed =
        network.longma(&["tune", "--interface", "in0", &install, "--min-rate", "50"]).output().unwrap();
    let messages = text(&installed.stdout) + &text(&installed.stderr);
    assert!(messages.contains("systemctl enable --now longma-affinity.service"), "{messages}");
    let unit = std::fs::read_to_string(network.path("longma-affinity.service")).unwrap();
    // The environment's log of decisions, since the service has another environment.
    assert!(unit.contains(&format!("--state {}", network.path("decisions").display())), "{unit}");
    let command = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[1], "affinity", "{unit}");
        network.longma(&words[2..])
    };
    let _sender = Sender::new(&network.names[1], 7041);
    let (before, reader) = (network.settings(), Reader::new(&network, 7041, ""));
    let free = reader.cpus();
    for _ in 0..2 {
        let mut service = command("ExecStart=").stdout(Stdio::null()).spawn().unwrap();
        wait("flow and reader are not kept apart", || {
            assert!(service.try_wait().unwrap().is_none(), "it does not start");
            are_apart(&network, &reader)
        });
        signal(&service, libc::SIGKILL);
        service.wait().unwrap();
        let restored = command("ExecStopPost=").output().unwrap();
        assert!(restored.status.success(), "{}", text(&restored.stderr));
        assert_eq!((network.settings(), reader.cpus()), (before.clone(), free));
    }
}

/// The receiver's address is on a bridge, whose port is the veth.
fn bridged(name: &str) -> Network {
    let network = Network::bare(name);
    let script = "ip link add br0 type bridge && ip addr flush dev in0 && ip link set in0 master br0 && \
        ip addr add 198.18.1.2/30 dev br0 && ip link set br0 up";
    let output = network.in_receiver(script);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // The kernel updates the state of links about once per second; a sweep refuses an interface that is down.
    wait("the bridge is not up", || {
        text(&network.in_receiver("cat /sys/class/net/br0/operstate").stdout).trim() == "up"
    });
    network
}

#[test]
fn a_bridge_is_swept_by_the_queues_of_its_port() {
    if !can_tune() {
        return;
    }
    let network = bridged("b");
    let _sender = Sender::new(&network.names[1], 7051);
    let load = "timeout {seconds} cat < /dev/tcp/198.18.1.1/7051 > /dev/null; echo 1 Gbit/s";
    let file = network.path("1.jsonl");
    let words =
        ["sweep", "--interface", "br0", "--pair", "0,0", "--seconds", "2", "--repeats", "1", "--output"];
    let mut command = network.longma(&words);
    command.arg(&file).args(["--", "bash", "-c", load]);
    let output = command.output().unwrap();
    let report = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{report}");
    assert!(report.contains("RPS of in0, 1 queue, below br0"), "{report}");
    assert!(std::fs::read_to_string(file).unwrap().contains(r#""stacked""#), "{report}");
    assert!(!report.contains("processed on the wrong"), "{report}");
}

#[test]
fn a_bridges_flows_are_tuned_at_its_port() {
    if !can_tune() {
        return;
    }
    let network = bridged("bt");
    let _sender = Sender::new(&network.names[1], 7061);
    let reader = Reader::new(&network, 7061, "");
    let mut command = network.longma(&["tune", "--interface", "br0"]);
    let tuner = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait("flow and reader are not kept apart", || are_apart(&network, &reader));
    signal(&tuner, libc::SIGTERM);
    assert_eq!(ended(tuner).0, Some(0));
    assert_eq!(network.rps(), 0);
}

#[test]
fn a_recorded_host_is_checked_advised_and_tuned_elsewhere() {
    if !can_tune() {
        return;
    }
    let network = Network::bare("rec");
    let _sender = Sender::new(&network.names[1], 7071);
    let _reader = Reader::new(&network, 7071, "");
    let file = network.path("host.tar");
    let path = file.to_str().unwrap();
    // The reader needs a moment to connect.
    wait("there is no flow", || {
        let _ = std::fs::remove_file(&file);
        let recorded = network.longma(&["record", path, "--seconds", "1"]).output().unwrap();
        assert!(recorded.status.success(), "{}", text(&recorded.stderr));
        String::from_utf8_lossy(&std::fs::read(&file).unwrap()).contains("program-1")
    });
    let bytes = std::fs::read(&file).unwrap();
    let mac = text(&network.in_receiver("cat /sys/class/net/in0/address").stdout);
    for secret in ["198.18.1.1", "198.18.1.2", mac.trim()] {
        assert!(!String::from_utf8_lossy(&bytes).contains(secret), "{secret}");
    }
    let again = network.longma(&["record", path]).output().unwrap();
    assert!(text(&again.stderr).contains("remove it, or name another file"), "{}", text(&again.stderr));
    let asked = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
        let output = command.arg("affinity").args(words).args(["--tree", path]).output().unwrap();
        text(&output.stdout) + &text(&output.stderr)
    };
    assert!(asked(&["check", "--interface", "in0"]).contains("RPS of in0, 1 queue"));
    let advice = asked(&["advise", "--interface", "in0"]);
    assert!(advice.contains("From topology, not measured, for in0"), "{advice}");
    let decisions = asked(&["tune", "--dry-run", "--interface", "in0"]);
    assert!(decisions.contains("would move"), "{decisions}");
    assert!(asked(&["tune"]).contains("add --dry-run"));
    assert!(asked(&["tune", "--dry-run", "--interface", "in9"]).contains("there is no interface in9"));
}
