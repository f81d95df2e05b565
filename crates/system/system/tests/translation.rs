//! Compares translated execution with the interpreter: random programs run on two machines, which must have the same
//! registers, CSRs, memory and clock after each of many short runs. `LONGMA_SYSTEM_CASES` is the number of programs.

use longma_loongarch::{Class, Extension, Instruction, Op, decode, encode};
use longma_random::SplitMix64;
use longma_system::csr::table;
use longma_system::{Configuration, Machine, Stop};

const BODY: u64 = 0x20_0ff0;
const HANDLER: u64 = 0x21_0000;
const REFILL: u64 = 0x21_1000;
const PROLOGUE: u64 = 0x22_0000;
const DATA: u64 = 0x23_0000;
const DATA_BYTES: usize = 4096;
/// A direct-mapped window.
const WINDOW: u64 = 0x9000_0000_0000_0000;

/// Registers that random instructions do not write: they hold the address of the body, its first instruction, scratch
/// values of handlers, the address of the data, and the number of iterations that remain.
const CODE_POINTER: u8 = 18;
const FIRST: u8 = 19;
const SCRATCH: u8 = 20;
const DATA_POINTER: u8 = 21;
const COUNTER: u8 = 22;

struct Program(Vec<u32>);

impl Program {
    fn put(&mut self, op: Op, d: u8, j: u8, imm: i32) -> &mut Self {
        self.0.push(encode(&Instruction { d, j, imm, ..Instruction::new(op) }).expect("operands fit"));
        self
    }

    fn set(&mut self, d: u8, value: u64) -> &mut Self {
        self.put(Op::Lu12iW, d, 0, (value as u32 as i32) >> 12)
            .put(Op::Ori, d, d, (value & 0xfff) as i32)
            .put(Op::Lu32iD, d, 0, ((value << 12) as i64 >> 44) as i32)
            .put(Op::Lu52iD, d, d, (value as i64 >> 52) as i32)
    }

    fn write_csr(&mut self, number: u16, value: u64) -> &mut Self {
        self.set(SCRATCH, value).put(Op::Csrxchg, SCRATCH, 1, number.into())
    }
}

fn below(random: &mut SplitMix64, limit: u64) -> u64 {
    random.next_u64() % limit
}

fn register(random: &mut SplitMix64) -> u8 {
    let number = below(random, 27) as u8;
    if number < 18 { number } else { number + 5 }
}

fn is_arithmetic(op: Op) -> bool {
    let row = op.row();
    matches!(row.extension, Extension::Base | Extension::Mul | Extension::Bit)
        && matches!(row.class, Class::Alu | Class::Shift | Class::Bit | Class::Mul | Class::Div | Class::Crc)
}

fn is_access(op: Op) -> bool {
    op.row().extension == Extension::Base && matches!(op.row().class, Class::Load | Class::Store)
}

/// A random instruction that does not set the program counter.
fn instruction(
    random: &mut SplitMix64,
    arithmetic: &[Op],
    accesses: &[Op],
    atomics: &[Op],
    vectors: &[Op],
) -> u32 {
    let pick = |random: &mut SplitMix64, ops: &[Op]| ops[below(random, ops.len() as u64) as usize];
    loop {
        let op = match below(random, 99) {
            0..50 => pick(random, arithmetic),
            50..80 => pick(random, accesses),
            80..85 => pick(random, vectors),
            85..92 => pick(random, atomics),
            92..94 => Op::RdtimeD,
            94..96 => Op::Csrxchg,
            96..98 => pick(random, vectors),
            _ => Op::Syscall,
        };
        let word = op.row().matched | random.next_u64() as u32 & !op.row().mask;
        let mut i = decode(word).expect("a row with any operands decodes");
        (i.d, i.j, i.k) = (register(random), register(random), register(random));
        match op {
            _ if is_arithmetic(op) => {}
            Op::Csrxchg => i.imm = i32::from(table::SAVE0) + below(random, 4) as i32,
            Op::RdtimeD | Op::Syscall => {}
            _ if below(random, 60) == 0 => {}
            _ => {
                (i.j, i.k) = (DATA_POINTER, if atomics.contains(&op) { i.k } else { 0 });
                i.imm = if i.imm == 0 { 0 } else { below(random, 500) as i32 * 4 };
            }
        }
        if let Ok(word) = encode(&i) {
            return word;
        }
    }
}

