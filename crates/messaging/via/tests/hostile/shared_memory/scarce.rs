//! Behaviour without free descriptors: revoking rights succeeds or fails visibly, peers that cannot be watched are not
//! accepted, and no thread spins. Each test runs in its own process, because limits apply to processes.
//!
//! Source: setrlimit(2), RLIMIT_NOFILE, RLIMIT_FSIZE; unix(7), ETOOMANYREFS.

use super::*;
use std::process::Command;

const ROLE: &str = "LONGMA_VIA_SCARCE";

/// Runs the test again in a separate process with `ROLE` set. Returns `true` in that process.
fn in_own_process(test: &str) -> bool {
    if std::env::var(ROLE).is_ok_and(|role| role == test) {
        return true;
    }
    let test = format!("provider::shared_memory::hostile::scarce::{test}");
    let outcome = Command::new("timeout")
        .arg("60")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &test, "--nocapture", "--test-threads=1"])
        .env(ROLE, test.rsplit("::").next().unwrap())
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&outcome.stderr).into_owned() + &String::from_utf8_lossy(&outcome.stdout);
    assert!(outcome.status.success(), "{:?}: {text}", outcome.status);
    assert!(text.contains("1 passed"), "{text}");
    false
}

fn highest_file() -> u64 {
    let names = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.to_string_lossy().parse::<u64>().unwrap()).max().unwrap()
}

fn allow_files(count: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads and writes the given structure.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = count.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

/// Opens files until only `left` more can be opened.
fn use_up_files(left: usize) -> Vec<OwnedFd> {
    allow_files(highest_file() + 20);
    let mut held: Vec<OwnedFd> =
        std::iter::from_fn(|| std::fs::File::open("/dev/null").ok().map(OwnedFd::from)).collect();
    held.truncate(held.len() - left);
    held
}

#[test]
fn failing_to_revoke_a_permission_is_an_error_and_a_revoked_one_is_removed() {
    if !in_own_process("failing_to_revoke_a_permission_is_an_error_and_a_revoked_one_is_removed") {
        return;
    }
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let mut region = nic.allocate(4096, MemoryAttributes::remote(tag)).unwrap();
    let name = format!("scarce-{}", std::process::id());
    let _ = nic.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    let hostile = std::thread::scope(|scope| {
        let hostile = scope.spawn(|| connect(&name, Reliability::ReliableDelivery));
        nic.connect_wait(&Address::local(&name), TIMEOUT).unwrap().accept(&vi).unwrap();
        hostile.join().unwrap()
    });
    let mapping = map_foreign(&hostile.files[0], 4096, true).unwrap();
    // SAFETY: the mapping has at least a page; all accesses are atomic.
    let theirs = unsafe { AtomicU64::from_ptr(mapping.base().cast()) };
    let held = use_up_files(0);
    let taken_back = region.set_attributes(MemoryAttributes::local(tag));
    theirs.store(SECRET, Order::SeqCst);
    let reached = region.atomic(0).load(Order::SeqCst) == SECRET;
    assert!(taken_back.is_err() || !reached, "the right was revoked, and the peer can still write");
    assert_eq!(
        region.attributes().rdma_write,
        taken_back.is_err(),
        "the attributes reported are those in effect"
    );
    drop(held);
    region.set_attributes(MemoryAttributes::local(tag)).unwrap();
    theirs.store(1, Order::SeqCst);
    assert_eq!(region.atomic(0).load(Order::SeqCst), SECRET, "the peer still writes");
}

#[test]
fn without_a_descriptor_for_monitoring_the_peer_must_retry() {
    if !in_own_process("without_a_descriptor_for_monitoring_the_peer_must_retry") {
        return;
    }
    let nic = Nic::open().unwrap();
    let name = format!("unwatched-{}", std::process::id());
    let listen = |wait| nic.connect_wait(&Address::local(&name), wait);
    let _ = listen(Some(Duration::ZERO));
    let socket = connect_socket(&name).unwrap();
    let _half = say_hello(&socket);
    send(socket.as_raw_fd(), &ControlMessage::ExportsDone, None).unwrap();
    // Leave one descriptor for the socket and none for the pidfd.
    let held = use_up_files(1);
    let asked = listen(Some(Duration::from_millis(50)));
    drop(held);
    match asked {
        Ok(asked) => {
            assert!(asked.credentials().unwrap().process.is_some(), "its exit would not be detected")
        }
        Err(_) => {
            let end = Instant::now() + Duration::from_secs(5);
            let mut was_reset = false;
            let answer = loop {
                match hear(&socket) {
                    // If a socket is closed with unread messages, ECONNRESET is reported before the peer's last
                    // message.
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset && !was_reset => {
                        was_reset = true;
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        assert!(Instant::now() < end, "no answer");
                        let _ = listen(Some(Duration::from_millis(1)));
                    }
                    answer => break answer,
                }
            };
            assert!(matches!(answer, Ok(ControlMessage::Reject { again: true, .. })), "{answer:?}");
        }
    }
}

#[test]
fn a_peer_that_cannot_be_monitored_is_refused_with_a_retryable_error() {
    if !in_own_process("a_peer_that_cannot_be_monitored_is_refused_with_a_retryable_error") {
        return;
    }
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let name = format!("unwatched-late-{}", std::process::id());
    let listen = |wait| nic.connect_wait(&Address::local(&name), wait);
    let _ = listen(Some(Duration::ZERO));
    let socket = connect_socket(&name).unwrap();
    let _half = say_hello(&socket);
    send(socket.as_raw_fd(), &ControlMessage::ExportsDone, None).unwrap();
    let asked = listen(TIMEOUT).unwrap();
    // Leave one descriptor for our half and none for the monitor thread.
    let held = use_up_files(1);
    assert!(asked.accept(&vi).is_err());
    drop(held);
    let answer = loop {
        match hear(&socket) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            answer => break answer,
        }
    };
    assert!(
        matches!(&answer, Ok(ControlMessage::Reject { again: true, reason }) if !reason.is_empty()),
        "{answer:?}"
    );
}

