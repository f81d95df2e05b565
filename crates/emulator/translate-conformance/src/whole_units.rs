//! Units of real programs, entered at each of their entry points with random registers and memory, must have the same
//! effect with any set of optimizations. The front ends' own tests compare single instructions with processors.
//! `LONGMA_PROGRAMS` names a directory of programs to test instead of the guests, with a subdirectory for each
//! architecture.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use longma_loongarch::{Environment, Fault, Scalar, State, Trap, decode, semantics};
use longma_translate::debug::{Value, words};
use longma_translate::front_end::{Exit, FrontEnd, ServiceResult, Unit, UserMemory};
use longma_translate::optimizations::{Optimization, Optimizations, Options};
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};

const CODE: u64 = 0xf000_0000;
/// The address of the lookup table. The source registers that are in memory follow the table
/// (`longma_translate_arm::registers::SLOTS`).
const TABLE: u64 = 1 << 40;
const SLOTS: u64 = TABLE + (1 << 39);
const STACK: u64 = 0x7fff_0000_0000;
/// The maximum number of units of a program, unless `LONGMA_UNITS` gives another.
const UNITS: usize = 60;
/// The number of random states for each entry point.
const STATES: u64 = 4;
/// An execution that reaches no exit within this many words is abandoned.
const MAX_WORDS: usize = 2000;

/// The finalizer of MurmurHash3, as a source of pseudo-random numbers.
fn mixed(mut number: u64) -> u64 {
    number = (number ^ number >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    number = (number ^ number >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    number ^ number >> 33
}

/// Values that are common in programs: zero, small positive and negative ones, 32-bit ones, and arbitrary ones.
fn common(number: u64) -> u64 {
    let number = mixed(number);
    match number & 7 {
        0 => 0,
        1 | 2 => number >> 60,
        3 => (number >> 60).wrapping_neg(),
        4 => number >> 32,
        5 => number as i32 as u64,
        _ => number,
    }
}

/// Memory with contents at every address.
struct Everywhere<'a> {
    code: &'a [u32],
    seed: u64,
    written: RefCell<HashMap<u64, u8>>,
}

impl Everywhere<'_> {
    fn byte(&self, address: u64) -> u8 {
        let written_byte = self.written.borrow().get(&address).copied();
        written_byte.unwrap_or_else(|| common((address / 8) ^ self.seed).to_le_bytes()[address as usize % 8])
    }
}

impl Environment for Everywhere<'_> {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        let bytes: [u8; 32] = std::array::from_fn(|byte| match byte < size_of::<T>() {
            true => self.byte(address.wrapping_add(byte as u64)),
            false => 0,
        });
        // SAFETY: a scalar is at most as long as the array, and every bit pattern is valid.
        Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        let mut bytes = [0u8; 32];
        // SAFETY: a scalar is at most as long as the array.
        unsafe { bytes.as_mut_ptr().cast::<T>().write_unaligned(value) };
        self.write(address, &bytes[..size_of::<T>()]);
        Ok(())
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        let current = self.load(address)?;
        if current == expected {
            self.store(address, new)?;
        }
        Ok(current)
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        Ok(self.code[((address - CODE) / 4) as usize])
    }

    fn stable_counter(&self) -> u64 {
        0
    }

    fn cpucfg(&self, _: u32) -> u32 {
        0
    }

    fn permits_private(&self) -> bool {
        true
    }
}

impl UserMemory for Everywhere<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        (0..).zip(bytes).for_each(|(at, byte)| *byte = self.byte(address.wrapping_add(at)));
        true
    }

    fn write(&self, address: u64, bytes: &[u8]) -> bool {
        self.written.borrow_mut().extend((0..).map(|at| address.wrapping_add(at)).zip(bytes.iter().copied()));
        true
    }

    fn writable(&self, _: u64, bytes: u64) -> u64 {
        bytes
    }

    fn clock_ns(&self) -> u64 {
        0
    }
}

/// The state after an execution.
#[derive(Debug, PartialEq)]
struct Left {
    /// The source address that the exit names, if it names one.
    target: Option<u64>,
    registers: Vec<Value>,
    written: BTreeMap<u64, u8>,
}

