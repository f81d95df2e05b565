//! Tests the debugger's view of a machine through gdb's remote protocol, without gdb (tests/gdb.py uses gdb itself).
//! Source: GDB manual, appendix E (packets and stop replies).

#[path = "../programs/assembler.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod assembler;
mod client;

use assembler::*;
use client::Client;
use longma_loongarch::Op;
use longma_system::{Configuration, Debugger, Machine, Stop, Turn};

/// gdb's number of the program counter.
const PC: u32 = 33;
/// gdb's number of the first CSR, CRMD.
const CRMD: u32 = 146;
/// A direct-mapped window, and a page that the page tables map.
const WINDOW: u64 = 0x9000_0000_0000_0000;
const MAPPED: u64 = 0x1234_0000;
/// The page tables: a directory and a table of pages of 16 KiB, as Linux has them.
const DIRECTORY: u64 = DATA + 0x1_0000;
const TABLE: u64 = DATA + 0x2_0000;
const ROUNDS: u64 = 1000;
/// The variable of the loop, and the one that is stored between the loop's two executions.
const VARIABLE: u64 = WINDOW | (DATA + 8);
const BETWEEN: u64 = WINDOW | (DATA + 0x4000);

/// Addresses of instructions of the program.
struct ProgramAddresses {
    /// The first instruction of the loop.
    round: u64,
    /// The store of the loop.
    store: u64,
    /// The store between the executions.
    between: u64,
    /// The instruction after both.
    after: u64,
}

/// Counts to [`ROUNDS`] twice in memory, with translation of addresses on.
fn counting() -> (Program, ProgramAddresses) {
    let mut addresses = ProgramAddresses { round: 0, store: 0, between: 0, after: 0 };
    let body = |code: &mut Code| {
        code.write(csr::DMW0, WINDOW | 1).write(csr::PWCL, 14 | 11 << 5 | 25 << 10 | 11 << 15);
        code.write(csr::PGDL, DIRECTORY).write(csr::CRMD, 0x10);
        code.set(T2, VARIABLE).set(H1, BETWEEN).set(A0, 0).set(A2, 2);
        let outer = code.here();
        code.set(T1, ROUNDS);
        addresses.round = WINDOW | code.here();
        addresses.store = addresses.round + 4;
        code.rri(Op::AddiD, A0, A0, 1).rri(Op::StD, A0, T2, 0);
        code.rri(Op::AddiD, T1, T1, -1).rri(Op::Bnez, 0, T1, -12);
        addresses.between = WINDOW | code.here();
        code.rri(Op::StD, A0, H1, 0).rri(Op::AddiD, A2, A2, -1);
        let back = outer as i64 - code.here() as i64;
        code.rri(Op::Bnez, 0, A2, back as i32);
        addresses.after = WINDOW | code.here();
        code.rri(Op::LdD, A1, T2, 0).write(csr::CRMD, 8).record(A1);
    };
    let mut program = program(body, vec![]);
    let index = |start: u32, address: u64| (address >> start & 0x7ff) * 8;
    let directory = Code { base: DIRECTORY + index(25, MAPPED), words: vec![TABLE as u32, 0] };
    let table = Code { base: TABLE + index(14, MAPPED), words: vec![DATA as u32 | 0x93, 0] };
    program.0.extend([directory, table]);
    (program, addresses)
}

fn machine(program: &Program, cores: usize, translation: bool) -> Machine {
    let configuration =
        Configuration { cores, translation, memory_bytes: 128 << 20, ..Configuration::default() };
    let mut machine = Machine::new(&configuration).expect("the host has memory");
    for part in &program.0 {
        let bytes: Vec<u8> = part.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        machine.memory().write(part.base, &bytes).expect("the program is in memory");
    }
    // Without paging, the upper bits of an address have no effect.
    machine.state_mut().pc = WINDOW | CODE;
    machine
}

/// Runs a program under a debugger, which `act` plays. Returns the machine and how it ended.
fn debug(
    (program, addresses): (Program, ProgramAddresses),
    cores: usize,
    translation: bool,
    act: impl FnOnce(&mut Client, &ProgramAddresses) + Send + 'static,
) -> (Machine, Turn) {
    let mut machine = machine(&program, cores, translation);
    let mut debugger = Debugger::listen("0").expect("a port is free");
    let place = debugger.place();
    let mut client = Some(std::thread::spawn(move || act(&mut Client::connect(&place), &addresses)));
    loop {
        let turn = debugger.run(&mut machine, 100_000);
        let has_ended = matches!(turn, Turn::Ran(Stop::PowerOff) | Turn::Killed);
        if let Some(ended) = client.take_if(|client| has_ended || client.is_finished()) {
            ended.join().expect("the debugger sees what it expects");
        }
        if has_ended {
            return (machine, turn);
        }
    }
}

/// The cycles of the program without a debugger.
fn cycles(cores: usize, translation: bool) -> u64 {
    let mut machine = machine(&counting().0, cores, translation);
    assert_eq!(machine.run(10_000_000), Stop::PowerOff);
    machine.cycles()
}

