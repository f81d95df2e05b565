//! Completion: polling, waiting and notification. Source: VIA, "Completing Descriptors", "Completion Queues"; VIPL, the
//! done, wait and notify calls.

use crate::bed::*;
use crate::{Case, Levels};
use longma_via::*;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A minimal executor.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    let end = Instant::now() + TIME_LIMIT;
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        assert!(Instant::now() < end, "the future was not woken");
        std::thread::park_timeout(TIME_LIMIT);
    }
}

pub const CASES: &[Case] = &[
    Case {
        section: "Completing Descriptors: polling",
        claim: "polling a queue without completed descriptors returns nothing and removes nothing",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            assert!(server.vi.receive_done().is_none() && server.vi.send_done().is_none());
            server.receive_into(0, 8);
            assert!(server.vi.receive_done().is_none());
            assert_eq!(server.vi.queues_empty(), (true, false));
            client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 8)])).unwrap();
            server.collect_receive(&client);
            assert!(server.vi.receive_done().is_none());
            assert_eq!(server.vi.queues_empty(), (true, true));
        },
    },
    Case {
        section: "Completing Descriptors: waiting",
        claim: "waiting returns when a message arrives, and times out otherwise",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            let begin = Instant::now();
            let waited = server.vi.receive_wait(Some(Duration::from_millis(50)));
            assert!(matches!(waited, Err(Error::Timeout)));
            assert!(begin.elapsed() >= Duration::from_millis(50));
            for _ in 0..3 {
                server.receive_into(0, 8);
                std::thread::scope(|scope| {
                    scope.spawn(|| assert!(server.vi.receive_wait(TIMEOUT).unwrap().is_success()));
                    std::thread::sleep(Duration::from_millis(10));
                    client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 8)])).unwrap();
                    assert!(client.vi.send_wait(TIMEOUT).unwrap().is_success());
                });
            }
        },
    },
    Case {
        section: "Completing Descriptors: waiting",
        claim: "a waiting thread returns when the peer disconnects",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            server.receive_into(0, 8);
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| server.vi.receive_wait(TIMEOUT).unwrap());
                std::thread::sleep(Duration::from_millis(10));
                client.vi.disconnect().unwrap();
                assert!(waiting.join().unwrap().status.contains(Status::FLUSHED));
            });
        },
    },
    Case {
        section: "Completing Descriptors: notification",
        claim: "a message wakes the future of a completion",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            for _ in 0..3 {
                server.receive_into(0, 8);
                std::thread::scope(|scope| {
                    scope.spawn(|| assert!(block_on(server.vi.receive_completion()).unwrap().is_success()));
                    std::thread::sleep(Duration::from_millis(10));
                    client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 8)])).unwrap();
                    assert!(block_on(client.vi.send_completion()).unwrap().is_success());
                });
            }
        },
    },
    Case {
        section: "Completion Queues",
        claim: "a queue receives the completions of both work queues of several VIs, and identifies the work queue",
        levels: Levels::All,
        check: |bed| {
            let server = bed.side();
            let queue = server.nic.create_completion_queue(64).unwrap();
            let make =
                || server.nic.create_vi(bed.attributes(server.tag), Some(&queue), Some(&queue)).unwrap();
            let vis = [make(), make()];
            let clients = bed.sides_of_one_nic::<2>();
            for (vi, client) in vis.iter().zip(&clients) {
                bed.connect((&server.nic, vi), &client.vi);
            }
            for round in 0..6 {
                let (vi, client) = (&vis[round % 2], &clients[round % 2]);
                vi.post_receive(&Descriptor::receive(&[server.memory.segment(0, 8)])).unwrap();
                client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 8)])).unwrap();
                let notification = until([vi, &client.vi], "a notification", || queue.done());
                assert_eq!(notification, (vi.number(), Queue::Receive));
                assert!(vi.receive_done().unwrap().is_success());
                client.receive_into(0, 8);
                vi.post_send(&Descriptor::send(&[server.memory.segment(0, 8)])).unwrap();
                let notification = until([vi, &client.vi], "a notification", || queue.done());
                assert_eq!(notification, (vi.number(), Queue::Send));
                assert!(vi.send_done().unwrap().is_success());
                client.collect_receive(&server);
            }
            assert!(queue.done().is_none());
        },
    },
    Case {
        section: "Completion Queues",
        claim: "waiting on a queue returns for any of its VIs, and times out otherwise; its futures are woken",
        levels: Levels::All,
        check: |bed| {
            let server = bed.side();
            let queue = server.nic.create_completion_queue(16).unwrap();
            let make = || server.nic.create_vi(bed.attributes(server.tag), None, Some(&queue)).unwrap();
            let vis = [make(), make()];
            let clients = bed.sides_of_one_nic::<2>();
            for (vi, client) in vis.iter().zip(&clients) {
                bed.connect((&server.nic, vi), &client.vi);
                (0..2).for_each(|_| {
                    vi.post_receive(&Descriptor::receive(&[server.memory.segment(0, 8)])).unwrap()
                });
            }
            assert!(matches!(queue.wait(Some(Duration::from_millis(20))), Err(Error::Timeout)));
            for round in 0..4 {
                let (vi, client) = (&vis[round % 2], &clients[round % 2]);
                std::thread::scope(|scope| {
                    let notification = scope.spawn(|| match round {
                        0 | 1 => queue.wait(TIMEOUT).unwrap(),
                        _ => block_on(queue.notification()),
                    });
                    std::thread::sleep(Duration::from_millis(10));
                    client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 8)])).unwrap();
                    assert_eq!(notification.join().unwrap(), (vi.number(), Queue::Receive));
                });
                assert!(vi.receive_done().unwrap().is_success());
            }
        },
    },
    Case {
        section: "Completion Queues",
        claim: "a queue can be resized, but not below the number of its entries",
        levels: Levels::Once,
        check: |bed| {
            let nic = bed.open();
            let tag = nic.create_protection_tag().unwrap();
            let queue = nic.create_completion_queue(4).unwrap();
            let vi = nic.create_vi(bed.attributes(tag), Some(&queue), None).unwrap();
            (0..4).for_each(|_| vi.post_send(&Descriptor::send(&[])).unwrap());
            assert!(matches!(queue.resize(3), Err(Error::Resource(_))));
            queue.resize(8).unwrap();
            assert_eq!(queue.capacity(), 8);
            for _ in 0..4 {
                assert_eq!(queue.done(), Some((vi.number(), Queue::Send)));
            }
        },
    },
];