/// Executes a unit from an entry point to its exit. `None` if the exit is not a jump, or is not reached in time. Flags
/// are not compared: they are dead across calls and returns, which not all optimizations detect equally well.
fn left<F: FrontEnd>(
    unit: &Unit<F::Service, F::Pending>,
    entry: (u64, u32),
    seed: u64,
    slots: Option<u8>,
) -> Option<Left> {
    let memory = Everywhere { code: &unit.words, seed, written: RefCell::default() };
    let mut state = State::default();
    F::begin(&mut state, entry.0);
    state.set_r(F::TABLE, TABLE);
    if let Some(register) = slots {
        state.set_r(register, SLOTS);
    }
    let registers: Vec<_> = F::registers().registers().collect();
    for (number, register) in (0..).zip(&registers) {
        let word = |index: u64| common(seed ^ mixed(4 * number + index));
        let value = std::array::from_fn(|byte| word(byte as u64 / 8).to_le_bytes()[byte % 8]);
        F::write_register(*register, &value, &mut state, &memory);
    }
    F::begin(&mut state, entry.0);
    state.set_r(F::TABLE, TABLE);
    state.set_r(3, STACK + (seed & 0xfff0));
    state.pc = CODE + 4 * u64::from(entry.1);
    let mut target = None;
    for _ in 0..MAX_WORDS {
        let at = (state.pc.wrapping_sub(CODE) / 4) as usize;
        let Some(word) = unit.words.get(at).filter(|_| state.pc >= CODE) else {
            return Some(seen::<F>(target, &registers, &state, memory));
        };
        match semantics::execute(&mut state, &decode(*word)?, &memory) {
            Ok(()) => {}
            Err(Trap::Break(_)) => match unit.exits.iter().find(|exit| exit.0 as usize == at)?.1 {
                Exit::To(pc) => {
                    target = Some(pc);
                    state.pc = 0;
                }
                Exit::Service(service) => match F::serve(service, &mut state, &memory) {
                    ServiceResult::Done => state.pc += 4,
                    _ => return None,
                },
                _ => return None,
            },
            Err(_) => return None,
        }
    }
    None
}

fn seen<F: FrontEnd>(
    target: Option<u64>,
    registers: &[longma_translate::debug::Register<F::RegisterKind>],
    state: &State,
    memory: Everywhere,
) -> Left {
    let registers = registers.iter().map(|register| F::read_register(*register, state, &memory)).collect();
    // The front end's spill slots are compared as registers.
    let written = memory.written.into_inner().into_iter().filter(|(at, _)| !(TABLE..2 * TABLE).contains(at));
    Left { target, registers, written: written.collect() }
}

/// The numbers of the registers to compare: all but flags and the program counter.
fn compared<F: FrontEnd>() -> Vec<usize> {
    let left_out = ["pc", "rip", "eflags", "cpsr"];
    let mut numbers = Vec::new();
    let mut next = 0;
    for row in F::registers().rows {
        let count = usize::from(row.count);
        if !left_out.contains(&row.names) {
            numbers.extend(next..next + count);
        }
        next += count;
    }
    // On MIPS64, register 1 (`at`) is dead when a function returns.
    numbers.retain(|number| F::NAME != "MIPS64" || *number != 1);
    numbers
}

/// The segments of an executable, its entry point and the functions in its symbol table.
struct Program {
    segments: Vec<(u64, Vec<u8>)>,
    starts: Vec<u64>,
}

impl Program {
    fn open(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let segments = file.segments();
        let segments =
            segments.map(|segment| (segment.address(), segment.data().unwrap().to_vec())).collect();
        let symbols = file.symbols().chain(file.dynamic_symbols());
        let functions = symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
        let starts = functions.map(|symbol| symbol.address()).chain([file.entry()]).collect();
        Self { segments, starts }
    }

    fn fetch(&self, pc: u64) -> Option<u32> {
        self.segments.iter().find_map(|(start, bytes)| {
            let at = usize::try_from(pc.checked_sub(*start)?).ok()?;
            Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
        })
    }
}

/// A unit and one of its entry points.
type Entered<'a, F> = (&'a Unit<<F as FrontEnd>::Service, <F as FrontEnd>::Pending>, (u64, u32));

/// A description of how two units differ on random states, if they do. `counted` counts the states.
fn difference<F: FrontEnd>(
    [one, other]: [Entered<F>; 2],
    slots: Option<u8>,
    counted: &mut u64,
) -> Option<String> {
    let compared = compared::<F>();
    for seed in (0..STATES).map(|seed| mixed(seed ^ one.1.0)) {
        let (Some(mut a), Some(mut b)) =
            (left::<F>(one.0, one.1, seed, slots), left::<F>(other.0, other.1, seed, slots))
        else {
            continue;
        };
        *counted += 1;
        for left in [&mut a, &mut b] {
            left.registers = compared.iter().map(|number| left.registers[*number]).collect();
        }
        if a != b {
            let differs = (0..).zip(a.registers.iter().zip(&b.registers)).filter(|(_, (a, b))| a != b);
            let differs: Vec<_> = differs.map(|(n, (a, b))| (compared[n], words(a), words(b))).collect();
            let (from, to) = ((a.target, b.target), a.written == b.written);
            return Some(format!("{differs:x?}, to {from:x?}, memory the same: {to}"));
        }
    }
    None
}

