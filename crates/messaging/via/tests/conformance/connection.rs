//! VIs, their states, connecting and disconnecting. Source: VIA, "Creating and Destroying VIs", "VI States", "VI
//! Connection and Disconnection".

use crate::bed::*;
use crate::{Case, Levels};
use longma_via::*;
use std::time::{Duration, Instant};

pub const CASES: &[Case] = &[
    Case {
        section: "Creating and Destroying VIs",
        claim: "a new VI is idle, has empty queues and reports its attributes",
        levels: Levels::All,
        check: |bed| {
            let side = bed.side();
            assert_eq!(side.vi.state(), ViState::Idle);
            assert_eq!(side.vi.queues_empty(), (true, true));
            assert_eq!(side.vi.attributes().reliability, bed.level);
            assert_eq!(side.vi.attributes().tag, side.tag);
        },
    },
    Case {
        section: "Creating and Destroying VIs",
        claim: "attributes that the NIC does not support are refused, and the error names them",
        levels: Levels::All,
        check: |bed| {
            let nic = bed.open();
            let tag = nic.create_protection_tag().unwrap();
            let max_bytes = nic.attributes().max_transfer_bytes;
            let long = ViAttributes { max_transfer_bytes: max_bytes + 1, ..bed.attributes(tag) };
            assert!(matches!(nic.create_vi(long, None, None), Err(Error::InvalidTransferSize(_))));
            if !nic.attributes().rdma_read.contains(&bed.level) {
                let reading = ViAttributes { rdma_read: true, ..bed.attributes(tag) };
                assert!(matches!(nic.create_vi(reading, None, None), Err(Error::InvalidRdmaRead(_))));
            }
        },
    },
    Case {
        section: "Creating and Destroying VIs",
        claim: "attributes can be changed only in the idle state",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            let changed = ViAttributes { max_transfer_bytes: 4096, ..client.vi.attributes() };
            assert!(matches!(client.vi.set_attributes(changed), Err(Error::InvalidState(_))));
            client.vi.disconnect().unwrap();
            client.vi.set_attributes(changed).unwrap();
            assert_eq!(client.vi.attributes().max_transfer_bytes, 4096);
            drop(server);
        },
    },
    Case {
        section: "VI States: Idle",
        claim: "a send posted to an idle VI is flushed",
        levels: Levels::All,
        check: |bed| {
            let side = bed.side();
            side.vi.post_send(&Descriptor::send(&[side.memory.segment(0, 8)])).unwrap();
            assert!(side.vi.send_done().unwrap().status.contains(Status::FLUSHED));
            assert_eq!(side.vi.state(), ViState::Idle);
        },
    },
    Case {
        section: "VI States: Idle",
        claim: "a receive posted to an idle VI is pending and takes a message once connected",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = (bed.side(), bed.side());
            server.receive_into(0, 64);
            assert!(server.vi.receive_done().is_none());
            bed.connect((&server.nic, &server.vi), &client.vi);
            client.fill(0, b"early bird");
            client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 10)])).unwrap();
            assert!(server.collect_receive(&client).is_success());
            assert_eq!(server.bytes(0, 10), b"early bird");
        },
    },
    Case {
        section: "VI States: Connected",
        claim: "a VI can connect only from the idle state",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            assert_eq!((server.vi.state(), client.vi.state()), (ViState::Connected, ViState::Connected));
            let again = client.vi.connect(&Address::local("x"), &bed.address(&server.nic, "y"), TIMEOUT);
            assert!(matches!(again, Err(Error::InvalidState(_))));
            assert_eq!(client.vi.state(), ViState::Connected);
        },
    },
    Case {
        section: "VI States: Error",
        claim: "in the error state all posted descriptors are flushed; after a disconnect the VI is idle and can connect again",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            client.vi.disconnect().unwrap();
            server.await_state(&client, ViState::Error);
            server.receive_into(0, 8);
            server.vi.post_send(&Descriptor::send(&[server.memory.segment(0, 8)])).unwrap();
            assert!(server.vi.receive_done().unwrap().status.contains(Status::FLUSHED));
            assert!(server.vi.send_done().unwrap().status.contains(Status::FLUSHED));
            server.vi.disconnect().unwrap();
            assert_eq!(server.vi.state(), ViState::Idle);
            bed.connect((&server.nic, &server.vi), &client.vi);
            server.receive_into(0, 64);
            client.fill(0, b"again");
            client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 5)])).unwrap();
            assert!(server.collect_receive(&client).is_success());
        },
    },
    Case {
        section: "VI Connection: client and server",
        claim: "each side learns the attributes of the other's VI, and the server learns the client's address",
        levels: Levels::All,
        check: |bed| {
            let server = bed.side_like(|attributes| ViAttributes { max_transfer_bytes: 8192, ..attributes });
            let client = bed.side_like(|attributes| ViAttributes { max_transfer_bytes: 16384, ..attributes });
            let name = bed.fresh();
            let remote = bed.address(&server.nic, &name);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let request = server.nic.connect_wait(&Address::local(&name), TIMEOUT).unwrap();
                    assert_eq!(request.remote().discriminator, b"client");
                    assert_eq!(request.remote_attributes().max_transfer_bytes, 16384);
                    assert_eq!(request.remote_attributes().reliability, bed.level);
                    request.accept(&server.vi).unwrap();
                });
                assert_eq!(connect_patiently(&client.vi, &remote).unwrap().max_transfer_bytes, 8192);
            });
        },
    },
    Case {
        section: "VI Connection: client and server",
        claim: "a server can reject a request; the client's VI is idle afterwards",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = (bed.side(), bed.side());
            let name = bed.fresh();
            let remote = bed.address(&server.nic, &name);
            std::thread::scope(|scope| {
                scope.spawn(|| server.nic.connect_wait(&Address::local(&name), TIMEOUT).unwrap().reject());
                assert!(matches!(connect_patiently(&client.vi, &remote), Err(Error::Rejected)));
            });
            assert_eq!((server.vi.state(), client.vi.state()), (ViState::Idle, ViState::Idle));
        },
    },
    Case {
        section: "VI Connection: client and server",
        claim: "a connection request without a waiting server fails with no match, and waiting without a client times out",
        levels: Levels::Once,
        check: |bed| {
            let (server, client) = (bed.side(), bed.side());
            let nowhere = bed.address(&server.nic, &bed.fresh());
            let limit = Some(Duration::from_millis(500));
            let asked = client.vi.connect(&Address::local("client"), &nowhere, limit);
            assert!(matches!(asked, Err(Error::NoMatch(_))), "{asked:?}");
            assert_eq!(client.vi.state(), ViState::Idle);
            let begin = Instant::now();
            let waited =
                server.nic.connect_wait(&Address::local(bed.fresh()), Some(Duration::from_millis(50)));
            assert!(matches!(waited, Err(Error::Timeout)));
            assert!(begin.elapsed() >= Duration::from_millis(50));
        },
    },
    Case {
        section: "VI Connection: client and server",
        claim: "a client whose server does not answer times out and is idle",
        levels: Levels::Once,
        check: |bed| {
            let (server, client) = (bed.side(), bed.side());
            let name = bed.fresh();
            // The server listens but does not accept.
            let _ = server.nic.connect_wait(&Address::local(&name), Some(Duration::from_millis(1)));
            let remote = bed.address(&server.nic, &name);
            let asked =
                client.vi.connect(&Address::local("client"), &remote, Some(Duration::from_millis(100)));
            assert!(matches!(asked, Err(Error::Timeout | Error::NoMatch(_))), "{asked:?}");
            assert_eq!(client.vi.state(), ViState::Idle);
        },
    },
    Case {
        section: "VI Connection: reliability",
        claim: "VIs of different reliability levels cannot connect",
        levels: Levels::Once,
        check: |bed| {
            let [one, .., other] = bed.open().attributes().reliability.clone()[..] else { return };
            let (server, client) = (bed.at(one).side(), bed.at(other).side());
            let name = bed.fresh();
            let remote = bed.address(&server.nic, &name);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let request = server.nic.connect_wait(&Address::local(&name), TIMEOUT).unwrap();
                    assert!(matches!(request.accept(&server.vi), Err(Error::InvalidReliability(_))));
                });
                assert!(connect_patiently(&client.vi, &remote).is_err());
            });
            assert_eq!((server.vi.state(), client.vi.state()), (ViState::Idle, ViState::Idle));
        },
    },
    Case {
        section: "VI Connection: peer to peer",
        claim: "two VIs that request each other are connected, in either order",
        levels: Levels::All,
        check: |bed| {
            let (one, two) = (bed.side(), bed.side());
            let (first, second) = (bed.fresh(), bed.fresh());
            let (to_one, to_two) = (bed.address(&one.nic, &first), bed.address(&two.nic, &second));
            std::thread::scope(|scope| {
                scope.spawn(|| one.vi.connect_peer(&Address::local(&first), &to_two, TIMEOUT).unwrap());
                std::thread::sleep(Duration::from_millis(5));
                two.vi.connect_peer(&Address::local(&second), &to_one, TIMEOUT).unwrap();
            });
            one.receive_into(0, 64);
            two.vi.post_send(&Descriptor::send(&[two.memory.segment(0, 3)])).unwrap();
            assert!(one.collect_receive(&two).is_success());
        },
    },
    Case {
        section: "VI Connection: peer to peer",
        claim: "a VI that requests a peer is in the connect-pending state, refuses other peers, and its request can be cancelled",
        levels: Levels::Once,
        check: |bed| {
            let (one, two, stranger) = (bed.side(), bed.side(), bed.side());
            // An Ethernet NIC does not reach itself, so the third VI has to be on the peer's NIC.
            let stranger_vi = two.nic.create_vi(bed.attributes(two.tag), None, None).unwrap();
            let (first, second) = (format!("a-{}", bed.fresh()), format!("b-{}", bed.fresh()));
            let (to_one, to_two) = (bed.address(&one.nic, &first), bed.address(&two.nic, &second));
            let waiting = one.vi.request_peer(&Address::local(&first), &to_two).unwrap();
            assert_eq!(one.vi.state(), ViState::ConnectPending);
            let again = one.vi.request_peer(&Address::local(&first), &to_two);
            assert!(matches!(again.map(|_| ()), Err(Error::InvalidState(_))));
            std::thread::scope(|scope| {
                let waiting = scope.spawn(move || waiting.finish(TIMEOUT));
                assert!(matches!(connect_patiently(&stranger_vi, &to_one), Err(Error::Rejected)));
                assert_eq!(one.vi.state(), ViState::ConnectPending);
                two.vi.connect_peer(&Address::local(&second), &to_one, TIMEOUT).unwrap();
                waiting.join().unwrap().unwrap();
            });
            assert_eq!((one.vi.state(), two.vi.state()), (ViState::Connected, ViState::Connected));
            drop(stranger.vi.request_peer(&Address::local(&second), &to_one).unwrap());
            assert_eq!(stranger.vi.state(), ViState::Idle);
        },
    },
    Case {
        section: "VI Disconnection",
        claim: "disconnecting flushes the local descriptors and makes the VI idle",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            client.receive_into(0, 8);
            client.receive_into(8, 8);
            client.vi.disconnect().unwrap();
            assert_eq!(client.vi.state(), ViState::Idle);
            for _ in 0..2 {
                assert!(client.vi.receive_done().unwrap().status.contains(Status::FLUSHED));
            }
            assert_eq!(client.vi.queues_empty(), (true, true));
            drop(server);
        },
    },
    Case {
        section: "VI Disconnection",
        claim: "when a VI disconnects, its peer enters the error state, its descriptors are flushed, and a lost connection is reported",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            server.receive_into(0, 8);
            client.vi.disconnect().unwrap();
            server.await_state(&client, ViState::Error);
            assert!(server.vi.receive_done().unwrap().status.contains(Status::FLUSHED));
            let error = server.error(&client);
            assert_eq!((error.code, error.vi), (ErrorCode::ConnectionLost, Some(server.vi.number())));
        },
    },
    Case {
        section: "VI Disconnection",
        claim: "messages sent before a disconnect arrive before it",
        levels: Levels::Reliable,
        check: |bed| {
            let (server, client) = bed.pair();
            (0..4).for_each(|index| server.receive_into(index * 64, 64));
            client.fill(0, b"last words");
            for _ in 0..4 {
                let sent =
                    client.post_and_collect(&server, &Descriptor::send(&[client.memory.segment(0, 10)]));
                assert!(sent.is_success());
            }
            client.vi.disconnect().unwrap();
            for _ in 0..4 {
                assert!(server.collect_receive(&client).is_success());
            }
        },
    },
];
