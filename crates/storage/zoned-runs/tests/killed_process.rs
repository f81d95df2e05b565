//! A killed process loses no batch for which `apply` has returned, with either durability.
//!
//! Source: signal(7). The killed process is this test program, started again with an environment variable.

use longma_random::SplitMix64;
use longma_zoned_runs::device::{FileDevice, Geometry};
use longma_zoned_runs::{Batch, Durability, Options, Store};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const CHILD: &str = "LONGMA_RUNS_KILLED";
const RECORDS_OF_A_BATCH: u64 = 20;

fn options(durability: Durability) -> Options {
    Options { durability, cache_bytes: 1 << 20, write_buffer_bytes: 100_000 }
}

fn key(number: u64) -> [u8; 8] {
    (SplitMix64::new(number % 4_000).next_u64()).to_be_bytes()
}

fn value(number: u64) -> [u8; 100] {
    let mut value = [0; 100];
    value[..8].copy_from_slice(&number.to_be_bytes());
    value
}

fn open(path: &Path, durability: Durability) -> Store<FileDevice> {
    Store::open(FileDevice::open(path).unwrap(), options(durability)).unwrap()
}

/// Writes batches until it is killed, and prints the number of each that has returned.
fn write_for_ever(path: &Path, durability: Durability, mut from: u64) {
    let store = open(path, durability);
    let mut out = std::io::stdout();
    loop {
        let mut batch = Batch::new();
        (0..RECORDS_OF_A_BATCH)
            .map(|n| from * RECORDS_OF_A_BATCH + n)
            .for_each(|n| batch.put(&key(n), &value(n)));
        store.apply(&batch).unwrap();
        writeln!(out, "written {from}").unwrap();
        from += 1;
    }
}

#[test]
fn a_killed_process_loses_no_batch_that_returned() {
    if let Ok(task) = std::env::var(CHILD) {
        let mut words = task.split(' ');
        let (path, durability, from) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        let durability = if durability == "each" { Durability::EachBatch } else { Durability::Relaxed };
        return write_for_ever(Path::new(path), durability, from.parse().unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, durability) in [("each", Durability::EachBatch), ("relaxed", Durability::Relaxed)] {
        let path = folder.path().join(name);
        let device = FileDevice::create(&path, Geometry::with_capacity(32 << 20), false).unwrap();
        drop(Store::format(device, 7).unwrap());
        let mut next = 0;
        for round in 0..6 {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--nocapture", "--exact", "a_killed_process_loses_no_batch_that_returned"])
                .env(CHILD, format!("{} {name} {next}", path.display()))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let mut last = next;
            for line in lines
                .by_ref()
                .map(Result::unwrap)
                .filter(|line| line.starts_with("written"))
                .take(150 + 40 * round)
            {
                last = line["written ".len()..].parse().unwrap();
            }
            child.kill().unwrap();
            // Include the lines that it printed before it died.
            for line in lines.map(Result::unwrap).filter(|line| line.starts_with("written ")) {
                last = line["written ".len()..].parse().unwrap_or(last);
            }
            child.wait().unwrap();
            let store = open(&path, durability);
            let newest = (last + 1) * RECORDS_OF_A_BATCH;
            for number in newest.saturating_sub(3_900)..newest {
                let found = store.get(&key(number)).unwrap();
                let found = found.map(|value| u64::from_be_bytes(value[..8].try_into().unwrap()));
                assert!(
                    found.is_some_and(|found| found >= number),
                    "{name}, round {round}: {number} is {found:?}"
                );
            }
            next = last + 1;
        }
    }
}
