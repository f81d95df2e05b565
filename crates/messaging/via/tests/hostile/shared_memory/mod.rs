//! A peer that connects properly and then writes garbage to every word it can, while the other side keeps working.
//! Killed peers are tested in the integration test `killed`.

pub(super) mod attacker;
mod campaign;
mod costs;
mod executed;
mod flood;
mod halves;
mod honest;
mod late;
mod one_trick;
mod rights;
mod scarce;
mod stall;
mod trace;

use super::SharedMemory;
use super::control_message::{ControlMessage, RegionExport, receive, send};
use super::layout::*;
use super::mapping::{Mapping, create, create_half, map_foreign, map_half};
use super::rendezvous;
use super::server_names::ServerAddress as Named;
use super::settings::{Limits, Settings};
use crate::*;
use longma_random::SplitMix64;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering as Order};
use std::time::{Duration, Instant};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

/// An export of a readable page of the sender, in the given slot.
fn page_at(slot: u32) -> RegionExport {
    RegionExport {
        handle: 1 + slot,
        address: 0x1000,
        length: 4096,
        write: false,
        read: true,
        slot,
        serial: 0,
    }
}

/// A garbage-writing peer: both halves, its socket, and the regions exported to it.
struct Hostile {
    socket: OwnedFd,
    half: Mapping,
    /// The other side's half and its file.
    theirs: Mapping,
    their_file: super::deferred_close::PeerFile,
    shown: Vec<(u64, u32, u64)>,
    /// The files of these regions.
    files: Vec<super::deferred_close::PeerFile>,
}

fn connect_socket(name: &str) -> Result<OwnedFd, Error> {
    let place = Named::others(&Settings::default(), name.as_bytes())?;
    rendezvous::connect_socket(&place, &Address::local(name), None)
}

fn hear(socket: &OwnedFd) -> std::io::Result<ControlMessage> {
    receive(socket, None).map(|(message, _)| message)
}

fn say_hello_at(socket: &OwnedFd, level: Reliability) -> Mapping {
    let (file, half) = create_half().unwrap();
    let attributes = ViAttributes::new(ProtectionTag::default()).with_reliability(level);
    let local = Address::local("hostile");
    let hello = ControlMessage::Hello { local, attributes, barrier: true };
    send(socket.as_raw_fd(), &hello, Some(file.as_raw_fd())).unwrap();
    half
}

fn say_hello(socket: &OwnedFd) -> Mapping {
    say_hello_at(socket, Reliability::ReliableDelivery)
}

/// Starts to connect and then stays silent.
fn hello_only(name: &str) -> (OwnedFd, Mapping) {
    let socket = connect_socket(name).unwrap();
    let half = say_hello(&socket);
    (socket, half)
}

