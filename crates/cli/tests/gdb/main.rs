//! Tests `longma run --gdb` through gdb's remote protocol, without gdb (tests/gdb.py uses gdb itself).
//! Source: GDB manual, appendix E (packets and stop replies).

mod debugged;
mod hostile;
#[path = "../programs/mod.rs"]
mod programs;
mod translated;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use debugged::*;
use programs::*;
use tempfile::tempdir;

/// gdb's number of the program counter.
const PC: u32 = 33;

#[test]
fn a_program_stops_before_its_first_instruction_and_at_breakpoints_and_steps() {
    let mut program = DebugSession::start(&SPINNER);
    assert_eq!(program.register(PC), CODE);
    assert_eq!(program.request(&format!("Z0,{SPIN:x},4")), "OK");
    let reply = program.resume("c");
    assert!(is_stop(&reply, TRAP) && reply.contains("swbreak"), "{reply}");
    assert_eq!((program.register(PC), program.register(A0)), (SPIN, 100));
    assert!(is_stop(&program.resume("s"), TRAP));
    assert_eq!((program.register(PC), program.register(A0)), (SPIN + 4, 99));
    assert!(is_stop(&program.resume("c"), TRAP));
    assert_eq!((program.register(PC), program.register(A0)), (SPIN, 99), "the next round");
    program.set_register(A0, 1);
    assert_eq!(program.request(&format!("z0,{SPIN:x},4")), "OK");
    assert_eq!(program.resume("c"), "W07");
    assert_eq!(program.end().code(), Some(7));
}

#[test]
fn stepping_goes_over_system_calls_and_ranges() {
    let mut program = DebugSession::start(&[add(A7, ZERO, 172), SYSCALL, add(A0, ZERO, 3), EXIT[0], EXIT[1]]);
    program.resume("s");
    assert!(is_stop(&program.resume("s"), TRAP));
    assert_eq!(program.register(PC), CODE + 8);
    assert_eq!(program.register(A0), u64::from(program.child.id()), "getpid");
    let reply = program.resume(&format!("r{:x},{:x}", CODE + 8, CODE + 16));
    assert!(is_stop(&reply, TRAP), "{reply}");
    assert_eq!((program.register(PC), program.register(A0)), (CODE + 16, 3));
    assert_eq!(program.resume("c"), "W03");
}

#[test]
fn memory_is_read_and_code_that_is_written_is_the_code_that_runs() {
    let mut program = DebugSession::start(&SPINNER);
    let word = |word: u32| format!("{:08x}", word.swap_bytes());
    assert_eq!(program.request(&format!("m{:x},4", CODE + 8)), word(SPINNER[2]));
    assert_eq!(program.request(&format!("M{:x},4:{}", CODE + 8, word(add(A0, ZERO, 9)))), "OK");
    assert_eq!(program.request(&format!("m{:x},4", CODE + 8)), word(add(A0, ZERO, 9)));
    assert!(program.request("m8,4").starts_with('E'), "nothing is mapped there");
    assert!(program.request("M8,1:00").starts_with('E'));
    assert_eq!(program.resume("c"), "W09");
}

#[test]
fn a_running_program_is_interrupted_and_killed() {
    let mut program = DebugSession::start(&[BRANCH_TO_SELF]);
    program.send("vCont;c");
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_stop(&program.interrupt(), 2));
    assert_eq!(program.register(PC), CODE);
    program.send("k");
    assert_eq!(program.end().signal(), Some(libc::SIGKILL));
}

#[test]
fn a_program_that_waits_in_a_system_call_is_interrupted_without_disturbing_the_call() {
    let mut program = DebugSession::start(&READER);
    program.send("vCont;c");
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_stop(&program.interrupt(), 2));
    assert_eq!(program.register(PC), CODE + 6 * 4, "behind the call it is in");
    program.send("vCont;c");
    program.child.stdin.take().unwrap().write_all(b"abc").unwrap();
    assert_eq!(program.receive(), "W03");
}

