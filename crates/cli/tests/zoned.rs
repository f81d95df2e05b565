//! `longma zoned` as a user types it: a map in a file from format to check, and what is refused.
//! Not the map: crates/zoned/tests has that.
//! Source: none.

use std::path::Path;
use std::process::{Command, Output};

/// Runs `longma zoned WORDS` in `folder`.
fn zoned(folder: &Path, words: &str) -> Output {
    let words = words.split(' ').filter(|word| !word.is_empty());
    Command::new(env!("CARGO_BIN_EXE_longma")).arg("zoned").args(words).current_dir(folder).output().unwrap()
}

/// What it printed, if all went well.
fn printed(folder: &Path, words: &str) -> String {
    let output = zoned(folder, words);
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What it complained about, if it failed.
fn refused(folder: &Path, words: &str) -> String {
    let output = zoned(folder, words);
    assert!(!output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

const FORMAT: &str = "format drive --zones 12 --conventional-zones 2 --zone-size 1MiB";

#[test]
fn a_map_in_a_file_keeps_what_is_put_and_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    assert!(printed(here, FORMAT).contains("12 of 1 MiB"));
    printed(here, "put drive river map");
    assert_eq!(printed(here, "get drive river"), "map\n");
    let lines: String = (0..2_000).map(|n| format!("key{n:05}\tvalue {n}\n")).collect();
    std::fs::write(here.join("lines"), lines).unwrap();
    printed(here, "load drive lines --sorted");
    assert_eq!(printed(here, "scan drive --count"), "2001\n");
    assert_eq!(
        printed(here, "scan drive --from key00010 --limit 2"),
        "key00010\tvalue 10\nkey00011\tvalue 11\n"
    );
    assert_eq!(printed(here, "scan drive --reverse --limit 1"), "river\tmap\n");
    assert_eq!(
        printed(here, "scan drive --to key00001 --format json"),
        "{\"key\":\"key00000\",\"value\":\"value 0\"}\n"
    );
    printed(here, "delete drive river");
    assert!(refused(here, "get drive river").contains("there is no key river"));
    printed(here, "put drive ff00 0a --hex");
    assert_eq!(printed(here, "get drive ff00 --hex"), "0a\n");
    assert!(printed(here, "check drive").ends_with("sound\n"));
    assert!(printed(here, "repair drive").ends_with("nothing was lost\n"));
    assert_eq!(printed(here, "scan drive --count"), "2001\n");
    let info: serde_json::Value =
        serde_json::from_str(&printed(here, "info drive --zones --format json")).unwrap();
    assert_eq!(info["zones"].as_array().unwrap().len(), 14);
    assert_eq!(info["geometry"]["sequential_zones"], 12);
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    assert!(refused(here, "get drive x").contains("longma zoned format drive"));
    std::fs::write(here.join("other"), "no device").unwrap();
    assert!(refused(here, "info other").contains("is no emulated zoned device"));
    assert!(refused(here, "format other --force").contains("will not replace it"));
    printed(here, FORMAT);
    assert!(refused(here, FORMAT).contains("--force replaces it"));
    assert!(
        refused(here, "format small --zones 2 --zone-size 1MiB").contains("fewer than 6 sequential zones")
    );
    assert!(refused(here, "format odd --zone-size 5000").contains("whole number of blocks"));
    assert!(refused(here, "get drive abc --hex").contains("hexadecimal"));
    assert!(refused(here, "info /dev/null").contains("is not a file"));
    assert!(refused(here, "get memory: x").contains("holds nothing"));
    std::fs::write(here.join("lines"), "a\t1\nno tab\n").unwrap();
    assert!(refused(here, "load drive lines").contains("lines, line 2: there is no tab"));
    assert_eq!(printed(here, "scan drive"), "a\t1\n");
    let file = std::fs::OpenOptions::new().write(true).open(here.join("drive")).unwrap();
    file.set_len(6 << 20).unwrap();
    assert!(refused(here, "info drive").contains("truncated"));
}

#[test]
fn a_workload_is_measured_on_memory() {
    let folder = tempfile::tempdir().unwrap();
    let words = "bench memory: --workload W1 --records 2000 --operations 2000 --format json --zones 12 --zone-size 1MiB";
    let measured: serde_json::Value = serde_json::from_str(&printed(folder.path(), words)).unwrap();
    let phases = measured["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 2);
    assert_eq!(phases[1]["operations"], 2000);
    assert!(phases[0]["device"]["flushes"].as_u64().unwrap() >= 20);
}

#[test]
fn a_soak_fills_no_more_than_a_map_can_use_of_the_device_that_it_made() {
    let folder = tempfile::tempdir().unwrap();
    // 12 zones of which a map can use 7: nine tenths of the device are more than that.
    let words = "soak memory: --zones 12 --conventional-zones 1 --zone-size 512KiB --seconds 0 --window-seconds 0 --cache-mib 1 --batch 50";
    let printed = printed(folder.path(), &format!("{words} --fill 0.9"));
    assert!(printed.contains("all is well") && printed.contains("the longest batch took"), "{printed}");
    let too_much = refused(folder.path(), "soak memory: --zones 1000000 --zone-size 64MiB");
    assert!(too_much.contains("MiB are free") && too_much.contains("--zone-size"), "{too_much}");
}
