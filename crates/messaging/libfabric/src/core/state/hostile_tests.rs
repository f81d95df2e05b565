//! Tests with peers that violate the protocol: the endpoint completes all operations with them, accesses only its own
//! memory, and continues to serve other peers. `LONGMA_FI_ATTACKS` is the number of cases, 100 by default.

use super::{Setup, Shared};
use crate::abi::constants::{ADDR_UNSPEC, MSG, RECV, REMOTE_READ, REMOTE_WRITE, RMA, SEND, TAGGED};
use crate::core::address::{Kind, Name};
use crate::core::address_vector::AddressVector;
use crate::core::buffer::Buffer;
use crate::core::completion::CompletionQueue;
use crate::core::endpoint::Endpoint;
use crate::core::matching::Pattern;
use crate::core::memory_keys::Region;
use crate::core::operation::{Action, Intent, Operation, Receive, Source, Target};
use crate::core::wire::{AtomicRequest, Frame, MAX_HEADER_BYTES, Part, Window};
use longma_via::{Address, Descriptor, MemoryAttributes, MemoryRegion, Nic, Vi, ViAttributes};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SLOT: usize = 8192;
const SLOTS: usize = 300;
const SOON: Option<Duration> = Some(Duration::from_secs(10));

/// An endpoint that follows the protocol.
struct Victim {
    endpoint: Arc<Endpoint>,
    vector: Arc<AddressVector>,
    queue: Arc<CompletionQueue>,
    name: Name,
}

impl Victim {
    fn new() -> Self {
        let nic = Nic::open().unwrap();
        let shared = Arc::new(Shared {
            nic,
            keys: Default::default(),
            atomics: Mutex::new(()),
            names: Default::default(),
        });
        let (vector, queue) = (Arc::new(AddressVector::default()), Arc::new(CompletionQueue::default()));
        let name = Name::random();
        let setup = Setup {
            name,
            vector: Some(vector.clone()),
            transmit: Some(queue.clone()),
            receive: Some(queue.clone()),
            counters: Vec::new(),
            max_unexpected: 100_000,
            notify: None,
        };
        let endpoint = Endpoint::open(setup, &shared).unwrap();
        queue.watched.add(&endpoint);
        Self { endpoint, vector, queue, name }
    }

    fn send(&self, peer: u64, action: Action, bytes: &[u8], kind: u64) {
        let intent = Intent { context: 1, flags: kind | SEND, reports: true };
        // SAFETY: the bytes are static.
        let buffer = unsafe { Buffer::new(bytes.as_ptr().cast_mut(), bytes.len()) };
        let source = Source::Buffer(buffer);
        let operation = Operation { action, source, intent, is_transient: false, fenced: false };
        self.endpoint.submit(peer, operation).unwrap();
    }

    fn post(&self, source: u64, is_tagged: bool, buffer: Buffer) {
        let intent = Intent { context: 2, flags: RECV | if is_tagged { TAGGED } else { MSG }, reports: true };
        let pattern = Pattern { source, tag: 0, ignore: u64::MAX };
        self.endpoint.state().post_receive(
            is_tagged,
            pattern,
            Receive { buffer, intent, releases_below: None },
        );
    }

    /// The number of completions within a time.
    fn completions(&self, expected: usize, time: Duration) -> usize {
        let (begin, mut found) = (Instant::now(), 0);
        while found < expected && begin.elapsed() < time {
            found += self.queue.read(16, |_, _| {}).unwrap_or(0);
            found += usize::from(self.queue.take_failure().is_some());
        }
        found
    }

    fn close(self) {
        self.endpoint.close();
        self.queue.watched.remove(&self.endpoint);
    }
}

/// A peer that follows the protocol of `longma-via`, but sends arbitrary bytes as frames.
struct Attacker {
    vi: Vi,
    memory: MemoryRegion,
}

