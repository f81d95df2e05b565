//! Invalid or misused halves: files with wrong seals, held locks, and other protocol versions.
//!
//! Source: memfd_create(2), fcntl(2) file sealing; shmem_fallocate and memfd_add_seals in the kernel, which take the
//! file's lock.

use super::stall::BlockingPage;
use super::*;
use std::os::fd::{AsFd, FromRawFd};

/// A listening NIC and its name.
fn listening(what: &str) -> (Nic, String) {
    let nic = Nic::open().unwrap();
    let name = format!("halves-{what}-{}", std::process::id());
    let _ = nic.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    (nic, name)
}

fn hello() -> ControlMessage {
    let attributes = ViAttributes::new(ProtectionTag::default());
    ControlMessage::Hello { local: Address::local("hostile"), attributes, barrier: true }
}

/// A memory file with the given size and seals.
fn memory(length: usize, seals: i32) -> OwnedFd {
    // SAFETY: the name is a constant; the call only creates a descriptor.
    let fd = unsafe { libc::memfd_create(c"half".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    assert!(fd >= 0);
    // SAFETY: the descriptor was just opened and has no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the calls take only integers.
    unsafe {
        assert_eq!(libc::ftruncate(fd, length as libc::off_t), 0);
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
    }
    file
}

/// The server's answer while it waits for other clients. `None` if there is none.
fn answer(nic: &Nic, name: &str, socket: &OwnedFd, patience: Duration) -> Option<ControlMessage> {
    let end = Instant::now() + patience;
    while Instant::now() < end {
        let _ = nic.connect_wait(&Address::local(name), Some(Duration::from_millis(1)));
        match hear(socket) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // If a socket is closed with unread messages, ECONNRESET is reported before the peer's last message.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(_) => return None,
            Ok(message) => return Some(message),
        }
    }
    None
}

const GROWTH: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

#[test]
fn a_memory_file_without_all_seals_is_refused_with_the_reason() {
    let (nic, name) = listening("unsealed");
    let all_seals = GROWTH | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
    let left_out = [libc::F_SEAL_SHRINK, libc::F_SEAL_GROW, libc::F_SEAL_FUTURE_WRITE, libc::F_SEAL_SEAL];
    for seals in left_out.map(|seal| all_seals & !seal).into_iter().chain([0]) {
        let (socket, file) = (connect_socket(&name).unwrap(), memory(HALF_BYTES, seals));
        send(socket.as_raw_fd(), &hello(), Some(file.as_raw_fd())).unwrap();
        let _ = send(socket.as_raw_fd(), &ControlMessage::ExportsDone, None);
        let answer = answer(&nic, &name, &socket, Duration::from_secs(10));
        let Some(ControlMessage::Reject { reason, again: false }) = answer else {
            panic!("{seals:#x}: {answer:?}")
        };
        assert!(reason.contains("has not sealed it"), "{reason}");
        // SAFETY: the call takes only integers.
        let found = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        assert_eq!(found, seals, "it was sealed for us");
    }
}

/// Writes to the file from a page that never arrives, which holds the file's lock until the page is released.
fn hold_lock(file: &OwnedFd, page: &BlockingPage) -> std::thread::JoinHandle<()> {
    let (file, page) = (file.try_clone().unwrap(), page.address() as usize);
    let writer = std::thread::spawn(move || {
        // SAFETY: the kernel reads the page or returns an error.
        unsafe { libc::write(file.as_raw_fd(), page as *const _, 4096) };
    });
    std::thread::sleep(Duration::from_millis(300));
    writer
}

#[test]
fn a_client_that_locks_its_memory_file_blocks_no_other_peer() {
    let (nic, name) = listening("lock");
    // A valid file and an invalid one, both locked. In either case no thread may wait.
    for seals in [GROWTH | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL, GROWTH] {
        let (file, page) = (memory(HALF_BYTES, seals), BlockingPage::new());
        let writer = hold_lock(&file, &page);
        let socket = connect_socket(&name).unwrap();
        send(socket.as_raw_fd(), &hello(), Some(file.as_raw_fd())).unwrap();
        let _ = send(socket.as_raw_fd(), &ControlMessage::ExportsDone, None);
        std::thread::scope(|scope| {
            let (sender, heard) = std::sync::mpsc::channel();
            let (nic, name) = (&nic, &name);
            scope.spawn(move || {
                for _ in 0..3 {
                    let _ = nic.connect_wait(&Address::local(name), Some(Duration::from_millis(20)));
                }
                let _ = sender.send(());
            });
            let heard = heard.recv_timeout(Duration::from_secs(15));
            page.release();
            heard.expect("the server waits for a peer that holds a file lock");
        });
        writer.join().unwrap();
    }
}

/// Connects a client to a server at `name`. `serve` gets the server's socket and a page that does not arrive until the
/// client has returned or has taken too long.
fn connect_to_hostile_server(
    name: &str,
    serve: impl FnOnce(&OwnedFd, &BlockingPage) + Send,
) -> Result<ViAttributes, Error> {
    ask_within(Duration::from_secs(10), name, serve)
}

fn ask_within(
    limit: Duration,
    name: &str,
    serve: impl FnOnce(&OwnedFd, &BlockingPage) + Send,
) -> Result<ViAttributes, Error> {
    let place = Named::own(&Settings::default(), name.as_bytes()).unwrap();
    let listening = place.listen(name.as_bytes()).unwrap();
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let (back, is_back) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            crate::provider::shared_memory::acceptor::readable(
                &[listening.as_raw_fd()],
                Some(Instant::now() + Duration::from_secs(10)),
            );
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let (no_address, no_length) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: no peer address is requested.
            let fd = unsafe { libc::accept4(listening.as_raw_fd(), no_address, no_length, flags) };
            assert!(fd >= 0);
            // SAFETY: the descriptor was just opened and has no other owner.
            let (socket, page) = (unsafe { OwnedFd::from_raw_fd(fd) }, BlockingPage::new());
            serve(&socket, &page);
            let in_time = is_back.recv_timeout(Duration::from_secs(20)).is_ok();
            page.release();
            in_time
        });
        let outcome = vi.connect(&Address::local("honest"), &Address::local(name), Some(limit));
        let _ = back.send(());
        assert!(serving.join().unwrap(), "a client waits for a server longer than its timeout");
        outcome
    })
}

