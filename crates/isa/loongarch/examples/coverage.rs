//! Generates the book's page of instructions: `cargo run -p longma-loongarch --example coverage >
//! docs/src/reference/instructions.md`. Source: `instructions.tsv`, `semantics::is_user_instruction`,
//! `tests/checked/*.txt`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use longma_loongarch::{Extension, Immediate, Op, Operand, RegisterKind, semantics::is_user_instruction};

/// The instructions compared with each oracle. The name of a list begins with the name of the oracle.
struct Checked(BTreeMap<String, BTreeSet<String>>);

impl Checked {
    fn read() -> Self {
        let mut oracles = BTreeMap::<String, BTreeSet<String>>::new();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checked");
        for entry in std::fs::read_dir(folder).expect("the source tree") {
            let path = entry.expect("the source tree").path();
            if path.extension().is_some_and(|extension| extension == "txt") {
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                let oracle = name.split('-').next().unwrap_or_default().to_owned();
                let text = std::fs::read_to_string(&path).expect("a list of instructions");
                oracles.entry(oracle).or_default().extend(text.split_whitespace().map(str::to_owned));
            }
        }
        Self(oracles)
    }

    fn has(&self, oracle: &str, op: Op) -> bool {
        self.0.get(oracle).is_some_and(|compared| compared.contains(op.mnemonic()))
    }

    /// The oracles that checked the semantics of `op`, as named on the page.
    fn semantics(&self, op: Op) -> Vec<&'static str> {
        let names = [("qemu", "QEMU"), ("formula", "formula"), ("host", "x86")];
        names.into_iter().filter(|(oracle, _)| self.has(oracle, op)).map(|(_, name)| name).collect()
    }
}

const EXTENSIONS: [(Extension, &str); 12] = [
    (Extension::Base, "Base integer"),
    (Extension::Mul, "Multiplication and division"),
    (Extension::Bit, "Bit operations and CRC"),
    (Extension::Bound, "Loads and stores with a bound"),
    (Extension::Atomic, "Atomic operations"),
    (Extension::Fp, "Floating point"),
    (Extension::Lbt, "Binary translation (LBT)"),
    (Extension::Lsx, "128-bit vectors (LSX)"),
    (Extension::Lasx, "256-bit vectors (LASX)"),
    (Extension::Privileged, "Privileged"),
    (Extension::Lvz, "Virtualisation (LVZ)"),
    (Extension::Private, "Private to translated code"),
];

const HEAD: &str = "# Instructions

All instructions of `crates/isa/loongarch/instructions.tsv`. The decoder, the encoder, the printer and this page are generated from
that table. To regenerate the page, run `LONGMA_UPDATE=1 cargo test -p longma-loongarch --test coverage`; without `LONGMA_UPDATE` the
same test fails if the page is out of date.

| column | meaning |
| --- | --- |
| text | LLVM's disassembler recognises the same encodings and prints them the same way |
| semantics | *user*: a user program can execute it; *kernel*: it traps as privileged; *translated*: only code translated from another architecture executes it, and it is illegal elsewhere; *none*: it is only decoded, and traps as illegal |
| checked against | the reference that the semantics were compared with, on random operands and edge cases |

The references are *QEMU* (`qemu-loongarch64` executed the same instruction on the same registers), *formula* (an independent
implementation in the tests), and *x86* (the host processor's own instruction, for flags and conversions that x86 defines).

Operands have the names that the manual uses: `r` is a general register, `f` a floating-point register, `v` and `x` are vector
registers, `c` is a condition flag, `scr` a scratch register and `fcsr` a control register. `si` and `ui` are signed and unsigned
immediates, followed by their width in bits.

The instructions that are *private to translated code* are this project's own. LoongArch has no equivalents, or, for cryptography, their
encodings are not published.
";

/// Generates the page.
pub fn page() -> String {
    let checked = Checked::read();
    let mut page = String::from(HEAD);
    let mut sections = String::new();
    page.push_str(
        "\n| extension | instructions | text | user | checked |\n| --- | ---: | ---: | ---: | ---: |\n",
    );
    let mut totals = [0; 4];
    for (extension, title) in EXTENSIONS {
        let ops: Vec<Op> = Op::all().filter(|op| op.row().extension == extension).collect();
        let count = |holds: &dyn Fn(&Op) -> bool| ops.iter().filter(|op| holds(op)).count();
        let counts = [
            ops.len(),
            count(&|op| checked.has("llvm", *op)),
            count(&|op| is_user_instruction(*op)),
            count(&|op| !checked.semantics(*op).is_empty()),
        ];
        for (total, count) in totals.iter_mut().zip(counts) {
            *total += count;
        }
        let [all, text, user, compared] = counts;
        writeln!(page, "| {title} | {all} | {text} | {user} | {compared} |").expect("strings take all");
        write!(sections, "\n## {title}\n\n| instruction | operands | class | since | text | semantics | checked against |\n").expect("as above");
        sections.push_str("| --- | --- | --- | --- | --- | --- | --- |\n");
        for op in ops {
            let row = op.row();
            let operands: Vec<String> = row.operands.iter().map(operand).collect();
            let semantics = match (is_user_instruction(op), extension) {
                (true, Extension::Private) => "translated",
                (true, _) => "user",
                (false, Extension::Privileged | Extension::Lvz) => "kernel",
                (false, _) => "none",
            };
            writeln!(
                sections,
                "| `{}` | {} | {} | {} | {} | {semantics} | {} |",
                row.mnemonic,
                operands.join(", "),
                words(&format!("{:?}", row.class)),
                row.revision,
                if checked.has("llvm", op) { "LLVM" } else { "" },
                checked.semantics(op).join(", "),
            )
            .expect("as above");
        }
    }
    let [all, text, user, checked] = totals;
    writeln!(page, "| **all** | {all} | {text} | {user} | {checked} |").expect("as above");
    page + &sections
}

/// Formats an operand as `rd`, `si12` or `ui2+1`.
fn operand(operand: &Operand) -> String {
    match *operand {
        Operand::Register(kind, position) => {
            let file = match kind {
                RegisterKind::General => "r",
                RegisterKind::Float => "f",
                RegisterKind::Vector128 => "v",
                RegisterKind::Vector256 => "x",
                RegisterKind::Condition => "c",
                RegisterKind::Scratch => "scr",
                RegisterKind::FloatControl => "fcsr",
            };
            let bit_range = match position {
                0 => "d",
                5 => "j",
                10 => "k",
                _ => "a",
            };
            format!("{file}{bit_range}")
        }
        Operand::Immediate(immediate) => {
            let Immediate { signed, scale, plus, .. } = immediate;
            let sign = if signed { "si" } else { "ui" };
            let scale_text = match (scale, plus) {
                (0, 0) => String::new(),
                (0, plus) => format!("+{plus}"),
                (scale, _) => format!("<<{scale}"),
            };
            format!("{sign}{}{scale_text}", immediate.width())
        }
    }
}

/// Formats `VectorIntMul` as `vector int mul`.
fn words(camel_case: &str) -> String {
    let mut text = String::new();
    for letter in camel_case.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push(' ');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[allow(dead_code)] // the test includes this file for `page` alone
fn main() {
    print!("{}", page());
}
