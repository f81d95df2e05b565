//! Checks the columns `reads` and `writes` of the table with the interpreter: changes one place before an instruction
//! and compares the results to determine whether the instruction reads it. Source: the description of the columns in
//! the header of `instructions.tsv`.

#[path = "../qemu_oracle/cases.rs"]
#[allow(dead_code)]
mod cases;
mod machine;

use std::collections::BTreeSet;

use longma_loongarch::{
    Class, Instruction, Location, Op, Operand, RegisterKind, semantics::is_user_instruction,
};

use machine::{Before, StateElement, run};

/// The number of states in which each instruction is tested.
const TRIES: u64 = 120;
/// The number of other values for each place in each state.
const CHANGES: usize = 2;

/// The place of `location` for `instruction`; `None` for memory.
fn place(location: Location, instruction: &Instruction) -> Option<StateElement> {
    let register = |kind: RegisterKind, number: u8| match kind {
        RegisterKind::General => StateElement::General(number),
        RegisterKind::Float | RegisterKind::Vector128 | RegisterKind::Vector256 => {
            StateElement::Vector(number)
        }
        RegisterKind::Condition => StateElement::Condition(number),
        RegisterKind::Scratch => StateElement::Scratch(number),
        RegisterKind::FloatControl => StateElement::FloatControl,
    };
    Some(match location {
        Location::Operand(kind, position) => register(kind, instruction.register_at(position)),
        Location::Register(kind, number) => register(kind, number),
        Location::FloatControl => StateElement::FloatControl,
        Location::Flags => StateElement::Flags,
        Location::Top => StateElement::Top,
        Location::StackMode => StateElement::StackMode,
        Location::Reservation => StateElement::Reservation,
        Location::Memory(_) => return None,
    })
}

/// The observed inputs and outputs of an instruction over all states, and the maximum number of bytes of memory in one
/// access.
#[derive(Debug, Default, PartialEq, Eq)]
struct Observation {
    reads: BTreeSet<String>,
    writes: BTreeSet<String>,
    loaded: u64,
    stored: u64,
}

/// The register operands of an instruction as in the table.
fn operands(instruction: &Instruction) -> impl Iterator<Item = Location> {
    instruction.op.row().operands.iter().filter_map(|operand| match operand {
        Operand::Register(RegisterKind::FloatControl, _) | Operand::Immediate(_) => None,
        Operand::Register(kind, position) => Some(Location::Operand(*kind, *position)),
    })
}

/// The name of a place as in the table row of `instruction`.
fn name(place: StateElement, instruction: &Instruction) -> String {
    let named = operands(instruction).find(|operand| self::place(*operand, instruction) == Some(place));
    named.map_or(place.to_string(), |location| location.to_string())
}

/// The groups of places to change: each place that an instruction may access, and all others together.
fn groups(instruction: &Instruction) -> Vec<Vec<StateElement>> {
    let mut separate: Vec<StateElement> =
        operands(instruction).filter_map(|location| place(location, instruction)).collect();
    separate.push(StateElement::General(1));
    separate.extend(StateElement::all().filter(|candidate| {
        !matches!(candidate, StateElement::General(_) | StateElement::Vector(_) | StateElement::Condition(_))
    }));
    let rest = StateElement::all().filter(|candidate| !separate.contains(candidate)).collect();
    let mut groups: Vec<Vec<StateElement>> = separate.iter().map(|candidate| vec![*candidate]).collect();
    groups.push(rest);
    groups
}

fn observe(op: Op) -> Observation {
    let mut observed = Observation::default();
    // Places that kept all or part of their value. They count as read if the instruction writes them at all.
    let mut preserved = BTreeSet::new();
    for seed in 1..=TRIES {
        let mut before = Before::any(op, seed);
        let instruction = before.instruction;
        let base = run(&before);
        observed.writes.extend(base.changed_since(&before).map(|written| name(written, &instruction)));
        // A store across pages first probes whether it can complete.
        let is_store = op.row().class == Class::Store;
        observed.loaded = observed.loaded.max(if is_store { 0 } else { base.loaded() });
        observed.stored = observed.stored.max(base.stored());
        for places in groups(&instruction) {
            let name = if let [place] = places[..] { name(place, &instruction) } else { "others".into() };
            for _ in 0..CHANGES {
                let previous = before.state.clone();
                places.iter().for_each(|place| before.change(*place));
                let changed = run(&before);
                if changed.differs_outside(&base, op, &places) {
                    observed.reads.insert(name.clone());
                }
                if changed.differs_in(&base, op, &places) {
                    preserved.insert(name.clone());
                }
                before.state = previous;
            }
        }
    }
    observed.reads.extend(preserved.into_iter().filter(|name| observed.writes.contains(name)));
    observed
}

