//! Power cuts under a server: acknowledged changes, and values that a client has read, are durable. Failing flushes are
//! reported to clients.

mod support;

use longma_zoned::device::{Fault, FaultyDevice, Geometry};
use longma_zoned::{Durability, Options, Store};
use longma_zoned_server::{Limits, Settings};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::{Client, REPLY_TIMEOUT, Reply, Running};

const CLIENTS: usize = 4;

fn served(durability: Durability, sync_every: Option<Duration>) -> (Arc<FaultyDevice>, Running) {
    let device = Arc::new(FaultyDevice::new(Geometry::with_capacity(64 << 20)).unwrap());
    let options = Options { durability, ..Options::with_cache(1 << 20) };
    let map = Store::open_or_create(Arc::clone(&device), options).unwrap();
    let server = Running::with_map(Settings { sync_every, ..Settings::default() }, map);
    (device, server)
}

/// The number stored under a key after a power cut that loses all data that was not flushed.
fn after_a_cut(device: &FaultyDevice, keys: &[String]) -> Vec<u32> {
    let map = Store::open(device.cut().image_with_none(), Options::default()).unwrap();
    keys.iter().map(|key| map.get(key.as_bytes()).unwrap().map_or(0, |value| number(&value))).collect()
}

fn number(value: &[u8]) -> u32 {
    std::str::from_utf8(value).unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// Sets a key to rising numbers, some in transactions, some as values that are stored outside of leaves.
fn change(mut client: Client, key: &str, acknowledged: &AtomicU32, stop: &AtomicBool) {
    for round in 1.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let set = format!("SET {key} {round}");
        match round % 3 {
            0 => {
                client.ask("MULTI");
                client.ask(&set);
                assert_eq!(client.ask("EXEC"), Reply::Array(Some(vec![Reply::ok()])));
            }
            1 => assert_eq!(client.ask(&set), Reply::ok()),
            _ => {
                let large = format!("{round} {}", "x".repeat(5000));
                assert_eq!(client.ask_words(&["SET", key, &large]), Reply::ok());
            }
        }
        acknowledged.store(round, Ordering::SeqCst);
    }
}

#[test]
fn what_was_acknowledged_or_read_survives_a_power_cut() {
    let (device, server) = served(Durability::EachBatch, None);
    let keys: Vec<String> = (0..CLIENTS).map(|name| format!("key{name}")).collect();
    let acknowledged: Vec<AtomicU32> = keys.iter().map(|_| AtomicU32::new(0)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (key, acknowledged) in keys.iter().zip(&acknowledged) {
            let (client, stop) = (server.client(), &stop);
            scope.spawn(move || change(client, key, acknowledged, stop));
        }
        let mut reader = server.client();
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let mut cuts = 0;
        while cuts < 100 && Instant::now() < deadline {
            let sure: Vec<u32> = acknowledged.iter().map(|number| number.load(Ordering::SeqCst)).collect();
            let read: Vec<u32> = keys
                .iter()
                .map(|key| match reader.ask(&format!("GET {key}")) {
                    Reply::Bulk(None) => 0,
                    found => number(&found.bytes()),
                })
                .collect();
            let durable = after_a_cut(&device, &keys);
            for name in 0..CLIENTS {
                assert!(durable[name] >= sure[name], "acknowledged: {sure:?}, durable: {durable:?}");
                assert!(durable[name] >= read[name], "read: {read:?}, durable: {durable:?}");
            }
            cuts += 1;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(cuts > 10, "{cuts}");
    });
    assert!(acknowledged.iter().all(|number| number.load(Ordering::SeqCst) > 3));
    server.end().unwrap();
}

#[test]
fn with_relaxed_durability_a_change_is_durable_a_while_later() {
    let keys = ["key".to_string()];
    let (device, server) = served(Durability::Relaxed, Some(Duration::from_secs(3600)));
    assert_eq!(server.client().ask("SET key 1"), Reply::ok());
    assert_eq!(after_a_cut(&device, &keys), [0], "so the test above would notice");
    drop(server);
    let (device, server) = served(Durability::Relaxed, Some(Duration::from_millis(50)));
    assert_eq!(server.client().ask("SET key 1"), Reply::ok());
    let deadline = Instant::now() + REPLY_TIMEOUT;
    while after_a_cut(&device, &keys) == [0] {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_failing_flush_is_reported_and_the_map_stays_readable() {
    let (device, server) = served(Durability::EachBatch, None);
    let mut client = server.client();
    assert_eq!(client.ask("SET key 1"), Reply::ok());
    let info = |client: &mut Client| String::from_utf8(client.ask("INFO").bytes()).unwrap();
    assert!(info(&mut client).contains("changes_are_refused:0"));
    device.inject(Fault::FlushError { after: device.changes() });
    let refused =
        (2..20).map(|round| client.ask(&format!("SET key {round}"))).find(|reply| *reply != Reply::ok());
    assert!(refused.unwrap().error().starts_with("ERR "));
    let error = server.client().ask("SET other 1").error();
    assert!(error.contains("reopen the map"), "{error}");
    assert!(info(&mut client).contains("changes_are_refused:1"));
    assert!(matches!(client.ask("GET key"), Reply::Bulk(Some(_))));
    assert!(server.end().is_err(), "the map cannot be checkpointed");
}

#[test]
fn a_value_that_does_not_fit_into_the_reply_is_not_read() {
    let device = Arc::new(FaultyDevice::new(Geometry::with_capacity(64 << 20)).unwrap());
    let map = Store::open_or_create(Arc::clone(&device), Options::with_cache(1 << 20)).unwrap();
    let limits = Limits { reply_bytes: 10_000, ..Limits::default() };
    let server = Running::with_map(Settings { limits, ..Settings::default() }, map);
    let mut client = server.client();
    for (key, bytes) in [("fits", 5000), ("long", 20_000)] {
        assert_eq!(client.ask(&format!("SET {key} {}", "x".repeat(bytes))), Reply::ok());
    }
    // The next read of the device fails.
    device.inject(Fault::TransientReadError { after: 0 });
    assert!(client.ask("GET long").error().contains("longer than 10000 bytes"));
    assert_eq!(device.waiting().len(), 1, "nothing was read");
    client.ask("GET fits").error();
    assert!(device.waiting().is_empty());
    assert_eq!(client.ask("GET fits").bytes().len(), 5000);
}