/// Receives a client's complete handshake and returns its half.
fn receive_handshake(socket: &OwnedFd) -> super::super::deferred_close::PeerFile {
    let (mut half, end) = (None, Instant::now() + Duration::from_secs(10));
    loop {
        match receive(socket, None) {
            Ok((ControlMessage::Hello { .. }, file)) => half = file,
            Ok((ControlMessage::ExportsDone, _)) => return half.unwrap(),
            _ => assert!(Instant::now() < end, "the client sends no request"),
        }
        std::thread::yield_now();
    }
}

fn accept() -> ControlMessage {
    ControlMessage::Accept { attributes: ViAttributes::new(ProtectionTag::default()), barrier: true }
}

#[test]
fn a_server_that_locks_a_clients_file_or_its_own_delays_no_client() {
    let all_seals = GROWTH | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
    for (what, seals) in [("sealed", all_seals), ("open", GROWTH)] {
        let outcome =
            connect_to_hostile_server(&format!("halves-{what}-{}", std::process::id()), |socket, page| {
                let theirs = receive_handshake(socket).as_fd().try_clone_to_owned().unwrap();
                let own = memory(HALF_BYTES, seals);
                for file in [&theirs, &own] {
                    hold_lock(file, page);
                }
                send(socket.as_raw_fd(), &accept(), Some(own.as_raw_fd())).unwrap();
                // The client may have disconnected already.
                let _ = send(socket.as_raw_fd(), &ControlMessage::ExportsDone, None);
            });
        assert_eq!(outcome.is_ok(), seals == all_seals, "{outcome:?}");
    }
}

#[test]
fn a_missing_or_unsealed_server_file_is_a_specific_error() {
    for (what, seals, words) in
        [("none", None, "did not send its half"), ("bad", Some(GROWTH), "has not sealed it")]
    {
        let outcome =
            connect_to_hostile_server(&format!("halves-{what}-{}", std::process::id()), |socket, _| {
                receive_handshake(socket);
                let own = seals.map(|seals| memory(HALF_BYTES, seals));
                send(socket.as_raw_fd(), &accept(), own.as_ref().map(AsRawFd::as_raw_fd)).unwrap();
                // The client may have disconnected already.
                let _ = send(socket.as_raw_fd(), &ControlMessage::ExportsDone, None);
            });
        let error = outcome.unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        assert!(format!("{error} {source:?}").contains(words), "{error} {source:?}");
    }
}

#[test]
fn a_server_that_accepts_and_then_hesitates_does_not_extend_the_time_limit() {
    let seals = GROWTH | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
    let name = format!("halves-slow-{}", std::process::id());
    let outcome = ask_within(Duration::from_millis(100), &name, |socket, _| {
        receive_handshake(socket);
        let own = memory(HALF_BYTES, seals);
        // The client may have disconnected already.
        let _ = send(socket.as_raw_fd(), &accept(), Some(own.as_raw_fd()));
        std::thread::sleep(Duration::from_millis(800));
        let _ = send(socket.as_raw_fd(), &ControlMessage::ExportsDone, None);
    });
    assert!(matches!(outcome, Err(Error::Timeout)), "{outcome:?}");
}

