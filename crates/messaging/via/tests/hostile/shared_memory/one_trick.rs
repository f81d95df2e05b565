//! Individual attacks that try to delay, exhaust or deceive the other side, each with its expected outcome.
//! `campaign.rs` combines them.
//!
//! Source: userfaultfd(2), memfd_create(2), unix(7).

use super::stall::BlockingPage;
use super::*;
use std::os::fd::FromRawFd;

/// A listening NIC with a VI, and its name.
struct Target {
    nic: Nic,
    vi: Vi,
    memory: MemoryRegion,
    name: String,
}

fn target(what: &str) -> Target {
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let memory = nic.allocate(1 << 20, MemoryAttributes::local(tag)).unwrap();
    let name = format!("trick-{what}-{}", std::process::id());
    let _ = nic.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    Target { nic, vi, memory, name }
}

impl Target {
    fn accept(&self) {
        self.nic.connect_wait(&Address::local(&self.name), TIMEOUT).unwrap().accept(&self.vi).unwrap();
    }

    /// Connects a hostile peer that follows the protocol so far.
    fn connect_hostile(&self) -> Hostile {
        std::thread::scope(|scope| {
            let hostile = scope.spawn(|| connect(&self.name, Reliability::ReliableDelivery));
            self.accept();
            hostile.join().unwrap()
        })
    }
}

/// The size of this process's address space, bytes.
fn address_space() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

/// A sealed, sparse memory file of the given size.
fn sparse(length: u64) -> Option<OwnedFd> {
    // SAFETY: the name is a constant; the call only creates a descriptor.
    let fd = unsafe { libc::memfd_create(c"sparse".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    assert!(fd >= 0);
    // SAFETY: the descriptor was just opened and has no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the call takes only integers.
    let sized = unsafe { libc::ftruncate(fd, length as libc::off_t) } == 0;
    // SAFETY: the call takes only integers.
    let sealed = unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) } == 0;
    (sized && sealed).then_some(file)
}

#[test]
fn exported_regions_are_mapped_only_up_to_the_limit() {
    let target = target("sizes");
    let hostile = target.connect_hostile();
    let before = address_space();
    let sizes = (12..=46).rev().map(|shift| 1u64 << shift).cycle().take(245);
    for (slot, length) in sizes.enumerate() {
        let Some(file) = sparse(length) else { continue };
        let export = RegionExport {
            handle: 0x20_0000 + slot as u32,
            address: 0x1000,
            length,
            write: true,
            read: true,
            slot: slot as u32,
            serial: 0,
        };
        hostile.send_patiently(&ControlMessage::Export(export), Some(&file));
    }
    // This message ends the connection, so all messages before it have been handled then.
    hostile.send_patiently(&ControlMessage::ExportsDone, None);
    hostile.await_end();
    let used = address_space().saturating_sub(before);
    assert!(used <= 2 << 40, "{} GiB of address space taken", used >> 30);
    // Check the peak as well, because the end of the connection releases the mappings.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmPeak")).unwrap();
    let peak: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
    // Subtract the initial size: the address sanitizer alone reserves about 20 TiB.
    let growth_bytes = (peak << 10).saturating_sub(before);
    assert!(growth_bytes <= 8 << 40, "{} TiB of address space taken at a time", growth_bytes >> 40);
}

#[test]
fn a_message_whose_data_never_arrives_blocks_no_other_peer() {
    let target = target("fault");
    let hostile = target.connect_hostile();
    let page = BlockingPage::new();
    target.vi.post_receive(&Descriptor::receive(&[target.memory.segment(0, 65_536)])).unwrap();
    let head = u32::from_le_bytes([Kind::Send as u8, DataLocation::Memory as u8, 0, 1]);
    hostile.publish(0, head, 4096, &[page.address(), 4096]);
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let vi = &target.vi;
        scope.spawn(move || {
            let completion = vi.receive_wait(TIMEOUT);
            let _ = sender.send(completion.is_ok_and(|completion| completion.status.is_error()));
        });
        let failed = receiver.recv_timeout(Duration::from_secs(5));
        page.release();
        assert_eq!(failed, Ok(true), "the message neither arrived nor failed");
    });
}

#[test]
fn peers_that_stall_in_the_handshake_do_not_block_other_clients() {
    let target = target("silent");
    let _silent: Vec<_> = (0..6).map(|_| hello_only(&target.name)).collect();
    std::thread::scope(|scope| {
        let honest = scope.spawn(|| {
            let nic = Nic::open().unwrap();
            let tag = nic.create_protection_tag().unwrap();
            let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
            vi.connect(&Address::local("honest"), &Address::local(&target.name), TIMEOUT).map(|_| ())
        });
        let asked = target.nic.connect_wait(&Address::local(&target.name), TIMEOUT).unwrap();
        assert_eq!(
            asked.remote().discriminator,
            b"honest",
            "a client with an incomplete handshake was accepted first"
        );
        asked.accept(&target.vi).unwrap();
        honest.join().unwrap().expect("an honest client is connected");
    });
}

#[test]
fn a_request_that_arrived_in_time_is_found_by_a_late_wait() {
    let target = target("late");
    let socket = connect_socket(&target.name).unwrap();
    // The server accepts the socket before anything is sent.
    assert!(target.nic.connect_wait(&Address::local(&target.name), Some(Duration::ZERO)).is_err());
    say_hello(&socket);
    send(socket.as_raw_fd(), &ControlMessage::ExportsDone, None).unwrap();
    // Wait longer than a socket may be silent.
    std::thread::sleep(Duration::from_millis(1200));
    let asked = target.nic.connect_wait(&Address::local(&target.name), TIMEOUT).unwrap();
    assert_eq!(asked.remote().discriminator, b"hostile");
}

