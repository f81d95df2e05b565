//! The columns `reads` and `writes` of the table against the interpreter: one thing is changed before an instruction, and what
//! differs behind it says whether the instruction read it.
//! Not what is computed from it.
//! Source: the columns' description in the head of `instructions.tsv`.

#[path = "../qemu_oracle/cases.rs"]
#[allow(dead_code)]
mod cases;
mod machine;

use std::collections::BTreeSet;

use longma_loongarch::{
    Class, Instruction, Location, Op, Operand, RegisterKind, semantics::is_user_instruction,
};

use machine::{Before, Place, run};

/// States that an instruction is tried on.
const TRIES: u64 = 120;
/// Other values that each place gets in each of them.
const CHANGES: usize = 2;

/// The place that `location` is for `instruction`; `None` of memory.
fn place(location: Location, instruction: &Instruction) -> Option<Place> {
    let register = |kind: RegisterKind, number: u8| match kind {
        RegisterKind::General => Place::General(number),
        RegisterKind::Float | RegisterKind::Vector128 | RegisterKind::Vector256 => Place::Vector(number),
        RegisterKind::Condition => Place::Condition(number),
        RegisterKind::Scratch => Place::Scratch(number),
        RegisterKind::FloatControl => Place::FloatControl,
    };
    Some(match location {
        Location::Operand(kind, position) => register(kind, instruction.register_at(position)),
        Location::Register(kind, number) => register(kind, number),
        Location::FloatControl => Place::FloatControl,
        Location::Flags => Place::Flags,
        Location::Top => Place::Top,
        Location::StackMode => Place::StackMode,
        Location::Reservation => Place::Reservation,
        Location::Memory(_) => return None,
    })
}

/// What an instruction was seen to read and write over all tries, and the most bytes of memory it touched in one.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    reads: BTreeSet<String>,
    writes: BTreeSet<String>,
    loaded: u64,
    stored: u64,
}

/// The register operands of an instruction, as the table names them.
fn operands(instruction: &Instruction) -> impl Iterator<Item = Location> {
    instruction.op.row().operands.iter().filter_map(|operand| match operand {
        Operand::Register(RegisterKind::FloatControl, _) | Operand::Immediate(_) => None,
        Operand::Register(kind, position) => Some(Location::Operand(*kind, *position)),
    })
}

/// The name of a place as the table has it for `instruction`.
fn name(place: Place, instruction: &Instruction) -> String {
    let named = operands(instruction).find(|it| self::place(*it, instruction) == Some(place));
    named.map_or(place.to_string(), |location| location.to_string())
}

/// Places to change one after another: each that an instruction may name or mean, and all others together.
fn groups(instruction: &Instruction) -> Vec<Vec<Place>> {
    let mut alone: Vec<Place> = operands(instruction).filter_map(|it| place(it, instruction)).collect();
    alone.push(Place::General(1));
    alone.extend(
        Place::all().filter(|it| !matches!(it, Place::General(_) | Place::Vector(_) | Place::Condition(_))),
    );
    let others = Place::all().filter(|it| !alone.contains(it)).collect();
    let mut groups: Vec<Vec<Place>> = alone.iter().map(|it| vec![*it]).collect();
    groups.push(others);
    groups
}

fn observe(op: Op) -> Seen {
    let mut seen = Seen::default();
    // What kept a part of its value, or all of it: read if the instruction writes it at all.
    let mut kept = BTreeSet::new();
    for seed in 1..=TRIES {
        let mut before = Before::any(op, seed);
        let instruction = before.instruction;
        let base = run(&before);
        seen.writes.extend(base.changed_since(&before).map(|written| name(written, &instruction)));
        // A store across pages looks first whether all of it can be stored.
        let is_store = op.row().class == Class::Store;
        seen.loaded = seen.loaded.max(if is_store { 0 } else { base.loaded() });
        seen.stored = seen.stored.max(base.stored());
        for places in groups(&instruction) {
            let name = if let [place] = places[..] { name(place, &instruction) } else { "others".into() };
            for _ in 0..CHANGES {
                let former = before.state.clone();
                places.iter().for_each(|place| before.change(*place));
                let changed = run(&before);
                if changed.differs_beside(&base, op, &places) {
                    seen.reads.insert(name.clone());
                }
                if changed.differs_in(&base, op, &places) {
                    kept.insert(name.clone());
                }
                before.state = former;
            }
        }
    }
    seen.reads.extend(kept.into_iter().filter(|name| seen.writes.contains(name)));
    seen
}