#[test]
fn a_machine_waits_for_the_debugger_and_stops_at_breakpoints() {
    for (cores, translation) in [(1, false), (1, true), (4, true)] {
        let (mut machine, turn) = debug(counting(), cores, translation, |gdb, addresses| {
            assert_eq!(gdb.register(PC), WINDOW | CODE, "the first instruction has not run");
            // The loop is translated before it gets a breakpoint.
            assert_eq!(gdb.ask(&format!("Z2,{BETWEEN:x},8")), "OK");
            assert!(gdb.ask("vCont;c").contains("watch:"));
            assert_eq!((gdb.register(PC), gdb.register(4)), (addresses.between + 4, ROUNDS));
            for kind in 0..2 {
                assert_eq!(gdb.ask(&format!("Z{kind},{:x},4", addresses.store)), "OK");
                for round in 1..=100 {
                    let reply = gdb.ask("vCont;c");
                    let name = ["swbreak", "hwbreak"][kind as usize];
                    assert!(reply.starts_with("T05") && reply.contains(name), "{reply}");
                    let found = (gdb.register(PC), gdb.register(4));
                    assert_eq!(found, (addresses.store, ROUNDS + 100 * kind + round));
                }
                assert_eq!(gdb.ask(&format!("z{kind},{:x},4", addresses.store)), "OK");
            }
            assert_eq!(gdb.ask(&format!("z2,{BETWEEN:x},8")), "OK");
            assert_eq!(gdb.ask(&format!("Z0,{:x},4", addresses.after)), "OK");
            assert!(gdb.ask("vCont;c").contains("swbreak"));
            assert_eq!((gdb.register(PC), gdb.register(4)), (addresses.after, 2 * ROUNDS));
            assert_eq!(gdb.ask("vCont;c"), "W00");
        });
        assert_eq!(turn, Turn::Ran(Stop::PowerOff));
        assert_eq!(machine.take_console_output(), b"00000000000007d0\n");
        assert_eq!(machine.cycles(), cycles(cores, translation), "breakpoints take no time");
    }
}

#[test]
fn steps_execute_one_instruction_or_leave_a_range() {
    debug(counting(), 2, true, |gdb, addresses| {
        assert_eq!(gdb.ask(&format!("Z0,{:x},4", addresses.round)), "OK");
        gdb.ask("vCont;c");
        // gdb steps from a breakpoint with all others stopped.
        assert_eq!(gdb.ask(&format!("z0,{:x},4", addresses.round)), "OK");
        assert!(gdb.ask("vCont;s:1").starts_with("T05"));
        assert_eq!(gdb.register(PC), addresses.store);
        assert!(gdb.ask("vCont;s:1;c").starts_with("T05"));
        assert_eq!(gdb.register(PC), addresses.store + 4);
        let reply = gdb.ask(&format!("vCont;r{:x},{:x}:1;c", addresses.round, addresses.between));
        assert!(reply.starts_with("T05"), "{reply}");
        assert_eq!((gdb.register(PC), gdb.register(4)), (addresses.between, ROUNDS));
        gdb.ask("k");
    });
}

#[test]
fn registers_csrs_and_mapped_memory_are_read_and_written() {
    let (machine, turn) = debug(counting(), 1, true, |gdb, addresses| {
        let description = gdb.ask("qXfer:features:read:target.xml:0,3000");
        assert!(description.contains("loongarch64"), "{description}");
        assert_eq!(gdb.ask(&format!("Z1,{:x},4", addresses.store)), "OK");
        gdb.ask("vCont;c");
        assert_eq!(gdb.register(CRMD), 0x10);
        gdb.set_register(4, 0x77);
        gdb.set_register(CRMD + 2, 7);
        assert_eq!((gdb.register(4), gdb.register(CRMD + 2)), (0x77, 7));
        gdb.ask("vCont;s:1;c");
        let content = "7700000000000000";
        // The debugger reads memory through the window, and through the page tables although the TLB is empty.
        assert_eq!(gdb.ask(&format!("m{VARIABLE:x},8")), content);
        assert_eq!(gdb.ask(&format!("m{:x},8", MAPPED + 8)), content);
        assert!(gdb.ask("m56780000,8").starts_with('E'), "nothing is mapped there");
        assert_eq!(gdb.ask(&format!("M{:x},1:99", MAPPED + 8)), "OK");
        assert_eq!(gdb.ask(&format!("m{VARIABLE:x},1")), "99");
        // The decrement of the rounds becomes a NOP, so that no round is left.
        gdb.set_register(13, 0);
        gdb.set_register(6, 1);
        assert_eq!(gdb.ask(&format!("M{:x},4:00004003", addresses.store + 4)), "OK");
        gdb.ask(&format!("Z0,{:x},4", addresses.between));
        gdb.ask(&format!("z1,{:x},4", addresses.store));
        assert!(gdb.ask("vCont;c").contains("swbreak"));
        assert_eq!((gdb.register(PC), gdb.register(13)), (addresses.between, 0));
        gdb.ask("D");
    });
    assert_eq!(turn, Turn::Ran(Stop::PowerOff));
    assert_eq!(machine.state().r(5), 0x99);
}

