//! Peers that violate the protocol: VIs that send arbitrary frames.

use super::*;
use longma_channel::Error;
use longma_channel::wire::{FrameKind, Header, Hello};
use longma_via::{Descriptor, MemoryAttributes, MemoryRegion, Vi, ViAttributes};
use proptest::prelude::*;

/// A peer that sends any bytes.
struct Peer {
    vi: Vi,
    memory: MemoryRegion,
}

impl Peer {
    fn send(&self, frame: &[u8]) {
        self.memory.write(0, frame);
        let sent = self.vi.post_send(&Descriptor::send(&[self.memory.segment(0, frame.len())]));
        if sent.is_ok() {
            let _ = self.vi.send_wait(Some(TIMEOUT));
        }
    }
}

fn frame(kind: FrameKind, credits: u16, total: u32, id: u64, payload: &[u8]) -> Vec<u8> {
    [&Header { kind, credits, total, id }.encode()[..], payload].concat()
}

fn hello() -> Vec<u8> {
    frame(FrameKind::Hello, 0, 0, 0, &Hello { slot_bytes: 64, slots: 2 }.encode())
}

/// A connection with 64-byte slots, three of them for receiving, to a hostile peer.
fn victim() -> (Connection, Peer) {
    let [client, server] = &transports()[0];
    let (name, options) = (name(), Options { max_message: 1000, ..small() });
    let listener = server.listen(&name, options).unwrap();
    let nic = client.nic();
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let memory = nic.allocate(8192, MemoryAttributes::local(tag)).unwrap();
    for _ in 0..20 {
        vi.post_receive(&Descriptor::receive(&[memory.segment(4096, 64)])).unwrap();
    }
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept_within(Some(TIMEOUT)).unwrap());
        vi.connect(&Address::local("hostile"), &Address::local(&name), Some(TIMEOUT)).unwrap();
        (accepted.join().unwrap(), Peer { vi, memory })
    })
}

#[test]
fn each_violation_ends_the_connection_with_its_name() {
    use FrameKind::{Bytes, Credit, End, Message, Request};
    let cases: [(&str, &[Vec<u8>]); 14] = [
        ("a frame before the hello", &[frame(Message, 0, 1, 0, b"x")]),
        ("a second hello", &[hello(), hello()]),
        ("a frame without a header", &[hello(), vec![2; 15]]),
        ("a frame of unknown kind", &[hello(), vec![0; 16]]),
        ("unused field", &[hello(), frame(Message, 0, 1, 7, b"x")]),
        ("another version", &[frame(FrameKind::Hello, 0, 0, 0, b"LMC2\x40\0\0\0\x02\0\0\0")]),
        ("impossible sizes", &[frame(FrameKind::Hello, 0, 0, 0, b"LMC1\0\0\0\0\x02\0\0\0")]),
        ("credits that were not used", &[hello(), frame(Credit, 3, 0, 0, b"")]),
        ("returns no credits", &[hello(), frame(Credit, 0, 0, 0, b"")]),
        ("a control frame with a payload", &[hello(), frame(End, 0, 0, 0, b"x")]),
        (
            "the end in the middle of a message",
            &[hello(), frame(Message, 0, 9, 0, b"x"), frame(End, 0, 0, 0, b"")],
        ),
        ("do not add up", &[hello(), frame(Message, 0, 3, 0, b"four")]),
        (
            "a message inside of another",
            &[hello(), frame(Message, 0, 9, 0, b"x"), frame(Request, 0, 9, 1, b"x")],
        ),
        ("bytes of a stream", &[hello(), frame(Bytes, 0, 0, 0, b"x")]),
    ];
    for (expected, frames) in cases {
        let (mut connection, peer) = victim();
        frames.iter().for_each(|frame| peer.send(frame));
        let error = connection.receive().unwrap_err();
        assert!(
            matches!(error, Error::Protocol(_)) && error.to_string().contains(expected),
            "{expected}: {error}"
        );
        assert!(matches!(connection.receive(), Err(Error::Ended(_))));
        assert!(connection.send(b"x").is_err());
    }
}

