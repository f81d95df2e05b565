//! Restores a machine from a file with a valid checksum and any content, and runs it. Either the file is refused, or
//! the run must end after the given number of cycles.
#![no_main]

use std::io::Cursor;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use longma_system::checkpoint::Checkpoint;
use longma_system::{Configuration, Machine};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Bytes of magic number and version, and of the checksum.
const HEADER: usize = 12;
const DIGEST: usize = 32;
const CYCLES: u64 = 2_000;
/// Bytes that choose a change of the description: the changed value, the kind of the new one, and the new one.
const CHANGE: usize = 2 + 1 + 8;
const CHANGES: usize = 4;

fn machine(cores: usize) -> Machine {
    let configuration = Configuration { cores, memory_bytes: 64 << 20, ..Configuration::default() };
    let mut machine = Machine::new(&configuration).expect("the host has memory");
    machine.attach_entropy(1).expect("the bus has room");
    machine
}

/// Magic number and version, the description and the runs of a machine that has run.
fn original() -> &'static (Vec<u8>, Value, Vec<u8>) {
    static ORIGINAL: OnceLock<(Vec<u8>, Value, Vec<u8>)> = OnceLock::new();
    ORIGINAL.get_or_init(|| {
        let mut machine = machine(2);
        machine.state_mut().pc = 0x10_0000;
        machine.run(CYCLES);
        let mut file = Vec::new();
        machine.save(Value::Null, &mut file).expect("it can be saved");
        let content = zstd::decode_all(&file[HEADER..file.len() - DIGEST]).expect("it is a frame");
        let end = 4 + u32::from_le_bytes(content[..4].try_into().expect("four bytes")) as usize;
        let description = serde_json::from_slice(&content[4..end]).expect("it is JSON");
        (file[..HEADER].to_vec(), description, content[end..].to_vec())
    })
}

/// Replaces one of the values below `value`, chosen by the digits of `choice` at each level.
fn change(value: &mut Value, choice: usize, new: Value) {
    let items: Vec<&mut Value> = match value {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(items) => items.values_mut().collect(),
        _ => return *value = new,
    };
    let count = items.len();
    match items.into_iter().nth(choice % (count + 1)) {
        Some(item) => change(item, choice / (count + 1), new),
        None => *value = new,
    }
}

fuzz_target!(|data: &[u8]| {
    let (header, description, runs) = original();
    let (mut description, mut runs) = (description.clone(), runs.clone());
    let (changes, tail) = data.split_at(data.len().min(CHANGES * CHANGE));
    for part in changes.chunks_exact(CHANGE) {
        let number = u64::from_le_bytes(part[3..].try_into().expect("eight bytes"));
        let new = match part[2] % 8 {
            0 => json!(null),
            1 => json!([]),
            2 => json!(true),
            3 => json!(u64::MAX >> (number % 64)),
            4 => json!(number % 300),
            _ => json!(number),
        };
        // Spread over the levels.
        let choice = u64::from(part[0]) | u64::from(part[1]) << 8;
        change(&mut description, choice.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 8, new);
    }
    if !tail.is_empty() {
        runs = tail.to_vec();
    }
    let text = description.to_string();
    let content = [&(text.len() as u32).to_le_bytes(), text.as_bytes(), &runs[..]].concat();
    let mut file = header.clone();
    file.extend(zstd::encode_all(&content[..], 1).expect("memory takes all"));
    let digest = Sha256::digest(&file);
    file.extend(digest);
    let Ok(checkpoint) = Checkpoint::read(Cursor::new(file)) else { return };
    let configuration = checkpoint.configuration();
    if configuration.memory_bytes != 64 << 20 {
        return;
    }
    let mut machine = machine(configuration.cores);
    if checkpoint.restore(&mut machine).is_ok() {
        machine.run(CYCLES);
        machine.type_on_console(b"input");
        machine.run(CYCLES);
        assert_eq!(machine.state().r(0), 0);
    }
});