fn handler(return_address: u16) -> Program {
    let mut code = Program(Vec::new());
    // An interrupt has code 0.
    code.put(Op::Csrxchg, SCRATCH, 0, table::ESTAT.into()).put(Op::SrliD, SCRATCH, SCRATCH, 16);
    if return_address == table::ERA {
        code.put(Op::Bnez, 0, SCRATCH, 16).put(Op::AddiD, SCRATCH, 0, 1);
        code.put(Op::Csrxchg, SCRATCH, 1, table::TICLR.into()).put(Op::Ertn, 0, 0, 0);
    }
    code.put(Op::Csrxchg, SCRATCH, 0, return_address.into()).put(Op::AddiD, SCRATCH, SCRATCH, 4);
    code.put(Op::Csrxchg, SCRATCH, 1, return_address.into()).put(Op::Ertn, 0, 0, 0);
    code
}

fn first() -> u32 {
    encode(&Instruction { d: 4, j: 4, imm: 1, ..Instruction::new(Op::AddiD) }).expect("operands fit")
}

/// A loop over random instructions and branches, interrupted by a periodic timer.
fn body(random: &mut SplitMix64) -> Program {
    let arithmetic: Vec<Op> = Op::all().filter(|op| is_arithmetic(*op)).collect();
    let is_vector = |op: &Op| {
        let row = op.row();
        matches!(row.extension, Extension::Fp | Extension::Lsx | Extension::Lasx)
            && matches!(row.class, Class::Load | Class::Store)
    };
    let vectors: Vec<Op> = Op::all().filter(is_vector).collect();
    let accesses: Vec<Op> = Op::all().filter(|op| is_access(*op)).collect();
    let atomics: Vec<Op> = Op::all().filter(|op| op.row().extension == Extension::Atomic).collect();
    let mut code = Program(vec![first()]);
    for _ in 0..20 + below(random, 60) {
        match below(random, 10) {
            0 => {
                let op = [Op::Beq, Op::Bne, Op::Blt, Op::Bgeu][below(random, 4) as usize];
                code.put(op, register(random), register(random), 4 + 4 * below(random, 3) as i32);
            }
            1 => {
                code.put(Op::Bnez, 0, register(random), 8);
            }
            2 if below(random, 2) == 0 => {
                let wide = below(random, 2) == 0;
                let (linked, conditional) = if wide { (Op::LlD, Op::ScD) } else { (Op::LlW, Op::ScW) };
                // One reservation in four is lost, or for another address.
                let (offset, other) = (8 * below(random, 4) as i32, 8 * below(random, 4) as i32);
                let second = if below(random, 4) == 0 { other } else { offset };
                code.put(linked, register(random), DATA_POINTER, offset);
                if below(random, 4) == 0 {
                    code.put(Op::StW, register(random), DATA_POINTER, offset);
                }
                code.put(conditional, register(random), DATA_POINTER, second);
            }
            2 => {
                code.put(Op::Bl, 0, 0, 4 + 4 * below(random, 2) as i32);
            }
            _ => code.0.push(instruction(random, &arithmetic, &accesses, &atomics, &vectors)),
        }
    }
    // Branches over the end land on these.
    for _ in 0..4 {
        code.put(Op::AddiD, 0, 0, 0);
    }
    // Every 256 iterations, the first instruction changes its immediate.
    code.put(Op::LdW, SCRATCH, CODE_POINTER, 0);
    code.put(Op::Andi, SCRATCH, COUNTER, 255).put(Op::Bnez, 0, SCRATCH, 12);
    code.put(Op::AddiD, FIRST, FIRST, 1 << 10).put(Op::StW, FIRST, CODE_POINTER, 0);
    code.put(Op::AddiD, COUNTER, COUNTER, -1);
    let back = -4 * code.0.len() as i32;
    code.put(Op::Bnez, 0, COUNTER, back).put(Op::Idle, 0, 0, 0).put(Op::B, 0, 0, -4);
    code
}

