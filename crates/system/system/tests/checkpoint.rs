//! Tests modified files with valid checksums: they are refused, or yield a machine that is as safe as one with hostile software.

use std::io::Cursor;
use std::os::unix::net::UnixListener;
use std::path::Path;

use longma_system::checkpoint::{Checkpoint, FormatError, RestoreError, writable};
use longma_system::{Configuration, Machine};
use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Bytes of magic number and version, and of the checksum.
const HEADER: usize = 12;
const DIGEST: usize = 32;
const CYCLES: u64 = 2_000;

fn machine(cores: usize) -> Machine {
    let configuration = Configuration { cores, memory_bytes: 64 << 20, ..Configuration::default() };
    let mut machine = Machine::new(&configuration).expect("the host has memory");
    machine.attach_entropy(1).expect("the bus has room");
    machine
}

/// A checkpoint of a machine that has run.
fn file() -> Vec<u8> {
    let mut machine = machine(2);
    machine.memory().write(0x10_0000, &[7; 5000]).expect("it is in memory");
    machine.state_mut().pc = 0x10_0000;
    machine.run(CYCLES);
    let mut file = Vec::new();
    machine.save(json!({"note": 1}), &mut file).expect("it can be saved");
    file
}

/// The content of the frame: the length of the description, the description, and runs.
fn content(file: &[u8]) -> (Value, Vec<u8>) {
    let frame = &file[HEADER..file.len() - DIGEST];
    let content = zstd::decode_all(frame).expect("it is a frame");
    let length = u32::from_le_bytes(content[..4].try_into().expect("four bytes")) as usize;
    let description = serde_json::from_slice(&content[4..4 + length]).expect("it is JSON");
    (description, content[4 + length..].to_vec())
}

/// A file with another content and a valid checksum.
fn assembled(file: &[u8], description: &Value, runs: &[u8]) -> Vec<u8> {
    let text = description.to_string();
    let content = [&(text.len() as u32).to_le_bytes(), text.as_bytes(), runs].concat();
    let mut changed = file[..HEADER].to_vec();
    changed.extend(zstd::encode_all(&content[..], 1).expect("memory takes all"));
    let digest = Sha256::digest(&changed);
    changed.extend(digest);
    changed
}

fn restored(file: &[u8]) -> Result<Machine, RestoreError> {
    let checkpoint = Checkpoint::read(Cursor::new(file))?;
    let mut machine = machine(checkpoint.configuration().cores);
    checkpoint.restore(&mut machine)?;
    Ok(machine)
}

/// The number of values in a tree.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(items) => items.values().map(count).sum(),
        _ => 0,
    }
}

/// The `number`-th value of a tree.
fn at(value: &mut Value, mut number: usize) -> Option<&mut Value> {
    if number == 0 {
        return Some(value);
    }
    number -= 1;
    let items: Vec<&mut Value> = match value {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(items) => items.values_mut().collect(),
        _ => return None,
    };
    for item in items {
        let below = count(item);
        if number < below {
            return at(item, number);
        }
        number -= below;
    }
    None
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => any::<u64>().prop_map(Value::from),
        3 => (0u64..300).prop_map(Value::from),
        3 => (0u32..64).prop_map(|shift| Value::from(u64::MAX >> shift)),
        1 => prop::sample::select(vec![json!(-1), json!(null), json!(true), json!([]), json!({}), json!("x"), json!(1.5)]),
    ]
}

#[test]
fn an_unchanged_description_is_accepted() {
    let file = file();
    let (description, runs) = content(&file);
    restored(&assembled(&file, &description, &runs)).expect("it is what was written");
}

/// A turn of the first core that ends at a cycle.
fn turn(end: u64) -> Value {
    json!({"end": end, "core": 0, "is_interrupted": false, "are_idle": false})
}

/// A change of a description.
type Change = fn(&mut Value);

#[test]
fn a_missing_an_unknown_and_an_impossible_value_are_named() {
    let file = file();
    let changed = |change: Change| {
        let (mut description, runs) = content(&file);
        change(&mut description);
        restored(&assembled(&file, &description, &runs)).err().expect("it is refused").to_string()
    };
    let cases: [(Change, &str); 10] = [
        (|all| drop(all.as_object_mut().and_then(|all| all.remove("now"))), "missing field `now`"),
        (|all| all["platform"]["fan"] = json!(1), "unknown field `fan`"),
        (|all| all["cores"][0]["csrs"]["STLBPS"] = json!(63), "the value of STLBPS is invalid"),
        (|all| all["cores"][1]["csrs"]["CPUID"] = json!(0), "the value of CPUID is invalid"),
        (|all| all["cores"][0]["csrs"]["FAN"] = json!(0), "unknown CSR \"FAN\""),
        (|all| all["cores"][0]["registers"]["general"][0] = json!(1), "the value of a register is invalid"),
        (|all| all["cores"][0]["timer"]["period"] = json!(0), "the value of the timer is invalid"),
        (|all| all["now"] = json!(u64::MAX), "the number of cores or the time is invalid"),
        // Otherwise, the cores would execute the whole difference in one turn.
        (|all| all["now"] = json!(1_u64 << 26), "the number of cores or the time is invalid"),
        (|all| all["turn"] = turn(1 << 26), "the number of cores or the time is invalid"),
    ];
    for (change, expected) in cases {
        let error = changed(change);
        assert!(error.contains(expected) && error.contains("save it again"), "{expected}: {error}");
    }
}

#[test]
fn memory_that_the_machine_lacks_is_refused() {
    let file = file();
    let (description, mut runs) = content(&file);
    runs[4..12].copy_from_slice(&(1u64 << 40).to_le_bytes());
    let error = restored(&assembled(&file, &description, &runs)).err().expect("it is refused");
    assert!(matches!(error, RestoreError::Format(FormatError::Layout(_))), "{error}");
}

#[test]
fn the_file_appears_when_it_is_complete() {
    let folder = tempfile::tempdir().expect("the host has a temporary folder");
    let path = folder.path().join("machine.saved");
    std::fs::write(&path, "before").expect("the folder is writable");
    machine(1).save_to(&path, Value::Null).expect("it can be saved");
    assert!(Checkpoint::open(&path).expect("it is a checkpoint").notes().is_null());
    assert_eq!(std::fs::read_dir(folder.path()).expect("it exists").count(), 1);
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).expect("the folder is writable");
    for other in [folder.path(), &socket, Path::new("/dev/null")] {
        let error = writable(other).expect_err("it is no file");
        assert!(error.to_string().contains("is not a file"), "{error}");
    }
    assert!(machine(1).save_to(&socket, Value::Null).is_err());
    drop(listener);
    let absent = folder.path().join("absent").join("machine.saved");
    assert!(machine(1).save_to(&absent, Value::Null).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn any_description_is_refused_or_gives_a_safe_machine(
        changes in prop::collection::vec((any::<prop::sample::Index>(), value()), 1..4),
        tail in prop::collection::vec(any::<u8>(), 0..40),
        cut in any::<prop::sample::Index>(),
    ) {
        let file = file();
        let (mut description, mut runs) = content(&file);
        for (place, new) in changes {
            let number = place.index(count(&description));
            if let Some(place) = at(&mut description, number) {
                *place = new;
            }
        }
        if !tail.is_empty() {
            runs.truncate(cut.index(runs.len()));
            runs.extend(tail);
        }
        if let Ok(mut machine) = restored(&assembled(&file, &description, &runs)) {
            machine.run(CYCLES);
            machine.type_on_console(b"input");
            machine.run(CYCLES);
            prop_assert_eq!(machine.state().r(0), 0);
        }
    }
}
