//! Access rights that were revoked from a peer, and rights that a peer of another user never had.
//!
//! Source: memfd_create(2), futex(2), credentials(7).

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A listening NIC with an exported region, a VI with the same tag, and a peer that has mapped the region for writing.
fn with_mapped_region(what: &str) -> (Nic, Vi, MemoryRegion, Hostile, Mapping) {
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let region = nic.allocate(4096, MemoryAttributes::remote(tag)).unwrap();
    let name = format!("rights-{what}-{}", std::process::id());
    let _ = nic.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    let hostile = std::thread::scope(|scope| {
        let hostile = scope.spawn(|| connect(&name, Reliability::ReliableDelivery));
        nic.connect_wait(&Address::local(&name), TIMEOUT).unwrap().accept(&vi).unwrap();
        hostile.join().unwrap()
    });
    let mapping = map_foreign(&hostile.files[0], 4096, true).unwrap();
    (nic, vi, region, hostile, mapping)
}

/// The first word of the peer's mapping.
fn word(mapping: &Mapping) -> &AtomicU64 {
    // SAFETY: the mapping has at least a page; all accesses are atomic.
    unsafe { AtomicU64::from_ptr(mapping.base().cast()) }
}

#[test]
fn memory_that_gets_another_tag_is_separated_from_mappings_of_old_peers() {
    let (nic, _vi, mut region, _hostile, mapping) = with_mapped_region("tag");
    word(&mapping).store(1, Order::SeqCst);
    assert_eq!(region.atomic(0).load(Order::SeqCst), 1, "it is mapped");
    let other = nic.create_protection_tag().unwrap();
    region.set_attributes(MemoryAttributes::remote(other)).unwrap();
    assert_eq!(region.atomic(0).load(Order::SeqCst), 1, "what was there stays");
    word(&mapping).store(2, Order::SeqCst);
    assert_eq!(region.atomic(0).load(Order::SeqCst), 1, "a peer of the old tag wrote to it");
    region.write(0, &SECRET.to_le_bytes());
    assert_ne!(word(&mapping).load(Order::SeqCst), SECRET, "a peer of the old tag read it");
}

#[test]
fn a_post_wakes_at_most_as_many_threads_as_an_honest_peer_has_sleeping() {
    const ASLEEP: usize = 400;
    let (_nic, vi, region, hostile, _mapping) = with_mapped_region("asleep");
    // SAFETY: these are halves, which consist of atomics.
    let [side, theirs] = unsafe { [&hostile.half, &hostile.theirs].map(|half| &*half.base().cast::<Side>()) };
    let (wake_word, is_over) = (&theirs.wake_word.wakes, AtomicBool::new(false));
    let value = wake_word.load(Order::SeqCst);
    let (waiting, woken) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..ASLEEP {
            let sleep = || {
                waiting.fetch_add(1, Order::SeqCst);
                let operation = libc::FUTEX_WAIT;
                let none = std::ptr::null::<libc::timespec>();
                // SAFETY: the kernel only compares the word.
                unsafe { libc::syscall(libc::SYS_futex, wake_word.as_ptr(), operation, value, none, 0, 0) };
                if !is_over.load(Order::SeqCst) {
                    woken.fetch_add(1, Order::SeqCst);
                }
            };
            std::thread::Builder::new().stack_size(1 << 16).spawn_scoped(scope, sleep).unwrap();
        }
        while waiting.load(Order::SeqCst) < ASLEEP as u32 {
            std::thread::yield_now();
        }
        // All threads have announced that they are about to sleep.
        std::thread::sleep(Duration::from_millis(200));
        side.presence.sleep_state.store(u32::MAX, Order::SeqCst);
        vi.post_send(&Descriptor::send(&[region.segment(0, 8)])).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        is_over.store(true, Order::SeqCst);
        side.presence.sleep_state.store(0, Order::SeqCst);
        crate::futex::wake_all(wake_word, false);
    });
    let woken = woken.into_inner();
    assert!((1..=128).contains(&woken), "one post woke {woken} threads of the peer");
}

