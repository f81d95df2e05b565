//! Instructions whose operand is the stack pointer, and instructions that use the stack in rare ways, compared with the
//! host's processor.

use iced_x86::{Code, Encoder, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

use crate::host::{Buffer, Registers};
use crate::instructions::{has_mmx, instruction, is_compared, is_not_comparable, undefined};
use crate::machine::{DATA_BYTES, MIDDLE, SOURCE, STACK_TOP, interpreted, translated};
use crate::random::Random;

/// Blocks signals, whose handlers would run on the stack that a test replaces, and calls `work`.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: sigset_t is valid when zeroed, and sigfillset initializes it.
    let mut all = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut before = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are owned by this function.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let result = work();
    // SAFETY: the set is the one that pthread_sigmask has returned.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}

/// The part of RSP that has the size of a register.
fn stack_pointer_like(register: Register) -> Option<Register> {
    match register {
        _ if register.is_gpr64() => Some(Register::RSP),
        _ if register.is_gpr32() => Some(Register::ESP),
        _ if register.is_gpr16() => Some(Register::SP),
        Register::AH | Register::CH | Register::DH | Register::BH => None,
        _ if register.is_gpr8() => Some(Register::SPL),
        _ => None,
    }
}

/// An instruction between code that puts RBP into RSP, and code that puts RSP into RBP and restores RSP. R15 holds the
/// stack pointer. No flags change outside the instruction.
fn on_another_stack(i: &[u8]) -> Vec<u8> {
    // mov r15, rsp; mov rsp, rbp
    let before = [0x49, 0x89, 0xe7, 0x48, 0x89, 0xec];
    // mov rbp, rsp; mov rsp, r15; mov r15d, 0
    let after = [0x48, 0x89, 0xe5, 0x4c, 0x89, 0xfc, 0x41, 0xbf, 0, 0, 0, 0];
    [&before[..], i, &after].concat()
}

/// Whether the value of an instruction can be anything, so that its stack pointer is not an address.
fn is_suitable(i: &Instruction) -> bool {
    use Mnemonic::*;
    let used = |register: Register| {
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(i);
        info.used_registers().iter().any(|used| used.register().full_register() == register)
    };
    !matches!(i.mnemonic(), Div | Idiv | Cmpxchg | Bt | Bts | Btr | Btc | Bsf | Bsr | Shld | Shrd)
        && !used(Register::R15)
        && !used(Register::RBP)
}

#[test]
fn instructions_that_use_the_stack_pointer_as_a_number_match_the_processor() {
    let mut random = Random(0x51);
    let buffer = Buffer::new();
    let (mut wrong, mut cases) = (Vec::new(), 0);
    let mut data = vec![0u8; DATA_BYTES + 64];
    let skip = data.as_ptr().align_offset(64);
    for code in Code::values().filter(|code| is_compared(*code)) {
        for round in 0..24 {
            let Some(mut i) = instruction(code, &mut random, 0) else { break };
            // One or both of the first two operands.
            for operand in (0..i.op_count().min(2)).filter(|operand| (round % 3 + 1) >> operand & 1 != 0) {
                if i.op_kind(operand) == OpKind::Register
                    && let Some(register) = stack_pointer_like(i.op_register(operand))
                {
                    i.set_op_register(operand, register);
                }
            }
            let mut encoder = Encoder::new(64);
            if encoder.encode(&i, SOURCE).is_err() {
                continue;
            }
            let bytes = encoder.take_buffer();
            i = iced_x86::Decoder::with_ip(64, &bytes, SOURCE, 0).decode();
            let names_stack = (0..i.op_count()).any(|operand| {
                i.op_kind(operand) == OpKind::Register
                    && i.op_register(operand).full_register() == Register::RSP
            });
            let is_other = has_mmx(&i)
                || i.is_stack_instruction()
                || is_not_comparable(&i) && i.mnemonic() != Mnemonic::Bswap;
            if i.code() != code || is_other || !names_stack || !is_suitable(&i) {
                continue;
            }
            let bytes = on_another_stack(&bytes);
            let mut before = random.registers(false);
            data[skip..skip + DATA_BYTES].iter_mut().for_each(|byte| *byte = random.next() as u8);
            let data_at = data[skip..].as_ptr() as u64;
            before.general[4] = STACK_TOP;
            before.general[7] = data_at + MIDDLE;
            let mut native = before;
            let outcomes = [translated, interpreted].map(|execute| {
                let (mut ours, mut our_data) = (before, data[skip..skip + DATA_BYTES].to_vec());
                execute(&bytes, &mut ours, data_at, &mut our_data, None).map(|_| (ours, our_data))
            });
            without_signals(|| buffer.run(&bytes, &mut native));
            native.general[4] = STACK_TOP;
            cases += 1;
            for outcome in outcomes {
                let (ours, our_data) = match outcome {
                    Ok(ours) => ours,
                    Err(why) => {
                        wrong.push(format!("{i}: {why}"));
                        continue;
                    }
                };
                let flags = (native.flags ^ ours.flags) & 0x8d5 & !undefined(&i, &before);
                let is_same_data = our_data == data[skip..skip + DATA_BYTES];
                if flags != 0 || native.general != ours.general || !is_same_data {
                    wrong.push(format!(
                        "{i}: {:x?} flags {:x}, not {:x?} flags {:x}, same data: {is_same_data}",
                        ours.general,
                        ours.flags & 0x8d5,
                        native.general,
                        native.flags & 0x8d5
                    ));
                }
            }
        }
    }
    println!("{cases} cases");
    assert!(cases > 3000, "{cases}");
    assert!(wrong.is_empty(), "{} differences\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
}

/// Comparisons and branches on a 32-bit result in the stack pointer.
#[test]
fn a_branch_on_a_result_in_the_stack_pointer_is_the_processors() {
    let buffer = Buffer::new();
    // Operations on ESP and EBX, each followed by a branch over `mov eax, 1`.
    let operations: [&[u8]; 7] = [
        &[0x01, 0xdc],       // add esp, ebx
        &[0x29, 0xdc],       // sub esp, ebx
        &[0x21, 0xdc],       // and esp, ebx
        &[0x83, 0xc4, 0x10], // add esp, 16
        &[0x83, 0xec, 0x10], // sub esp, 16
        &[0xff, 0xc4],       // inc esp
        &[0xf7, 0xdc],       // neg esp
    ];
    for operation in operations {
        for condition in 0x70..=0x7f {
            for (stack, other) in [(0x1_7fff_fff8, 8), (0xffff_ffff_8000_0001, 0x8000_0001), (7, 0xffff_ffff)]
            {
                let code = [operation, &[condition, 5, 0xb8, 1, 0, 0, 0]].concat();
                let code = on_another_stack(&code);
                let mut before =
                    Registers { general: [0; 16], flags: 0x202, wide: 0, vectors: [0; 16], uppers: [0; 16] };
                (before.general[3], before.general[5]) = (other, stack);
                before.general[4] = STACK_TOP;
                let mut native = before;
                without_signals(|| buffer.run(&code, &mut native));
                native.general[4] = STACK_TOP;
                for execute in [translated, interpreted] {
                    let (mut ours, mut data) = (before, vec![0u8; DATA_BYTES]);
                    let data_at = data.as_ptr() as u64;
                    execute(&code, &mut ours, data_at, &mut data, None).unwrap();
                    assert_eq!(ours.general, native.general, "{code:x?}");
                }
            }
        }
    }
}

/// ENTER with enclosing procedures and LEAVE, with operands of 16 and 64 bits, on a stack in the data.
#[test]
fn procedures_of_block_structured_languages_match_the_processor() {
    let buffer = Buffer::new();
    let mut random = Random(0x52);
    let mut data = vec![0u8; DATA_BYTES + 64];
    let skip = data.as_ptr().align_offset(64);
    for level in (0..8).chain([32, 33, 35]) {
        for prefix in [&[][..], &[0x66]] {
            for leaves in [false, true] {
                let mut code = [prefix, &[0xc8, 8, 0, level]].concat();
                if leaves {
                    code.extend([prefix, &[0xc9]].concat());
                }
                // xchg rbp, rbx; mov rsp, rdi: the frame pointer is in RBX.
                let before = [0x49, 0x89, 0xe7, 0x48, 0x89, 0xfc, 0x48, 0x87, 0xeb];
                // mov rcx, rsp; mov rsp, r15; mov r15d, 0; xchg rbp, rbx
                let after = [0x48, 0x89, 0xe1, 0x4c, 0x89, 0xfc, 0x41, 0xbf, 0, 0, 0, 0, 0x48, 0x87, 0xeb];
                let code = [&before[..], &code, &after].concat();
                data[skip..skip + DATA_BYTES].iter_mut().for_each(|byte| *byte = random.next() as u8);
                let data_at = data[skip..].as_ptr() as u64;
                let mut before = random.registers(false);
                before.general[4] = STACK_TOP;
                before.general[7] = data_at + MIDDLE;
                before.general[3] = data_at + DATA_BYTES as u64 - 32;
                let (mut native, initial) = (before, data[skip..skip + DATA_BYTES].to_vec());
                let outcomes = [translated, interpreted].map(|execute| {
                    let (mut ours, mut our_data) = (before, initial.clone());
                    execute(&code, &mut ours, data_at, &mut our_data, None).unwrap();
                    (ours, our_data)
                });
                without_signals(|| buffer.run(&code, &mut native));
                native.general[4] = STACK_TOP;
                for (ours, our_data) in outcomes {
                    assert_eq!(ours.general, native.general, "level {level}, {prefix:x?}, leaves {leaves}");
                    assert_eq!(our_data, data[skip..skip + DATA_BYTES], "level {level}, {prefix:x?}");
                }
            }
        }
    }
}

/// The opcodes that processors without certain extensions execute as NOP, with registers and memory.
#[test]
fn reserved_opcodes_do_nothing() {
    let buffer = Buffer::new();
    let mut random = Random(0x53);
    let prefixes: [&[u8]; 6] = [&[], &[0x66], &[0xf3], &[0xf2], &[0x48], &[0x41]];
    for opcode in (0x18..=0x1f).chain([0x0d]) {
        for prefix in prefixes {
            for operand in 0..=0xff {
                // Operands are registers, or at RDI or RAX, which need not be an address; no SIB byte and no displacement.
                let is_memory = operand < 0xc0;
                if is_memory && (operand >= 0x40 || operand & 7 == 4 || operand & 7 == 5) {
                    continue;
                }
                let code = [prefix, &[0x0f, opcode, operand]].concat();
                let mut before = random.registers(false);
                before.general[4] = STACK_TOP;
                let mut native = before;
                buffer.run(&code, &mut native);
                native.general[4] = STACK_TOP;
                for execute in [translated, interpreted] {
                    let (mut ours, mut data) = (before, vec![0u8; DATA_BYTES]);
                    let data_at = data.as_ptr() as u64;
                    let outcome = execute(&code, &mut ours, data_at, &mut data, None);
                    assert!(outcome.is_ok(), "{code:x?}: {outcome:?}");
                    assert_eq!(ours.general, native.general, "{code:x?}");
                    assert_eq!(ours.flags & 0x8d5, native.flags & 0x8d5, "{code:x?}");
                }
            }
        }
    }
}
