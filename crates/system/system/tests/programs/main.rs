//! Small programs in privileged mode: each must print what the rules of the manual imply. With `--ignored`, the same
//! programs run on `qemu-system-loongarch64` (QEMU 10; `LONGMA_QEMU_SYSTEM` names another program) and must print the
//! same. Source: LoongArch Reference Manual, volume 1.

mod assembler;
mod console;
mod control;
mod cores;
mod paging;
mod qemu;

use assembler::{CODE, Program};
use longma_system::{Configuration, Machine, Stop};

/// A machine with one core that is about to run a program.
fn machine(program: &Program) -> Machine {
    machine_with(1, program)
}

fn machine_with(cores: usize, program: &Program) -> Machine {
    let configuration = Configuration { cores, memory_bytes: 128 << 20, ..Configuration::default() };
    let mut machine = Machine::new(&configuration).expect("the host has memory");
    for part in &program.0 {
        let bytes: Vec<u8> = part.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        machine.memory().write(part.base, &bytes).expect("the program is in memory");
    }
    machine.state_mut().pc = CODE;
    machine
}

/// The output of a program on this machine.
fn run(program: &Program) -> String {
    let mut machine = machine(program);
    let stop = machine.run(1_000_000);
    let printed = String::from_utf8_lossy(&machine.take_console_output()).into_owned();
    assert_eq!(stop, Stop::PowerOff, "at {:#x} after: {printed}", machine.state().pc);
    printed
}

fn lines(values: &[u64]) -> String {
    values.iter().map(|value| format!("{value:016x}\n")).collect()
}

/// Declares a test for each program, and the list of programs to run on QEMU.
macro_rules! programs {
    ($($module:ident: $($name:ident),*;)*) => {
        $($(
            #[test]
            fn $name() {
                let (program, expected) = $module::$name();
                assert_eq!(run(&program), lines(&expected));
            }
        )*)*

        const PROGRAMS: &[(&str, fn() -> (Program, Vec<u64>))] = &[$($((stringify!($name), $module::$name)),*),*];
    };
}

programs! {
    control:
        level_3_gets_an_exception_for_what_it_may_not_do,
        level_3_may_not_execute_any_privileged_instruction,
        a_misaligned_or_absent_address_is_recorded,
        a_jump_to_a_misaligned_address_is_an_address_error,
        a_reservation_does_not_survive_a_return_unless_it_is_kept,
        the_timer_interrupts_and_wakes_at_its_vector,
        a_core_interrupts_itself,
        a_software_interrupt_waits_for_its_enable_bits,
        registers_keep_the_bits_that_they_have,
        code_that_changes_is_executed_as_it_is,
        a_store_to_the_next_instruction_takes_effect;
    paging:
        refill_maps_a_page,
        each_kind_of_page_has_its_exception,
        a_page_that_is_not_executable_refuses_a_fetch,
        windows_translate_by_the_upper_bits_and_the_level,
        invtlb_removes_what_its_operation_says,
        an_entry_is_found_and_read_by_its_index,
        an_address_space_sees_its_entries_and_global_ones,
        a_huge_page_is_two_halves;
}

/// Programs whose output on QEMU 10.0 differs from the manual, and the reason.
const QEMU_DIFFERS: &[(&str, &str)] = &[
    ("a_jump_to_a_misaligned_address_is_an_address_error", "it raises INE instead of ADEF"),
    (
        "a_misaligned_or_absent_address_is_recorded",
        "atomic accesses may be misaligned, and nothing reads as 0",
    ),
    ("a_reservation_does_not_survive_a_return_unless_it_is_kept", "LLBCTL is a plain register"),
    ("a_software_interrupt_waits_for_its_enable_bits", "a write to ESTAT interrupts later, if at all"),
    (
        "registers_keep_the_bits_that_they_have",
        "it keeps reserved bits, and a CSR that does not exist is an INE",
    ),
    ("refill_maps_a_page", "it does not sign-extend TLBREHI"),
    ("an_entry_is_found_and_read_by_its_index", "it does not sign-extend TLBEHI"),
];

#[test]
#[ignore = "needs qemu-system-loongarch64"]
fn qemu_prints_the_same_except_where_it_differs_from_the_manual() {
    let known = |name| QEMU_DIFFERS.iter().any(|(differing, _)| *differing == name);
    let mut surprises = Vec::new();
    for (name, make) in PROGRAMS {
        let (program, expected) = make();
        let printed = qemu::run(&program);
        if (printed != lines(&expected)) != known(*name) {
            surprises.push(format!("{name}: QEMU {printed:?}, expected {:?}", lines(&expected)));
        }
    }
    assert!(surprises.is_empty(), "{}", surprises.join("\n"));
}