// ---- another user -------------------------------------------------------------------------------------------------

const ROLE: &str = "LONGMA_VIA_OTHER_USER";
const THIS: &str = "provider::shared_memory::hostile::rights::another_users_memory_is_read_directly_only_if_both_sides_allow_it";
const NOBODY_UID: u32 = 65_534;

/// Exports a readable region and sends a message located in it. Reports whether the mapping was confirmed and whether
/// the message was received.
fn send_from_exported_memory(name: &str) {
    let hostile = connect(name, Reliability::ReliableDelivery);
    let (file, mapping) = create(1 << 16, false).unwrap();
    let export = RegionExport {
        handle: 7,
        address: 0x1000,
        length: 1 << 16,
        write: false,
        read: true,
        slot: 0,
        serial: 0,
    };
    word(&mapping).store(SECRET, Order::SeqCst);
    hostile.send_patiently(&ControlMessage::Export(export), Some(&file));
    let end = Instant::now() + Duration::from_secs(1);
    let mut is_mapped = false;
    while Instant::now() < end && !is_mapped {
        is_mapped = matches!(hear(&hostile.socket), Ok(ControlMessage::Mapped { handle: 7, .. }));
        std::thread::sleep(Duration::from_millis(1));
    }
    let head = u32::from_le_bytes([Kind::Send as u8, DataLocation::Memory as u8, 0, 1]);
    hostile.publish(0, head, 16_384, &[0x1000, 16_384 | 7 << 32]);
    println!("\ntold {is_mapped}");
    std::thread::sleep(Duration::from_secs(20));
}

/// Runs such a client as the given user. Returns whether the mapping was confirmed and whether its message was
/// received.
fn accepts_message_from(uid: u32, single_copy: super::super::settings::SingleCopy) -> (bool, bool) {
    use std::io::BufRead;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.path().join("client");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let settings = Settings { single_copy, ..Settings::default() };
    let nic = Nic::with_provider(Box::new(SharedMemory::open_with(settings).unwrap()));
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let memory = nic.allocate(1 << 16, MemoryAttributes::local(tag)).unwrap();
    vi.post_receive(&Descriptor::receive(&[memory.segment(0, 1 << 16)])).unwrap();
    let name = format!("other-user-{uid}-{single_copy:?}-{}", std::process::id());
    let _ = nic.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    let mut client = Command::new(&program)
        .args(["--exact", THIS, "--nocapture"])
        .env(ROLE, &name)
        .stdout(std::process::Stdio::piped())
        .uid(uid)
        .gid(uid)
        .spawn()
        .unwrap();
    nic.connect_wait(&Address::local(&name), TIMEOUT).unwrap().accept(&vi).unwrap();
    let mut lines = std::io::BufReader::new(client.stdout.take().unwrap()).lines().map_while(Result::ok);
    let verdict = lines
        .find(|line| line.starts_with("told"))
        .expect("the client reports whether it was notified of the mapping");
    let completion = vi.receive_wait(TIMEOUT).expect("the message arrives or fails");
    client.kill().unwrap();
    client.wait().unwrap();
    (verdict == "told true", completion.is_success() && memory.atomic(0).load(Order::SeqCst) == SECRET)
}

#[test]
fn another_users_memory_is_read_directly_only_if_both_sides_allow_it() {
    use super::super::settings::SingleCopy;
    if let Ok(name) = std::env::var(ROLE) {
        return send_from_exported_memory(&name);
    }
    // SAFETY: takes no arguments and returns an integer.
    let own = unsafe { libc::geteuid() };
    assert_eq!(accepts_message_from(own, SingleCopy::SameUser), (true, true));
    assert_eq!(accepts_message_from(own, SingleCopy::Never), (false, false));
    if own != 0 {
        return eprintln!("skipped: the rest needs root");
    }
    assert_eq!(accepts_message_from(NOBODY_UID, SingleCopy::SameUser), (false, false));
    assert_eq!(accepts_message_from(NOBODY_UID, SingleCopy::BetweenUsers), (true, true));
}
