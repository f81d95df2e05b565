//! The host code of complete regions: loops, calls and jumps, with entries, edges and exits.

use std::fmt::Write;

use longma_core::{HostCode, Instrumentation};
use longma_loongarch::{Instruction, Op, decode, encode};

use crate::text::{Text, target};

const PC: u64 = 0x1000;

/// The code of a region and its translation options.
struct Sequence {
    name: &'static str,
    description: &'static str,
    code: Vec<Instruction>,
    extras: Instrumentation,
}

/// The text for each sequence.
pub fn texts() -> Vec<(&'static str, String)> {
    let mut texts: Vec<_> = sequences().iter().map(|sequence| (sequence.name, text(sequence))).collect();
    let shared = HostCode::trampolines();
    let mut text = Text::of(&shared);
    let code = text.range(shared.start, u64::MAX);
    text.add_labels(&code);
    let lines = text.lines(&code);
    texts.push(("shared", format!("# The code that all regions share.\n\nshared: {}\n{lines}", code.len())));
    texts
}

fn text(sequence: &Sequence) -> String {
    let words: Vec<u32> =
        sequence.code.iter().map(|i| encode(i).unwrap_or_else(|error| panic!("{i}: {error}"))).collect();
    let host = HostCode::of(PC, &words, sequence.extras).expect("an instruction");
    let mut text = Text::of(&host);
    let end = text.end_of_blocks();
    let exits = text.named("leave_region");
    let hidden = if SHOW_EXITS.contains(&sequence.name) { u64::MAX } else { exits };
    let region_code = text.range(host.start, hidden);
    let targets: Vec<u64> = region_code.iter().filter_map(target).collect();
    for (at, pc) in text.pieces.iter().filter(|(at, pc)| *pc != 0 && targets.contains(at)) {
        text.names.insert(*at, format!("to_{pc:x}"));
    }
    text.add_labels(&region_code);
    let mut output = format!("# {}; update as described in tests/emitted/main.rs.\n\n", sequence.description);
    let mut add_section = |heading: &str, from: u64, to: u64| {
        let code = text.range(from, to);
        let region_code: Vec<_> = code.iter().filter(|i| i.ip() < hidden).copied().collect();
        if !code.is_empty() || heading.starts_with("0x") {
            write!(output, "{heading}: {}\n{}", code.len(), text.lines(&region_code)).expect("memory");
        }
    };
    add_section("entry", host.start, text.pieces[0].0);
    for pair in text.pieces.windows(2) {
        let [(from, pc), (to, next)] = *pair else { continue };
        // If two pieces have the same address, the first is a check at the start of the block or the code after a call.
        let heading = if next == pc { format!("{pc:#x} before") } else { guest(&words, pc, next) };
        add_section(&heading, from, to);
    }
    add_section("out of line", end, exits);
    add_section("exits", exits, u64::MAX);
    writeln!(output, "\nin all: {}", text.range(host.start, u64::MAX).len()).expect("memory");
    output
}

/// Regions whose exits are shown. Exits depend only on the register mapping; the first region has the most common one.
const SHOW_EXITS: [&str; 3] = ["counted_loop", "busy_registers", "many_vectors"];

/// The guest instructions at `pc`: one, or two if they are translated together, in which case `next` is after both.
fn guest(words: &[u32], pc: u64, next: u64) -> String {
    let at = |pc: u64| {
        let word = words[((pc - PC) / 4) as usize];
        decode(word).expect("it was encoded").at(pc).to_string()
    };
    let second = if next == pc + 8 { format!("; {}", at(pc + 4)) } else { String::new() };
    format!("{pc:#x} {}{second}", at(pc))
}

fn three(op: Op, d: u8, j: u8, k: u8) -> Instruction {
    Instruction { d, j, k, ..Instruction::new(op) }
}

fn two(op: Op, d: u8, j: u8, imm: i32) -> Instruction {
    Instruction { d, j, imm, ..Instruction::new(op) }
}

/// A conditional branch on `j` and, if it compares two registers, `d`.
fn branch(op: Op, j: u8, d: u8, offset: i32) -> Instruction {
    Instruction { d, j, imm: offset, ..Instruction::new(op) }
}

/// `b` or `bl`.
fn direct_jump(op: Op, offset: i32) -> Instruction {
    Instruction { imm: offset, ..Instruction::new(op) }
}

/// `jirl`.
fn jump(d: u8, j: u8) -> Instruction {
    Instruction { d, j, ..Instruction::new(Op::Jirl) }
}

fn return_to_caller() -> Instruction {
    jump(0, 1)
}

fn counted_loop() -> Vec<Instruction> {
    vec![three(Op::AddD, 4, 4, 5), two(Op::AddiD, 6, 6, -1), branch(Op::Bnez, 6, 0, -8), return_to_caller()]
}

fn memory_loop() -> Vec<Instruction> {
    vec![
        two(Op::LdW, 12, 4, 0),
        two(Op::LdW, 13, 4, 4),
        three(Op::AddW, 12, 12, 13),
        two(Op::StW, 12, 5, 0),
        two(Op::AddiD, 4, 4, 8),
        two(Op::AddiD, 5, 5, 4),
        branch(Op::Bne, 4, 6, -24),
        return_to_caller(),
    ]
}

/// Retries an exclusive access until it succeeds.
fn exclusive() -> Vec<Instruction> {
    vec![
        two(Op::LlD, 12, 4, 0),
        three(Op::AddD, 13, 12, 5),
        two(Op::ScD, 13, 4, 0),
        branch(Op::Beqz, 13, 0, -12),
        return_to_caller(),
    ]
}