fn machine(seed: u64, translation: bool) -> Machine {
    let mut random = SplitMix64::new(seed);
    let configuration = Configuration { memory_bytes: 64 << 20, translation, ..Configuration::default() };
    let mut machine = Machine::new(&configuration).expect("the host has memory");
    let is_mapped = below(&mut random, 2) == 0;
    let base = if is_mapped { WINDOW } else { 0 };
    let mut prologue = Program(Vec::new());
    prologue.write_csr(table::DMW0, WINDOW | 0x11).write_csr(table::EENTRY, base | HANDLER);
    // Random units are enabled.
    prologue.write_csr(table::EUEN, below(&mut random, 8));
    prologue.write_csr(table::TLBRENTRY, REFILL).write_csr(table::ECFG, 1 << 11);
    let ticks = 4 * (20 + below(&mut random, 200));
    prologue.write_csr(table::TCFG, ticks | 3);
    prologue.set(CODE_POINTER, base | BODY).set(DATA_POINTER, base | DATA).set(COUNTER, 1000);
    prologue.set(FIRST, first().into());
    prologue.write_csr(table::CRMD, if is_mapped { 0x14 } else { 0xc }).put(Op::Jirl, 0, CODE_POINTER, 0);
    let parts = [
        (PROLOGUE, prologue),
        (HANDLER, handler(table::ERA)),
        (REFILL, handler(table::TLBRERA)),
        (BODY, body(&mut random)),
    ];
    for (address, part) in parts {
        let bytes: Vec<u8> = part.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        machine.memory().write(address, &bytes).expect("it is in memory");
    }
    let state = machine.state_mut();
    // Without paging, the upper bits of an address have no effect.
    state.pc = base | PROLOGUE;
    for number in (1..32).filter(|number| !(18..23).contains(number)) {
        state.set_r(number, random.next_u64() >> below(&mut random, 64));
    }
    machine
}

/// The state of a machine that software can observe.
fn visible(machine: &Machine) -> (String, u64, Vec<Option<u64>>, Vec<u8>) {
    let csrs = table::ROWS.iter().map(|row| machine.csr(row.number)).collect();
    let mut memory = vec![0; DATA_BYTES];
    machine.memory().read(DATA, &mut memory).expect("it is in memory");
    (format!("{:x?}", machine.state()), machine.cycles(), csrs, memory)
}

#[test]
fn translated_code_and_the_interpreter_do_the_same() {
    let requested = std::env::var("LONGMA_SYSTEM_CASES").ok().and_then(|text| text.parse().ok());
    let mut regions = 0;
    for seed in 0..requested.unwrap_or(60) {
        let (mut interpreted, mut translated) = (machine(seed, false), machine(seed, true));
        let mut random = SplitMix64::new(!seed);
        for run in 0..200 {
            let cycles = 1 + below(&mut random, 1_500);
            let (expected, found) = (interpreted.run(cycles), translated.run(cycles));
            assert_eq!(expected, found, "seed {seed}, run {run}");
            assert_eq!(visible(&interpreted), visible(&translated), "seed {seed}, run {run}");
            if expected != Stop::Limit {
                break;
            }
        }
        regions += translated.translated_regions();
    }
    assert!(regions > 200, "{regions} regions are not enough for a comparison");
}

/// The physical addresses of two functions, and two virtual pages at which they are mapped.
const FUNCTIONS: [u64; 2] = [0x24_0000, 0x24_1000];
const PAGES: [u64; 2] = [0x4000_0000, 0x5000_2000];
const CALLS: u64 = 1000;

