//! Small programs in privileged mode run through the models: counts follow from the program.

use longma_loongarch::{Instruction, Op, encode};
use longma_runner::simulation::Level;
use longma_sim::{ManifestProgram, Region};
use longma_system::csr::table as csr;
use longma_system::{Configuration, Machine, Stop, map};
use longma_system_timing::symbols::KernelSymbols;
use longma_system_timing::{Privilege, SystemModels, SystemResult};
use longma_topology::Machine as Description;
use std::sync::Arc;

const CODE: u64 = 0x0100_0000;
const USER: u64 = 0x0110_0000;
const HANDLER: u64 = 0x0120_0000;
const DATA: u64 = 0x0200_0000;
const LINE: u64 = 64;

/// Code at an address.
struct Code(u64, Vec<u32>);

impl Code {
    fn at(address: u64) -> Self {
        Self(address, Vec::new())
    }

    fn put(&mut self, instruction: Instruction) -> &mut Self {
        self.1.push(encode(&instruction).expect("operands fit"));
        self
    }

    fn rri(&mut self, op: Op, d: u8, j: u8, imm: i32) -> &mut Self {
        self.put(Instruction { d, j, imm, ..Instruction::new(op) })
    }

    /// Sets a register to a constant below 2^31, in two instructions.
    fn set(&mut self, d: u8, value: u64) -> &mut Self {
        self.rri(Op::Lu12iW, d, 0, (value as i32) >> 12).rri(Op::Ori, d, d, (value & 0xfff) as i32)
    }

    /// Sets a CSR, in three instructions.
    fn write(&mut self, number: u16, value: u64) -> &mut Self {
        self.set(12, value).rri(Op::Csrxchg, 12, 1, number.into())
    }

    /// Switches the machine off: three instructions and a store to a device.
    fn power_off(&mut self) -> &mut Self {
        self.set(12, map::POWER).rri(Op::AddiD, 13, 0, 0x34).rri(Op::StB, 13, 12, 0)
    }

    /// Loads a doubleword of each line in `bytes` bytes, `passes` times: 3 instructions, and 5 and 3 a line for each pass.
    fn load_lines(&mut self, bytes: u64, passes: i32) -> &mut Self {
        self.rri(Op::AddiD, 7, 0, passes).set(5, DATA + bytes);
        self.set(4, DATA);
        self.rri(Op::LdD, 6, 4, 0).rri(Op::AddiD, 4, 4, LINE as i32);
        self.put(Instruction { j: 4, d: 5, imm: -8, ..Instruction::new(Op::Bne) });
        self.rri(Op::AddiD, 7, 7, -1);
        self.put(Instruction { j: 7, imm: -24, ..Instruction::new(Op::Bnez) });
        self
    }
}

/// Runs the parts through the models until the machine is switched off.
fn run(level: Level, parts: &[Code]) -> (Machine, SystemResult) {
    let configuration = Configuration { memory_bytes: 128 << 20, ..Configuration::default() };
    let mut machine = Machine::new(&configuration).expect("the host has memory");
    for Code(address, words) in parts {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        machine.memory().write(*address, &bytes).expect("the program is in memory");
    }
    machine.state_mut().pc = CODE;
    let description = Arc::new(Description::open("loongson-3a5000").expect("a shipped machine"));
    let mut models = SystemModels::new(description, level, 1, 0).expect("the machine can be modelled");
    models.begin(&machine);
    assert_eq!(machine.run_observed(1_000_000_000, &mut models), Stop::PowerOff);
    models.end(&machine);
    let program = ManifestProgram::read("test", &b""[..], &[]).expect("bytes can be read");
    let result = SystemResult::new(&models, &machine, program, Region::Whole, &KernelSymbols::default());
    (machine, result.expect("the statistics are consistent"))
}

/// A kernel that starts a user program. The program loads lines and makes a system call, on which the kernel switches
/// the machine off.
fn user_program(bytes: u64, passes: i32) -> [Code; 3] {
    let mut kernel = Code::at(CODE);
    kernel.write(csr::EENTRY, HANDLER).write(csr::ERA, USER).write(csr::PRMD, 3);
    kernel.put(Instruction::new(Op::Ertn));
    let mut user = Code::at(USER);
    user.load_lines(bytes, passes).put(Instruction::new(Op::Syscall));
    let mut handler = Code::at(HANDLER);
    handler.power_off();
    [kernel, user, handler]
}

/// A kernel that waits for one interrupt of the timer after `ticks` ticks.
fn timer(ticks: u64) -> [Code; 2] {
    let mut kernel = Code::at(CODE);
    kernel.write(csr::EENTRY, HANDLER).write(csr::ECFG, 1 << 11).write(csr::TCFG, ticks | 1);
    kernel.write(csr::CRMD, 0b1100).put(Instruction::new(Op::Idle));
    let mut handler = Code::at(HANDLER);
    handler.power_off();
    [kernel, handler]
}

