//! Remote memory access: writes, reads, and protection. Source: VIA, "Remote Direct Memory Access", "Memory
//! Protection".

use crate::bed::*;
use crate::{Case, Levels};
use longma_via::*;

/// A region of `server` with the given access rights.
fn region(server: &Side, rdma_write: bool, rdma_read: bool) -> MemoryRegion {
    let region =
        server.nic.allocate(4096, MemoryAttributes { tag: server.tag, rdma_write, rdma_read }).unwrap();
    region.write(0, &[0x33; 4096]);
    region
}

fn assert_unchanged(region: &MemoryRegion) {
    let mut bytes = [0; 4096];
    region.read(0, &mut bytes);
    assert!(bytes == [0x33; 4096], "a refused write changed the memory");
}

/// Posts a descriptor that the target must refuse. Checks that both VIs enter the error state and, with reliable
/// reception, that the descriptor completes with a protection error.
fn assert_refused(server: &Side, client: &Side, descriptor: &Descriptor<'_>) {
    client.vi.post_send(descriptor).unwrap();
    server.await_state(client, ViState::Error);
    client.await_state(server, ViState::Error);
    let sent = until([&client.vi, &server.vi], "the completion", || client.vi.send_done());
    if client.vi.attributes().reliability == Reliability::ReliableReception {
        assert!(sent.status.contains(Status::RDMA_PROTECTION_ERROR), "{sent:?}");
    }
}