impl Attacker {
    fn prepare(nic: &Nic) -> Self {
        let tag = nic.create_protection_tag().unwrap();
        let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
        let memory = nic.allocate((SLOTS + 1) * SLOT, MemoryAttributes::remote(tag)).unwrap();
        for slot in 0..SLOTS {
            let _ = vi.post_receive(&Descriptor::receive(&[memory.segment(slot * SLOT, SLOT)]));
        }
        Self { vi, memory }
    }

    /// Sends a frame; false when the victim has ended the connection.
    fn send(&self, bytes: &[u8]) -> bool {
        self.memory.write(SLOTS * SLOT, bytes);
        let segment = [self.memory.segment(SLOTS * SLOT, bytes.len())];
        if self.vi.post_send(&Descriptor::send(&segment)).is_err() {
            return false;
        }
        // Remove completed receives. Their contents do not matter.
        while self.vi.receive_done().is_some() {}
        self.vi.send_wait(SOON).is_ok_and(|completion| completion.is_success())
    }
}

/// Frames with numbers that are often valid.
fn frames() -> impl Strategy<Value = Vec<(Frame, u16, Vec<u8>)>> {
    let number = prop_oneof![4 => 0u32..3, 1 => any::<u32>()];
    let large = prop_oneof![3 => 0u64..70, 1 => any::<u64>()];
    let part = (large.clone(), number.clone(), prop_oneof![0u32..20_000, any::<u32>()])
        .prop_map(|(address, handle, length)| Part { address, handle, length });
    let window = prop::collection::vec(part, 0..=4).prop_map(|parts| Window::new(&parts));
    let frame =
        (0..12u8, number, (large.clone(), large.clone(), large), any::<(bool, bool, u8, u8, bool)>(), window)
            .prop_map(
                |(
                    kind,
                    id,
                    (key, address, length),
                    (has_tag, has_data, operation, datatype, fetches),
                    window,
                )| {
                    let (tag, data) = (has_tag.then_some(key), has_data.then_some(length));
                    match kind {
                        0 => Frame::Credit,
                        1 => Frame::Message { tag, data },
                        2 => Frame::Offer { id, tag, data, window },
                        3 => Frame::Done { id, status: u16::from(operation) },
                        4 => Frame::Write { id, key: 5, address, data },
                        5 => Frame::WriteOffer { id, key: 5, address, data, window },
                        6 => Frame::Read { id, key: 5, address, length },
                        7 => Frame::Reply { id, status: u16::from(operation) },
                        8 => Frame::Grant { id, grant: operation.into(), window },
                        9 => Frame::Granted { grant: id },
                        10 => Frame::Taken { id },
                        _ => {
                            let request =
                                AtomicRequest { operation: operation % 24, datatype: datatype % 16, fetches };
                            Frame::Atomic { id, key: 5, address, request }
                        }
                    }
                },
            );
    let credits = prop_oneof![9 => Just(0u16), 1 => 0u16..80];
    let payload = prop_oneof![9 => prop::collection::vec(any::<u8>(), 0..70), 1 => prop::collection::vec(any::<u8>(), 8000)];
    prop::collection::vec((frame, credits, payload), 1..40)
}

static BYTES: [u8; 20_000] = [7; 20_000];