#[test]
fn a_message_that_is_too_long_is_refused_before_it_arrives() {
    let (mut connection, peer) = victim();
    peer.send(&hello());
    peer.send(&frame(FrameKind::Message, 0, 1001, 0, b"x"));
    let error = connection.receive().unwrap_err();
    assert!(matches!(error, Error::TooLong { bytes: 1001, limit: 1000 }), "{error}");
    assert!(matches!(connection.receive(), Err(Error::Ended(_))));
}

#[test]
fn a_call_keeps_a_bounded_amount_for_later() {
    let [mut client, mut server] = shared([Options { max_message: 1 << 20, ..options() }, options()]);
    let flood = std::thread::spawn(move || {
        let sent = (0..10_000).take_while(|_| server.send(&[1; 10_000]).is_ok()).count();
        assert!(sent < 200, "{sent} messages of 10 KB while a call waited");
    });
    assert!(matches!(client.call(b"x"), Err(Error::Protocol(_))));
    assert!(matches!(client.send(b"x"), Err(Error::Ended(_))), "the connection has ended");
    drop(client);
    flood.join().unwrap();
}

#[test]
fn nothing_is_received_behind_a_violation() {
    let bad = [
        frame(FrameKind::Bytes, 0, 0, 0, b"x"),
        frame(FrameKind::Message, 0, 1001, 0, b"x"),
        frame(FrameKind::Message, 0, 3, 0, b"four"),
        vec![0; 16],
    ];
    for (bad, sends_first) in bad.iter().flat_map(|bad| [(bad, false), (bad, true)]) {
        let (mut connection, peer) = victim();
        connection.set_timeout(Some(Duration::from_secs(2)));
        peer.send(&hello());
        peer.send(bad);
        peer.send(&frame(FrameKind::Message, 0, 1, 0, b"x"));
        std::thread::sleep(Duration::from_millis(5));
        // Waiting for credits takes the frames out of the queue of the VI. It may also detect the violation.
        let mut found =
            sends_first && (0..3).any(|_| matches!(connection.send(b"y"), Err(Error::Protocol(_))));
        while !found {
            let error = connection.receive().unwrap_err();
            found = matches!(error, Error::Protocol(_) | Error::TooLong { .. });
            assert!(found, "{error}");
        }
        for _ in 0..3 {
            assert!(matches!(connection.receive(), Err(Error::Ended(_))));
        }
    }
}

#[test]
fn a_peer_that_overruns_its_credits_loses_the_connection() {
    let (mut connection, peer) = victim();
    peer.send(&hello());
    for _ in 0..20 {
        peer.send(&frame(FrameKind::Message, 0, 1, 0, b"x"));
    }
    let mut received = 0;
    let error = loop {
        match connection.receive() {
            Ok(Some(_)) => received += 1,
            other => break other.unwrap_err(),
        }
    };
    assert!(matches!(error, Error::Protocol(_) | Error::Ended(_)), "{error}");
    assert!(received <= 7, "{received} messages without credits");
}

#[test]
fn a_peer_that_only_stays_silent_costs_no_more_than_the_time_limit() {
    let (mut connection, _peer) = victim();
    connection.set_timeout(Some(Duration::from_millis(30)));
    assert!(matches!(connection.receive(), Err(Error::TimedOut)));
    assert!(matches!(connection.send(b"x"), Err(Error::TimedOut)), "no hello, no credits");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn random_frames_are_received_or_refused(
        greets in any::<bool>(),
        frames in prop::collection::vec(
            (0u8..9, 0u16..4, prop_oneof![Just(0u32), 0u32..100, any::<u32>()], 0u64..2, prop::collection::vec(any::<u8>(), 0..48)),
            0..12,
        ),
        cut in 0usize..64,
    ) {
        let (mut connection, peer) = victim();
        connection.set_timeout(Some(Duration::from_millis(5)));
        if greets {
            peer.send(&hello());
        }
        for (kind, credits, total, id, payload) in frames {
            let mut frame = frame(FrameKind::Message, credits, total, id, &payload);
            frame[0] = kind;
            // Some frames are too short.
            if cut < 8 {
                frame.truncate(cut + 10);
            }
            peer.send(&frame);
            match connection.receive() {
                Ok(Some(message)) => prop_assert!(message.bytes.len() <= 1000),
                Ok(None) | Err(Error::TimedOut) => {}
                Err(_) => break,
            }
        }
    }
}
