//! Tests `longma zoned`: a map in a file from format to check, and rejected inputs.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Runs `longma zoned WORDS` in `folder`.
fn zoned(folder: &Path, words: &str) -> Output {
    let words = words.split(' ').filter(|word| !word.is_empty());
    Command::new(env!("CARGO_BIN_EXE_longma")).arg("zoned").args(words).current_dir(folder).output().unwrap()
}

/// Standard output of a command that must succeed.
fn printed(folder: &Path, words: &str) -> String {
    let output = zoned(folder, words);
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of a command that must fail.
fn refused(folder: &Path, words: &str) -> String {
    let output = zoned(folder, words);
    assert!(!output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

/// The same, with a time limit of a minute and 8 GB of address space, for commands that might hang or use all memory.
fn refused_in_bounds(folder: &Path, words: &str) -> String {
    refused_after(folder, "ulimit -v 8000000", words)
}

/// The same, after a shell command.
fn refused_after(folder: &Path, before: &str, words: &str) -> String {
    let script = format!("{before}; exec timeout 60 \"$0\" zoned {words}");
    let output = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_longma")])
        .current_dir(folder)
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{words}: {complaint}");
    complaint
}

const FORMAT: &str = "format drive --zones 12 --conventional-zones 2 --zone-size 1MiB";

#[test]
fn a_map_in_a_file_keeps_what_is_put_and_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    assert!(printed(here, FORMAT).contains("12 of 1 MiB"));
    printed(here, "put drive river map");
    assert_eq!(printed(here, "get drive river"), "map");
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
    printed(here, "put drive tab a\\b");
    assert_eq!(
        printed(here, "scan drive --from tab --format json"),
        "{\"key\":\"tab\",\"value\":\"a\\\\b\"}\n"
    );
    printed(here, "delete drive tab");
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
fn a_backup_is_a_map_that_can_be_used_like_the_original() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    printed(here, FORMAT);
    printed(here, "put drive river map");
    assert_eq!(printed(here, "backup drive copy"), "copy: 1 keys\n");
    printed(here, "put drive river other");
    assert_eq!(printed(here, "get copy river"), "map");
    assert!(printed(here, "check copy").ends_with("sound\n"));
    printed(here, "put copy lake map");
    let complaint = refused(here, "backup drive copy");
    assert!(complaint.contains("copy") && complaint.contains("exists"), "{complaint}");
    assert_eq!(printed(here, "get copy lake"), "map");
}

/// Loads lines in batches of ten, and is killed while it waits for more. Returns the file then.
fn killed_load(here: &Path, lines: u32) -> Vec<u8> {
    let mut load = Command::new(env!("CARGO_BIN_EXE_longma"))
        .args(["zoned", "load", "drive", "-", "--batch", "10"])
        .current_dir(here)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let text: String = (0..lines).map(|n| format!("key{n:05}\tvalue-{n:05}-\n")).collect();
    load.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    // The last line but one is in a batch that is written.
    let last = format!("value-{:05}-", lines - 11);
    let is_written = |file: &[u8]| file.windows(last.len()).any(|bytes| bytes == last.as_bytes());
    let file = (0..600).find_map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        Some(std::fs::read(here.join("drive")).unwrap()).filter(|file| is_written(file))
    });
    load.kill().unwrap();
    load.wait().unwrap();
    file.expect("the lines are written within half a minute");
    std::fs::read(here.join("drive")).unwrap()
}

