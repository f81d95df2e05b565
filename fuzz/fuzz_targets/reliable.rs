//! Sends random bytes as packets of a reliable connection, which must not panic, hang, or exceed its negotiated
//! buffers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_reliable::{Config, Connection, Event, Opening, Packet, answer_stray};
use std::time::Duration;

const MAX_MESSAGE: u32 = 4096;

fuzz_target!(|data: &[u8]| {
    let config = Config { max_message: MAX_MESSAGE, ..Config::default() };
    let mut client = Connection::open(config, 1, b"request", Duration::ZERO);
    let mut datagram = Vec::new();
    client.transmit(Duration::ZERO, &mut datagram);
    let opening = Packet::parse(&datagram).ok().and_then(|packet| Opening::read(&packet)).expect("our own");
    let mut victim = Connection::accept(config, 2, &opening, b"answer", Duration::ZERO);
    let _ = victim.send(&[b"a message of our own"]);
    let (mut now, mut rest) = (Duration::ZERO, data);
    // Each packet is a length followed by that many bytes. Magic and checksum are corrected, so that packets pass the
    // parser.
    while let Some((&length, after)) = rest.split_first() {
        let (bytes, after) = after.split_at(after.len().min(usize::from(length)));
        rest = after;
        now += Duration::from_micros(u64::from(length));
        if let Ok(packet) = Packet::parse(bytes) {
            victim.receive(now, &packet);
            let _ = answer_stray(&packet, &mut Vec::new());
        }
        if let [kind, sequence, acknowledged, window, flags, sack, payload @ ..] = bytes {
            let kinds = {
                use longma_reliable::Kind::*;
                [Open, Accept, Reject, Data, Ack, Probe, Close, Closed, Reset]
            };
            let packet = Packet {
                sequence: u64::from(*sequence),
                acknowledged: u64::from(*acknowledged) / 64,
                window: u16::from(*window),
                first: flags & 1 != 0,
                last: flags & 2 != 0,
                sack: [u64::from(*sack), 0, 0, u64::from(*sack) << 56],
                payload,
                ..Packet::new(kinds[usize::from(*kind) % kinds.len()], 2, 1)
            };
            victim.receive(now, &packet);
        }
        let mut out = Vec::new();
        let mut sent = 0;
        while victim.transmit(now, &mut out) {
            sent += 1;
            assert!(sent < 1000, "it never stops sending");
            out.clear();
        }
        while let Some(event) = victim.take_event() {
            if let Event::Message(message) = event {
                assert!(message.len() <= MAX_MESSAGE as usize);
            }
        }
        let _ = victim.deadline();
    }
});
