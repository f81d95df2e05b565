//! Runs every fuzz target on its committed inputs and on mutations of them. The targets are built like all other tests, without coverage:
//! `fuzz/campaign` searches for inputs that reach new code.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Mutated inputs of each target.
const RUNS: u32 = 4_000;
/// Limit of one input, in seconds.
const INPUT_SECONDS: u32 = 30;

fn run(name: &str, program: &str) {
    let folder = tempfile::tempdir().unwrap();
    let seeds = folder.path().join("seeds");
    fs::create_dir(&seeds).unwrap();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(format!("{name}.tar.gz"));
    let archive = fs::File::open(&archive)
        .unwrap_or_else(|error| panic!("{}: {error}; fuzz/campaign {name} writes it", archive.display()));
    tar::Archive::new(flate2::read::GzDecoder::new(archive)).unpack(&seeds).unwrap();
    let seed = env::var("PROPTEST_RNG_SEED").unwrap_or_else(|_| "1".to_owned());
    // Failing inputs stay, so that a developer can run the target with them.
    let failures = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-"));
    let output = Command::new(program)
        .args([
            format!("-seed={seed}"),
            format!("-runs={RUNS}"),
            format!("-timeout={INPUT_SECONDS}"),
            "-rss_limit_mb=4096".to_owned(),
        ])
        .arg(format!("-artifact_prefix={}", failures.display()))
        // Without coverage, libFuzzer cannot tell which seeds add coverage: keep all seeds, and use their full length
        // at once.
        .args(["-keep_seed=1", "-len_control=0", "-print_final_stats=1"])
        .arg(&seeds)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{name}: {}; its input is in {}\n{text}",
        output.status,
        failures.display()
    );
    assert!(text.contains("stat::number_of_executed_units:"), "{name} ran no inputs:\n{text}");
}

macro_rules! targets {
    ($($name:ident)*) => {
        const TARGETS: &[&str] = &[$(stringify!($name)),*];
        $(#[test]
        fn $name() {
            run(stringify!($name), env!(concat!("CARGO_BIN_EXE_", stringify!($name))));
        })*
    };
}

targets! {
    affinity_files affinity_texts bundle champsim channel_frames checkpoint cpu_set debian_package decode disk_image elf execute
    kept_translations machine_file network placement reliable share_requests system topic_frames translate via_letters zoned_file
    zoned_map zoned_requests zoned_runs
}

#[test]
fn every_target_is_run() {
    let sources = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz_targets")).unwrap();
    let stems: BTreeSet<_> = sources
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(stems, TARGETS.iter().map(|&name| name.to_owned()).collect());
}