#[test]
fn watched_memory_stops_the_machine_after_the_access() {
    for translation in [false, true] {
        let (machine, _) = debug(counting(), 1, translation, |gdb, addresses| {
            assert_eq!(gdb.ask(&format!("Z2,{VARIABLE:x},8")), "OK");
            for round in 1..=300 {
                let reply = gdb.ask("vCont;c");
                assert!(reply.contains(&format!(";watch:{VARIABLE:x}")), "{reply}");
                assert_eq!((gdb.register(PC), gdb.register(4)), (addresses.store + 4, round));
            }
            assert_eq!(gdb.ask(&format!("z2,{VARIABLE:x},8")), "OK");
            assert_eq!(gdb.ask(&format!("Z3,{:x},1", VARIABLE + 3)), "OK");
            assert!(gdb.ask("vCont;c").contains("rwatch"));
            assert_eq!((gdb.register(PC), gdb.register(5)), (addresses.after + 4, 2 * ROUNDS));
            assert_eq!(gdb.ask("vCont;c"), "W00");
        });
        assert_eq!(machine.cycles(), cycles(1, translation), "watchpoints take no time");
    }
}

#[test]
fn cores_are_threads_and_a_running_machine_is_interrupted_detached_and_killed() {
    let spin = || {
        let body = |code: &mut Code| {
            code.rri(Op::B, 0, 0, 0);
        };
        (program(body, vec![]), ProgramAddresses { round: 0, store: 0, between: 0, after: 0 })
    };
    let (_, turn) = debug(spin(), 3, true, |gdb, _| {
        assert_eq!(gdb.ask("qfThreadInfo"), "m01,02,03");
        let text = gdb.text("qThreadExtraInfo,3");
        assert!(text.contains("core 2: not started"), "{text}");
        gdb.send("vCont;c");
        let reply = gdb.interrupt();
        assert!(reply.starts_with("T02"), "{reply}");
        assert_eq!(gdb.ask("D"), "OK");
        // Another debugger connects and kills the machine.
        let mut other = gdb.another();
        assert!(other.ask("?").starts_with("T05"));
        other.send("k");
    });
    assert_eq!(turn, Turn::Killed);
}

/// GDB's manual calls a `vCont` without actions an error. No core would run, so the machine would never stop.
#[test]
fn a_resume_without_actions_resumes_all_cores() {
    for cores in [1, 2] {
        let (_, turn) = debug(counting(), cores, true, |gdb, _| assert_eq!(gdb.ask("vCont"), "W00"));
        assert_eq!(turn, Turn::Ran(Stop::PowerOff));
    }
}

/// Time passes while a core is held; catching up with all of it would take minutes.
#[test]
fn a_core_that_was_held_does_not_run_through_the_time_meanwhile() {
    let body = |code: &mut Code| {
        code.rri(Op::AddiD, A0, A0, 1).rri(Op::B, 0, 0, -4);
    };
    let mut machine = machine(&program(body, vec![]), 2, true);
    let mut debugger = Debugger::listen("0").expect("a port is free");
    let place = debugger.place();
    let (release, released) = std::sync::mpsc::channel();
    let client = std::thread::spawn(move || {
        let mut gdb = Client::connect(&place);
        // The second core has not started, and the first is held.
        gdb.send("vCont;c:2");
        released.recv().expect("the machine runs");
        assert!(gdb.interrupt().starts_with("T02"));
        gdb.send("vCont;c");
        released.recv().expect("the first core runs");
    });
    while debugger.run(&mut machine, 1_000_000_000) != Turn::Ran(Stop::Limit) {}
    assert_eq!(machine.state().r(4), 0, "the first core is held");
    release.send(()).expect("the debugger waits");
    while machine.state().r(4) == 0 {
        debugger.run(&mut machine, 2000);
    }
    assert!(machine.state().r(4) < 2_000_000, "{}", machine.state().r(4));
    release.send(()).expect("the debugger waits");
    client.join().expect("the debugger sees what it expects");
}

#[test]
fn a_unix_socket_is_removed_at_the_end_and_other_places_are_refused() {
    let folder = tempfile::tempdir().expect("the host has a temporary folder");
    let path = folder.path().join("socket");
    let debugger = Debugger::listen(path.to_str().expect("it is text")).expect("it is new");
    assert!(path.exists() && Debugger::listen(&debugger.place()).is_err());
    drop(debugger);
    assert!(!path.exists());
    for place in ["", "name", "127.0.0.1", "65536"] {
        let error = Debugger::listen(place).err().expect("it is no address");
        assert!(error.to_string().contains("127.0.0.1:1234"), "{error}");
    }
}
