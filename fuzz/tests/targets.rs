//! Runs every fuzz target on its committed inputs and on mutations of them. The targets are built like all other tests, without coverage:
//! `fuzz/campaign` searches for inputs that reach new code.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use longma_random::SplitMix64;

/// Mutated inputs of each target.
const MUTATIONS: u64 = 4_000;
/// Limit of one input, in seconds.
const INPUT_SECONDS: u32 = 30;
/// Bytes of the longest mutated input.
const MAX_BYTES: usize = 4096;

/// The committed inputs of a target. At least an empty one.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(format!("{name}.tar.gz"));
    let file = fs::File::open(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; fuzz/campaign --update {name} writes it", path.display())
    });
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut inputs = vec![Vec::new()];
    for entry in archive.entries().unwrap() {
        let mut input = Vec::new();
        entry.unwrap().read_to_end(&mut input).unwrap();
        inputs.push(input);
    }
    inputs
}

/// One of the inputs with one to five changes.
fn mutated(inputs: &[Vec<u8>], random: &mut SplitMix64) -> Vec<u8> {
    let mut below = |limit: usize| random.index(limit);
    let mut input = inputs[below(inputs.len())].clone();
    for _ in 0..=below(5) {
        let at = below(input.len() + 1);
        let end = at + below((input.len() - at).min(16) + 1);
        match below(7) {
            0 if at < input.len() => input[at] ^= 1 << below(8),
            1 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff, below(256) as u8][below(6)],
            2 => drop(input.drain(at..end)),
            3 => input.truncate(at),
            4 => {
                let copy = input[at..end].to_vec();
                input.splice(at..at, copy);
            }
            5 => {
                let other = &inputs[below(inputs.len())];
                let from = below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => input.insert(at, below(256) as u8),
        }
    }
    input.truncate(MAX_BYTES);
    input
}

fn run(name: &str, program: &str) {
    let folder = tempfile::tempdir().unwrap();
    let corpus = folder.path().join("inputs");
    fs::create_dir(&corpus).unwrap();
    let seed = env::var("PROPTEST_RNG_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let (mut random, mut inputs) = (SplitMix64::new(seed), seeds(name));
    let originals = inputs.len();
    for _ in 0..MUTATIONS {
        let input = mutated(&inputs, &mut random);
        // Later mutations may be of these.
        if inputs.len() < 2 * originals {
            inputs.push(input.clone());
        }
        fs::write(corpus.join(format!("{:016x}", random.next_u64())), input).unwrap();
    }
    for (number, input) in inputs[..originals].iter().enumerate() {
        fs::write(corpus.join(format!("seed-{number}")), input).unwrap();
    }
    // Failing inputs stay, so that a developer can run the target with them.
    let failures = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-"));
    let output = Command::new(program)
        .args([format!("-timeout={INPUT_SECONDS}"), format!("-artifact_prefix={}", failures.display())])
        .args(["-runs=0", "-rss_limit_mb=4096", "-print_final_stats=1"])
        .arg(&corpus)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{name}: {}; its input is in {}*\n{text}",
        output.status,
        failures.display()
    );
    assert!(text.contains("files found in"), "{name} ran no inputs:\n{text}");
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
    kept_translations machine_file network placement plugin_module reliable share_requests system topic_frames translate via_letters zoned_file
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
