//! Messages, requests and streams arrive whole and in order.

use super::*;
use longma_channel::{Error, Incoming, Kind};
use proptest::prelude::*;
use std::io::{Read, Write};

fn bytes(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) ^ (at >> 8) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn messages_of_any_length_arrive_whole_and_in_order(
        lengths in prop::collection::vec(prop_oneof![0usize..200, 0usize..70_000], 1..20),
        slot_bytes in [64u32..3000, 64u32..3000],
        receive_slots in [2u32..9, 2u32..9],
        send_slots in [1u32..5, 1u32..5],
        over in 0usize..2,
    ) {
        let side = |n: usize| Options {
            slot_bytes: slot_bytes[n], receive_slots: receive_slots[n], send_slots: send_slots[n], ..options()
        };
        let [mut client, mut server] = pair(&transports()[over], [side(0), side(1)]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (seed, &length) in lengths.iter().enumerate() {
                    client.send(&bytes(length, seed as u8)).unwrap();
                    // Every third message is also sent back.
                    if seed % 3 == 0 {
                        assert_eq!(client.receive().unwrap().unwrap().bytes, bytes(length, seed as u8));
                    }
                }
                client.close().unwrap();
            });
            for (seed, &length) in lengths.iter().enumerate() {
                let Incoming { kind, id, bytes: received } = server.receive().unwrap().unwrap();
                assert_eq!((kind, id), (Kind::Message, 0));
                assert!(received == bytes(length, seed as u8), "message {seed} of {length} bytes");
                if seed % 3 == 0 {
                    server.send(&received).unwrap();
                }
            }
            assert_eq!(server.receive().unwrap(), None);
            assert_eq!(server.receive().unwrap(), None, "the end stays");
        });
    }
}

#[test]
fn requests_are_answered_in_any_order() {
    for transports in transports() {
        let [mut client, mut server] = pair(&transports, [options(), small()]);
        let service = std::thread::spawn(move || {
            let first = server.receive().unwrap().unwrap();
            let second = server.receive().unwrap().unwrap();
            for request in [&second, &first] {
                server.respond(request, &[&request.bytes[..], b"!"].concat()).unwrap();
            }
            let third = server.receive().unwrap().unwrap();
            server.respond(&third, b"").unwrap();
            assert!(matches!(
                server.respond(&Incoming { kind: Kind::Message, ..third }, b""),
                Err(Error::InvalidCall(_))
            ));
            assert_eq!(server.receive().unwrap(), None);
        });
        let [one, two] = [b"one", b"two"].map(|request| client.start_request(request).unwrap());
        for (id, expected) in [(two, "two!"), (one, "one!")] {
            let response = client.receive().unwrap().unwrap();
            assert_eq!(
                (response.kind, response.id, &response.bytes[..]),
                (Kind::Response, id, expected.as_bytes())
            );
        }
        assert_eq!(client.call(&[7; 1000]).unwrap(), b"");
        drop(client);
        service.join().unwrap();
    }
}

#[test]
fn a_call_loses_nothing_that_arrives_before_its_response() {
    for transports in transports() {
        let [mut client, mut server] = pair(&transports, [options(), small()]);
        let service = std::thread::spawn(move || {
            server.send(&[5; 300]).unwrap();
            for _ in 0..3 {
                let request = server.receive().unwrap().unwrap();
                server.respond(&request, &request.bytes).unwrap();
                // A second response to the same request, which the client discards.
                server.respond(&request, &request.bytes).unwrap();
            }
            assert_eq!(server.receive().unwrap(), None);
        });
        let first = client.start_request(b"first").unwrap();
        assert_eq!(client.call(b"second").unwrap(), b"second");
        assert_eq!(client.receive().unwrap().unwrap().bytes, [5; 300]);
        let response = client.receive().unwrap().unwrap();
        assert_eq!((response.kind, response.id, &response.bytes[..]), (Kind::Response, first, &b"first"[..]));
        assert_eq!(client.call(b"third").unwrap(), b"third");
        client.set_timeout(Some(Duration::from_millis(20)));
        assert!(matches!(client.receive(), Err(Error::TimedOut)));
        client.close().unwrap();
        service.join().unwrap();
    }
}