#[test]
fn signals_are_reported_before_they_are_delivered_or_dropped() {
    let code = [load(A0, ZERO, 0), add(A0, ZERO, 5), EXIT[0], EXIT[1]];
    let mut program = DebugSession::start(&code);
    assert!(is_stop(&program.resume("c"), 11));
    assert_eq!(program.register(PC), CODE);
    assert_eq!(program.resume("C0b"), "X0b");
    assert_eq!(program.end().signal(), Some(libc::SIGSEGV));

    let mut program = DebugSession::start(&code);
    assert!(is_stop(&program.resume("c"), 11));
    program.set_register(PC, CODE + 4);
    assert_eq!(program.resume("c"), "W05");
}

#[test]
fn an_external_signal_is_reported_before_it_kills_the_program() {
    let mut program = DebugSession::start(&[BRANCH_TO_SELF]);
    let pid = program.child.id() as i32;
    program.send("vCont;c");
    std::thread::sleep(Duration::from_millis(200));
    // SAFETY: the child is alive, since it loops.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    assert!(is_stop(&program.receive(), 15));
    program.send("vCont;c");
    std::thread::sleep(Duration::from_millis(100));
    assert!(is_stop(&program.interrupt(), 2), "the signal was dropped");
    assert_eq!(program.resume("C0f"), "X0f");
    assert_eq!(program.end().signal(), Some(libc::SIGTERM));
}

#[test]
fn a_watched_variable_stops_the_program_when_it_changes() {
    let mut program = DebugSession::start(&[add(A0, ZERO, 4), store(A0, SP, -8), EXIT[0], EXIT[1]]);
    let variable = program.register(SP) - 8;
    assert_eq!(program.request(&format!("Z2,{variable:x},8")), "OK");
    let reply = program.resume("c");
    assert!(is_stop(&reply, TRAP) && reply.contains(&format!("watch:{variable:x}")), "{reply}");
    assert_eq!(program.register(PC), CODE + 8);
    assert_eq!(program.request(&format!("z2,{variable:x},8")), "OK");
    assert_eq!(program.resume("c"), "W04");
}

#[test]
fn the_program_runs_on_after_the_debugger_detaches_or_vanishes() {
    let mut program = DebugSession::start(&SPINNER);
    assert_eq!(program.request(&format!("Z0,{SPIN:x},4")), "OK");
    assert_eq!(program.request("D"), "OK");
    assert_eq!(program.end().code(), Some(7));
    let program = DebugSession::start(&SPINNER);
    program.stream.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(program.end().code(), Some(7));
}

#[test]
fn gdb_learns_the_registers_the_file_and_the_auxiliary_vector() {
    let mut program = DebugSession::start(&SPINNER);
    let features = program.request("qXfer:features:read:target.xml:0,7ff");
    assert!(features.contains("<architecture>loongarch64</architecture>"), "{features}");
    assert!(features.contains("org.gnu.gdb.loongarch.base"), "{features}");
    let file = program.request("qXfer:exec-file:read::0,fff");
    assert!(file.ends_with("/program"), "{file}");
    assert!(program.request("qXfer:auxv:read::0,fff").len() > 100);
    assert!(program.request("qfThreadInfo").starts_with('m'));
    program.send("k");
}

#[test]
fn threads_are_listed_and_all_stop_together() {
    let folder = tempdir().unwrap();
    let mut program = DebugSession::start_file(&guest("threads"), folder);
    program.send("vCont;c");
    let mut max_threads = 0;
    // The guest's threads come and go; some of these interrupts hit them.
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(20));
        program.stream.write_all(&[3]).unwrap();
        let reply = program.receive();
        if reply.starts_with('W') {
            break;
        }
        assert!(is_stop(&reply, 2), "{reply}");
        let list = program.request("qfThreadInfo");
        let threads: Vec<&str> = list[1..].split(',').collect();
        max_threads = max_threads.max(threads.len());
        for thread in threads {
            let id = thread.rsplit('.').next().unwrap();
            assert_eq!(program.request(&format!("T{thread}")), "OK", "thread {id}");
        }
        program.send("vCont;c");
    }
    assert!(max_threads > 1, "no second thread was ever seen");
    // SAFETY: the child is ours and has not been waited for.
    unsafe { libc::kill(program.child.id() as i32, libc::SIGKILL) };
}