#[test]
fn a_bit_flipped_after_a_killed_load_is_reported_and_a_repair_names_what_is_lost() {
    for layout in ["tree", "runs"] {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        printed(
            here,
            &format!("format drive --layout {layout} --zones 20 --conventional-zones 2 --zone-size 1MiB"),
        );
        // Standard input is read in pieces, so that the last lines may not have been seen.
        let mut file = killed_load(here, 500);
        let count = |here: &Path| printed(here, "scan drive --count").trim().parse::<u32>().unwrap();
        let loaded = count(here);
        assert!(loaded >= 480 && printed(here, "check drive").ends_with("sound\n"), "{layout}: {loaded}");
        let value = b"value-00255-";
        let at = file.windows(value.len()).rposition(|bytes| bytes == value).unwrap();
        file[at + 7] ^= 4;
        std::fs::write(here.join("drive"), &file).unwrap();
        let checked = zoned(here, "check drive");
        assert_eq!(checked.status.code(), Some(1), "{layout}");
        let checked = String::from_utf8(checked.stdout).unwrap();
        assert!(checked.contains("damaged, which loses batch 26:"), "{layout}: {checked}");
        for words in ["scan drive --count", "put drive key value"] {
            let complaint = refused(here, words);
            assert!(
                complaint.contains("not the effect of a power cut. Lost: batch 26;"),
                "{layout}: {complaint}"
            );
        }
        let repaired = zoned(here, "repair drive");
        assert_eq!(repaired.status.code(), Some(1), "{layout}");
        let repaired = String::from_utf8(repaired.stdout).unwrap();
        assert!(
            repaired.contains(": batch 26 (") && repaired.ends_with("with losses\n"),
            "{layout}: {repaired}"
        );
        assert_eq!(count(here), loaded - 10, "{layout}");
        assert!(printed(here, "check drive").ends_with("sound\n"), "{layout}");
    }
}

#[test]
fn sorted_runs_keep_what_is_put_and_loaded_and_other_commands_say_that_they_do_not_work() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let format = "format drive --layout runs --zones 24 --conventional-zones 2 --zone-size 1MiB";
    assert!(printed(here, format).contains("runs (experimental)"));
    printed(here, "put drive river map");
    assert_eq!(printed(here, "get drive river"), "map");
    let lines: String = (0..20_000).map(|n| format!("key{n:05}\tvalue {n}\n")).collect();
    std::fs::write(here.join("lines"), lines).unwrap();
    printed(here, "load drive lines");
    printed(here, "load drive lines --sorted");
    printed(here, "delete drive key00000");
    assert!(refused(here, "delete drive key00000").contains("there is no key key00000"));
    assert_eq!(printed(here, "scan drive --count"), "20000\n");
    assert_eq!(
        printed(here, "scan drive --from key00010 --limit 2"),
        "key00010\tvalue 10\nkey00011\tvalue 11\n"
    );
    assert_eq!(printed(here, "scan drive --reverse --limit 1"), "river\tmap\n");
    assert!(printed(here, "check drive").ends_with("sound\n"));
    let info: serde_json::Value = serde_json::from_str(&printed(here, "info drive --format json")).unwrap();
    assert_eq!(info["map"]["layout"], "runs");
    assert!(refused(here, "backup drive copy").contains("experimental layout runs"));
    assert!(printed(here, "repair drive").ends_with("nothing was lost\n"));
    assert!(refused(here, "soak memory: --layout runs").contains("layout tree only"));
    assert!(refused(here, "format drive --layout runs").contains("already exists"));
    assert!(
        refused(here, "format few --layout runs --zones 8 --zone-size 1MiB")
            .contains("at least 16 of that size")
    );
    let table = printed(
        here,
        "bench memory: --layout runs --zones 24 --zone-size 1MiB --records 2000 --operations 2000",
    );
    assert!(table.contains("load   2000"), "{table}");
    // The other layout replaces this one.
    printed(here, "format drive --force --zones 24 --conventional-zones 2 --zone-size 1MiB");
    assert_eq!(printed(here, "scan drive --count"), "0\n");
    printed(here, "check drive");
}

#[cfg(feature = "zoned-server")]
#[test]
fn a_served_map_keeps_what_clients_put_until_sigterm() {
    use std::io::{BufRead, BufReader, Read, Write};
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    printed(here, FORMAT);
    let complaint = refused(here, "serve drive --listen 0.0.0.0:0");
    assert!(
        complaint.contains("set a password") && complaint.contains("--password-file FILE"),
        "{complaint}"
    );
    let complaint = refused(here, "serve drive --password-file nothing");
    assert!(complaint.contains("nothing"), "{complaint}");
    let mut server = Command::new(env!("CARGO_BIN_EXE_longma"))
        .args(["zoned", "serve", "drive", "--listen", "127.0.0.1:0"])
        .current_dir(here)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("serving 0 keys on ").unwrap();
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.write_all(b"*3\r\n$3\r\nSET\r\n$5\r\nriver\r\n$3\r\nmap\r\n").unwrap();
    let mut reply = [0; 5];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+OK\r\n");
    assert!(refused(here, "get drive river").contains("in use"));
    let id = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    assert_eq!(printed(here, "get drive river"), "map");
    assert!(printed(here, "check drive").contains("0 batches in the journal"));
}