impl Program {
    /// Maps a virtual page of 4 KiB by an entry of the MTLB.
    fn map(&mut self, entry: u64, page: u64, physical: u64) -> &mut Self {
        const FIRST_MTLB_ENTRY: u64 = 2048;
        // Valid, dirty, cached, global.
        let low = physical | 0x53;
        self.write_csr(table::TLBIDX, 12 << 24 | (FIRST_MTLB_ENTRY + entry)).write_csr(table::TLBEHI, page);
        self.write_csr(table::TLBELO0, low).write_csr(table::TLBELO1, low);
        self.put(Op::Tlbwr, 0, 0, 0)
    }

    /// Calls the functions at the addresses in r6 and r7 in turn.
    fn call_often(&mut self) -> &mut Self {
        self.set(COUNTER, CALLS).put(Op::Jirl, 1, 6, 0).put(Op::Jirl, 1, 7, 0);
        self.put(Op::AddiD, COUNTER, COUNTER, -1).put(Op::Bnez, 0, COUNTER, -12)
    }
}

/// The value of r4 at the end of `body`, which runs in the window and calls `functions`.
fn result(body: impl Fn(&mut Program), functions: [Program; 2], translation: bool) -> u64 {
    let configuration = Configuration { memory_bytes: 64 << 20, translation, ..Configuration::default() };
    let mut machine = Machine::new(&configuration).expect("the host has memory");
    let mut prologue = Program(Vec::new());
    prologue.write_csr(table::DMW0, WINDOW | 0x11).set(CODE_POINTER, WINDOW | BODY);
    prologue.write_csr(table::CRMD, 0x10).put(Op::Jirl, 0, CODE_POINTER, 0);
    let mut code = Program(Vec::new());
    code.set(6, PAGES[0]).set(7, PAGES[1]);
    body(&mut code);
    code.put(Op::Idle, 0, 0, 0);
    let [first, second] = functions;
    let parts = [(PROLOGUE, prologue), (BODY, code), (FUNCTIONS[0], first), (FUNCTIONS[1], second)];
    for (address, part) in parts {
        let bytes: Vec<u8> = part.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        machine.memory().write(address, &bytes).expect("it is in memory");
    }
    machine.state_mut().pc = WINDOW | PROLOGUE;
    assert_eq!(machine.run(1_000_000), Stop::Idle);
    assert_eq!(machine.translated_regions() > 0, translation);
    machine.state().r(4)
}

fn adding(amount: i32) -> Program {
    let mut code = Program(Vec::new());
    code.put(Op::AddiD, 4, 4, amount).put(Op::Jirl, 0, 1, 0);
    code
}

#[test]
fn translated_code_follows_a_changed_mapping() {
    let body = |code: &mut Program| {
        code.map(0, PAGES[0], FUNCTIONS[0]).map(1, PAGES[1], FUNCTIONS[0]).set(8, 2);
        // The calls are in translated code when the mapping changes.
        let start = code.0.len();
        code.call_often().map(0, PAGES[0], FUNCTIONS[1]).put(Op::AddiD, 8, 8, -1);
        code.put(Op::Bnez, 0, 8, -4 * (code.0.len() - start) as i32);
    };
    for translation in [false, true] {
        assert_eq!(result(body, [adding(1), adding(100)], translation), CALLS * (1 + 1 + 100 + 1));
    }
}

#[test]
fn translated_code_of_a_page_that_is_mapped_twice_knows_its_address() {
    let body = |code: &mut Program| {
        code.map(0, PAGES[0], FUNCTIONS[0]).map(1, PAGES[1], FUNCTIONS[0]).call_often();
    };
    for translation in [false, true] {
        let mut function = Program(Vec::new());
        function.put(Op::Pcaddi, 5, 0, 0);
        function.0.push(
            encode(&Instruction { d: 4, j: 4, k: 5, ..Instruction::new(Op::AddD) }).expect("operands fit"),
        );
        function.put(Op::Jirl, 0, 1, 0);
        assert_eq!(result(body, [function, adding(0)], translation), CALLS * (PAGES[0] + PAGES[1]));
    }
}
