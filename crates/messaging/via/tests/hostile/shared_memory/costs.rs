//! Bounds on the work that a peer can cause in the program's thread by any messages and any number of exports. The
//! tests measure the processor time of the thread, because the machine may be busy.
//!
//! Source: clock_gettime(2), CLOCK_THREAD_CPUTIME_ID.

use super::*;

/// The processor time of this thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the given structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The maximum delay for a well-behaved client, with a margin for slow machines.
const MAX_CLIENT_DELAY: Duration = Duration::from_millis(10);

#[test]
fn polling_for_requests_is_fast_with_many_queued_messages() {
    let nic = Nic::open().unwrap();
    let name = format!("costs-{}", std::process::id());
    let listen = |wait| nic.connect_wait(&Address::local(&name), Some(wait));
    let _ = listen(Duration::ZERO);
    let (file, _mapping) = create(4096, false).unwrap();
    let flooders: Vec<_> = (0..60)
        .map(|_| {
            let socket = connect_socket(&name).unwrap();
            let half = say_hello(&socket);
            let messages = (0..250)
                .take_while(|slot| {
                    send(socket.as_raw_fd(), &ControlMessage::Export(page_at(*slot)), Some(file.as_raw_fd()))
                        .is_ok()
                })
                .count();
            (socket, half, messages)
        })
        .collect();
    assert!(flooders.iter().all(|flooder| flooder.2 > 30), "each peer has many messages queued");
    let mut longest = Duration::ZERO;
    let mut look = || {
        let before = cpu_time();
        assert!(listen(Duration::ZERO).is_err());
        longest = longest.max(cpu_time() - before);
    };
    (0..400).for_each(|_| look());
    // By now all of them have been silent too long.
    std::thread::sleep(Duration::from_millis(1200));
    (0..100).for_each(|_| look());
    assert!(longest < MAX_CLIENT_DELAY, "one look took {longest:?}");
    // A new client is served nevertheless.
    let honest = connect_socket(&name).unwrap();
    let _half = say_hello(&honest);
    send(honest.as_raw_fd(), &ControlMessage::ExportsDone, None).unwrap();
    let asked = listen(Duration::from_secs(10)).unwrap();
    assert_eq!(asked.remote().discriminator, b"hostile");
}

#[test]
fn an_honest_request_is_found_soon_among_flooding_peers() {
    let nic = Nic::open().unwrap();
    let name = format!("talkers-{}", std::process::id());
    let listen = |wait| nic.connect_wait(&Address::local(&name), Some(wait));
    let _ = listen(Duration::ZERO);
    let (file, _mapping) = create(4096, false).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let flooders: Vec<_> = (0..50).filter_map(|_| connect_socket(&name).ok()).collect();
            let halves: Vec<_> = flooders.iter().map(say_hello).collect();
            let export = RegionExport {
                handle: 1,
                address: 0x1000,
                length: 4096,
                write: false,
                read: true,
                slot: 0,
                serial: 0,
            };
            while !stop.load(Order::Relaxed) {
                for socket in &flooders {
                    let _ = send(socket.as_raw_fd(), &ControlMessage::Export(export), Some(file.as_raw_fd()));
                }
            }
            drop(halves);
        });
        std::thread::sleep(Duration::from_millis(20));
        let honest = connect_socket(&name).unwrap();
        let (own, half) = create_half().unwrap();
        let attributes = ViAttributes::new(ProtectionTag::default());
        let hello = ControlMessage::Hello { local: Address::local("honest"), attributes, barrier: true };
        send(honest.as_raw_fd(), &hello, Some(own.as_raw_fd())).unwrap();
        send(honest.as_raw_fd(), &ControlMessage::ExportsDone, None).unwrap();
        let asked = listen(Duration::from_secs(10));
        stop.store(true, Order::Relaxed);
        drop(half);
        assert_eq!(asked.unwrap().remote().discriminator, b"honest");
    });
}

#[test]
fn releasing_a_peer_is_fast_for_any_amount_of_touched_memory() {
    const LENGTH: u64 = 1 << 28;
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let memory = nic.allocate(1 << 24, MemoryAttributes::local(tag)).unwrap();
    let name = format!("costs-leaving-{}", std::process::id());
    let _ = nic.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    let hostile = std::thread::scope(|scope| {
        let hostile = scope.spawn(|| connect(&name, Reliability::ReliableDelivery));
        nic.connect_wait(&Address::local(&name), TIMEOUT).unwrap().accept(&vi).unwrap();
        hostile.join().unwrap()
    });
    let (file, mapping) = create(LENGTH as usize, false).unwrap();
    drop(mapping);
    let export =
        RegionExport { handle: 7, address: 0, length: LENGTH, write: false, read: true, slot: 0, serial: 0 };
    hostile.send_patiently(&ControlMessage::Export(export), Some(&file));
    while !matches!(hear(&hostile.socket), Ok(ControlMessage::Mapped { .. })) {
        std::thread::yield_now();
    }
    // Messages whose data is in the region, together all of it.
    let head = u32::from_le_bytes([Kind::Send as u8, DataLocation::Memory as u8, 0, 1]);
    for part in 0..LENGTH >> 24 {
        vi.post_receive(&Descriptor::receive(&[memory.segment(0, 1 << 24)])).unwrap();
        hostile.publish(part as u32, head, 1 << 24, &[part << 24, 1 << 24 | 7 << 32]);
        assert!(vi.receive_wait(TIMEOUT).unwrap().is_success());
    }
    drop((file, hostile));
    let before = cpu_time();
    vi.disconnect().unwrap();
    let took = cpu_time() - before;
    assert!(took < Duration::from_millis(3), "leaving took {took:?}");
}

