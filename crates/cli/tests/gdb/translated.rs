//! Tests debugging of programs of other architectures: the debugger accesses the source architecture's registers, and
//! stops between its instructions.
//! Source: Intel SDM, volume 2; Arm Architecture Reference Manual, chapter C6; MIPS64 Architecture for Programmers,
//! volume II-A.

use std::io::Write;
use std::time::Duration;

use crate::debugged::*;
use crate::programs::{CODE, SPINNER};

const EM_MIPS: u16 = 8;
const EM_X86_64: u16 = 62;
const EM_AARCH64: u16 = 183;
/// ELF flags: MIPS64 release 2, position-independent code.
const MIPS_FLAGS: u32 = 0x8000_0007;

// Register numbers of gdb.
const RAX: u32 = 0;
const RCX: u32 = 2;
const RSP: u32 = 7;
const RIP: u32 = 16;
const EFLAGS: u32 = 17;
const X0: u32 = 0;
const ARM_PC: u32 = 32;
const CPSR: u32 = 33;
const MIPS_A0: u32 = 4;
const MIPS_LO: u32 = 33;
const MIPS_PC: u32 = 37;

/// mov edi, N; mov eax, 231; syscall: exit_group.
const fn exit(status: u8) -> [u8; 12] {
    [0xbf, status, 0, 0, 0, 0xb8, 0xe7, 0, 0, 0, 0x0f, 0x05]
}

fn x86(parts: &[&[u8]]) -> DebugSession {
    DebugSession::start_foreign(&parts.concat(), EM_X86_64, 0)
}

/// mov eax, 100; here: sub eax, 1; jnz here.
const COUNT_DOWN: [u8; 10] = [0xb8, 100, 0, 0, 0, 0x83, 0xe8, 1, 0x75, 0xfb];
const SUB: u64 = CODE + 5;
const JNZ: u64 = CODE + 8;

fn words(words: &[u32], machine: u16, flags: u32) -> DebugSession {
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    DebugSession::start_foreign(&code, machine, flags)
}

/// movz x0, 100; here: subs x0, x0, 1; b.ne here; exit_group(7).
const ARM: [u32; 6] = [0xd280_0c80, 0xf100_0400, 0x54ff_ffe1, 0xd280_00e0, 0xd280_0bc8, 0xd400_0001];
/// a0 = 100; here: a0 -= 1; bnez a0, here, with a1 += 2 in the delay slot; exit_group(7).
const MIPS: [u32; 7] =
    [0x6404_0064, 0x6484_ffff, 0x1480_fffe, 0x64a5_0002, 0x6404_0007, 0x6402_1455, 0x0000_000c];

#[test]
fn x86_flags_are_correct_between_subtraction_and_branch() {
    let mut program = x86(&[&COUNT_DOWN, &exit(7)]);
    assert_eq!(
        (program.register(RIP), program.register(EFLAGS)),
        (CODE, 0x202 | 0x44 & program.register(EFLAGS))
    );
    assert_eq!(program.request(&format!("Z0,{JNZ:x},1")), "OK");
    let reply = program.resume("c");
    assert!(is_stop(&reply, TRAP) && reply.contains("swbreak"), "{reply}");
    // 99 has four one bits, so PF is set.
    assert_eq!((program.register(RIP), program.register(RAX), program.register(EFLAGS)), (JNZ, 99, 0x206));
    assert!(is_stop(&program.resume("s"), TRAP));
    assert_eq!((program.register(RIP), program.register(RAX)), (SUB, 99));
    assert!(is_stop(&program.resume("c"), TRAP));
    assert_eq!((program.register(RIP), program.register(RAX), program.register(EFLAGS)), (JNZ, 98, 0x202));
    assert_eq!(program.request(&format!("P{EFLAGS:x}=42020000")), "OK", "ZF");
    assert!(is_stop(&program.resume("s"), TRAP));
    assert_eq!(program.register(RIP), JNZ + 2, "the branch is not taken");
    program.set_register(RIP, SUB);
    program.set_register(RAX, 1);
    assert!(is_stop(&program.resume("s"), TRAP));
    assert_eq!((program.register(RIP), program.register(RAX), program.register(EFLAGS)), (JNZ, 0, 0x246));
    assert_eq!(program.request(&format!("z0,{JNZ:x},1")), "OK");
    assert_eq!(program.resume("c"), "W07");
}