pub const CASES: &[Case] = &[
    Case {
        section: "RDMA Write",
        claim: "data is stored at the address that the writer gives, and no receive descriptor is consumed",
        levels: Levels::Reliable,
        check: |bed| {
            let (server, client) = bed.pair();
            server.receive_into(MEMORY_BYTES - 64, 64);
            for size in [1, 4, 8, 32, 33, 48, 4096, 16384, 16385, 100_000] {
                let bytes = pattern(size, size);
                client.fill(0, &bytes);
                server.fill(0, &vec![0; size + 64]);
                let segments = [client.memory.segment(0, size)];
                let write = Descriptor::rdma_write(&segments, server.memory.remote(16));
                let sent = client.post_and_collect(&server, &write);
                assert!(sent.is_success() && sent.length as usize == size, "{size}: {sent:?}");
                assert_eq!(sent.operation, Operation::RdmaWrite);
                until([&client.vi, &server.vi], "the store", || {
                    (server.bytes(16, size) == bytes).then_some(())
                });
                assert_eq!(server.bytes(0, 16), [0; 16]);
                assert_eq!(server.bytes(16 + size, 48), [0; 48]);
            }
            assert!(server.vi.receive_done().is_none());
        },
    },
    Case {
        section: "RDMA Write",
        claim: "data reaches memory that the target program allocated and registered",
        levels: Levels::Reliable,
        check: |bed| {
            let (server, client) = bed.pair();
            let mut own = vec![0u8; 70_000];
            // SAFETY: `own` outlives the region and is accessed only after the region is dropped.
            let region = unsafe {
                server.nic.register(own.as_mut_ptr(), own.len(), MemoryAttributes::remote(server.tag))
            };
            let region = region.unwrap();
            let bytes = pattern(70_000, 9);
            client.fill(0, &bytes);
            for (at, size) in [(0, 8), (8, 24), (32, 1000), (1032, 68_968)] {
                let segments = [client.memory.segment(at, size)];
                client.post_and_collect(&server, &Descriptor::rdma_write(&segments, region.remote(at)));
            }
            let mut got = vec![0; 70_000];
            until([&client.vi, &server.vi], "the stores", || {
                region.read(0, &mut got);
                (got == bytes).then_some(())
            });
            drop(region);
            assert!(own == bytes);
        },
    },
    Case {
        section: "RDMA Write",
        claim: "with immediate data a receive descriptor is consumed; it completes after the data is stored and reports its length",
        levels: Levels::Reliable,
        check: |bed| {
            let (server, client) = bed.pair();
            for size in [8, 5000, 40_000] {
                let bytes = pattern(size, size);
                client.fill(0, &bytes);
                server.receive_into(MEMORY_BYTES - 8, 8);
                let segments = [client.memory.segment(0, size)];
                let write = Descriptor::rdma_write(&segments, server.memory.remote(0)).with_immediate(42);
                client.vi.post_send(&write).unwrap();
                let received = server.collect_receive(&client);
                assert!(received.is_success(), "{received:?}");
                assert_eq!((received.operation, received.immediate), (Operation::RemoteRdmaWrite, Some(42)));
                assert_eq!(received.length as usize, size);
                assert!(server.bytes(0, size) == bytes);
                until([&client.vi, &server.vi], "the send", || client.vi.send_done());
            }
        },
    },
    Case {
        section: "RDMA Write",
        claim: "a message sent after a write arrives after the written data",
        levels: Levels::Reliable,
        check: |bed| {
            let (server, client) = bed.pair();
            for round in 0..200u64 {
                client.fill(0, &round.to_le_bytes());
                server.receive_into(64, 8);
                let segment = [client.memory.segment(0, 8)];
                client.vi.post_send(&Descriptor::rdma_write(&segment, server.memory.remote(0))).unwrap();
                client.vi.post_send(&Descriptor::send(&segment)).unwrap();
                assert!(server.collect_receive(&client).is_success());
                assert_eq!(server.bytes(0, 8), round.to_le_bytes());
                for _ in 0..2 {
                    until([&client.vi, &server.vi], "a send", || client.vi.send_done());
                }
            }
        },
    },
    Case {
        section: "RDMA Write",
        claim: "several segments are gathered into one write",
        levels: Levels::Reliable,
        check: |bed| {
            let (server, client) = bed.pair();
            client.fill(0, &pattern(1000, 5));
            let segments = [client.memory.segment(500, 100), client.memory.segment(0, 300)];
            client.post_and_collect(&server, &Descriptor::rdma_write(&segments, server.memory.remote(0)));
            let expected = [&pattern(1000, 5)[500..600], &pattern(1000, 5)[..300]].concat();
            until([&client.vi, &server.vi], "the store", || (server.bytes(0, 400) == expected).then_some(()));
        },
    },
    Case {
        section: "RDMA Read",
        claim: "data is read from the address that the reader gives, into several segments, without calls at the target",
        levels: Levels::RdmaRead,
        check: |bed| {
            let (server, client) = bed.pair();
            let bytes = pattern(100_000, 8);
            server.fill(0, &bytes);
            for (at, size) in [(0, 8), (3, 500), (1, 16384), (7, 99_000)] {
                let half = size / 2;
                let to = [client.memory.segment(0, half), client.memory.segment(120_000, size - half)];
                let read =
                    client.post_and_collect(&server, &Descriptor::rdma_read(&to, server.memory.remote(at)));
                assert!(read.is_success() && read.length as usize == size, "{read:?}");
                assert_eq!(read.operation, Operation::RdmaRead);
                let got = [client.bytes(0, half), client.bytes(120_000, size - half)].concat();
                assert!(got == bytes[at..at + size], "{size}");
            }
            assert!(server.vi.receive_done().is_none());
        },
    },
    Case {
        section: "RDMA Read",
        claim: "an empty read completes for any kind of memory, and the connection stays open",
        levels: Levels::RdmaRead,
        check: |bed| {
            let (server, client) = bed.pair();
            let mut own = vec![0u8; 4096];
            // SAFETY: the vector outlives the region, and no reference to its bytes exists as long as the region does.
            let region = unsafe {
                server.nic.register(own.as_mut_ptr(), own.len(), MemoryAttributes::remote(server.tag))
            }
            .unwrap();
            for remote in [server.memory.remote(0), region.remote(0)] {
                for segments in [&[][..], &[client.memory.segment(0, 0)]] {
                    let read = client.post_and_collect(&server, &Descriptor::rdma_read(segments, remote));
                    assert!(read.is_success() && read.length == 0, "{read:?}");
                }
                // After a message in each direction, everything sent before has arrived.
                for (from, to) in [(&client, &server), (&server, &client)] {
                    to.receive_into(0, 64);
                    let sent = from.post_and_collect(to, &Descriptor::send(&[from.memory.segment(0, 8)]));
                    assert!(sent.is_success() && to.collect_receive(from).is_success(), "{sent:?}");
                }
                assert_eq!(client.vi.state(), ViState::Connected);
            }
        },
    },
    Case {
        section: "RDMA Read",
        claim: "a read with immediate data is a format error",
        levels: Levels::RdmaRead,
        check: |bed| {
            let (server, client) = bed.pair();
            let segment = [client.memory.segment(0, 8)];
            let read = Descriptor::rdma_read(&segment, server.memory.remote(0)).with_immediate(1);
            assert!(client.post_and_collect(&server, &read).status.contains(Status::FORMAT_ERROR));
        },
    },
    Case {
        section: "RDMA Read",
        claim: "a read at a level without RDMA read is a format error",
        levels: Levels::Only(Reliability::Unreliable),
        check: |bed| {
            let (server, client) = bed.pair();
            let segment = [client.memory.segment(0, 8)];
            let read = Descriptor::rdma_read(&segment, server.memory.remote(0));
            assert!(client.post_and_collect(&server, &read).status.contains(Status::FORMAT_ERROR));
        },
    },
    Case {
        section: "Format of a Descriptor: queue fence",
        claim: "a fenced send is transmitted after all earlier reads have completed",
        levels: Levels::RdmaRead,
        check: |bed| {
            let (server, client) = bed.pair();
            server.fill(0, &pattern(50_000, 2));
            server.receive_into(200_000, 50_000);
            let buffer = [client.memory.segment(0, 50_000)];
            client.vi.post_send(&Descriptor::rdma_read(&buffer, server.memory.remote(0))).unwrap();
            client.vi.post_send(&Descriptor::send(&buffer).fenced()).unwrap();
            assert!(server.collect_receive(&client).is_success());
            assert!(server.bytes(200_000, 50_000) == pattern(50_000, 2));
        },
    },
    Case {
        section: "Memory Protection: RDMA",
        claim: "a write to memory without write permission changes nothing and breaks the connection; with reliable reception the writer gets an error",
        levels: Levels::Reliable,
        check: |bed| {
            for size in [8, 3000] {
                let (server, client) = bed.pair();
                let region = region(&server, false, true);
                let segment = [client.memory.segment(0, size)];
                assert_refused(&server, &client, &Descriptor::rdma_write(&segment, region.remote(0)));
                assert_unchanged(&region);
            }
        },
    },
    Case {
        section: "Memory Protection: RDMA",
        claim: "a write beyond the region, with another tag, or to deregistered memory changes nothing",
        levels: Levels::Reliable,
        check: |bed| {
            let segment_of = |client: &Side| [client.memory.segment(0, 16)];
            let (server, client) = bed.pair();
            let beyond = region(&server, true, true);
            assert_refused(
                &server,
                &client,
                &Descriptor::rdma_write(&segment_of(&client), beyond.remote(4088)),
            );
            assert_unchanged(&beyond);

            let (server, client) = bed.pair();
            let tag = server.nic.create_protection_tag().unwrap();
            let foreign = server.nic.allocate(4096, MemoryAttributes::remote(tag)).unwrap();
            foreign.write(0, &[0x33; 4096]);
            assert_refused(
                &server,
                &client,
                &Descriptor::rdma_write(&segment_of(&client), foreign.remote(0)),
            );
            assert_unchanged(&foreign);

            let (server, client) = bed.pair();
            let revoked = region(&server, true, true);
            let remote = revoked.remote(0);
            client.post_and_collect(&server, &Descriptor::rdma_write(&segment_of(&client), remote));
            drop(revoked);
            assert_refused(&server, &client, &Descriptor::rdma_write(&segment_of(&client), remote));
        },
    },
    Case {
        section: "Memory Protection: RDMA",
        claim: "a write through a VI without write permission changes nothing, even if the memory permits it",
        levels: Levels::Reliable,
        check: |bed| {
            let (server, client) =
                bed.pair_like(|attributes| ViAttributes { rdma_write: false, ..attributes });
            let region = region(&server, true, true);
            let segment = [client.memory.segment(0, 8)];
            assert_refused(&server, &client, &Descriptor::rdma_write(&segment, region.remote(0)));
            assert_unchanged(&region);
        },
    },
    Case {
        section: "Memory Protection: RDMA",
        claim: "after write permission is revoked, a write changes nothing",
        levels: Levels::Reliable,
        check: |bed| {
            let (server, client) = bed.pair();
            let mut region = region(&server, true, true);
            region.set_attributes(MemoryAttributes::local(server.tag)).unwrap();
            let segment = [client.memory.segment(0, 8)];
            assert_refused(&server, &client, &Descriptor::rdma_write(&segment, region.remote(0)));
            assert_unchanged(&region);
        },
    },
    Case {
        section: "Memory Protection: RDMA",
        claim: "a read of memory without read permission returns no data and breaks the connection",
        levels: Levels::RdmaRead,
        check: |bed| {
            for size in [8, 3000] {
                let (server, client) = bed.pair();
                let region = region(&server, true, false);
                let segment = [client.memory.segment(0, size)];
                client.vi.post_send(&Descriptor::rdma_read(&segment, region.remote(0))).unwrap();
                let read = until([&client.vi, &server.vi], "the read", || client.vi.send_done());
                assert!(read.status.is_error(), "{read:?}");
                assert_eq!(client.bytes(0, size), vec![0; size]);
                client.await_state(&server, ViState::Error);
            }
        },
    },
];