/// A memory file with all pages allocated and the given seals.
fn filled(length: u64, seals: i32) -> OwnedFd {
    // SAFETY: the name is a constant; the call only creates a descriptor.
    let fd = unsafe { libc::memfd_create(c"filled".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    assert!(fd >= 0);
    // SAFETY: the descriptor was just opened and has no other owner.
    let file: OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
    // SAFETY: the calls take only integers.
    unsafe {
        assert_eq!(libc::fallocate(fd, 0, 0, length as libc::off_t), 0);
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
    }
    file
}

#[test]
fn a_refused_large_file_is_not_freed_by_the_refusing_process() {
    let nic = Nic::open().unwrap();
    let name = format!("costs-refused-{}", std::process::id());
    let listen = |wait| nic.connect_wait(&Address::local(&name), Some(wait));
    let _ = listen(Duration::ZERO);
    let file = filled(1 << 28, 0);
    let socket = connect_socket(&name).unwrap();
    let attributes = ViAttributes::new(ProtectionTag::default());
    let hello = ControlMessage::Hello { local: Address::local("hostile"), attributes, barrier: true };
    send(socket.as_raw_fd(), &hello, Some(file.as_raw_fd())).unwrap();
    // The control message holds the file now.
    drop(file);
    let (mut longest, end) = (Duration::ZERO, Instant::now() + Duration::from_secs(10));
    let answer = loop {
        let before = cpu_time();
        assert!(listen(Duration::ZERO).is_err());
        longest = longest.max(cpu_time() - before);
        match hear(&socket) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => assert!(Instant::now() < end),
            answer => break answer,
        }
    };
    assert!(matches!(answer, Ok(ControlMessage::Reject { .. })), "{answer:?}");
    assert!(longest < MAX_CLIENT_DELAY, "one look took {longest:?}");
}

#[test]
fn releasing_a_peer_is_fast_for_any_size_of_its_exported_file() {
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let name = format!("costs-page-{}", std::process::id());
    let _ = nic.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    let hostile = std::thread::scope(|scope| {
        let hostile = scope.spawn(|| connect(&name, Reliability::ReliableDelivery));
        nic.connect_wait(&Address::local(&name), TIMEOUT).unwrap().accept(&vi).unwrap();
        hostile.join().unwrap()
    });
    let file = filled(1 << 28, libc::F_SEAL_SHRINK);
    let export =
        RegionExport { handle: 7, address: 0, length: 4096, write: false, read: true, slot: 0, serial: 0 };
    hostile.send_patiently(&ControlMessage::Export(export), Some(&file));
    drop(file);
    while !matches!(hear(&hostile.socket), Ok(ControlMessage::Mapped { .. })) {
        std::thread::yield_now();
    }
    let before = cpu_time();
    vi.disconnect().unwrap();
    let took = cpu_time() - before;
    assert!(took < MAX_CLIENT_DELAY, "leaving took {took:?}");
}

/// Exports `count` regions, each a fully allocated file whose last reference is then held by the other side.
fn show_full_files(socket: &OwnedFd, count: u32, length: u64, mut meanwhile: impl FnMut()) {
    let end = Instant::now() + Duration::from_secs(20);
    for slot in 0..count {
        let file = filled(length, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW);
        let export = RegionExport {
            handle: 1 + slot,
            address: 0x1000,
            length,
            write: false,
            read: true,
            slot,
            serial: 0,
        };
        while send(socket.as_raw_fd(), &ControlMessage::Export(export), Some(file.as_raw_fd())).is_err() {
            assert!(Instant::now() < end, "control messages are no longer received");
            meanwhile();
        }
    }
}

#[test]
fn a_peer_that_disconnects_in_the_handshake_is_released_fast_despite_many_full_files() {
    let nic = Nic::open().unwrap();
    let name = format!("costs-full-{}", std::process::id());
    let mut longest = Duration::ZERO;
    let mut look = || {
        let before = cpu_time();
        assert!(nic.connect_wait(&Address::local(&name), Some(Duration::ZERO)).is_err());
        longest = longest.max(cpu_time() - before);
    };
    look();
    for _ in 0..3 {
        let socket = connect_socket(&name).unwrap();
        let half = say_hello(&socket);
        show_full_files(&socket, 250, 1 << 20, &mut look);
        (0..100).for_each(|_| look());
        drop((socket, half));
        (0..100).for_each(|_| look());
    }
    assert!(longest < MAX_CLIENT_DELAY, "one look took {longest:?}");
}

#[test]
fn releasing_a_peer_is_fast_despite_many_full_exported_files() {
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let name = format!("costs-full-leaving-{}", std::process::id());
    let _ = nic.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    let hostile = std::thread::scope(|scope| {
        let hostile = scope.spawn(|| connect(&name, Reliability::ReliableDelivery));
        nic.connect_wait(&Address::local(&name), TIMEOUT).unwrap().accept(&vi).unwrap();
        hostile.join().unwrap()
    });
    let mut mapped = 0;
    let hear_all = |mapped: &mut u32| {
        while let Ok(message) = hear(&hostile.socket) {
            *mapped += u32::from(matches!(message, ControlMessage::Mapped { .. }));
        }
    };
    show_full_files(&hostile.socket, 250, 1 << 20, || hear_all(&mut mapped));
    let end = Instant::now() + Duration::from_secs(10);
    while mapped < 250 {
        assert!(Instant::now() < end, "{mapped} of 250 regions were mapped");
        hear_all(&mut mapped);
    }
    let before = cpu_time();
    vi.disconnect().unwrap();
    let took = cpu_time() - before;
    assert!(took < MAX_CLIENT_DELAY, "leaving took {took:?}");
}