#[test]
fn waiting_for_peers_times_out_even_with_too_many_peers() {
    if !in_own_process("waiting_for_peers_times_out_even_with_too_many_peers") {
        return;
    }
    let nic = Nic::open().unwrap();
    let name = format!("lowered-{}", std::process::id());
    let listen = |wait| nic.connect_wait(&Address::local(&name), wait);
    let _ = listen(Some(Duration::ZERO));
    let _silent: Vec<_> = (0..40).map(|_| connect_socket(&name).unwrap()).collect();
    let _ = listen(Some(Duration::ZERO));
    // poll(2) fails with more descriptors than the limit on open files.
    allow_files(8);
    let begin = Instant::now();
    assert!(listen(Some(Duration::from_millis(200))).is_err());
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[test]
fn excess_descriptors_of_a_message_are_not_closed_by_the_reading_thread() {
    if !in_own_process("excess_descriptors_of_a_message_are_not_closed_by_the_reading_thread") {
        return;
    }
    let nic = Nic::open().unwrap();
    let name = format!("no-room-{}", std::process::id());
    let listen = |wait| nic.connect_wait(&Address::local(&name), wait);
    let _ = listen(Some(Duration::ZERO));
    let socket = connect_socket(&name).unwrap();
    // Of the descriptors that do not fit, the last one is slow to close.
    let (null, slow) = (std::fs::File::open("/dev/null").unwrap(), super::attacker::lingering(50).unwrap());
    let mut files = vec![null.as_raw_fd(); 200];
    files.extend([slow.as_raw_fd(); 48]);
    let attributes = ViAttributes::new(ProtectionTag::default());
    let hello = ControlMessage::Hello { local: Address::local("hostile"), attributes, barrier: true };
    super::super::control_message::send_with(socket.as_raw_fd(), &hello.write(), &files).unwrap();
    drop(slow);
    let held = use_up_files(6);
    let begin = Instant::now();
    assert!(listen(Some(Duration::from_millis(200))).is_err());
    let took = begin.elapsed();
    drop(held);
    assert!(
        took < Duration::from_secs(20),
        "the thread that waits for peers closed their descriptors: {took:?}"
    );
}

#[test]
fn peers_that_do_not_read_do_not_block_the_admission_of_others() {
    if !in_own_process("peers_that_do_not_read_do_not_block_the_admission_of_others") {
        return;
    }
    // Root is not subject to the limit on descriptors in flight. SAFETY: the call takes only integers.
    unsafe { libc::setuid(65_534) };
    allow_files(512);
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    let attributes = ViAttributes { rdma_write: true, rdma_read: true, ..ViAttributes::new(tag) };
    let regions: Vec<_> =
        (0..50).map(|_| nic.allocate(4096, MemoryAttributes::remote(tag)).unwrap()).collect();
    let name = format!("unread-{}", std::process::id());
    let _ = nic.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    let let_in = || {
        let vi = nic.create_vi(attributes, None, None).unwrap();
        nic.connect_wait(&Address::local(&name), TIMEOUT).unwrap().accept(&vi).map(|()| vi)
    };
    // All regions are exported to each of them, and none of them receives any.
    let deaf: Vec<_> = (0..20)
        .map(|_| {
            let (socket, half) = hello_only(&name);
            send(socket.as_raw_fd(), &ControlMessage::ExportsDone, None).unwrap();
            (socket, half, let_in())
        })
        .collect();
    let (honest, admitted) = std::thread::scope(|scope| {
        let honest = scope.spawn(|| connect(&name, Reliability::ReliableDelivery));
        let let_in = let_in();
        assert!(let_in.is_ok(), "an honest client is not admitted: {:?}", let_in.err());
        (honest.join().unwrap(), let_in)
    });
    assert!(deaf.iter().all(|deaf| deaf.2.is_ok()));
    // When these clients are gone, everything is exported to the next one.
    drop((deaf, honest, admitted));
    std::thread::sleep(Duration::from_millis(100));
    let next = std::thread::scope(|scope| {
        let next = scope.spawn(|| connect(&name, Reliability::ReliableDelivery));
        let _vi = let_in().unwrap();
        next.join().unwrap()
    });
    assert_eq!(next.shown.len(), regions.len());
}

#[test]
fn memory_beyond_the_file_size_limit_is_an_error_and_ends_nothing() {
    if !in_own_process("memory_beyond_the_file_size_limit_is_an_error_and_ends_nothing") {
        return;
    }
    let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
    // SAFETY: reads the given structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    // The region still works as memory that peers cannot map.
    let region = nic.allocate(1 << 20, MemoryAttributes::remote(tag)).unwrap();
    region.write(1 << 19, b"as before");
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let name = format!("files-{}", std::process::id());
    let _ = nic.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    let error =
        vi.connect(&Address::local("client"), &Address::local(&name), TIMEOUT).unwrap_err().to_string();
    assert!(error.contains("ulimit -f"), "{error}");
    let mut bytes = [0; 9];
    region.read(1 << 19, &mut bytes);
    assert_eq!(&bytes, b"as before");
}
