//! Opens files of any content as the results of a sweep, a journal, a recorded host and a log of decisions. Each must
//! be refused with a message or be usable, without a panic, and a journal may change only the settings that it names.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_affinity::analysis::Analysis;
use longma_affinity::fake::{FakeHost, topology};
use longma_affinity::journal::Journal;
use longma_affinity::recording::{Recording, dry_run};
use longma_affinity::sweep::Results;
use longma_affinity::tune::{Exclusions, history, log};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Adds the fields of a journal: the number and the checksum of each line, and in the first line the count of the
/// others. Without these fields, no line would be read.
fn sealed(text: &[u8]) -> Vec<u8> {
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    let mut out = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let number = if index == 0 { lines.len() - 1 } else { index };
        let mut sealed = [line, format!(" {number:08x}").as_bytes()].concat();
        let sum = crc32fast::hash(&sealed);
        sealed.extend(format!(" {sum:08x}\n").bytes());
        out.extend(sealed);
    }
    out
}

fn host() -> FakeHost {
    let mut host = FakeHost::with(&[
        ("proc/irq/41/smp_affinity_list", "0-1"),
        ("sys/class/net/eth0/queues/rx-0/rps_cpus", "00"),
        ("sys/class/net/eth0/mtu", "1500"),
        ("proc/7/task/7/stat", ""),
    ]);
    host.cpus = topology(1, 1, 2, 1);
    host
}

fn open(kind: u8, path: &Path) {
    match kind % 4 {
        0 => {
            if let Ok(results) = Results::read(path) {
                Analysis::of(&results);
            }
        }
        1 => {
            let host = host();
            let before = host.all();
            if Journal::recover(path, &host, false).is_err() {
                assert_eq!(host.all(), before);
            }
        }
        2 => {
            if let Ok(recording) = Recording::open(path) {
                recording.check(None);
                dry_run(&recording, &[], Exclusions::default()).expect("a dry run has no journal");
            }
        }
        _ => {
            let (decisions, _) = log::read(path).expect("the file can be read");
            history::runs(&decisions);
        }
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, bytes) = input;
    let path = std::env::temp_dir().join(format!("affinity-{}", std::process::id()));
    let bytes = if kind % 4 == 1 { sealed(bytes) } else { bytes.to_vec() };
    std::fs::write(&path, bytes).expect("the host has a temporary folder");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("the file is ours");
    open(kind, &path);
});