#[test]
fn invalid_requests_are_rejected_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    assert!(refused(here, "get drive x").contains("longma zoned format drive"));
    std::fs::write(here.join("other"), "no device").unwrap();
    assert!(refused(here, "info other").contains("is not an emulated zoned device"));
    assert!(refused(here, "format other --force").contains("cannot replace it"));
    printed(here, FORMAT);
    assert!(refused(here, FORMAT).contains("replace it with --force"));
    assert!(
        refused(here, "format small --zones 2 --zone-size 1MiB").contains("fewer than 6 sequential zones")
    );
    assert!(!here.join("small").exists());
    assert!(refused(here, "format odd --zone-size 5000").contains("whole number of blocks"));
    assert!(refused(here, "format odd --zone-size 8EiB").contains("\"8EiB\" is too large"));
    assert!(refused(here, "get drive abc --hex").contains("hexadecimal"));
    assert!(refused(here, "info /dev/null").contains("is a character device, not a regular file"));
    assert!(refused(here, "info .").contains("is a folder, not a regular file"));
    assert!(refused(here, "get memory: x").contains("is empty"));
    std::fs::write(here.join("lines"), "a\t1\nno tab\n").unwrap();
    assert!(refused(here, "load drive lines").contains("lines, line 2: there is no tab"));
    assert_eq!(printed(here, "scan drive"), "a\t1\n");
    let file = std::fs::OpenOptions::new().write(true).open(here.join("drive")).unwrap();
    file.set_len(6 << 20).unwrap();
    assert!(refused(here, "info drive").contains("truncated"));
}

#[test]
fn a_map_is_kept_if_the_new_one_would_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    printed(here, FORMAT);
    printed(here, "put drive river map");
    let before = std::fs::read(here.join("drive")).unwrap();
    for (words, why) in [
        ("format drive --force --zones 3 --zone-size 256KiB", "fewer than 6 sequential zones"),
        ("format drive --force --zones 12 --zone-size 1MiB --node-bytes 1000", "nodes of 1000 bytes"),
        ("format drive --force --conventional-zones 0", "no conventional zones"),
        ("format drive --force --zone-size 16KiB", "too small for the superblocks"),
        ("format drive --force --max-open 1", "only one open zone"),
        ("format drive --force --zones 5000000 --zone-size 1MiB", "at most 4194304"),
        ("bench drive --force --zones 3 --records 10 --operations 10", "fewer than 6 sequential zones"),
        ("soak drive --force --zones 3 --seconds 0", "fewer than 6 sequential zones"),
    ] {
        let complaint = refused(here, words);
        assert!(complaint.contains(why), "{words}: {complaint}");
        assert_eq!(std::fs::read(here.join("drive")).unwrap(), before, "{words}");
    }
    // As on a file system with a smaller maximum file size. The limit is between 19 and 100 MiB in any unit that
    // shells use.
    let words = "format drive --force --zones 96 --conventional-zones 4 --zone-size 1MiB";
    let limit = "trap '' XFSZ; ulimit -f 60000";
    assert!(refused_after(here, limit, words).contains("File too large"));
    assert_eq!(printed(here, "get drive river"), "map");
    assert!(refused_after(here, limit, &words.replace("drive", "new")).contains("File too large"));
    assert!(!here.join("new").exists());
    printed(here, &format!("{FORMAT} --force"));
    assert_eq!(printed(here, "scan drive --count"), "0\n");
}

