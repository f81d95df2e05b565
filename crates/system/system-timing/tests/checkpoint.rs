//! An uninterrupted run and a run that was saved and restored have byte-identical results.

use std::io::Cursor;
use std::sync::Arc;

use longma_loongarch::{Instruction, Op, encode};
use longma_runner::simulation::Level;
use longma_sim::{ManifestProgram, Region};
use longma_system::checkpoint::Checkpoint;
use longma_system::csr::table as csr;
use longma_system::{Configuration, Machine, Stop, map};
use longma_system_timing::symbols::KernelSymbols;
use longma_system_timing::{SystemModels, SystemResult};
use longma_topology::Machine as Description;

const CODE: u64 = 0x0100_0000;
const OTHERS: u64 = 0x0110_0000;
const HANDLER: u64 = 0x0120_0000;
/// The address of the functions, each of which is on a separate page.
const FUNCTIONS: u64 = 0x0130_0000;
const FUNCTIONS_COUNT: u64 = 8;
const PAGE: u64 = 4096;
const DATA: u64 = 0x0200_0000;
/// Bytes that core 0 loads after the mark.
const DATA_BYTES: u64 = 1 << 20;
/// The counter of the other core.
const COUNTER: u64 = 0x0400_0000;

/// Cycles between polls, as in `longma boot`.
const SLICE: u64 = 10_000_000;
const OBSERVED_SLICE: u64 = 500_000;

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

    fn set(&mut self, d: u8, value: u64) -> &mut Self {
        self.rri(Op::Lu12iW, d, 0, (value as u32 as i32) >> 12);
        self.rri(Op::Ori, d, d, (value & 0xfff) as i32);
        self.rri(Op::Lu32iD, d, 0, ((value << 12) as i64 >> 44) as i32);
        self.rri(Op::Lu52iD, d, d, (value as i64 >> 52) as i32)
    }

    fn write_csr(&mut self, number: u16, value: u64) -> &mut Self {
        self.set(12, value).rri(Op::Csrxchg, 12, 1, number.into())
    }

    fn write_iocsr(&mut self, op: Op, address: u64, value: u64) -> &mut Self {
        self.set(12, address).set(13, value).rri(op, 13, 12, 0)
    }

    fn write_byte(&mut self, address: u64, value: u64) -> &mut Self {
        self.set(12, address).set(13, value).rri(Op::StB, 13, 12, 0)
    }

    /// Branches to the instruction at `target` while the register is not 0.
    fn repeat(&mut self, register: u8, target: usize) -> &mut Self {
        let offset = 4 * (target as i32 - self.1.len() as i32);
        self.put(Instruction { j: register, imm: offset, ..Instruction::new(Op::Bnez) })
    }
}

/// Core 0 runs the functions, begins a region of interest, accesses the functions' pages as data, loads other data,
/// waits for timer interrupts, and switches the machine off. The other core increments a counter.
fn software(cores: usize) -> Vec<Code> {
    let mut main = Code::at(CODE);
    main.write_csr(csr::EENTRY, HANDLER).write_csr(csr::ECFG, 1 << 11);
    if cores > 1 {
        main.write_iocsr(Op::IocsrwrD, 0x1048, OTHERS << 32 | 1 << 31 | 1 << 16);
        main.write_iocsr(Op::IocsrwrW, 0x1040, 1 << 31 | 1 << 16);
    }
    main.write_csr(csr::TCFG, 400 | 3).write_csr(csr::CRMD, 0b1100);
    main.set(7, 500);
    let again = main.1.len();
    for function in 0..FUNCTIONS_COUNT {
        main.set(6, FUNCTIONS + function * PAGE);
        main.put(Instruction { d: 1, j: 6, ..Instruction::new(Op::Jirl) });
    }
    main.rri(Op::AddiD, 7, 7, -1).repeat(7, again);
    main.write_byte(map::MARK, 1);
    // A store to a page of code ends a quantum of the models.
    for function in 0..FUNCTIONS_COUNT {
        main.set(6, FUNCTIONS + function * PAGE + 1024).rri(Op::StD, 7, 6, 0);
        main.rri(Op::AddiD, 7, 7, 1);
    }
    main.set(4, DATA).set(7, DATA_BYTES / 64);
    let again = main.1.len();
    main.rri(Op::LdD, 6, 4, 0).rri(Op::AddiD, 4, 4, 64).rri(Op::AddiD, 7, 7, -1).repeat(7, again);
    main.put(Instruction::new(Op::Idle));
    main.write_byte(map::POWER, longma_system::POWER_OFF);
    let mut other = Code::at(OTHERS);
    other.set(4, COUNTER);
    let again = other.1.len();
    other.rri(Op::LdD, 5, 4, 0).rri(Op::AddiD, 5, 5, 1).rri(Op::StD, 5, 4, 0).repeat(5, again);
    let mut handler = Code::at(HANDLER);
    handler.rri(Op::AddiD, 13, 0, 1).rri(Op::Csrxchg, 13, 1, csr::TICLR.into());
    handler.put(Instruction::new(Op::Ertn));
    let functions = (0..FUNCTIONS_COUNT).map(|function| {
        let mut code = Code::at(FUNCTIONS + function * PAGE);
        code.rri(Op::AddiD, 8, 8, function as i32).put(Instruction { j: 1, ..Instruction::new(Op::Jirl) });
        code
    });
    [main, other, handler].into_iter().chain(functions).collect()
}