/// Completes the handshake as a well-behaved peer does.
fn connect(name: &str, level: Reliability) -> Hostile {
    let end = Instant::now() + Duration::from_secs(10);
    let socket = loop {
        match connect_socket(name) {
            Ok(socket) => break socket,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let half = say_hello_at(&socket, level);
    send(socket.as_raw_fd(), &ControlMessage::ExportsDone, None).unwrap();
    let (mut shown, mut files, mut agreed, mut heard) = (Vec::new(), Vec::new(), None, Vec::new());
    loop {
        let next = receive(&socket, None);
        if let Ok((message, file)) = &next {
            heard.push(format!("{message:?}{}", if file.is_some() { " with a file" } else { "" }));
        }
        match next {
            Ok((ControlMessage::ExportsDone, _)) => break,
            Ok((ControlMessage::Accept { .. }, file)) => agreed = file,
            Ok((ControlMessage::Export(export), file)) => {
                shown.push((export.address, export.handle, export.length));
                files.extend(file);
            }
            Ok(_) => {}
            Err(error) => {
                assert!(error.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < end, "{error}")
            }
        }
    }
    let their_file = agreed.unwrap_or_else(|| panic!("the accepting side did not send its half: {heard:?}"));
    Hostile { socket, half, theirs: map_half(&their_file).unwrap(), their_file, shown, files }
}

/// Whether the eight bytes of `secret` occur in a half.
fn occurs_in(half: &Mapping, secret: u64) -> bool {
    let word = |index: usize| {
        // SAFETY: inside the half and aligned, as the loop bound ensures; only loaded, and its writer uses atomics too.
        let word = unsafe { AtomicU32::from_ptr(half.base().add(index * 4).cast()) };
        u64::from(word.load(Order::Relaxed))
    };
    (0..HALF_BYTES / 4 - 1).any(|index| word(index) | word(index + 1) << 32 == secret)
}

impl Hostile {
    /// Sends a control message, waiting until the socket has space.
    fn send_patiently(&self, message: &ControlMessage, file: Option<&OwnedFd>) {
        let end = Instant::now() + Duration::from_secs(10);
        while let Err(error) = send(self.socket.as_raw_fd(), message, file.map(AsRawFd::as_raw_fd)) {
            if error.kind() != std::io::ErrorKind::WouldBlock {
                return;
            }
            assert!(Instant::now() < end, "control messages are no longer received");
            std::thread::yield_now();
        }
    }

    /// Waits until the other side has closed the connection.
    fn await_end(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            match hear(&self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    assert!(Instant::now() < end, "the connection did not end");
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return,
            }
        }
    }

    /// Publishes a message in a slot as a well-behaved peer does.
    fn publish(&self, position: u32, head: u32, length: u32, words: &[u64]) {
        // SAFETY: our half, which consists of atomics.
        let side = unsafe { &*self.half.base().cast::<Side>() };
        let slot = &side.slots[(position % SLOTS) as usize];
        slot.head.store(head, Order::Relaxed);
        slot.length.store(length, Order::Relaxed);
        slot.words.iter().zip(words).for_each(|(word, value)| word.store(*value, Order::Relaxed));
        slot.stamp.store(position / SLOTS + 1, Order::Release);
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= HALF_BYTES);
        // SAFETY: inside our half and aligned; it is accessed elsewhere through atomics or only by address.
        unsafe { AtomicU32::from_ptr(self.half.base().add(offset & !3).cast()) }
    }

    /// Whether the eight bytes of `secret` occur in the other side's half.
    fn has_learnt(&self, secret: u64) -> bool {
        occurs_in(&self.theirs, secret)
    }

    /// Writes a nearly valid message to a slot that is likely to be read.
    fn write_message(&self, random: &mut SplitMix64, secrets: &[u64]) {
        // SAFETY: our half, which consists of atomics.
        let side = unsafe { &*self.half.base().cast::<Side>() };
        let position = random.below(u64::from(SLOTS) * 3) as u32;
        let slot = &side.slots[(position % SLOTS) as usize];
        let kind = random.below(9) as u8;
        let head =
            u32::from_le_bytes([kind, random.below(6) as u8, random.below(3) as u8, random.below(5) as u8]);
        let lengths = [
            0,
            8,
            48,
            49,
            4096,
            CHUNK_BYTES,
            CHUNK_BYTES + 1,
            ARENA_BYTES,
            u32::MAX,
            random.next_u64() as u32,
        ];
        slot.head.store(head, Order::Relaxed);
        slot.length.store(lengths[random.below(lengths.len() as u64) as usize], Order::Relaxed);
        let (address, handle, length) =
            match self.shown.get(random.below(self.shown.len().max(1) as u64) as usize) {
                Some(shown) => *shown,
                None => (0, 0, 0),
            };
        for word in &slot.words {
            let value = match random.below(6) {
                0 => address.wrapping_add(random.below(length + 64)),
                1 => u64::from(handle),
                2 => secrets[random.below(secrets.len() as u64) as usize],
                3 => random.below(u64::from(ARENA_BYTES) + 64),
                4 => random.below(64) << 32 | u64::from(handle),
                _ => random.next_u64(),
            };
            word.store(value, Order::Relaxed);
        }
        slot.stamp.store(position / SLOTS + 1, Order::Release);
    }

    fn work(&self, random: &mut SplitMix64, secrets: &[u64]) {
        match random.below(16) {
            // Write any word of the attacker's half. A peer can write no other memory.
            0 => self
                .word(random.below(HALF_BYTES as u64 - 4) as usize)
                .store(random.next_u64() as u32, Order::Relaxed),
            1 | 2 => self.word(random.below(256) as usize).store(random.below(400) as u32, Order::Relaxed),
            3 if random.below(64) == 0 => {
                let message = match random.below(4) {
                    0 => ControlMessage::Nudge,
                    1 => ControlMessage::Revoke { handle: random.next_u64() as u32 },
                    2 => ControlMessage::ExportsDone,
                    _ => ControlMessage::Reject { reason: String::new(), again: false },
                };
                let _ = send(self.socket.as_raw_fd(), &message, None);
            }
            _ => self.write_message(random, secrets),
        }
    }
}