#[test]
fn no_side_can_write_to_the_others_memory_file_and_no_process_can_punch_holes() {
    let (nic, name) = listening("hole");
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let hostile = std::thread::scope(|scope| {
        let hostile = scope.spawn(|| connect(&name, Reliability::ReliableDelivery));
        nic.connect_wait(&Address::local(&name), TIMEOUT).unwrap().accept(&vi).unwrap();
        hostile.join().unwrap()
    });
    let theirs = hostile.their_file.as_fd();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the mapping would be at an address chosen by the kernel; the call must fail.
    let mapped = unsafe {
        libc::mmap(std::ptr::null_mut(), HALF_BYTES, protection, libc::MAP_SHARED, theirs.as_raw_fd(), 0)
    };
    assert_eq!(mapped, libc::MAP_FAILED, "it maps the other side's half for writing");
    let (base, length) = (hostile.theirs.base().cast(), HALF_BYTES);
    // SAFETY: an own mapping, whose protection must not change.
    assert!(unsafe { libc::mprotect(base, length, protection) } < 0, "it makes its mapping writable");
    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the call takes only integers.
    let hole = unsafe { libc::fallocate(theirs.as_raw_fd(), how, 0, HALF_BYTES as libc::off_t) };
    assert!(hole < 0, "an access to it would wait");
    // SAFETY: the buffer is a local array.
    assert!(unsafe { libc::pwrite(theirs.as_raw_fd(), [1u8; 8].as_ptr().cast(), 8, 0) } < 0);
    // The only writable mapping of the own half is the one created before sealing.
    let (file, half) = create_half().unwrap();
    // SAFETY: the call takes only integers.
    assert!(unsafe { libc::fallocate(file.as_raw_fd(), how, 0, HALF_BYTES as libc::off_t) } < 0);
    drop(half);
}

#[test]
fn a_peer_with_another_protocol_version_is_refused_with_both_versions() {
    let (nic, name) = listening("version");
    let own = u64::from_le_bytes(hello().write()[8..16].try_into().unwrap());
    for version in [own - 1, own + 1] {
        let (socket, file) = (connect_socket(&name).unwrap(), memory(HALF_BYTES, GROWTH));
        // The first message of the previous version, with its segment.
        let mut message = hello().write();
        message[8..16].copy_from_slice(&version.to_le_bytes());
        super::super::control_message::send_with(socket.as_raw_fd(), &message, &[file.as_raw_fd()]).unwrap();
        let _ = send(socket.as_raw_fd(), &ControlMessage::ExportsDone, None);
        let answer = answer(&nic, &name, &socket, Duration::from_secs(10));
        let Some(ControlMessage::Reject { reason, again: false }) = answer else { panic!("{answer:?}") };
        let numbers = [format!("version {version}, "), format!("version {own}:")];
        assert!(numbers.iter().all(|number| reason.contains(number)), "{reason}");
    }
}

#[test]
fn a_sleeper_with_a_read_only_futex_word_is_woken_by_a_message() {
    let (nic, name) = listening("asleep");
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let memory = nic.allocate(4096, MemoryAttributes::local(tag)).unwrap();
    let hostile = std::thread::scope(|scope| {
        let hostile = scope.spawn(|| connect(&name, Reliability::ReliableDelivery));
        nic.connect_wait(&Address::local(&name), TIMEOUT).unwrap().accept(&vi).unwrap();
        hostile.join().unwrap()
    });
    vi.post_receive(&Descriptor::receive(&[memory.segment(0, 64)])).unwrap();
    // SAFETY: these are halves, which consist of atomics.
    let [side, theirs] = unsafe { [&hostile.half, &hostile.theirs].map(|half| &*half.base().cast::<Side>()) };
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| vi.receive_wait(Some(Duration::from_secs(60))));
        let begin = Instant::now();
        while theirs.presence.sleep_state.load(Order::SeqCst) == 0 {
            assert!(begin.elapsed() < Duration::from_secs(20), "it does not announce that it sleeps");
            std::thread::yield_now();
        }
        // By now the other side sleeps or is about to.
        std::thread::sleep(Duration::from_millis(100));
        let head = u32::from_le_bytes([Kind::Send as u8, DataLocation::Slot as u8, 0, 0]);
        hostile.publish(0, head, 8, &[7]);
        side.wake_word.wakes.fetch_add(1, Order::SeqCst);
        let rung = Instant::now();
        crate::futex::wake_some(&side.wake_word.wakes);
        assert!(waits.join().unwrap().unwrap().is_success());
        assert!(rung.elapsed() < Duration::from_secs(20), "it slept on");
    });
}