fn devices(machine: &mut Machine) {
    machine.attach_entropy(1).expect("the bus has room");
}

/// A machine that has reached the mark.
fn at_the_mark(cores: usize) -> Machine {
    let configuration = Configuration { cores, memory_bytes: 128 << 20, ..Configuration::default() };
    let mut machine = Machine::new(&configuration).expect("the host has memory");
    devices(&mut machine);
    for Code(address, words) in software(cores) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        machine.memory().write(address, &bytes).expect("the program is in memory");
    }
    machine.state_mut().pc = CODE;
    machine.stop_at_marks();
    loop {
        match machine.run(SLICE) {
            Stop::Limit => {}
            stop => {
                assert_eq!(stop, Stop::Mark(1));
                return machine;
            }
        }
    }
}

fn saved(machine: &Machine) -> Vec<u8> {
    let mut file = Vec::new();
    machine.save("".into(), &mut file).expect("it can be saved");
    file
}

fn restored(file: &[u8]) -> Machine {
    let checkpoint = Checkpoint::read(Cursor::new(file)).expect("it is a checkpoint");
    let mut machine = Machine::new(&checkpoint.configuration()).expect("the host has memory");
    devices(&mut machine);
    checkpoint.restore(&mut machine).expect("it is the same machine");
    machine.stop_at_marks();
    machine
}

/// Runs a machine through the models until it is switched off. Returns its statistics and its last state.
fn finish(mut machine: Machine, level: Level) -> (String, Vec<u8>) {
    let description = Arc::new(Description::open("loongson-3a5000").expect("a shipped machine"));
    let mut models =
        SystemModels::new(description, level, machine.cores(), 0).expect("the machine can be modelled");
    models.join(&machine);
    models.begin(&machine);
    loop {
        match machine.run_observed(OBSERVED_SLICE, &mut models) {
            Stop::Limit => {}
            stop => {
                assert_eq!(stop, Stop::PowerOff);
                break;
            }
        }
    }
    models.end(&machine);
    let program = ManifestProgram::read("test", &b""[..], &[]).expect("bytes can be read");
    let result = SystemResult::new(&models, &machine, program, Region::OfInterest, &KernelSymbols::default());
    (result.expect("the statistics are consistent").to_json().to_string(), saved(&machine))
}

#[test]
fn a_restored_run_has_the_statistics_of_one_that_goes_on() {
    for cores in [1, 2] {
        for level in [Level::Timing(None), Level::Cache] {
            let expected = finish(at_the_mark(cores), level);
            let original = at_the_mark(cores);
            let file = saved(&original);
            for attempt in 0..2 {
                let again = finish(restored(&file), level);
                assert!(again == expected, "{cores} cores, {level:?}, attempt {attempt}");
            }
            assert!(finish(original, level) == expected, "to save changes nothing");
            assert!(expected.0.contains("interrupts"), "{}", expected.0);
        }
    }
}

#[test]
fn a_restored_machine_that_is_not_modelled_ends_in_the_same_state() {
    for cores in [1, 2] {
        let mut original = at_the_mark(cores);
        let mut copy = restored(&saved(&original));
        assert_eq!(copy.run(u64::MAX), Stop::PowerOff);
        assert_eq!(original.run(u64::MAX), Stop::PowerOff);
        assert!(saved(&copy) == saved(&original), "{cores} cores");
    }
}

#[test]
fn all_machines_save_the_same_bytes() {
    let file = saved(&at_the_mark(2));
    assert!(file == saved(&at_the_mark(2)) && file == saved(&restored(&file)));
}