const SECRET: u64 = 0x5ec2_e75e_c2e7_5ec2;

/// The well-behaved side uses all operations until the connection or the time ends.
fn use_all_operations(vi: &Vi, memory: &MemoryRegion, end: Instant) -> u64 {
    let mut completions = 0;
    while Instant::now() < end && vi.state() == ViState::Connected {
        let _ = vi.post_receive(&Descriptor::receive(&[memory.segment(0, 4096)]));
        let _ = vi.post_send(&Descriptor::send(&[memory.segment(4096, 8)]));
        let _ = vi.post_send(&Descriptor::send(&[memory.segment(4096, 3000)]));
        let _ = vi.post_send(&Descriptor::send(&[memory.segment(4096, 20_000)]));
        let remote = RemoteSegment { address: 0x1000, handle: MemoryHandle(0x10_0001) };
        if completions % 7 == 0 {
            let _ = vi.post_send(&Descriptor::rdma_write(&[memory.segment(4096, 64)], remote));
            let _ = vi.post_send(&Descriptor::rdma_read(&[memory.segment(30_000, 64)], remote));
        }
        completions += u64::from(vi.receive_done().is_some()) + u64::from(vi.send_done().is_some());
        if completions % 50 == 49 {
            let _ = vi.receive_wait(Some(Duration::from_micros(200)));
        }
    }
    completions
}

/// Runs a connection with a hostile peer. Memory that was not exported to the peer must be unchanged and must not reach
/// it.
fn run_under_attack(seed: u64, level: Reliability, time: Duration) {
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    let other = nic.create_protection_tag().unwrap();
    let memory = nic.allocate(65_536, MemoryAttributes::local(tag)).unwrap();
    let shown = nic.allocate(8192, MemoryAttributes { tag, rdma_write: true, rdma_read: false }).unwrap();
    let hidden = [
        nic.allocate(4096, MemoryAttributes::local(tag)).unwrap(),
        nic.allocate(4096, MemoryAttributes::remote(other)).unwrap(),
    ];
    hidden
        .iter()
        .for_each(|region| (0..512).for_each(|index| region.write(index * 8, &SECRET.to_le_bytes())));
    let secrets: Vec<u64> = hidden
        .iter()
        .flat_map(|region| [region.address(), u64::from(region.handle().0)])
        .chain([shown.address()])
        .collect();
    let vi = nic.create_vi(ViAttributes::new(tag).with_reliability(level), None, None).unwrap();
    let name = format!("hostile-{}-{seed}", std::process::id());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let hostile = connect(&name, level);
            let mut random = SplitMix64::new(seed);
            while !stop.load(Order::Relaxed) {
                (0..32).for_each(|_| hostile.work(&mut random, &secrets));
                std::thread::yield_now();
            }
            hostile
        });
        nic.connect_wait(&Address::local(&name), TIMEOUT).unwrap().accept(&vi).unwrap();
        use_all_operations(&vi, &memory, Instant::now() + time);
        let begin = Instant::now();
        vi.disconnect().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(5), "seed {seed}: disconnecting hung");
        stop.store(true, Order::Relaxed);
        let hostile = writer.join().unwrap();
        for region in &hidden {
            assert!(
                (0..512).all(|index| region.atomic(index * 8).load(Order::Relaxed) == SECRET),
                "seed {seed}: memory that the peer may not write was written"
            );
        }
        assert!(!hostile.has_learnt(SECRET), "seed {seed}: memory that the peer may not read reached it");
    });
}

#[test]
fn a_peer_that_writes_garbage_everywhere_crashes_nothing_and_reaches_nothing() {
    // `LONGMA_VIA_GARBAGE_SECONDS=600` runs the campaign.
    let seconds = std::env::var("LONGMA_VIA_GARBAGE_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(4);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut seed = 1;
    while Instant::now() < end {
        run_under_attack(seed, Reliability::ALL[seed as usize % 3], Duration::from_millis(60));
        seed += 1;
    }
    assert!(seed > 3, "the machine is too slow for more than a few attacks");
}
