//! Generates Rust code from `instructions.tsv`: the `Op` enumeration and one `Row` for each instruction. A malformed
//! line fails the build with its line number. The header of `instructions.tsv` documents the columns.

use std::fmt::Write as _;

fn main() {
    println!("cargo::rerun-if-changed=instructions.tsv");
    let text = std::fs::read_to_string("instructions.tsv").expect("instructions.tsv is next to build.rs");
    let (mut names, mut rows, mut count) = (String::new(), String::new(), 0);
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        let columns: Vec<&str> = line.split('\t').collect();
        let [matched, mnemonic, operands, reads, writes, extension, revision, class] = columns[..] else {
            panic!("instructions.tsv:{}: expected eight tab-separated columns", number + 1);
        };
        let op = camel_case(mnemonic);
        let operands = list(operands, operand);
        writeln!(names, "    /// `{mnemonic}` ({extension}).\n    {op},").unwrap();
        writeln!(
            rows,
            "    Row {{ matched: 0x{matched}, mask: mask_of(&[{operands}]), mnemonic: {mnemonic:?}, operands: &[{operands}], \
             reads: &[{}], writes: &[{}], extension: Extension::{}, revision: {revision:?}, class: Class::{} }},",
            list(reads, location),
            list(writes, location),
            camel_case(extension),
            camel_case(class),
        )
        .unwrap();
        count += 1;
    }
    let out_dir = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    std::fs::write(
        format!("{out_dir}/ops.rs"),
        format!(
            "/// The name of an instruction, in the order of the table.\n\
             #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]\n#[repr(u16)]\npub enum Op {{\n{names}}}\n"
        ),
    )
    .expect("OUT_DIR is writable");
    std::fs::write(format!("{out_dir}/rows.rs"), format!("pub static ROWS: [Row; {count}] = [\n{rows}];\n"))
        .expect("OUT_DIR is writable");
}

/// `amadd_db.w` becomes `AmaddDbW`.
fn camel_case(name: &str) -> String {
    name.split(['.', '_', '-'])
        .map(|part| {
            let mut letters = part.chars();
            letters
                .next()
                .map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
                .unwrap_or_default()
        })
        .collect()
}

/// Converts the parts of a column into a comma-separated list of Rust expressions.
fn list(column: &str, expression: fn(&str) -> String) -> String {
    let parts: Vec<String> = column.split(',').filter(|part| *part != "-").map(expression).collect();
    parts.join(", ")
}

/// The Rust expression for a location that an instruction reads or writes.
fn location(text: &str) -> String {
    let fixed = |kind: &str, number: &str| format!("Location::Register(RegisterKind::{kind}, {number})");
    match text {
        "ra" => fixed("General", "1"),
        "scr0" => fixed("Scratch", "0"),
        "scr1" => fixed("Scratch", "1"),
        "fcsr" => "Location::FloatControl".into(),
        "flags" => "Location::Flags".into(),
        "top" => "Location::Top".into(),
        "mode" => "Location::StackMode".into(),
        "reservation" => "Location::Reservation".into(),
        _ => match text.split_at(1) {
            ("m", bytes) => format!("Location::Memory({bytes})"),
            _ => operand(text).replacen("Operand::Register", "Location::Operand", 1),
        },
    }
}

/// The Rust expression for an operand.
fn operand(text: &str) -> String {
    let (kind, rest) = text.split_at(1);
    let register = |name: &str| format!("Operand::Register(RegisterKind::{name}, {rest})");
    match kind {
        "r" => register("General"),
        "f" => register("Float"),
        "v" => register("Vector128"),
        "x" => register("Vector256"),
        "c" => register("Condition"),
        "t" => register("Scratch"),
        "g" => register("FloatControl"),
        "s" | "u" => {
            let (fields, scale, plus) = match (rest.split_once("<<"), rest.split_once('+')) {
                (Some((fields, scale)), _) => (fields, scale, "0"),
                (_, Some((fields, plus))) => (fields, "0", plus),
                _ => (rest, "0", "0"),
            };
            let parts: Vec<String> = fields
                .split('.')
                .map(|part| {
                    let (position, width) =
                        part.split_once(':').unwrap_or_else(|| panic!("{text}: position:width"));
                    format!("({position}, {width})")
                })
                .collect();
            format!(
                "Operand::Immediate(Immediate {{ signed: {}, parts: &[{}], scale: {scale}, plus: {plus} }})",
                kind == "s",
                parts.join(", ")
            )
        }
        _ => panic!("{text}: unknown operand kind"),
    }
}
