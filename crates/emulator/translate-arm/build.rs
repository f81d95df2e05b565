//! Generates Rust from the table of A64 instructions: the `Op` enumeration and one `Row` per instruction. A malformed
//! line fails the build with its line number. The header of `src/instructions.tsv` documents the columns.

use std::fmt::Write as _;

fn main() {
    const TABLE: &str = "src/instructions.tsv";
    println!("cargo::rerun-if-changed={TABLE}");
    let text = std::fs::read_to_string(TABLE).expect("the table is part of the package");
    let (mut names, mut rows, mut count) = (String::new(), String::new(), 0);
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let [pattern, name, operands] = columns(TABLE, number, line);
        assert!(pattern.len() == 32, "{TABLE}:{}: a pattern has 32 bits", number + 1);
        let bits = |of: fn(char) -> bool| {
            pattern.chars().fold(0u32, |word, letter| word << 1 | u32::from(of(letter)))
        };
        let (matched, mask) = (bits(|letter| letter == '1'), bits(|letter| letter == '0' || letter == '1'));
        let operands: Vec<String> = match operands {
            "-" => Vec::new(),
            _ => operands.split(',').map(operand).collect(),
        };
        let (op, mnemonic) = (camel_case(name), name.split('.').next().unwrap_or(name));
        writeln!(names, "    /// `{name}`.\n    {op},").unwrap();
        writeln!(
            rows,
            "    Row {{ op: Op::{op}, matched: {matched:#x}, mask: {mask:#x}, mnemonic: {mnemonic:?}, operands: &[{}] }},",
            operands.join(", ")
        )
        .unwrap();
        count += 1;
    }
    write("arm.rs", &names, &rows, count);
}

/// Returns the Rust expression for one operand of the table.
fn operand(text: &str) -> String {
    let (role, rest) = match text.as_bytes()[0] {
        b'=' => ("Written", &text[1..]),
        b'~' => ("Both", &text[1..]),
        _ => ("Read", text),
    };
    let bytes = rest.as_bytes();
    match bytes[0] {
        b'#' => format!("Operand::Other({:?})", &rest[1..]),
        b'@' => format!("Operand::Address(b{:?})", char::from(bytes[1])),
        kind => {
            let at = match bytes[1] {
                b'd' | b't' => 0,
                b'n' => 5,
                b'a' | b'u' => 10,
                b'm' | b'z' => 16,
                _ => panic!("{text}: unknown field"),
            };
            format!("Operand::Register {{ role: Role::{role}, kind: b{:?}, at: {at} }}", char::from(kind))
        }
    }
}

/// Splits a line into its three columns.
fn columns<'a>(table: &str, number: usize, line: &'a str) -> [&'a str; 3] {
    let columns: Vec<&str> = line.split('\t').collect();
    let [first, second, third] = columns[..] else {
        panic!("{table}:{}: three tab-separated columns wanted", number + 1);
    };
    [first, second, third]
}

fn write(file: &str, names: &str, rows: &str, count: usize) {
    let out_dir = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let text = format!(
        "/// The name of an instruction, in the order of the table.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]\npub enum Op {{\n{names}}}\n\n\
         static ROWS: [Row; {count}] = [\n{rows}];\n"
    );
    std::fs::write(format!("{out_dir}/{file}"), text).expect("OUT_DIR is writable");
}

/// Converts a mnemonic to an identifier: `cvt.d.w` becomes `CvtDW`.
fn camel_case(name: &str) -> String {
    let mut next_is_upper = true;
    name.chars()
        .filter_map(|letter| {
            let upper = std::mem::replace(&mut next_is_upper, letter == '.');
            (letter != '.').then(|| if upper { letter.to_ascii_uppercase() } else { letter })
        })
        .collect()
}