#[test]
fn load_accepts_the_output_of_scan() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    printed(here, FORMAT);
    printed(here, &FORMAT.replace("drive", "copy"));
    // All pairs of special bytes, and every byte.
    let special =
        [b'\\', b'x', b'0', b't', b'n', b'\t', b'\n', b'\r', 0, 1, 0x7f, 0x80, 0xc3, 0xbc, 0xff, b'"'];
    let pairs = special.iter().flat_map(|first| special.iter().map(move |second| vec![*first, *second]));
    let keys = (0..=255).map(|byte| vec![byte]).chain(pairs).chain([b"\\x01".to_vec(), "河图".into()]);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut lines: Vec<String> =
        keys.map(|key| format!("{}\t{}\n", hex(&key), hex(&[&key[..], b"\\", &key[..]].concat()))).collect();
    std::fs::write(here.join("lines"), lines.concat()).unwrap();
    printed(here, "load drive lines --hex");
    let plain = printed(here, "scan drive");
    assert!(
        plain.contains("\n\\x01\t\\x01\\\\\\x01\n") && plain.contains("\n河图\t河图\\\\河图\n"),
        "{plain}"
    );
    std::fs::write(here.join("plain"), plain).unwrap();
    printed(here, "load copy plain --sorted");
    lines.sort();
    lines.dedup();
    assert_eq!(printed(here, "scan copy --hex"), lines.concat());
    std::fs::write(here.join("plain"), "a\\\\\t1\nb\t\\q\n").unwrap();
    let complaint = refused(here, "load copy plain");
    assert!(complaint.contains("plain, line 2: `\\q`") && complaint.contains("--hex"), "{complaint}");
    assert_eq!(printed(here, "get copy a\\"), "1");
}

/// A file without line breaks is not read into memory as a whole.
#[test]
fn a_line_longer_than_any_record_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    printed(here, FORMAT);
    printed(here, "put drive river map");
    let complaint = refused_after(here, "ulimit -v 1000000", "load drive /dev/zero");
    assert!(
        complaint.contains("/dev/zero, line 1: the line is longer than the largest key and value"),
        "{complaint}"
    );
    assert_eq!(printed(here, "scan drive --count"), "1\n");
}

/// CRC-32C (RFC 3720, appendix B.4).
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[test]
fn a_header_with_too_many_zones_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    for (conventional, sequential, end) in
        [(1, 1u32 << 30, 691_494_978_048), (1 << 31, 64, 1_099_516_903_424)]
    {
        let mut header = b"LngmZone".to_vec();
        header.extend(3u32.to_le_bytes());
        header.extend([1; 16]);
        header.extend(512u32.to_le_bytes());
        header.extend([1u64, 1].map(u64::to_le_bytes).concat());
        header.extend([conventional, sequential, 0, 0].map(u32::to_le_bytes).concat());
        let crc = crc32c(&header);
        header.extend(crc.to_le_bytes());
        header.resize(2048, 0);
        std::fs::write(here.join("drive"), [&header[..], &header].concat()).unwrap();
        // A sparse file of the size that the header claims.
        std::fs::OpenOptions::new().write(true).open(here.join("drive")).unwrap().set_len(end).unwrap();
        for words in ["info drive", "check drive", "repair drive", "get drive x", "put drive x y"] {
            let complaint = refused_in_bounds(here, words);
            let zones = format!("{} zones", conventional + sequential);
            assert!(complaint.contains("drive") && complaint.contains(&zones), "{words}: {complaint}");
        }
    }
}

#[test]
fn a_named_pipe_is_rejected_without_blocking() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    assert!(Command::new("mkfifo").arg(here.join("pipe")).status().unwrap().success());
    for words in [
        "info pipe",
        "get pipe x",
        "scan pipe",
        "put pipe x y",
        "check pipe",
        "repair pipe",
        "format pipe --force",
    ] {
        let complaint = refused_in_bounds(here, words);
        assert!(complaint.contains("pipe: is a named pipe, not a regular file"), "{words}: {complaint}");
    }
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
fn a_soak_does_not_overfill_the_device() {
    let folder = tempfile::tempdir().unwrap();
    // A map can use 7 of the 12 zones; nine tenths of the device are more than that.
    let words = "soak memory: --zones 12 --conventional-zones 1 --zone-size 512KiB --seconds 0 --window-seconds 0 --cache-mib 1 --batch 50";
    let printed = printed(folder.path(), &format!("{words} --fill 0.9"));
    assert!(printed.contains("passed") && printed.contains("the longest batch took"), "{printed}");
    let too_much = refused(folder.path(), "soak memory: --zones 1000000 --zone-size 64MiB");
    assert!(too_much.contains("MiB are free") && too_much.contains("--zone-size"), "{too_much}");
}
