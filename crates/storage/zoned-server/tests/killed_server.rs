//! A server that is killed under load loses no acknowledged change.

mod support;

use longma_zoned::device::{FileDevice, Geometry};
use longma_zoned::{Durability, Options, Store};
use longma_zoned_server::{Server, Settings};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use support::{Client, Reply, encoded};

/// Names the file of the map, for the process that is to be killed.
const MAP: &str = "LONGMA_TEST_SERVED_MAP";
/// Set if the process serves with relaxed durability.
const RELAXED: &str = "LONGMA_TEST_RELAXED";

fn opened(path: &Path, durability: Durability) -> Store<FileDevice> {
    let device = FileDevice::open_or_create(path, Geometry::with_capacity(256 << 20)).unwrap();
    Store::open_or_create(device, Options { durability, ..Options::with_cache(8 << 20) }).unwrap()
}

/// The process that is killed. Run by the other tests; does nothing otherwise.
#[test]
fn serving_process() {
    let Some(path) = std::env::var_os(MAP) else { return };
    let is_relaxed = std::env::var_os(RELAXED).is_some();
    let durability = if is_relaxed { Durability::Relaxed } else { Durability::EachBatch };
    let sync_every = is_relaxed.then(|| Duration::from_millis(200));
    let settings = Settings { sync_every, ..Settings::default() };
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), settings).unwrap();
    println!("\naddress {}", server.address());
    server.run(opened(Path::new(&path), durability), &AtomicBool::new(false)).unwrap();
}

/// Starts a server process.
fn start(path: &Path, is_relaxed: bool) -> (Child, std::net::SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "serving_process", "--nocapture"]).env(MAP, path).stdout(Stdio::piped());
    if is_relaxed {
        command.env(RELAXED, "1");
    }
    let mut process = command.spawn().unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let address = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("address ")?.parse().ok());
    (process, address.expect("the server has not started"))
}

/// One client's changes: it sets its keys to rising numbers, in pipelines and transactions, and returns for each key the
/// highest number that was acknowledged and the highest that was sent.
fn change(mut client: Client, name: usize, acknowledged: &AtomicU32) -> Vec<(u32, u32)> {
    const KEYS: usize = 20;
    let mut numbers = vec![(0, 0); KEYS];
    for round in 1.. {
        let keys: Vec<usize> = (0..KEYS).filter(|key| !(key + round as usize).is_multiple_of(3)).collect();
        let is_transaction = round % 4 == 0;
        let mut requests = Vec::new();
        for &key in &keys {
            requests.extend(encoded(&[
                "SET",
                &format!("{name}-{key}"),
                &format!("{round} {}", "x".repeat(300)),
            ]));
            numbers[key].1 = round;
        }
        if is_transaction {
            requests = [encoded(&["MULTI"]), requests, encoded(&["EXEC"])].concat();
        }
        use std::io::Write;
        if client.socket.get_mut().write_all(&requests).is_err() {
            return numbers;
        }
        if is_transaction {
            for _ in 0..=keys.len() {
                if client.try_reply().is_none() {
                    return numbers;
                }
            }
            match client.try_reply() {
                Some(done) => assert_eq!(done.array().len(), keys.len()),
                None => return numbers,
            }
            keys.iter().for_each(|&key| numbers[key].0 = round);
        } else {
            for &key in &keys {
                match client.try_reply() {
                    Some(reply) => assert_eq!(reply, Reply::ok()),
                    None => return numbers,
                }
                numbers[key].0 = round;
            }
        }
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
    numbers
}

fn a_kill_loses_nothing(is_relaxed: bool) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("map");
    let acknowledged = AtomicU32::new(0);
    for rounds in [1, 40, 200] {
        acknowledged.store(0, Ordering::Relaxed);
        let (mut process, address) = start(&path, is_relaxed);
        let all: Vec<Vec<(u32, u32)>> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|name| {
                    let acknowledged = &acknowledged;
                    scope.spawn(move || change(Client::new(address), name, acknowledged))
                })
                .collect();
            while acknowledged.load(Ordering::Relaxed) < rounds {
                std::thread::sleep(Duration::from_millis(1));
            }
            process.kill().unwrap();
            process.wait().unwrap();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        let map = opened(&path, Durability::EachBatch);
        for (name, numbers) in all.into_iter().enumerate() {
            for (key, (acknowledged, sent)) in numbers.into_iter().enumerate() {
                let value = map.get(format!("{name}-{key}").as_bytes()).unwrap();
                let found = value.map_or(0, |value| {
                    String::from_utf8(value).unwrap().split(' ').next().unwrap().parse::<u32>().unwrap()
                });
                // Keys that this run has not reached keep the number of the previous run.
                let is_old = acknowledged == 0;
                assert!(
                    is_old || (acknowledged..=sent).contains(&found),
                    "{name}-{key}: {acknowledged} {found} {sent}"
                );
            }
        }
        map.close().unwrap();
    }
    assert!(Store::check(FileDevice::open(&path).unwrap()).unwrap().problems.is_empty());
}

#[test]
fn a_kill_under_load_loses_no_acknowledged_change() {
    a_kill_loses_nothing(false);
}

#[test]
fn a_kill_under_load_loses_no_acknowledged_change_with_relaxed_durability() {
    a_kill_loses_nothing(true);
}