#[test]
fn the_response_to_an_abandoned_call_is_discarded() {
    let [mut client, mut server] = shared([options(); 2]);
    client.set_timeout(Some(Duration::from_millis(500)));
    assert!(matches!(client.call(b"late"), Err(Error::TimedOut)));
    client.set_timeout(Some(TIMEOUT));
    let request = server.receive().unwrap().unwrap();
    server.respond(&request, b"too late").unwrap();
    server.send(b"next").unwrap();
    assert_eq!(client.receive().unwrap().unwrap().bytes, b"next");
}

#[test]
fn streams_carry_bytes_both_ways_until_each_side_finishes() {
    for transports in transports() {
        let ends = pair(&transports, [Options { slot_bytes: 100, ..options() }, options()]);
        let [mut client, mut server] = ends.map(Connection::into_stream);
        let sent = bytes(1_000_000, 3);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                client.write_all(&sent).unwrap();
                client.finish().unwrap();
                assert!(client.write(b"x").is_err(), "nothing can be written after the end");
                let mut answer = String::new();
                client.read_to_string(&mut answer).unwrap();
                assert_eq!(answer, "received");
            });
            let mut received: Vec<u8> = Vec::new();
            // Read pieces of an odd length, which end within frames.
            let mut piece = [0; 333];
            loop {
                match server.read(&mut piece).unwrap() {
                    0 => break,
                    length => received.extend(&piece[..length]),
                }
            }
            assert!(received == sent);
            server.write_all(b"received").unwrap();
            let statistics = server.connection().statistics();
            assert_eq!((statistics.bytes_received, statistics.bytes_sent), (1_000_000, 8));
            server.close().unwrap();
        });
    }
}

#[test]
fn a_receiver_that_does_not_receive_stops_its_sender() {
    let [mut client, mut server] = shared([options(), small()]);
    client.set_timeout(Some(Duration::from_millis(500)));
    let mut sent = 0;
    let error = loop {
        match client.send(&[sent; 48]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent <= 3, "there are three slots");
    };
    assert!(matches!(error, Error::TimedOut), "{error}");
    assert_eq!((sent, client.statistics().credit_waits), (3, 1));
    assert_eq!(server.receive().unwrap().unwrap().bytes, [0; 48]);
    assert_eq!(server.receive().unwrap().unwrap().bytes, [1; 48]);
    // A message of one part can be sent again after a timeout.
    client.set_timeout(Some(TIMEOUT));
    client.send(&[3; 48]).unwrap();
    for expected in [2, 3] {
        assert_eq!(server.receive().unwrap().unwrap().bytes, [expected; 48]);
    }
}

#[test]
fn a_message_given_up_in_the_middle_is_the_last_one() {
    let [mut client, mut server] = shared([options(), small()]);
    client.set_timeout(Some(Duration::from_millis(500)));
    assert!(matches!(client.send(&[1; 1000]), Err(Error::TimedOut)));
    assert!(matches!(client.send(&[1; 1]), Err(Error::Abandoned)));
    drop(client);
    assert!(matches!(server.receive(), Err(Error::Protocol(_))), "half a message is not a message");
}

#[test]
fn options_outside_of_their_range_are_refused() {
    let transport = Transport::shared_memory().unwrap();
    for options in [
        Options { slot_bytes: 63, ..options() },
        Options { slot_bytes: u32::MAX, ..options() },
        Options { receive_slots: 1, ..options() },
        Options { receive_slots: 1001, ..options() },
        Options { send_slots: 0, ..options() },
    ] {
        assert!(matches!(transport.listen(name(), options), Err(Error::InvalidOption { .. })), "{options:?}");
        let refused = transport.connect(&Address::local(name()), options);
        assert!(matches!(refused, Err(Error::InvalidOption { .. })), "{options:?}");
    }
    for options in [
        Options { slot_bytes: 64, receive_slots: 2, send_slots: 1, ..options() },
        Options { slot_bytes: 1 << 20, receive_slots: 1000, send_slots: 1000, ..options() },
    ] {
        let [mut client, mut server] = shared([options; 2]);
        std::thread::scope(|scope| {
            scope.spawn(|| client.send(&[9; 5000]).unwrap());
            assert_eq!(server.receive().unwrap().map(|message| message.bytes.len()), Some(5000));
        });
    }
}