/// Follows a program's code from its entry point unit by unit. Executes each unit with the default optimizations, with
/// each one toggled, and from an address in its middle, both as a separate unit and through an additional entry point.
/// Each source address needs its own first word, which is patched when the address is unlinked.
fn agree<F: FrontEnd>(path: &Path, slots: Option<u8>, counted: &mut [u64; 2]) -> Vec<String> {
    let program = Program::open(path);
    let fetch = |pc: u64| program.fetch(pc);
    let through = |pc, extra_entries: &[u64], optimizations| {
        F::translate(pc, extra_entries, &fetch, &|_| false, &Options { optimizations, ..Options::default() })
    };
    let variants = [
        Optimization::Flags,
        Optimization::FlagsAcross,
        Optimization::Fusion,
        Optimization::Forms,
        Optimization::Loops,
        Optimization::Lbt,
    ]
    .map(|part| Optimizations::default().with(part, !part.is_default()));
    let (mut ahead, mut known) =
        (program.starts.clone(), program.starts.iter().copied().collect::<BTreeSet<_>>());
    let limit = std::env::var("LONGMA_UNITS").ok().and_then(|limit| limit.parse().ok()).unwrap_or(UNITS);
    let (mut wrong, mut units) = (Vec::new(), 0);
    while let Some(pc) = ahead.pop().filter(|_| units < limit) {
        units += 1;
        let usual = through(pc, &[], Optimizations::default());
        let optimizations = variants[units % variants.len()];
        let other = through(pc, &[], optimizations);
        let begins = usual.entries.iter().chain(&usual.heads).map(|(pc, offset)| (*offset, *pc));
        let mut begins: Vec<(u32, u64)> = begins.collect();
        begins.sort_unstable();
        for pair in begins.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            wrong.push(format!("{}: unit {pc:#x}: {pair:x?} begin with one word", path.display()));
        }
        let exits = usual.exits.iter().filter_map(|(_, exit)| match exit {
            Exit::To(pc) => Some(*pc),
            _ => None,
        });
        ahead.extend(exits.filter(|pc| known.insert(*pc)));
        let mut compare = |a: &Unit<F::Service, F::Pending>,
                           b: &Unit<F::Service, F::Pending>,
                           at: u64,
                           variant: &str| {
            let entry = |unit: &Unit<F::Service, F::Pending>| {
                unit.entries.iter().find(|entry| entry.0 == at).copied()
            };
            let (Some(first), Some(second)) = (entry(a), entry(b)) else { return };
            counted[0] += 1;
            if let Some(what) = difference::<F>([(a, first), (b, second)], slots, &mut counted[1]) {
                wrong.push(format!("{}: unit {pc:#x}, from {at:#x} on, {variant}: {what}", path.display()));
            }
        };
        for (at, _) in &usual.entries {
            ahead.extend(Some(*at).filter(|pc| known.insert(*pc)));
            compare(&usual, &other, *at, &format!("with {optimizations}"));
        }
        let heads = usual.heads.len();
        let extra_entry = if heads > 0 { usual.heads[units % heads].0 } else { pc };
        let all: Vec<u64> = usual.heads.iter().map(|head| head.0).collect();
        for (extra_entry, extra_entries) in
            [(extra_entry, &[extra_entry][..]), (pc, &[pc]), (extra_entry, &all)]
        {
            let by_extra_entry = through(pc, extra_entries, Optimizations::default());
            let reference = through(extra_entry, &[], Optimizations::default());
            // A unit that reached the maximum length may end earlier.
            let alone_has: BTreeSet<u64> = reference.positions.iter().map(|position| position.pc).collect();
            if !by_extra_entry
                .exits
                .iter()
                .any(|(_, exit)| matches!(exit, Exit::To(pc) if alone_has.contains(pc)))
            {
                compare(&reference, &by_extra_entry, extra_entry, "from the extra entry point");
            }
            compare(&usual, &by_extra_entry, pc, &format!("with an extra entry point at {extra_entry:#x}"));
        }
    }
    wrong
}

/// Compares the units of the programs in the guests' `folder`. `slots` is the LoongArch register that points to source
/// registers in memory, if there are such.
///
/// # Panics
/// Units differ.
pub fn programs_are_equivalent_without_optimizations<F: FrontEnd>(folder: &str, slots: Option<u8>) {
    let guests = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../guests/prebuilt");
    let folder = std::env::var_os("LONGMA_PROGRAMS").map_or_else(guests, PathBuf::from).join(folder);
    let (mut counted, mut wrong) = ([0; 2], Vec::new());
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        wrong.extend(agree::<F>(&path, slots, &mut counted));
    }
    println!("{} entries, {} executions", counted[0], counted[1]);
    assert!(counted[1] > 1000, "{counted:?}");
    let excerpt = wrong.iter().take(5).map(|text| &text[..text.len().min(1200)]).collect::<Vec<_>>();
    assert!(wrong.is_empty(), "{} differences\n{}", wrong.len(), excerpt.join("\n"));
}
