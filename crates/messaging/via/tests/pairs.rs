//! Two VIs of one process over shared memory: every path of data, and its effects at the peer.
//!
//! Source: VIA.

use longma_via::*;
use std::time::Duration;

const SECOND: Option<Duration> = Some(Duration::from_secs(5));

struct Side {
    nic: Nic,
    tag: ProtectionTag,
    vi: Vi,
}

fn pair(name: &str, reliability: Reliability) -> (Side, Side) {
    let name = format!("pairs-{name}-{}", std::process::id());
    let side = || {
        let nic = Nic::open().unwrap();
        let tag = nic.create_protection_tag().unwrap();
        let vi = nic.create_vi(ViAttributes::new(tag).with_reliability(reliability), None, None).unwrap();
        Side { nic, tag, vi }
    };
    let (server, client) = (side(), side());
    std::thread::scope(|scope| {
        let (nic, vi, address) = (server.nic.clone(), &server.vi, Address::local(&name));
        scope.spawn(move || nic.connect_wait(&address, SECOND).unwrap().accept(vi).unwrap());
        let remote = Address::local(&name);
        while let Err(error) = client.vi.connect(&Address::local("client"), &remote, SECOND) {
            assert!(matches!(error, Error::NoMatch(_)), "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    (server, client)
}

#[test]
fn messages_of_every_size_arrive_whole_from_exported_and_private_memory() {
    for remote in [true, false] {
        let (server, client) = pair(&format!("sizes-{remote}"), Reliability::ReliableDelivery);
        let attributes =
            |tag| if remote { MemoryAttributes::remote(tag) } else { MemoryAttributes::local(tag) };
        let max_bytes = 1 << 20;
        let from = client.nic.allocate(max_bytes, attributes(client.tag)).unwrap();
        let to = server.nic.allocate(max_bytes, attributes(server.tag)).unwrap();
        let pattern: Vec<u8> = (0..max_bytes).map(|i| (i * 7 + i / 251) as u8).collect();
        from.write(0, &pattern);
        for size in [0, 1, 7, 8, 9, 40, 48, 49, 64, 1000, 4096, 8191, 8192, 16384, 16385, 100_000, 1 << 20] {
            to.write(0, &vec![0; max_bytes]);
            server.vi.post_receive(&Descriptor::receive(&[to.segment(0, max_bytes)])).unwrap();
            client
                .vi
                .post_send(&Descriptor::send(&[from.segment(0, size)]).with_immediate(size as u32))
                .unwrap();
            let received = loop {
                client.vi.send_done();
                if let Some(received) = server.vi.receive_done() {
                    break received;
                }
            };
            assert!(received.is_success(), "{size}: {received:?}");
            assert_eq!((received.length, received.immediate), (size as u32, Some(size as u32)));
            let mut got = vec![0; size];
            to.read(0, &mut got);
            assert!(got == pattern[..size], "{size} bytes differ");
        }
    }
}

#[test]
fn a_remote_write_and_a_remote_read_move_the_bytes_and_use_no_receive() {
    for level in [Reliability::ReliableDelivery, Reliability::ReliableReception] {
        let (server, client) = pair(&format!("rdma-{level:?}"), level);
        let target = server.nic.allocate(1 << 20, MemoryAttributes::remote(server.tag)).unwrap();
        let mut own = vec![0u8; 1 << 20];
        // SAFETY: `own` outlives `raw` and is read only after the region is dropped.
        let raw =
            unsafe { server.nic.register(own.as_mut_ptr(), own.len(), MemoryAttributes::remote(server.tag)) }
                .unwrap();
        let buffer = client.nic.allocate(1 << 20, MemoryAttributes::local(client.tag)).unwrap();
        let pattern: Vec<u8> = (0..1usize << 20).map(|i| (i * 13 + i / 509) as u8).collect();
        for size in [8, 32, 33, 5000, 16384, 16385, 1 << 20] {
            for remote in [target.remote(0), raw.remote(0)] {
                buffer.write(0, &pattern);
                let write = [buffer.segment(0, size)];
                client.vi.post_send(&Descriptor::rdma_write(&write, remote)).unwrap();
                assert!(client.vi.send_wait(SECOND).unwrap().is_success());
                buffer.write(0, &vec![0; size]);
                client.vi.post_send(&Descriptor::rdma_read(&write, remote)).unwrap();
                let read = client.vi.send_wait(SECOND).unwrap();
                assert!(read.is_success(), "{size} {read:?}");
                let mut got = vec![0; size];
                buffer.read(0, &mut got);
                assert!(got == pattern[..size], "{size} bytes differ");
            }
        }
        let mut got = vec![0; 1 << 20];
        target.read(0, &mut got);
        assert!(got == pattern);
        assert!(server.vi.receive_done().is_none());
        drop(raw);
        assert!(own == pattern);
    }
}

#[test]
fn a_receiver_that_sleeps_is_woken_by_a_message() {
    let (server, client) = pair("sleep", Reliability::ReliableReception);
    let from = client.nic.allocate(64, MemoryAttributes::local(client.tag)).unwrap();
    let to = server.nic.allocate(64, MemoryAttributes::local(server.tag)).unwrap();
    for _ in 0..5 {
        server.vi.post_receive(&Descriptor::receive(&[to.segment(0, 64)])).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(server.vi.receive_wait(SECOND).unwrap().is_success()));
            std::thread::sleep(Duration::from_millis(20));
            client.vi.post_send(&Descriptor::send(&[from.segment(0, 8)])).unwrap();
            assert!(client.vi.send_wait(SECOND).unwrap().is_success());
        });
    }
}

#[test]
fn disconnecting_moves_the_peer_to_the_error_state_and_flushes_it() {
    let (server, client) = pair("bye", Reliability::ReliableDelivery);
    let to = server.nic.allocate(64, MemoryAttributes::local(server.tag)).unwrap();
    server.vi.post_receive(&Descriptor::receive(&[to.segment(0, 64)])).unwrap();
    client.vi.disconnect().unwrap();
    assert_eq!(client.vi.state(), ViState::Idle);
    let flushed = server.vi.receive_wait(SECOND).unwrap();
    assert!(flushed.status.contains(Status::FLUSHED));
    assert_eq!(server.vi.state(), ViState::Error);
}

#[test]
fn a_sender_far_ahead_of_a_slow_receiver_loses_nothing_and_keeps_the_order() {
    let (server, client) = pair("ahead", Reliability::ReliableDelivery);
    let from = client.nic.allocate(64, MemoryAttributes::local(client.tag)).unwrap();
    let to = server.nic.allocate(8192, MemoryAttributes::local(server.tag)).unwrap();
    let (mut posted, mut sent, mut received) = (0u64, 0u64, 0u64);
    while received < 20_000 {
        while posted < received + 1000 {
            server
                .vi
                .post_receive(&Descriptor::receive(&[to.segment((posted % 1000) as usize * 8, 8)]))
                .unwrap();
            posted += 1;
        }
        while sent < posted {
            from.write(0, &sent.to_le_bytes());
            client.vi.post_send(&Descriptor::send(&[from.segment(0, 8)]).with_context(sent)).unwrap();
            // The buffer may be reused only when the send is complete; reusing it earlier would send other data.
            let mut rounds = 0;
            while client.vi.send_done().is_none() {
                if let Some(completion) = server.vi.receive_done() {
                    assert!(completion.is_success());
                    let mut bytes = [0; 8];
                    to.read((received % 1000) as usize * 8, &mut bytes);
                    assert_eq!(u64::from_le_bytes(bytes), received);
                    received += 1;
                }
                rounds += 1;
                assert!(rounds < 10_000, "posted {posted}, sent {sent}, received {received}");
            }
            sent += 1;
        }
        while let Some(completion) = server.vi.receive_done() {
            assert!(completion.is_success());
            let mut bytes = [0; 8];
            to.read((received % 1000) as usize * 8, &mut bytes);
            assert_eq!(u64::from_le_bytes(bytes), received);
            received += 1;
        }
        assert_eq!(received, sent, "posted {posted}");
    }
}
