//! Packs the experiments and the guest programs into one zstd frame, and writes tables with the position of each file
//! in it.

use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};
use toml::{Table, Value};

/// Compression level. Higher levels save less than one percent.
const LEVEL: i32 = 19;
/// Base-2 logarithm of the frame's window in bytes. 8 MiB exceed the size of all files together, so that the C library
/// that the programs share is stored once.
const WINDOW_LOG: u32 = 23;

/// Path of a file from the repository's root, and its contents.
type Packed = (String, Vec<u8>);

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"))
        .join("../../..");
    println!("cargo::rerun-if-changed=build.rs");
    // All of these paths exist. Cargo treats a missing path as changed and would run this script at every build.
    for watched in ["experiments", "guests/prebuilt", "guests/guests.toml", "guests/c"] {
        println!("cargo::rerun-if-changed={}", root.join(watched).display());
    }
    let mut files = experiments(&root);
    files.extend(programs(&root));
    files.sort();

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let whole: Vec<u8> = files.iter().flat_map(|(_, content)| content).copied().collect();
    write(&out.join("shipped.zst"), &compress(&whole));
    write(&out.join("tables.rs"), tables(&root, &files, whole.len()).as_bytes());
}

/// The experiment files and the machine files next to them.
fn experiments(root: &Path) -> Vec<Packed> {
    let of_folder = |folder: &str| {
        let entries = fs::read_dir(root.join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
        let names = entries.map(|entry| entry.expect(folder).file_name().to_string_lossy().into_owned());
        let names = names.filter(|name| name.ends_with(".toml") && !name.starts_with('.'));
        names.map(|name| format!("{folder}/{name}")).map(|path| read_packed(root, path)).collect::<Vec<_>>()
    };
    ["experiments", "experiments/machines"].into_iter().flat_map(of_folder).collect()
}

/// The programs that `SHA256SUMS` lists.
fn programs(root: &Path) -> Vec<Packed> {
    let sums = String::from_utf8(read(&root.join("guests/prebuilt/SHA256SUMS"))).expect("SHA256SUMS is text");
    let names = sums.lines().filter_map(|line| line.split_whitespace().nth(1));
    names.map(|name| read_packed(root, format!("guests/prebuilt/{name}"))).collect()
}

fn read_packed(root: &Path, path: String) -> Packed {
    let content = read(&root.join(&path));
    (path, content)
}

fn compress(whole: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL).expect("the level exists");
    encoder.window_log(WINDOW_LOG).expect("the window is allowed");
    std::io::Write::write_all(&mut encoder, whole).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

fn tables(root: &Path, files: &[Packed], bytes: usize) -> String {
    let mut text = String::new();
    let (mut offset, mut together) = (0, Sha256::new());
    text.push_str("/// Every file, by path.\npub static ENTRIES: &[Entry] = &[\n");
    for (path, content) in files {
        let sum = Sha256::digest(content);
        together.update(path.as_bytes());
        together.update(sum);
        let (length, sum) = (content.len(), sum.as_slice());
        let _ = writeln!(
            text,
            "Entry {{ path: {path:?}, offset: {offset}, length: {length}, sha256: {sum:?} }},"
        );
        offset += length;
    }
    let digest: String = together.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let _ = write!(text, "];\nconst BYTES: usize = {bytes};\nconst DIGEST: &str = {digest:?};\n");
    text.push_str("/// Every guest program that has a build, in the order of the names.\npub static GUESTS: &[Guest] = &[\n");
    for (name, about) in c_programs(root) {
        let builds = builds(&name, files);
        if builds.is_empty() {
            continue;
        }
        let kind = about.get("kind").and_then(Value::as_str).unwrap_or_default();
        let small = about.get("small").and_then(Value::as_array).into_iter().flatten();
        let small: Vec<_> = small.filter_map(Value::as_str).collect();
        let description = description(root, &name);
        let _ = writeln!(
            text,
            "Guest {{ name: {name:?}, description: {description:?}, kind: {kind:?}, arguments: &{small:?}, builds: &{builds:?} }},"
        );
    }
    text.push_str("];\n");
    text
}

/// The C programs of `guests.toml`.
fn c_programs(root: &Path) -> Table {
    let text = String::from_utf8(read(&root.join("guests/guests.toml"))).expect("guests.toml is text");
    let table: Table = text.parse().unwrap_or_else(|error| panic!("guests/guests.toml: {error}"));
    table.get("c").and_then(Value::as_table).cloned().expect("guests.toml lists C programs")
}

/// The builds of a program as `ARCHITECTURE/FILE`: those for LoongArch first, and of these the one without vector
/// instructions first.
fn builds(name: &str, files: &[Packed]) -> Vec<String> {
    let paths = || files.iter().filter_map(|(path, _)| path.strip_prefix("guests/prebuilt/"));
    let is_of = |path: &str| {
        let file = path.split_once('/').map_or(path, |(_, file)| file);
        file.strip_prefix(name).is_some_and(|variant| ["", "-lsx", "-lasx"].contains(&variant))
    };
    let mut found: Vec<_> = paths().filter(|path| is_of(path)).map(String::from).collect();
    found.sort_by_key(|path| (!path.starts_with("loongarch64/"), path.len(), path.clone()));
    found
}

/// The first sentence of the comment at the start of a program's source.
fn description(root: &Path, name: &str) -> String {
    let source = String::from_utf8_lossy(&read(&root.join(format!("guests/c/{name}.c")))).into_owned();
    let comment = source.lines().map_while(|line| line.strip_prefix("//")).map(str::trim);
    let comment = comment.collect::<Vec<_>>().join(" ");
    comment.split_once(". ").map_or(comment.trim_end_matches('.'), |(first, _)| first).into()
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

fn write(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
}