/// The table's contents in the same form.
fn stated(op: Op) -> Observation {
    let row = op.row();
    let names = |list: &[Location]| {
        list.iter()
            .filter(|location| !matches!(location, Location::Memory(_)))
            .map(Location::to_string)
            .collect()
    };
    let bytes = |list: &[Location]| {
        list.iter().find_map(|location| {
            if let Location::Memory(bytes) = location { Some(u64::from(*bytes)) } else { None }
        })
    };
    Observation {
        reads: names(row.reads),
        writes: names(row.writes),
        loaded: bytes(row.reads).unwrap_or(0),
        stored: bytes(row.writes).unwrap_or(0),
    }
}

/// Adjusts the table's contents where the reference semantics access less or more than the architecture.
fn as_executed(op: Op, mut stated: Observation) -> Observation {
    match op {
        // Hints have no effect.
        Op::Preld | Op::Preldx if stated.reads.iter().all(|name| name[1..].parse::<u8>().is_ok()) => {
            stated.reads.clear();
        }
        // The neighbouring doubleword is stored in the reservation for SC.Q.
        Op::LlD | Op::LlacqD if stated.loaded == 8 => stated.loaded = 16,
        // It is implemented as a compare-exchange with the reserved value.
        Op::ScW | Op::ScD | Op::ScQ | Op::ScrelW | Op::ScrelD if stated.loaded == 0 => {
            stated.loaded = stated.stored;
        }
        _ => {}
    }
    stated
}

#[test]
fn every_instruction_reads_and_writes_as_in_the_table() {
    let mut wrong = Vec::new();
    for op in Op::all().filter(|op| is_user_instruction(*op)) {
        let (observed, stated) = (observe(op), as_executed(op, stated(op)));
        if observed != stated {
            wrong.push(format!("{}: observed {observed:?}, in the table {stated:?}", op.mnemonic()));
        }
    }
    assert!(wrong.is_empty(), "{} instructions:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn only_instructions_marked_in_the_table_access_memory() {
    for op in Op::all().filter(|op| is_user_instruction(*op)) {
        let row = op.row();
        let accesses =
            row.reads.iter().chain(row.writes).any(|location| matches!(location, Location::Memory(_)));
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
            let named = row.reads.iter().chain(row.writes).any(|location| *location == operand);
            assert!(named, "{}: {operand} is neither read nor written", op.mnemonic());
        }
    }
}

/// Privileged instructions with their input and output registers as defined by LLVM (LLVM 19, LoongArchInstrInfo.td and
/// LoongArchLVZInstrInfo.td: `ins` and `outs`). LLVM's csrrd and csrwr are csrxchg here, with mask r0 or r1.
const KERNEL: [(&[&str], &[&str], &[&str]); 5] = [
    (&["csrxchg", "gcsrxchg"], &["r0", "r5"], &["r0"]),
    (&["iocsrrd.b", "iocsrrd.h", "iocsrrd.w", "iocsrrd.d", "lddir"], &["r5"], &["r0"]),
    (&["iocsrwr.b", "iocsrwr.h", "iocsrwr.w", "iocsrwr.d"], &["r0", "r5"], &[]),
    (&["cacop", "ldpte"], &["r5"], &[]),
    (&["invtlb"], &["r5", "r10"], &[]),
];

/// Privileged instructions trap in user programs, so their columns are compared with LLVM's table.
#[test]
fn privileged_instructions_match_a_second_table() {
    let mut checked = 0;
    for op in Op::all().filter(|op| !is_user_instruction(*op)) {
        let stated = stated(op);
        let named = KERNEL.iter().find(|(mnemonics, ..)| mnemonics.contains(&op.mnemonic()));
        // The others have no register operands, and LLVM lists no implicit ones.
        let (reads, writes) = named.map_or((&[][..], &[][..]), |(_, reads, writes)| (*reads, *writes));
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        assert_eq!((&stated.reads, &stated.writes), (&set(reads), &set(writes)), "{}", op.mnemonic());
        // A page table walk loads an entry of 8 bytes (manual, volume 1, section 4.2.5). The others access no memory.
        let loads = if op.mnemonic().starts_with("ld") { 8 } else { 0 };
        assert_eq!((stated.loaded, stated.stored), (loads, 0), "{}", op.mnemonic());
        checked += 1;
    }
    assert_eq!(checked, 29);
}
