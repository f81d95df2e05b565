//! Asynchronous errors. Source: VIA, "Error Handling", asynchronous errors; VIPL, VipErrorCallback.

use crate::bed::*;
use crate::{Case, Levels};
use longma_via::*;

pub const CASES: &[Case] = &[
    Case {
        section: "Error Handling: asynchronous errors",
        claim: "a message without a receive descriptor breaks a reliable connection, and both sides get an error",
        levels: Levels::Reliable,
        check: |bed| {
            let (server, client) = bed.pair();
            client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 8)])).unwrap();
            let error = server.error(&client);
            assert_eq!((error.code, error.vi), (ErrorCode::ReceiveQueueEmpty, Some(server.vi.number())));
            assert_eq!(error.resource, Resource::Vi);
            server.await_state(&client, ViState::Error);
            client.await_state(&server, ViState::Error);
            assert_eq!(client.error(&server).code, ErrorCode::ConnectionLost);
        },
    },
    Case {
        section: "Error Handling: asynchronous errors",
        claim: "a forbidden remote write or read is reported to the side that owns the memory",
        levels: Levels::RdmaRead,
        check: |bed| {
            let (server, client) = bed.pair();
            let local = server.nic.allocate(64, MemoryAttributes::local(server.tag)).unwrap();
            let segment = [client.memory.segment(0, 8)];
            client.vi.post_send(&Descriptor::rdma_write(&segment, local.remote(0))).unwrap();
            assert_eq!(server.error(&client).code, ErrorCode::RdmaWriteProtection);
            let (server, client) = bed.pair();
            let local = server.nic.allocate(64, MemoryAttributes::local(server.tag)).unwrap();
            let segment = [client.memory.segment(0, 8)];
            client.vi.post_send(&Descriptor::rdma_read(&segment, local.remote(0))).unwrap();
            assert_eq!(server.error(&client).code, ErrorCode::RdmaReadProtection);
        },
    },
    Case {
        section: "Error Handling: asynchronous errors",
        claim: "an overflow of a completion queue is reported, and the VI enters the error state",
        levels: Levels::All,
        check: |bed| {
            let (side, client) = (bed.side(), bed.side());
            let queue = side.nic.create_completion_queue(2).unwrap();
            let vi = side.nic.create_vi(bed.attributes(side.tag), None, Some(&queue)).unwrap();
            bed.connect((&side.nic, &vi), &client.vi);
            let segment = [side.memory.segment(0, 8)];
            (0..3).for_each(|_| vi.post_receive(&Descriptor::receive(&segment)).unwrap());
            for _ in 0..3 {
                client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 8)])).unwrap();
                until([&vi, &client.vi], "a send", || client.vi.send_done());
                vi.progress();
            }
            let error = until([&vi, &client.vi], "an error", || side.errors.try_recv().ok());
            assert_eq!((error.code, error.vi), (ErrorCode::ViOverrun, Some(vi.number())));
            assert_eq!(vi.state(), ViState::Error);
        },
    },
    Case {
        section: "Error Handling: flushing",
        claim: "descriptors after a failed one are flushed, and earlier ones are not",
        levels: Levels::Reliable,
        check: |bed| {
            let (server, client) = bed.pair();
            (0..2).for_each(|_| server.receive_into(0, 8));
            client.receive_into(64, 8);
            let good = [client.memory.segment(0, 8)];
            let bad = [client.memory.segment(MEMORY_BYTES, 8)];
            assert!(client.post_and_collect(&server, &Descriptor::send(&good)).is_success());
            client.vi.post_send(&Descriptor::send(&bad)).unwrap();
            client.vi.post_send(&Descriptor::send(&good)).unwrap();
            let collect = || until([&client.vi, &server.vi], "a completion", || client.vi.send_done());
            assert!(collect().status.contains(Status::PROTECTION_ERROR));
            assert!(collect().status.contains(Status::FLUSHED));
            assert!(client.vi.receive_done().unwrap().status.contains(Status::FLUSHED));
            assert!(server.collect_receive(&client).is_success());
        },
    },
];