fn attack(frames: &[(Frame, u16, Vec<u8>)], cut: usize) {
    let victim = Victim::new();
    let mut guarded = vec![9u8; 3 * 64];
    // SAFETY: the memory outlives the endpoint, which is closed below.
    let region = unsafe { Buffer::new(guarded.as_mut_ptr().wrapping_add(64), 64) };
    let access = REMOTE_READ | REMOTE_WRITE;
    victim.endpoint.state().shared.keys.insert(Some(5), Region { buffer: region, base: 0, access }).unwrap();

    let nic = Nic::open().unwrap();
    let own = Name::random();
    let listener = nic.listen(&own.via_address(Kind::Unconnected)).unwrap();
    let attacker = Attacker::prepare(&nic);
    // The victim has operations of each kind with the attacker: it connects, the attacker accepts.
    let peer = victim.vector.insert(own);
    let mut received = vec![0u8; 20_000];
    // SAFETY: as above.
    let into = unsafe { Buffer::new(received.as_mut_ptr(), received.len()) };
    let target = Target { key: 1, address: 0 };
    victim.send(peer, Action::Message { tag: Some(1), data: None, acknowledged: false }, &BYTES, TAGGED);
    victim.send(peer, Action::Write { target, data: None }, &BYTES[..100], RMA);
    victim.send(peer, Action::Read { target, result: into.part(0, 100) }, &[], RMA);
    victim.post(peer, true, into.part(100, 9000));
    victim.post(peer, false, into.part(9100, 9000));
    listener.wait(SOON).unwrap().accept(&attacker.vi).unwrap();
    victim.completions(usize::MAX, Duration::from_millis(1));
    let mut found = 0;
    for (frame, credits, payload) in frames {
        let mut bytes = vec![0; MAX_HEADER_BYTES];
        let header = frame.encode(*credits, &mut bytes);
        bytes.truncate(header);
        bytes.extend(payload);
        bytes.truncate(cut.clamp(1, SLOT));
        if !attacker.send(&bytes) {
            break;
        }
        found += victim.completions(usize::MAX, Duration::from_micros(200));
    }
    drop(attacker);
    // Wait for the five operations. The frames may have caused further completions.
    found += victim.completions(5usize.saturating_sub(found), Duration::from_secs(10));
    assert!(found >= 5, "{found} completions");
    assert!(
        guarded[..64].iter().chain(&guarded[128..]).all(|&byte| byte == 9),
        "only the region was written"
    );

    // The victim still serves an honest peer.
    let honest = Victim::new();
    victim.post(ADDR_UNSPEC, true, into.part(0, 9000));
    let number = honest.vector.insert(victim.name);
    honest.send(
        number,
        Action::Message { tag: Some(3), data: None, acknowledged: false },
        &BYTES[..50],
        TAGGED,
    );
    let begin = Instant::now();
    let mut arrived = 0;
    while arrived == 0 && begin.elapsed() < Duration::from_secs(10) {
        honest.completions(1, Duration::from_micros(100));
        arrived = victim.completions(1, Duration::from_micros(100));
    }
    assert_eq!(arrived, 1, "the honest peer's message");
    honest.close();
    victim.close();
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20, failure_persistence: None, ..ProptestConfig::with_cases(
        std::env::var("LONGMA_FI_ATTACKS").ok().and_then(|text| text.parse().ok()).unwrap_or(100)
    ) })]

    #[test]
    fn a_peer_that_sends_any_frames_harms_only_itself(frames in frames(), cut in prop_oneof![9 => Just(SLOT), 1 => 0usize..60]) {
        attack(&frames, cut);
    }
}

/// The attacker listens at an address that is not a valid name, or connects without a name.
#[test]
fn a_peer_without_a_name_can_send_but_is_no_source() {
    let victim = Victim::new();
    let nic = Nic::open().unwrap();
    let attacker = Attacker::prepare(&nic);
    let to = victim.name.via_address(Kind::Unconnected);
    attacker.vi.connect(&Address::local("any \0 thing"), &to, SOON).unwrap();
    let mut bytes = vec![0; MAX_HEADER_BYTES];
    let header = Frame::Message { tag: Some(7), data: None }.encode(0, &mut bytes);
    assert!(attacker.send(&bytes[..header]));
    let mut received = [0u8; 8];
    // SAFETY: the memory outlives the endpoint, which is closed below.
    victim.post(ADDR_UNSPEC, true, unsafe { Buffer::new(received.as_mut_ptr(), 8) });
    assert_eq!(victim.completions(1, Duration::from_secs(10)), 1);
    victim.close();
}
