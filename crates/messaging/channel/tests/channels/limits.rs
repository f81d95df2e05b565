//! Resources that connections use and release.

use super::*;
use longma_via::{Reliability, ViAttributes};

#[test]
fn a_connection_returns_its_protection_tag() {
    for [client, server] in transports() {
        let name = name();
        let listener = server.listen(&name, options()).unwrap();
        let all = client.nic().attributes().max_protection_tags;
        let to = address(&server, &name);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..20).for_each(|_| drop(listener.accept_within(Some(TIMEOUT)).unwrap())));
            for _ in 0..20 {
                drop(Transport::over(client.nic().clone()).connect(&to, options()).unwrap());
            }
        });
        let free = (0..=all).take_while(|_| client.nic().create_protection_tag().is_ok()).count();
        assert_eq!(free, all as usize);
    }
}

/// With one tag for all, each peer was shown the memory of all connections: n connections used n² mappings.
#[test]
fn connections_of_one_nic_do_not_show_each_other_s_memory() {
    let [client, server] = &transports()[0];
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let before = mappings();
    let connections: Vec<_> =
        (0..100).map(|_| pair(&[client.clone(), server.clone()], [small(), small()])).collect();
    let mapped = mappings();
    for [mut client, mut server] in connections {
        client.send(b"mine").unwrap();
        assert_eq!(server.receive().unwrap().unwrap().bytes, b"mine");
    }
    // The other tests that run at the same time have few mappings.
    assert!(mapped - before < 5000, "{mapped} mappings for 100 connections");
}

#[test]
fn the_longest_timeout_is_one() {
    let [mut client, mut server] = shared([Options::with_timeout(Duration::MAX); 2]);
    server.set_timeout(Some(Duration::MAX));
    client.send(b"x").unwrap();
    assert_eq!(server.receive().unwrap().unwrap().bytes, b"x");
    client.close().unwrap();
}

/// Clients that ask and give up, one after the other, while a listener waits.
#[test]
fn clients_that_give_up_do_not_prolong_a_wait() {
    let [client, server] = &transports()[0];
    let name = name();
    let listener = server.listen(&name, options()).unwrap();
    let (limit, is_over) = (Duration::from_millis(200), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let tag = client.nic().create_protection_tag().unwrap();
            while !is_over.load(Ordering::Relaxed) {
                // A reliability level that the listener does not have.
                let attributes =
                    ViAttributes { reliability: Reliability::ReliableReception, ..ViAttributes::new(tag) };
                let vi = client.nic().create_vi(attributes, None, None).unwrap();
                let to = address(server, &name);
                assert!(vi.connect(&Address::local("other"), &to, Some(TIMEOUT)).is_err());
            }
        });
        let begin = std::time::Instant::now();
        let accepted = listener.accept_within(Some(limit));
        is_over.store(true, Ordering::Relaxed);
        listener.close();
        assert!(matches!(accepted, Err(longma_channel::Error::TimedOut)));
        assert!(begin.elapsed() < 20 * limit);
    });
}
