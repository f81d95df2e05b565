//! The decoder accepts exactly the words that a Cortex-A76 executes: the identifying bits of all data-processing
//! instructions, loads and stores are swept under QEMU. This needs a cross compiler (Debian: `gcc-aarch64-linux-gnu`).
//! `LONGMA_ARM_WORDS=all` tries each of 2.6 million words, which takes two minutes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use longma_translate_arm::instruction::decode;
use longma_translate_arm::refused::refused;

use super::cases::Random;
use super::machine::{can_compare, is_old_qemu, qemu};

/// The number of combinations of bits 31 to 10.
const COMBINATIONS: u32 = 1 << 22;

/// Whether a word belongs to an encoding group that can be executed anywhere: not a branch, a system instruction or
/// SVE.
fn is_swept(word: u32) -> bool {
    let group = word >> 25 & 15;
    let is_processing = group & 7 == 7 || group & 7 == 5 || group >> 1 == 4;
    is_processing || group & 5 == 4
}

/// The words to try: all, or a random part.
fn words() -> Vec<u32> {
    // Rn is x5, which points to memory; Rd is register 0.
    let word = |upper: u32| upper << 10 | 5 << 5;
    if std::env::var("LONGMA_ARM_WORDS").is_ok_and(|text| text == "all") {
        return (0..COMBINATIONS).map(word).filter(|word| is_swept(*word)).collect();
    }
    let mut random = Random(17);
    let any = std::iter::repeat_with(|| word(random.below(COMBINATIONS.into()) as u32));
    any.filter(|word| is_swept(*word)).take(20_000).collect()
}

/// An exclusive access whose unused fields are not all ones is unpredictable. The decoder refuses it; QEMU executes it.
fn is_unpredictable(word: u32) -> bool {
    let unused = [31 << 10 | 31 << 16, 31 << 10, 31 << 16];
    word >> 23 & 0x7f == 0x10 && unused.iter().any(|ones| decode(word | ones).is_some())
}

fn executed(program: &Path, words: &[u32]) -> Vec<bool> {
    let input: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut child = Command::new("timeout")
        .args(["900", &qemu(), "-cpu", "cortex-a76"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("timeout(1) is installed");
    let mut pipe = child.stdin.take().expect("it is piped");
    let writer = std::thread::spawn(move || pipe.write_all(&input));
    let output = child.wait_with_output().expect("it can be waited for").stdout;
    writer.join().expect("it does not panic").expect("the program reads all words");
    output.into_iter().map(|raised| raised == 0).collect()
}

#[test]
fn the_decoder_accepts_what_a_cortex_a76_executes() {
    if !can_compare() {
        return;
    }
    let directory = tempfile::tempdir().expect("the folder for temporary files can be written");
    let program = directory.path().join("sweep");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/execution/sweep.c");
    let mut compiler = Command::new("aarch64-linux-gnu-gcc");
    let compiled = compiler.args(["-O1", "-static", "-o"]).arg(&program).arg(source).output();
    if !compiled.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: there is no compiler that links programs for AArch64 statically");
        return;
    }
    let mut words = words();
    let has_all = !is_old_qemu();
    words.retain(|word| !is_unpredictable(*word) && (has_all || decode(*word).is_some()));
    let executed = executed(&program, &words);
    assert_eq!(executed.len(), words.len(), "QEMU ended early");
    let wrong: Vec<String> = words
        .iter()
        .zip(executed)
        .filter(|(word, is_executed)| decode(**word).is_some() != *is_executed)
        .map(|(word, is_executed)| format!("{word:#010x} {:?}, executed: {is_executed}", refused(*word)))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        words.len(),
        wrong[..wrong.len().min(40)].join("\n")
    );
}
