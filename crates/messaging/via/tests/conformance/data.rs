//! Messages arrive as they were sent. Source: VIA, "Send/Receive", "Descriptor Processing Model", "Format of a
//! Descriptor", "Reliability Levels".

use crate::bed::*;
use crate::{Case, Levels};
use longma_via::*;

pub const CASES: &[Case] = &[
    Case {
        section: "Send/Receive",
        claim: "messages of every size arrive complete, with their length",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            let max_bytes = (client.nic.attributes().max_transfer_bytes as usize).min(MEMORY_BYTES);
            for size in [
                1, 2, 7, 8, 16, 40, 47, 48, 49, 64, 100, 1471, 1472, 1473, 4096, 8192, 9000, 16384, 16385,
                32768, max_bytes,
            ] {
                let bytes = pattern(size, size);
                client.fill(0, &bytes);
                server.fill(0, &vec![0; size]);
                server.receive_into(0, MEMORY_BYTES);
                client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, size)])).unwrap();
                let received = server.collect_receive(&client);
                assert!(received.is_success(), "{size}: {received:?}");
                assert_eq!((received.length as usize, received.operation), (size, Operation::Receive));
                assert!(server.bytes(0, size) == bytes, "{size} bytes differ");
                let sent = until([&client.vi, &server.vi], "the send", || client.vi.send_done());
                assert!(sent.is_success());
                assert_eq!((sent.length as usize, sent.operation), (size, Operation::Send));
            }
        },
    },
    Case {
        section: "Send/Receive",
        claim: "an empty message consumes a receive descriptor",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            server.receive_into(0, 8);
            client.vi.post_send(&Descriptor::send(&[])).unwrap();
            let received = server.collect_receive(&client);
            assert!(received.is_success() && received.length == 0);
        },
    },
    Case {
        section: "Send/Receive",
        claim: "messages arrive and complete on both sides in the order in which they were posted",
        levels: Levels::Reliable,
        check: |bed| {
            let (server, client) = bed.pair();
            let count = 300u64;
            for index in 0..count {
                let segment = [server.memory.segment(index as usize * 8, 8)];
                server.vi.post_receive(&Descriptor::receive(&segment).with_context(index)).unwrap();
            }
            for index in 0..count {
                client.fill(index as usize * 8, &index.to_le_bytes());
                let segment = [client.memory.segment(index as usize * 8, 8)];
                client.vi.post_send(&Descriptor::send(&segment).with_context(index)).unwrap();
            }
            for index in 0..count {
                assert_eq!(server.collect_receive(&client).context, index);
                assert_eq!(server.bytes(index as usize * 8, 8), index.to_le_bytes());
            }
            for index in 0..count {
                let sent = until([&client.vi, &server.vi], "a send", || client.vi.send_done());
                assert!(sent.is_success() && sent.context == index);
            }
        },
    },
    Case {
        section: "Send/Receive",
        claim: "interleaved large and small messages keep their order",
        levels: Levels::Reliable,
        check: |bed| {
            let (server, client) = bed.pair();
            let sizes = [8, 30_000, 1, 20_000, 48, 9000, 17_000, 3];
            let bytes = pattern(MEMORY_BYTES, 3);
            client.fill(0, &bytes);
            for (index, size) in sizes.iter().enumerate() {
                server.receive_into(index * 8192 * 4, *size);
                client.vi.post_send(&Descriptor::send(&[client.memory.segment(index, *size)])).unwrap();
            }
            for (index, size) in sizes.iter().enumerate() {
                let received = server.collect_receive(&client);
                assert!(received.is_success() && received.length as usize == *size, "{index}: {received:?}");
                assert!(
                    server.bytes(index * 8192 * 4, *size) == bytes[index..index + size],
                    "message {index} differs"
                );
            }
        },
    },
    Case {
        section: "Format of a Descriptor: data segments",
        claim: "several segments are gathered and scattered in order",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            for scale in [1, 60, 700, 3000] {
                let bytes = pattern(30 * scale, scale);
                client.fill(0, &bytes);
                server.fill(0, &vec![0; MEMORY_BYTES]);
                let from: Vec<_> = [(0, 5), (5, 0), (5, 10), (15, 15)]
                    .map(|(at, length)| client.memory.segment(at * scale, length * scale))
                    .to_vec();
                let to = [
                    server.memory.segment(100_000, 7 * scale),
                    server.memory.segment(0, 20 * scale),
                    server.memory.segment(200_000, 9 * scale),
                ];
                server.vi.post_receive(&Descriptor::receive(&to)).unwrap();
                client.vi.post_send(&Descriptor::send(&from)).unwrap();
                let received = server.collect_receive(&client);
                assert!(received.is_success(), "{received:?}");
                let mut got = server.bytes(100_000, 7 * scale);
                got.extend(server.bytes(0, 20 * scale));
                got.extend(server.bytes(200_000, 3 * scale));
                assert!(got == bytes, "scale {scale}");
                until([&client.vi, &server.vi], "the send", || client.vi.send_done());
            }
        },
    },
    Case {
        section: "Format of a Descriptor: data segments",
        claim: "a descriptor can have the NIC's maximum number of segments, and one more is a format error",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            let max = client.nic.attributes().max_segments_per_descriptor as usize;
            client.fill(0, &pattern(max, 1));
            let many: Vec<_> = (0..=max).map(|index| client.memory.segment(index, 1)).collect();
            server.receive_into(0, MEMORY_BYTES);
            client.vi.post_send(&Descriptor::send(&many[..max])).unwrap();
            assert_eq!(server.collect_receive(&client).length as usize, max);
            assert_eq!(server.bytes(0, max), pattern(max, 1));
            until([&client.vi, &server.vi], "the send", || client.vi.send_done());
            let sent = client.post_and_collect(&server, &Descriptor::send(&many));
            assert!(sent.status.contains(Status::FORMAT_ERROR), "{sent:?}");
            client.await_state(&server, ViState::Error);
        },
    },
    Case {
        section: "Format of a Descriptor: data segments",
        claim: "an inconsistent receive descriptor completes with a format error when it is processed, and breaks the connection",
        levels: Levels::Reliable,
        check: |bed| {
            let (server, client) = bed.pair();
            let max = server.nic.attributes().max_segments_per_descriptor as usize;
            server.receive_into(0, 64);
            let segments = vec![server.memory.segment(0, 1); max + 1];
            server.vi.post_receive(&Descriptor::receive(&segments)).unwrap();
            assert!(server.vi.receive_done().is_none());
            assert_eq!(server.vi.state(), ViState::Connected);
            client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 8)])).unwrap();
            assert!(server.collect_receive(&client).is_success());
            let failed = server.collect_receive(&client);
            assert_eq!(failed.status, Status::DONE.with(Status::FORMAT_ERROR));
            server.await_state(&client, ViState::Error);
            assert_eq!(server.error(&client).code, ErrorCode::PostDescriptor);
        },
    },
    Case {
        section: "Format of a Descriptor: immediate data",
        claim: "immediate data arrives in the receive's completion, and only for messages that carry it",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            (0..2).for_each(|_| server.receive_into(0, 64));
            let segment = [client.memory.segment(0, 12)];
            client.vi.post_send(&Descriptor::send(&segment).with_immediate(0xdead_beef)).unwrap();
            let received = server.collect_receive(&client);
            assert_eq!(received.immediate, Some(0xdead_beef));
            assert!(received.status.contains(Status::IMMEDIATE));
            client.vi.post_send(&Descriptor::send(&segment)).unwrap();
            let received = server.collect_receive(&client);
            assert_eq!(received.immediate, None);
            assert!(!received.status.contains(Status::IMMEDIATE));
        },
    },
    Case {
        section: "Format of a Descriptor: length",
        claim: "a send longer than the connection's maximum transfer size is a length error and is not sent",
        levels: Levels::All,
        check: |bed| {
            let (server, client) =
                bed.pair_like(|attributes| ViAttributes { max_transfer_bytes: 1000, ..attributes });
            server.receive_into(0, 4096);
            client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 1000)])).unwrap();
            assert_eq!(server.collect_receive(&client).length, 1000);
            until([&client.vi, &server.vi], "the send", || client.vi.send_done());
            let sent = client.post_and_collect(&server, &Descriptor::send(&[client.memory.segment(0, 1001)]));
            assert!(sent.status.contains(Status::LENGTH_ERROR), "{sent:?}");
        },
    },
    Case {
        section: "Descriptor Processing Model: posting",
        claim: "a work queue holds the NIC's maximum number of descriptors, and refuses more",
        levels: Levels::Once,
        check: |bed| {
            let side = bed.side();
            let max = side.nic.attributes().max_descriptors_per_queue as usize;
            let segment = [side.memory.segment(0, 8)];
            for _ in 0..max {
                side.vi.post_receive(&Descriptor::receive(&segment)).unwrap();
            }
            assert!(matches!(side.vi.post_receive(&Descriptor::receive(&segment)), Err(Error::Resource(_))));
        },
    },
    Case {
        section: "Descriptor Processing Model: posting",
        claim: "a send descriptor is refused by the receive queue, and a receive descriptor by the send queue",
        levels: Levels::Once,
        check: |bed| {
            let side = bed.side();
            let segment = [side.memory.segment(0, 8)];
            let refused = side.vi.post_send(&Descriptor::receive(&segment));
            assert!(matches!(refused, Err(Error::InvalidParameter(_))));
            let refused = side.vi.post_receive(&Descriptor::send(&segment));
            assert!(matches!(refused, Err(Error::InvalidParameter(_))));
        },
    },
    Case {
        section: "Reliability Levels: unreliable delivery",
        claim: "a message without a receive descriptor is lost, and the connection stays open",
        levels: Levels::Only(Reliability::Unreliable),
        check: |bed| {
            let (server, client) = bed.pair();
            let segment = [client.memory.segment(0, 8)];
            client.fill(0, b"message1");
            assert!(client.post_and_collect(&server, &Descriptor::send(&segment)).is_success());
            for _ in 0..200 {
                server.vi.progress();
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
            server.receive_into(0, 8);
            client.fill(0, b"message2");
            assert!(client.post_and_collect(&server, &Descriptor::send(&segment)).is_success());
            assert!(server.collect_receive(&client).is_success());
            assert_eq!(server.bytes(0, 8), b"message2");
            assert_eq!(server.vi.state(), ViState::Connected);
        },
    },
    Case {
        section: "Reliability Levels: unreliable delivery",
        claim: "a message longer than its receive descriptor is a length error at the receiver, and the connection stays open",
        levels: Levels::Only(Reliability::Unreliable),
        check: |bed| {
            let (server, client) = bed.pair();
            (0..2).for_each(|_| server.receive_into(0, 8));
            let sent = client.post_and_collect(&server, &Descriptor::send(&[client.memory.segment(0, 9)]));
            assert!(sent.is_success());
            assert!(server.collect_receive(&client).status.contains(Status::LENGTH_ERROR));
            assert_eq!(server.bytes(0, 9), [0; 9]);
            client.post_and_collect(&server, &Descriptor::send(&[client.memory.segment(0, 8)]));
            assert!(server.collect_receive(&client).is_success());
        },
    },
    Case {
        section: "Reliability Levels: reliable delivery",
        claim: "a message longer than its receive descriptor is a length error at the receiver, and the connection breaks on both sides",
        levels: Levels::Reliable,
        check: |bed| {
            let (server, client) = bed.pair();
            server.receive_into(0, 8);
            client.fill(0, &[1; 9]);
            client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 9)])).unwrap();
            assert!(server.collect_receive(&client).status.contains(Status::LENGTH_ERROR));
            assert_eq!(server.bytes(0, 9), [0; 9]);
            server.await_state(&client, ViState::Error);
            client.await_state(&server, ViState::Error);
        },
    },
    Case {
        section: "Reliability Levels: reliable reception",
        claim: "a send completes only when its data is in the receiver's memory",
        levels: Levels::Only(Reliability::ReliableReception),
        check: |bed| {
            let (server, client) = bed.pair();
            for size in [8, 5000, 100_000] {
                let bytes = pattern(size, size);
                client.fill(0, &bytes);
                server.fill(0, &vec![0; size]);
                server.receive_into(0, size);
                let sent =
                    client.post_and_collect(&server, &Descriptor::send(&[client.memory.segment(0, size)]));
                assert!(sent.is_success());
                // The data is in place without any further poll by the receiver.
                assert!(server.bytes(0, size) == bytes, "{size}");
                server.collect_receive(&client);
            }
        },
    },
    Case {
        section: "Reliability Levels: reliable reception",
        claim: "a send that the receiver could not accept completes with a remote descriptor error",
        levels: Levels::Only(Reliability::ReliableReception),
        check: |bed| {
            let (server, client) = bed.pair();
            server.receive_into(0, 8);
            let sent = client.post_and_collect(&server, &Descriptor::send(&[client.memory.segment(0, 9)]));
            assert!(sent.status.contains(Status::REMOTE_DESCRIPTOR_ERROR), "{sent:?}");
            let (server, client) = bed.pair();
            let sent = client.post_and_collect(&server, &Descriptor::send(&[client.memory.segment(0, 9)]));
            assert!(sent.status.contains(Status::REMOTE_DESCRIPTOR_ERROR), "{sent:?}");
        },
    },
];
