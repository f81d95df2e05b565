//! Generates Rust from the table of MIPS64 instructions: the `Op` enumeration and one `Row` per instruction. A
//! malformed line fails the build with its line number. The header of `src/instructions.tsv` documents the columns.

use std::fmt::Write as _;

fn main() {
    const TABLE: &str = "src/instructions.tsv";
    println!("cargo::rerun-if-changed={TABLE}");
    let text = std::fs::read_to_string(TABLE).expect("the table is part of the package");
    let (mut names, mut rows, mut count) = (String::new(), String::new(), 0);
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [matched, mnemonic, operands] = columns[..] else {
            panic!("{TABLE}:{}: three tab-separated columns wanted", number + 1);
        };
        let operands: Vec<String> = operands.split(',').map(operand).collect();
        let operands = operands.join(", ");
        writeln!(names, "    /// `{mnemonic}`.\n    {},", camel_case(mnemonic)).unwrap();
        writeln!(
            rows,
            "    Row {{ op: Op::{}, matched: 0x{matched}, mask: mask_of(&[{operands}]), mnemonic: {mnemonic:?}, operands: &[{operands}] }},",
            camel_case(mnemonic)
        )
        .unwrap();
        count += 1;
    }
    let out_dir = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let text = format!(
        "/// The name of an instruction, in the order of the table.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]\npub enum Op {{\n{names}}}\n\n\
         static ROWS: [Row; {count}] = [\n{rows}];\n"
    );
    std::fs::write(format!("{out_dir}/mips.rs"), text).expect("OUT_DIR is writable");
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

/// Returns the Rust expression for one operand of the table.
fn operand(text: &str) -> String {
    let (kind, rest) = text.split_at(1);
    match kind {
        "r" => format!("Operand::General({rest})"),
        "z" => format!("Operand::Twice({rest})"),
        "f" => format!("Operand::Float({rest})"),
        "c" => format!("Operand::Condition({rest})"),
        "b" => "Operand::Branch".into(),
        "j" => "Operand::Jump".into(),
        "m" => "Operand::Memory".into(),
        "s" | "u" => {
            let (position, width) = rest.split_once(':').unwrap_or_else(|| panic!("{text}: position:width"));
            let name = if kind == "s" { "Signed" } else { "Unsigned" };
            format!("Operand::{name}({position}, {width})")
        }
        _ => panic!("{text}: unknown operand kind"),
    }
}