#[test]
fn unread_flags_are_available_and_a_self_jump_is_a_step() {
    // mov eax, 1; add eax, 0x7fffffff; xor eax, eax; here: jmp here.
    let code = [0xb8, 1, 0, 0, 0, 0x05, 0xff, 0xff, 0xff, 0x7f, 0x31, 0xc0, 0xeb, 0xfe];
    let mut program = x86(&[&code]);
    (0..2).for_each(|_| assert!(is_stop(&program.resume("s"), TRAP)));
    assert_eq!((program.register(RIP), program.register(EFLAGS)), (CODE + 10, 0xa96), "OF SF AF PF");
    for _ in 0..3 {
        assert!(is_stop(&program.resume("s"), TRAP));
        assert_eq!((program.register(RIP), program.register(EFLAGS) & 0x8c5), (CODE + 12, 0x44));
    }
    program.send("vCont;c");
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_stop(&program.interrupt(), 2));
    assert_eq!(program.register(RIP), CODE + 12);
    assert_eq!(program.request(&format!("Z0,{:x},1", CODE + 12)), "OK");
    for _ in 0..2 {
        assert!(is_stop(&program.resume("c"), TRAP));
        assert_eq!(program.register(RIP), CODE + 12);
    }
    program.send("k");
}

#[test]
fn a_rep_instruction_takes_one_step_per_iteration() {
    // mov ecx, 2; lea rdi, [rsp - 64]; rep stosb; rep stosb.
    let code = [0xb9, 2, 0, 0, 0, 0x48, 0x8d, 0x7c, 0x24, 0xc0, 0xf3, 0xaa, 0xf3, 0xaa];
    let mut program = x86(&[&code, &exit(5)]);
    (0..2).for_each(|_| assert!(is_stop(&program.resume("s"), TRAP)));
    for (pc, count) in [(10, 1), (12, 0), (14, 0)] {
        assert!(is_stop(&program.resume("s"), TRAP));
        assert_eq!((program.register(RIP), program.register(RCX)), (CODE + pc, count));
    }
    assert_eq!(program.resume("c"), "W05");
}

#[test]
fn aarch64_registers_are_available() {
    let mut program = words(&ARM, EM_AARCH64, 0);
    assert_eq!(program.request(&format!("Z0,{:x},4", CODE + 8)), "OK");
    assert!(is_stop(&program.resume("c"), TRAP));
    assert_eq!((program.register(ARM_PC), program.register(X0)), (CODE + 8, 99));
    assert_eq!(program.register(CPSR), 0x2000_0000, "nothing was borrowed");
    for number in 1..31 {
        program.set_register(number, 0x1_0000_0000 * u64::from(number) + 7);
    }
    assert!(is_stop(&program.resume("s"), TRAP));
    assert_eq!((program.register(ARM_PC), program.register(X0)), (CODE + 4, 99));
    for number in 1..31 {
        assert_eq!(program.register(number), 0x1_0000_0000 * u64::from(number) + 7, "x{number}");
    }
    assert!(is_stop(&program.resume("c"), TRAP));
    program.set_register(X0, 1);
    assert_eq!(program.request(&format!("P{CPSR:x}=00000040")), "OK", "Z");
    assert!(is_stop(&program.resume("s"), TRAP));
    assert_eq!(program.register(ARM_PC), CODE + 12, "the branch is not taken");
    assert_eq!(program.request(&format!("z0,{:x},4", CODE + 8)), "OK");
    assert_eq!(program.resume("c"), "W07");
}

#[test]
fn mips64_steps_over_branches_with_delay_slots_and_unread_lo_is_available() {
    let mut program = words(&MIPS, EM_MIPS, MIPS_FLAGS);
    (0..2).for_each(|_| assert!(is_stop(&program.resume("s"), TRAP)));
    assert_eq!((program.register(MIPS_PC), program.register(MIPS_A0)), (CODE + 8, 99));
    assert!(is_stop(&program.resume("s"), TRAP));
    assert_eq!((program.register(MIPS_PC), program.register(MIPS_A0 + 1)), (CODE + 4, 2));
    program.set_register(MIPS_A0, 1);
    assert_eq!(program.request(&format!("Z0,{:x},4", CODE + 16)), "OK");
    assert!(is_stop(&program.resume("c"), TRAP));
    assert_eq!((program.register(MIPS_PC), program.register(MIPS_A0 + 1)), (CODE + 16, 4));
    assert_eq!(program.resume("c"), "W07");

    // a0 = 100; mult a0, a0; mult zero, zero.
    let mut program = words(&[0x6404_0064, 0x0084_0018, 0x0000_0018], EM_MIPS, MIPS_FLAGS);
    (0..2).for_each(|_| assert!(is_stop(&program.resume("s"), TRAP)));
    assert_eq!((program.register(MIPS_PC), program.register(MIPS_LO)), (CODE + 8, 10_000));
    program.send("k");
}

