//! One server with many clients, most of them idle: every active client is served. `LONGMA_VIA_CLIENTS=10000 cargo test
//! -p longma-via --test many -- --nocapture` runs with that many clients and prints the cost of idle ones.

use longma_via::provider::shared_memory::{Limits, Settings, SharedMemory};
use longma_via::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "LONGMA_VIA_MANY";
const TEST: &str = "a_server_with_many_idle_clients_answers_each_message";
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(300));

/// Raises the limit on open files as far as possible and returns it.
fn raise_files() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads and writes the given structure. Root may raise the hard limit too.
    unsafe {
        let raised = libc::rlimit { rlim_cur: 1 << 17, rlim_max: 1 << 17 };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) < 0 {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
    }
    limit.rlim_cur
}

/// The process with all clients: connects them, and sends messages when the server's process requests it on this
/// process's standard input.
fn be_clients(name: &str, count: usize) {
    raise_files();
    let settings = Settings { limits: limits(u32::MAX), ..Settings::default() };
    let nic = Nic::with_provider(Box::new(SharedMemory::open_with(settings).unwrap()));
    let tag = nic.create_protection_tag().unwrap();
    let memory = nic.allocate(4096, MemoryAttributes::local(tag)).unwrap();
    let vis: Vec<Vi> = (0..count)
        .map(|_| {
            let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
            vi.connect(&Address::local("client"), &Address::local(name), TIMEOUT).unwrap();
            vi
        })
        .collect();
    println!("connected");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let Some((which, times)) = line.split_once(' ') else { return };
        let vi = &vis[which.parse::<usize>().unwrap()];
        let mut waits: Vec<Duration> = (0..times.parse().unwrap()).map(|_| ask(vi, &memory)).collect();
        waits.sort_unstable();
        let at = |part: usize| waits[(waits.len() * part / 100).min(waits.len() - 1)].as_micros();
        println!("median {} us, 99 % {} us, longest {} us: answered", at(50), at(99), at(100));
    }
}

/// Sends a request and returns the response time.
fn ask(vi: &Vi, memory: &MemoryRegion) -> Duration {
    vi.post_receive(&Descriptor::receive(&[memory.segment(64, 64)])).unwrap();
    let begin = Instant::now();
    vi.post_send(&Descriptor::send(&[memory.segment(0, 8)])).unwrap();
    assert!(vi.receive_wait(TIMEOUT).unwrap().is_success());
    let took = begin.elapsed();
    while vi.send_done().is_some() {}
    took
}

/// The memory of this process in KiB: its own, and its share of shared memory.
fn held_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find(|line| line.starts_with("Pss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The processor time of this process.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the given structure.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Limits for `connections` connections of one user, each with two mappings for the halves and one for an exported
/// region.
fn limits(connections: u32) -> Limits {
    let Limits { nic_mappings, .. } = Limits::default();
    let mappings = nic_mappings.max(connections.saturating_mul(3).min(50_000));
    Limits {
        user_connections: connections,
        nic_connections: connections,
        user_mappings: mappings,
        nic_mappings: mappings,
        ..Limits::default()
    }
}

/// A NIC that admits `connections` connections of one user.
fn open_for(connections: u32) -> Nic {
    let settings = Settings { limits: limits(connections), ..Settings::default() };
    Nic::with_provider(Box::new(SharedMemory::open_with(settings).unwrap()))
}

/// Starts a process with all clients.
fn start_clients(count: usize, name: &Address) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env(ROLE, format!("{count} {name}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_server_with_many_idle_clients_answers_each_message() {
    if let Ok(role) = std::env::var(ROLE) {
        let (count, name) = role.split_once(' ').unwrap();
        return be_clients(name, count.parse().unwrap());
    }
    let requested =
        std::env::var("LONGMA_VIA_CLIENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    // A client uses two descriptors.
    let count = requested.min((raise_files() as usize - 100) / 2);
    if count < requested {
        eprintln!("only {count} clients: the limit on open files is too low for {requested}");
    }
    let nic = open_for(count as u32 + 1);
    let tag = nic.create_protection_tag().unwrap();
    let memory = nic.allocate(4096, MemoryAttributes::local(tag)).unwrap();
    let queue = nic.create_completion_queue(4 * count).unwrap();
    let name = Address::local(format!("many-{}", std::process::id()));
    let _ = nic.connect_wait(&name, Some(Duration::ZERO));
    let (memory_before, begin) = (held_kib(), Instant::now());
    let mut clients = start_clients(count, &name);
    let mut vis = std::collections::BTreeMap::new();
    for _ in 0..count {
        let vi = nic.create_vi(ViAttributes::new(tag), None, Some(&queue)).unwrap();
        vi.post_receive(&Descriptor::receive(&[memory.segment(0, 64)])).unwrap();
        nic.connect_wait(&name, TIMEOUT).unwrap().accept(&vi).unwrap();
        vis.insert(vi.number(), vi);
    }
    let mut lines = BufReader::new(clients.stdout.take().unwrap()).lines();
    let mut hear =
        |word: &str| lines.by_ref().map(|line| line.unwrap()).find(|line| line.ends_with(word)).unwrap();
    hear("connected");
    let connecting = begin.elapsed();
    let memory_kib = held_kib() - memory_before;
    // Idle: the server waits for any client.
    let (begin, before) = (Instant::now(), processor_time());
    assert!(queue.wait(Some(Duration::from_secs(1))).is_err());
    let idle = (processor_time() - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    // First several clients send once each. Then the client that connected first sends many times, and then the one
    // that connected last. A sleeping wait watches the VI of the first client directly, but not that of the last.
    let mut orders = clients.stdin.take().unwrap();
    let mut speak = |which: usize, times: usize| {
        writeln!(orders, "{which} {times}").unwrap();
        for _ in 0..times {
            let (number, _) = queue.wait(TIMEOUT).map(|found| (found.0, found.1)).unwrap();
            let vi = &vis[&number];
            assert!(vi.receive_done().unwrap().is_success());
            vi.post_receive(&Descriptor::receive(&[memory.segment(0, 64)])).unwrap();
            vi.post_send(&Descriptor::send(&[memory.segment(0, 8)])).unwrap();
            while vi.send_done().is_some() {}
        }
        hear("answered")
    };
    for which in (0..count).step_by(count / 20 + 1) {
        speak(which, 1);
    }
    let active = [0, count - 1].map(|which| format!("client {which}: {}", speak(which, 200)));
    println!(
        "{count} clients connected in {connecting:?}; the server holds {memory_kib} KiB for them ({:.1} KiB each) and, while all are \
         idle, works {:.1} % of a processor; question and answer of one, the others idle: {active:?}",
        memory_kib as f64 / count as f64,
        idle * 100.0,
    );
    drop(orders);
    assert!(clients.wait().unwrap().success());
}