fn count(result: &SystemResult, name: &str) -> u64 {
    let statistic = result.run.statistics.get(name).unwrap_or_else(|| panic!("there is no {name}"));
    match &statistic.value {
        longma_sim::Value::Counter(counter) => counter.value(),
        other => panic!("{name} is no counter: {other:?}"),
    }
}

const LEVELS: [Level; 2] = [Level::Cache, Level::Timing(None)];

#[test]
fn instructions_of_user_and_kernel_are_counted_apart() {
    let (bytes, passes) = (32 << 10, 5);
    for level in LEVELS {
        let (_, result) = run(level, &user_program(bytes, passes));
        let lines = bytes / LINE;
        let [user, kernel] = &result.shares;
        assert_eq!(user.instructions, 3 + 5 * (2 + 3 * lines + 2) + 1, "{level:?}");
        // The store that switches the machine off is an access to a device.
        assert_eq!(kernel.instructions, 3 * 3 + 1 + 3, "{level:?}");
        assert_eq!(count(&result, "device_accesses"), 1);
        assert_eq!(result.run.summary.instructions, user.instructions + kernel.instructions + 1);
        assert_eq!(result.exceptions, [("system_calls", 1)]);
    }
}

#[test]
fn loads_miss_where_the_data_do_not_fit() {
    let lines = |bytes: u64| bytes / LINE;
    let misses_of = |level, bytes, passes| {
        let (_, result) = run(level, &user_program(bytes, passes));
        assert_eq!(count(&result, "core0.l1d.loads"), passes as u64 * lines(bytes));
        let user = &result.shares[Privilege::User as usize];
        (count(&result, "core0.l1d.load_misses"), user.misses[1..].iter().sum::<u64>())
    };
    for level in LEVELS {
        // The first-level cache has 64 KiB.
        let (small, _) = misses_of(level, 32 << 10, 10);
        assert!(small <= lines(32 << 10), "{level:?}: a line misses at most once: {small}");
        let (once, _) = misses_of(level, 1 << 20, 1);
        let (twice, by_user) = misses_of(level, 1 << 20, 2);
        assert!(twice >= 2 * once - once / 10, "{level:?}: 1 MiB misses in each pass: {once}, {twice}");
        assert!(by_user <= twice && by_user > 0, "{level:?}: {by_user} of {twice}");
    }
}

#[test]
fn the_timer_interrupts_at_the_modelled_time() {
    let ticks = 1000;
    for level in LEVELS {
        let (machine, result) = run(level, &timer(ticks));
        assert_eq!(result.exceptions, [("interrupts", 1)], "{level:?}");
        let ns = machine.cycles();
        assert!((10_000..11_000).contains(&ns), "{level:?}: {ticks} ticks of 10 ns are not {ns} ns");
    }
}

#[test]
fn data_in_memory_take_longer_than_data_in_the_cache() {
    let cycles = |bytes, passes| {
        let (_, result) = run(Level::Timing(None), &user_program(bytes, passes));
        result.shares[Privilege::User as usize].busy_cycles()
    };
    // Both make the same number of loads.
    let (cached, in_memory) = (cycles(32 << 10, 1024), cycles(32 << 20, 1));
    assert!(in_memory > 1.5 * cached, "{in_memory} and {cached}");
}

#[test]
fn runs_are_the_same() {
    for level in LEVELS {
        let text = || run(level, &user_program(256 << 10, 3)).1.to_json().to_string();
        assert_eq!(text(), text());
    }
}

#[test]
fn shares_add_up_to_the_run() {
    let (_, result) = run(Level::Timing(None), &user_program(1 << 20, 2));
    let sum: f64 = result.shares.iter().map(longma_system_timing::Share::busy_cycles).sum();
    assert!((sum - result.run.summary.busy_cycles).abs() < 1.0);
    let of_core = count(&result, "core0.cycles") as f64;
    assert!((sum - of_core).abs() <= 1.0 + of_core * 1e-6, "{sum} and {of_core}");
}

/// Endless exceptions take time, so that a run with a limit of cycles ends.
#[test]
fn a_kernel_without_handlers_does_not_hang() {
    for level in LEVELS {
        let machine = Machine::new(&Configuration { memory_bytes: 64 << 20, ..Configuration::default() });
        let mut machine = machine.expect("the host has memory");
        machine.state_mut().pc = 0xffff_0000_0000;
        let description = Arc::new(Description::open("loongson-3a5000").expect("a shipped machine"));
        let mut models = SystemModels::new(description, level, 1, 0).expect("the machine can be modelled");
        models.begin(&machine);
        assert_eq!(machine.run_observed(100_000, &mut models), Stop::Limit);
    }
}

#[test]
fn a_machine_with_too_few_cores_is_refused() {
    let description = Arc::new(Description::open("loongson-3a5000").expect("a shipped machine"));
    let refused = SystemModels::new(description, Level::Cache, 16, 0).err().expect("it has 4 cores");
    assert!(refused.to_string().contains("has 4 cores, and 16 are booted"), "{refused}");
}