#[test]
fn translated_programs_stop_at_source_addresses() {
    // mov rax, [0]; exit_group(5).
    let mut program = x86(&[&[0x48, 0x8b, 4, 0x25, 0, 0, 0, 0], &exit(5)]);
    assert!(is_stop(&program.resume("c"), 11));
    assert_eq!(program.register(RIP), CODE);
    program.set_register(RIP, CODE + 8);
    assert_eq!(program.resume("c"), "W05");

    // read(0, rsp - 64, 64); exit_group(eax).
    let read = [0x31, 0xc0, 0x31, 0xff, 0x48, 0x8d, 0x74, 0x24, 0xc0, 0xba, 64, 0, 0, 0, 0x0f, 5, 0x89, 0xc7];
    let mut program = x86(&[&read, &exit(0)[5..]]);
    program.send("vCont;c");
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_stop(&program.interrupt(), 2));
    assert_eq!(program.register(RIP), CODE + 16, "behind the call that it is in");
    program.send("vCont;c");
    program.child.stdin.take().unwrap().write_all(b"abc").unwrap();
    assert_eq!(program.receive(), "W03");

    // mov qword [rsp - 8], 4; exit_group(4).
    let mut program = x86(&[&[0x48, 0xc7, 0x44, 0x24, 0xf8, 4, 0, 0, 0], &exit(4)]);
    let variable = program.register(RSP) - 8;
    assert_eq!(program.request(&format!("Z2,{variable:x},8")), "OK");
    let reply = program.resume("c");
    assert!(
        is_stop(&reply, TRAP) && reply.contains("watch:") && reply.contains(&format!("{variable:x};")),
        "{reply}"
    );
    assert_eq!(program.register(RIP), CODE + 9);
    assert_eq!(program.request(&format!("z2,{variable:x},8")), "OK");
    assert_eq!(program.resume("c"), "W04");
}

#[test]
fn a_debugger_can_patch_translated_code_and_detach() {
    let mut program = x86(&[&COUNT_DOWN, &exit(7)]);
    assert_eq!(program.request(&format!("Z0,{JNZ:x},1")), "OK");
    assert!(is_stop(&program.resume("c"), TRAP));
    // Replace the branch and the exit status: the loop ends, and the program exits with 9.
    assert_eq!(program.request(&format!("M{JNZ:x},2:9090")), "OK");
    assert_eq!(program.request(&format!("M{:x},1:09", JNZ + 3)), "OK");
    assert_eq!(program.request("D"), "OK");
    assert_eq!(program.end().code(), Some(9));
}

#[test]
fn a_child_of_a_debugged_program_runs_across_its_breakpoints() {
    // fork(); test eax, eax; jnz parent; child: exit_group(3).
    let fork = [0xb8, 57, 0, 0, 0, 0x0f, 5, 0x85, 0xc0, 0x75, 12];
    // parent: wait4(-1, rsp - 8, 0, 0); mov edi, [rsp - 8]; shr edi, 8.
    let wait = [0xbf, 0xff, 0xff, 0xff, 0xff, 0x48, 0x8d, 0x74, 0x24, 0xf8, 0x31, 0xd2, 0x45, 0x31, 0xd2];
    let end = [0xb8, 61, 0, 0, 0, 0x0f, 5, 0x8b, 0x7c, 0x24, 0xf8, 0xc1, 0xef, 8];
    let mut program = x86(&[&fork, &exit(3), &wait, &end, &exit(0)[5..]]);
    assert_eq!(program.request(&format!("Z0,{:x},1", CODE + 11)), "OK");
    assert_eq!(program.resume("c"), "W03");
}

#[test]
fn gdb_learns_and_sets_source_registers() {
    let programs = [
        (
            x86(&[&COUNT_DOWN, &exit(7)]),
            "i386:x86-64",
            "i386.core",
            // With the upper halves of YMM registers.
            16 * 8 + 8 + 7 * 4 + 80 + 32 + 256 + 4 + 24 + 256,
        ),
        (words(&ARM, EM_AARCH64, 0), "aarch64", "aarch64.core", 33 * 8 + 4 + 32 * 16 + 8 + 8),
        (words(&MIPS, EM_MIPS, MIPS_FLAGS), "mips", "mips.cpu", 72 * 8),
        (
            DebugSession::start(&SPINNER),
            "loongarch64",
            "loongarch.base",
            35 * 8 + 32 * 8 + 8 + 4 + 32 * 48 + 4 * 8 + 8,
        ),
    ];
    for (mut program, architecture, feature, bytes) in programs {
        let description = program.request("qXfer:features:read:target.xml:0,ffb");
        assert!(
            description.contains(&format!("<architecture>{architecture}</architecture>")),
            "{description}"
        );
        assert!(description.contains(&format!("org.gnu.gdb.{feature}")), "{description}");
        let all = program.request("g");
        assert_eq!(all.len(), 2 * bytes, "{architecture}");
        // Change the second register.
        let changed = format!("{}8877665544332211{}", &all[..16], &all[32..]);
        assert_eq!(program.request(&format!("G{changed}")), "OK", "{architecture}");
        assert_eq!((program.request("g"), program.register(1)), (changed, 0x1122_3344_5566_7788));
        assert!(
            program.request(&format!("G{}", &all[..all.len() - 2])).starts_with('E'),
            "one byte is missing"
        );
        assert!(program.request(&format!("p{:x}", 999)).starts_with('E'));
        program.send("k");
    }
}
