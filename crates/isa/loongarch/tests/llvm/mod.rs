//! Disassembles instruction words with LLVM, as a test oracle. One run handles all words. Source: `llvm-mc
//! --disassemble`, LLVM 19 or newer (Debian package `llvm-19`).

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

const FEATURES: &str = "--mattr=+64bit,+f,+d,+lsx,+lasx,+lbt,+lvz,+frecipe";

/// LLVM's text for each word, without aliases and with single spaces; `None` for an invalid encoding.
pub fn disassemble(words: &[u32]) -> Vec<Option<String>> {
    let program = std::env::var("LONGMA_LLVM_MC").unwrap_or_else(|_| "llvm-mc-19".into());
    let mut child = Command::new("timeout")
        .args(["60", &program, "--disassemble", "--triple=loongarch64", FEATURES])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the `timeout` command of coreutils");
    let input: String = words
        .iter()
        .map(|word| {
            let [a, b, c, d] = word.to_le_bytes();
            format!("{a:#04x} {b:#04x} {c:#04x} {d:#04x}\n")
        })
        .collect();
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("llvm-mc runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && writer.join().is_ok_and(|written| written.is_ok()),
        "{program} failed ({}): {errors}\nThis test needs LLVM 19 or newer: apt-get install llvm-19, or name the program in LONGMA_LLVM_MC.",
        output.status,
    );

    let mut texts = vec![Some(String::new()); words.len()];
    for line in errors.lines().filter(|line| line.ends_with("invalid instruction encoding")) {
        let number = line.split(':').nth(1).and_then(|number| number.parse::<usize>().ok());
        texts[number.expect("a line number") - 1] = None;
    }
    let printed = String::from_utf8(output.stdout).expect("LLVM prints text");
    let mut lines = printed.lines().filter(|line| *line != "\t.text");
    for text in texts.iter_mut().flatten() {
        *text = without_aliases(lines.next().expect("a line for each valid word"));
    }
    assert_eq!(lines.next(), None, "LLVM printed more lines than there were valid words");
    texts
}

/// Replaces the four aliases that LLVM 19 prints, and cannot disable, with the underlying instructions.
fn without_aliases(line: &str) -> String {
    let line = line.trim().replace('\t', " ");
    match line.split_once(' ').unwrap_or((&line, "")) {
        ("nop", _) => "andi $zero, $zero, 0".into(),
        ("ret", _) => "jirl $zero, $ra, 0".into(),
        ("jr", register) => format!("jirl $zero, {register}, 0"),
        ("move", registers) => format!("or {registers}, $zero"),
        _ => line,
    }
}