#[test]
fn a_flood_of_messages_does_not_hide_the_death_of_another_peer() {
    let target = target("flood");
    let flooder = target.connect_hostile();
    let tag = target.vi.attributes().tag;
    let other = Target { vi: target.nic.create_vi(ViAttributes::new(tag), None, None).unwrap(), ..target };
    let victim = other.connect_hostile();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Order::Relaxed) {
                    let _ = send(flooder.socket.as_raw_fd(), &ControlMessage::Nudge, None);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        drop(victim);
        let begin = Instant::now();
        while other.vi.state() == ViState::Connected && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Order::Relaxed);
        assert_eq!(other.vi.state(), ViState::Error, "the exit was not detected within five seconds");
    });
}

#[test]
fn a_descriptor_with_a_slow_close_blocks_no_other_peer_read_or_unread() {
    let target = target("closing");
    for read in [true, false] {
        let hostile = target.connect_hostile();
        // A message of a type without files, and messages that are never read.
        let attachment = super::attacker::lingering(30).unwrap();
        let messages = if read { 1 } else { 3 };
        for _ in 0..messages {
            hostile.send_patiently(&ControlMessage::ExportsDone, Some(&attachment));
        }
        // The other reference is dropped in another thread.
        std::thread::spawn(move || drop(attachment));
        let begin = Instant::now();
        if read {
            hostile.await_end();
        }
        target.vi.disconnect().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(15), "it waited for the descriptor to be closed");
    }
}

/// The number of descriptors of this process that refer to the pipe.
fn count(pipe: &std::io::PipeReader) -> usize {
    let link = |fd: String| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
    let target = link(pipe.as_raw_fd().to_string()).unwrap();
    let names = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| link(name.to_string_lossy().into_owned()) == Some(target.clone())).count()
}

/// Sends messages with 253 pipes each until the socket is full or closed. Returns their number.
fn fill(socket: &OwnedFd, bytes: &[u8], pipe: &std::io::PipeReader) -> usize {
    let files = [pipe.as_raw_fd(); 253];
    (0..)
        .take_while(|_| super::super::control_message::send_with(socket.as_raw_fd(), bytes, &files).is_ok())
        .count()
}

#[test]
fn unexpected_descriptors_are_not_received_in_any_number() {
    let target = target("many-files");
    let (pipe, writer) = std::io::pipe().unwrap();
    drop(writer);
    let mut max_open = 0;
    for bytes in [
        ControlMessage::Revoke { handle: 7 }.write(),
        ControlMessage::ExportsDone.write(),
        vec![99],
        Vec::new(),
    ] {
        // Three cases: the server keeps receiving; the files come after a message that ends the connection; the sender
        // has not been accepted yet.
        let hostile = target.connect_hostile();
        let sent = fill(&hostile.socket, &bytes, &pipe);
        assert!(sent > 0);
        hostile.await_end();
        target.vi.disconnect().unwrap();
        max_open = max_open.max(count(&pipe));
        let mismatch = connect_socket(&target.name).unwrap();
        assert!(fill(&mismatch, &bytes, &pipe) > 0);
        let waits = target.nic.connect_wait(&Address::local(&target.name), Some(Duration::ZERO));
        assert!(waits.is_err());
        max_open = max_open.max(count(&pipe));
    }
    assert_eq!(max_open, 1, "besides our own end, descriptors received from peers were kept");
}

#[test]
fn a_user_with_descriptors_to_be_closed_can_neither_send_more_nor_connect() {
    let target = target("unclosed");
    let limits = Limits { user_connections: 4, ..Limits::default() };
    let provider = SharedMemory::open_with(Settings { limits, ..Settings::default() }).unwrap();
    let nic = Nic::with_provider(Box::new(provider.clone()));
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let target = Target { nic, vi, name: format!("{}-limited", target.name), ..target };
    let _ = target.nic.connect_wait(&Address::local(&target.name), Some(Duration::ZERO));
    let hostile = target.connect_hostile();
    let export =
        RegionExport { handle: 7, address: 0, length: 4096, write: false, read: true, slot: 0, serial: 0 };
    for handle in 1..=16 {
        let file = super::attacker::lingering(5).unwrap();
        hostile.send_patiently(&ControlMessage::Export(RegionExport { handle, ..export }), Some(&file));
        // Dropping the last reference blocks. If the other side was faster, this is the last one, and only this thread
        // blocks.
        std::thread::spawn(move || drop(file));
    }
    hostile.await_end();
    target.vi.disconnect().unwrap();
    // The refused exports were received before the limit was exceeded. The connection itself was the first of four.
    let refused = provider.take_refusals();
    assert!(refused.len() >= 4 && refused.len() < 16, "{refused:?}");
    let answer = connect_socket(&target.name).map(|mismatch| {
        let _half = say_hello(&mismatch);
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let _ = target.nic.connect_wait(&Address::local(&target.name), Some(Duration::ZERO));
            match hear(&mismatch) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < end => {}
                heard => break heard.unwrap(),
            }
        }
    });
    let Ok(ControlMessage::Reject { reason, again: false }) = answer else { panic!("{answer:?}") };
    assert!(reason.contains("no more are allowed"), "{reason}");
}