/// What the table says, in the same words.
fn stated(op: Op) -> Seen {
    let row = op.row();
    let names = |list: &[Location]| {
        list.iter().filter(|it| !matches!(it, Location::Memory(_))).map(Location::to_string).collect()
    };
    let bytes = |list: &[Location]| {
        list.iter()
            .find_map(|it| if let Location::Memory(bytes) = it { Some(u64::from(*bytes)) } else { None })
    };
    Seen {
        reads: names(row.reads),
        writes: names(row.writes),
        loaded: bytes(row.reads).unwrap_or(0),
        stored: bytes(row.writes).unwrap_or(0),
    }
}

/// Where the reference semantics do less, or look at more, than the architecture says.
fn as_executed(op: Op, mut stated: Seen) -> Seen {
    match op {
        // Hints: nothing happens.
        Op::Preld | Op::Preldx if stated.reads.iter().all(|name| name[1..].parse::<u8>().is_ok()) => {
            stated.reads.clear();
        }
        // The neighbouring doubleword is remembered, so that SC.Q can compare it.
        Op::LlD | Op::LlacqD if stated.loaded == 8 => stated.loaded = 16,
        // It stores by compare and exchange with what was reserved.
        Op::ScW | Op::ScD | Op::ScQ | Op::ScrelW | Op::ScrelD if stated.loaded == 0 => {
            stated.loaded = stated.stored;
        }
        _ => {}
    }
    stated
}

#[test]
fn every_instruction_reads_and_writes_what_the_table_says() {
    let mut wrong = Vec::new();
    for op in Op::all().filter(|op| is_user_instruction(*op)) {
        let (seen, stated) = (observe(op), as_executed(op, stated(op)));
        if seen != stated {
            wrong.push(format!("{}: seen {seen:?}, stated {stated:?}", op.mnemonic()));
        }
    }
    assert!(wrong.is_empty(), "{} instructions:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn what_accesses_memory_says_so_and_nothing_else_does() {
    for op in Op::all().filter(|op| is_user_instruction(*op)) {
        let row = op.row();
        let accesses = row.reads.iter().chain(row.writes).any(|it| matches!(it, Location::Memory(_)));
        let class = matches!(row.class, Class::Load | Class::Store | Class::Atomic);
        assert_eq!(accesses, class, "{}", op.mnemonic());
    }
}

#[test]
fn every_operand_is_read_or_written() {
    for op in Op::all() {
        let row = op.row();
        for operand in row.operands {
            let Operand::Register(kind, position) = *operand else { continue };
            let operand = match kind {
                RegisterKind::FloatControl => Location::FloatControl,
                _ => Location::Operand(kind, position),
            };
            let named = row.reads.iter().chain(row.writes).any(|it| *it == operand);
            assert!(named, "{}: {operand} is neither read nor written", op.mnemonic());
        }
    }
}

/// What is for kernels, the registers that go in and come out of it, as LLVM defines it (LLVM 19, LoongArchInstrInfo.td and
/// LoongArchLVZInstrInfo.td: `ins` and `outs`). Its csrrd and csrwr are csrxchg here, with r0 and r1 for the mask.
const KERNEL: [(&[&str], &[&str], &[&str]); 5] = [
    (&["csrxchg", "gcsrxchg"], &["r0", "r5"], &["r0"]),
    (&["iocsrrd.b", "iocsrrd.h", "iocsrrd.w", "iocsrrd.d", "lddir"], &["r5"], &["r0"]),
    (&["iocsrwr.b", "iocsrwr.h", "iocsrwr.w", "iocsrwr.d"], &["r0", "r5"], &[]),
    (&["cacop", "ldpte"], &["r5"], &[]),
    (&["invtlb"], &["r5", "r10"], &[]),
];

/// No interpreter executes them, so that nothing can be seen of them: another's table is what theirs is compared with.
#[test]
fn what_is_for_kernels_reads_and_writes_what_another_table_says() {
    let mut checked = 0;
    for op in Op::all().filter(|op| !is_user_instruction(*op)) {
        let stated = stated(op);
        let named = KERNEL.iter().find(|(mnemonics, ..)| mnemonics.contains(&op.mnemonic()));
        // The rest has no register to name, and LLVM lists none as implied.
        let (reads, writes) = named.map_or((&[][..], &[][..]), |(_, reads, writes)| (*reads, *writes));
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        assert_eq!((&stated.reads, &stated.writes), (&set(reads), &set(writes)), "{}", op.mnemonic());
        // A walk of page tables loads an entry of 8 bytes (manual, volume 1, section 4.2.5); nothing else accesses memory by an address.
        let loads = if op.mnemonic().starts_with("ld") { 8 } else { 0 };
        assert_eq!((stated.loaded, stated.stored), (loads, 0), "{}", op.mnemonic());
        checked += 1;
    }
    assert_eq!(checked, 29);
}