fn vector_loop() -> Vec<Instruction> {
    vec![
        two(Op::Vld, 0, 4, 0),
        two(Op::Vld, 1, 5, 0),
        Instruction { a: 2, ..three(Op::VfmaddD, 2, 0, 1) },
        three(Op::VaddW, 3, 3, 0),
        two(Op::AddiD, 4, 4, 16),
        two(Op::AddiD, 5, 5, 16),
        two(Op::AddiD, 6, 6, -1),
        branch(Op::Bnez, 6, 0, -28),
        return_to_caller(),
    ]
}

/// More vector registers than the host has.
fn many_vectors() -> Vec<Instruction> {
    let mut code: Vec<Instruction> = (0..16).map(|n| three(Op::VaddD, n, n, (n + 1) % 16)).collect();
    code.extend([16, 17].map(|n| three(Op::XvxorV, n, n, n + 1)));
    code.push(return_to_caller());
    code
}

/// Uses registers outside the canonical mapping so often that they are assigned host registers.
fn busy_registers() -> Vec<Instruction> {
    let mut code = vec![three(Op::Xor, 25, 25, 26); 3];
    code.extend([two(Op::AddiD, 27, 27, -1), branch(Op::Bnez, 27, 0, -16)]);
    code.extend([direct_jump(Op::Bl, 0x100), return_to_caller()]);
    code
}

fn constants() -> Vec<Instruction> {
    vec![
        two(Op::Lu12iW, 4, 0, 0x12345),
        two(Op::Ori, 4, 4, 0x678),
        two(Op::Lu32iD, 4, 0, 0x2bcde),
        two(Op::Lu52iD, 4, 4, 0x7ab - 0x800),
        two(Op::Pcalau12i, 5, 0, 4),
        two(Op::AddiD, 5, 5, 0x20),
        two(Op::LdD, 6, 5, 0),
        two(Op::AddiW, 7, 0, -1),
        return_to_caller(),
    ]
}

fn plain(name: &'static str, description: &'static str, code: Vec<Instruction>) -> Sequence {
    Sequence { name, description, code, extras: Instrumentation::default() }
}

fn sequences() -> Vec<Sequence> {
    [loops(), control_flow(), other_sequences()].into_iter().flatten().collect()
}

fn loops() -> Vec<Sequence> {
    let none = Instrumentation::default();
    let with = |name, description, code, extras| Sequence { name, description, code, extras };
    let counting = Instrumentation { counting: true, ..none };
    let tracing = Instrumentation { tracing: true, ..none };
    let based = Instrumentation { based: true, ..none };
    let memory = "Loads and stores in a loop: one range check for each base register and iteration";
    let based_memory = "Loads and stores in a loop, where guest address 0 is not host address 0";
    vec![
        plain("counted_loop", "A counted loop", counted_loop()),
        with("counted_loop_counting", "A counted loop whose blocks are counted", counted_loop(), counting),
        with("counted_loop_tracing", "A counted loop that is traced", counted_loop(), tracing),
        plain("memory_loop", memory, memory_loop()),
        with("memory_loop_based", based_memory, memory_loop(), based),
        with("memory_loop_tracing", "Loads and stores in a loop that is traced", memory_loop(), tracing),
        plain("exclusive", "Load-linked and store-conditional in a loop", exclusive()),
        plain("vector_loop", "A loop of LSX", vector_loop()),
        plain(
            "busy_registers",
            "A loop with registers that are otherwise in memory, followed by a call",
            busy_registers(),
        ),
    ]
}

/// Calls, jumps and branches.
fn control_flow() -> Vec<Sequence> {
    let add = || three(Op::AddD, 4, 4, 5);
    let choice = vec![
        branch(Op::Bgeu, 4, 5, 12),
        three(Op::SubD, 4, 5, 4),
        direct_jump(Op::B, 8),
        three(Op::SubD, 4, 4, 5),
        return_to_caller(),
    ];
    let comparisons = vec![
        three(Op::FcmpCltD, 0, 1, 2),
        branch(Op::Bcnez, 0, 0, 12),
        three(Op::FcmpCeqD, 0, 1, 2),
        branch(Op::Bceqz, 0, 0, 8),
        three(Op::FaddD, 0, 0, 1),
        return_to_caller(),
    ];
    let branch_out = vec![branch(Op::Blt, 4, 5, 0x200), direct_jump(Op::B, 0x100)];
    let from_table = vec![three(Op::LdxD, 12, 5, 4), jump(0, 12)];
    let system_call = vec![two(Op::AddiD, 11, 0, 64), Instruction::new(Op::Syscall), return_to_caller()];
    vec![
        plain(
            "call",
            "A call out of the region, and the return",
            vec![direct_jump(Op::Bl, 0x100), add(), return_to_caller()],
        ),
        plain("indirect_call", "A call through a register", vec![jump(1, 12), add(), return_to_caller()]),
        plain("indirect_jump", "A jump to an address from a table", from_table),
        plain("jump_out", "Two exits of a region", branch_out),
        plain("branches", "Two branches that join", choice),
        plain("float_branch", "A floating-point comparison and its branch, fused and separate", comparisons),
        plain("system_call", "A system call", system_call),
    ]
}

fn other_sequences() -> Vec<Sequence> {
    let load = vec![two(Op::LdD, 4, 4, 16), three(Op::AddD, 4, 4, 5), return_to_caller()];
    let interpreter_call = vec![
        three(Op::AddD, 4, 4, 5),
        three(Op::VdivB, 1, 2, 3),
        three(Op::AddD, 4, 4, 6),
        return_to_caller(),
    ];
    vec![
        plain("load", "A load that may fault, and a use of its result", load),
        plain(
            "interpreter_call",
            "An instruction that the interpreter executes, between others",
            interpreter_call,
        ),
        plain("constants", "Constants of several instructions", constants()),
        plain("many_vectors", "More vector registers than the host has, of both widths", many_vectors()),
    ]
}
