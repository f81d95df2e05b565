//! Checks by formulas, where QEMU is no reference: traps, the instructions of version 1.1 of the manual, and
//! instructions in which QEMU deviates from the manual. Source: LoongArch Reference Manual, volume 1; each test names
//! its section.

#[path = "qemu_oracle/array.rs"]
mod array;
mod checked;

use array::Array;
use longma_loongarch::{
    Access, Class, Environment, Extension, Fault, FaultCause, Fcsr, Instruction, Op, Operand, RegisterKind,
    State, Trap, Vector,
    float::{self, Double, RoundingMode, Single},
    semantics::{execute, is_user_instruction},
};
use proptest::prelude::*;

const BASE: u64 = 0x4000;
const A: u8 = 4;
const B: u8 = 5;
const C: u8 = 6;

fn memory(bytes: &[u8]) -> Array<'static> {
    let mut data = bytes.to_vec();
    data.resize(64, 0);
    Array::new(BASE, data, 0, &[])
}

fn state() -> State {
    let mut state = State { pc: 0x1000, ..State::default() };
    for n in 1..32 {
        state.x[n] = 0x0101_0101_0101_0101 * n as u64;
        state.v[n] = Vector([0x1111_1111_1111_1111 * (n as u64 % 16), 2, 3, 4]);
    }
    state
}

/// `op rd = C, rj = A, rk = B`.
fn three(op: Op) -> Instruction {
    Instruction { d: C, j: A, k: B, ..Instruction::new(op) }
}

fn misaligned(address: u64, access: Access) -> Result<(), Trap> {
    Err(Trap::Memory(Fault { address, access, cause: FaultCause::Misaligned }))
}

fn load(memory: &Array, offset: u64) -> u64 {
    memory.load(BASE + offset).expect("the test stays in its memory")
}

#[test]
fn every_user_instruction_has_semantics_and_privileged_ones_have_none() {
    for op in Op::all() {
        let extension = op.row().extension;
        if extension >= Extension::Lsx && extension <= Extension::Lbt {
            continue;
        }
        let kernel = matches!(extension, Extension::Privileged | Extension::Lvz);
        assert_eq!(is_user_instruction(op), !kernel, "{}", op.mnemonic());
        if kernel {
            let mut after = state();
            let result = execute(&mut after, &Instruction::new(op), &memory(&[]));
            assert_eq!(result, Err(Trap::PrivilegedInstruction), "{}", op.mnemonic());
            assert_eq!(after, state());
        }
    }
}

#[test]
fn r0_stays_zero_after_any_write() {
    for op in Op::all() {
        let row = op.row();
        let writes_general = row.operands.first() == Some(&Operand::Register(RegisterKind::General, 0));
        if !writes_general || row.extension > Extension::Fp || row.class == Class::Branch {
            continue;
        }
        let mut state = state();
        (state.x[usize::from(A)], state.x[usize::from(B)]) = (BASE + 16, BASE);
        let has_index = row.operands.contains(&Operand::Register(RegisterKind::General, 10));
        if has_index && row.extension == Extension::Base && matches!(row.class, Class::Load | Class::Store) {
            state.x[usize::from(B)] = 8;
        }
        if op.mnemonic().contains("le.") {
            state.x[usize::from(B)] = BASE + 16;
        }
        let i = Instruction { d: 0, j: A, k: B, imm2: 0, ..Instruction::new(op) };
        let i = if row
            .operands
            .iter()
            .any(|o| matches!(o, Operand::Register(RegisterKind::Float | RegisterKind::Condition, 5)))
        {
            Instruction { j: 3, ..i }
        } else {
            i
        };
        execute(&mut state, &i, &memory(&[0xff; 64]))
            .unwrap_or_else(|trap| panic!("{}: {trap}", op.mnemonic()));
        assert_eq!(state.x[0], 0, "{}", op.mnemonic());
    }
}

#[test]
fn an_access_to_unmapped_memory_changes_nothing() {
    for op in Op::all() {
        let row = op.row();
        if !matches!(row.class, Class::Load | Class::Store | Class::Atomic) || row.extension > Extension::Fp {
            continue;
        }
        let store_conditional = op.mnemonic().starts_with("sc");
        let mut before = state();
        before.x[usize::from(A)] = 0x8_0000;
        before.x[usize::from(B)] = if op.mnemonic().contains("gt.") { 0 } else { 0x10_0000 };
        if store_conditional {
            before.reservation.address = 0x8_0000;
        }
        let mut after = before.clone();
        let result = execute(&mut after, &three(op), &memory(&[]));
        assert!(
            matches!(result, Err(Trap::Memory(Fault { cause: FaultCause::Unmapped, .. }))),
            "{}: {result:?}",
            op.mnemonic()
        );
        assert_eq!(after, before, "{}", op.mnemonic());
    }
}

/// Section 2.2.6: first the alignment is checked (ALE), then the bound (BCE), as signed numbers (section 2.2.10,
/// ASRTLE).
#[test]
fn bound_checking_accesses_check_alignment_and_then_the_bound() {
    let mut tried = Vec::new();
    for op in Op::all().filter(|op| op.row().extension == Extension::Bound && op.mnemonic().len() > 5) {
        let name = op.mnemonic();
        if name.starts_with("asrt") {
            continue;
        }
        tried.push(op);
        let bytes = match name.rsplit('.').next() {
            Some("b") => 1,
            Some("h") => 2,
            Some("w" | "s") => 4,
            _ => 8,
        };
        let access = if name.contains("st") { Access::Write } else { Access::Read };
        let greater = name.contains("gt");
        for (bound, holds) in [
            (BASE + 8, !greater),
            (BASE + 7, greater),
            (BASE + 9, !greater),
            (i64::MIN as u64, greater),
            (u64::MAX, greater),
            (i64::MAX as u64, !greater),
        ] {
            let mut before = state();
            (before.x[usize::from(A)], before.x[usize::from(B)]) = (BASE + 8, bound);
            let mut after = before.clone();
            let data: Vec<u8> = (0..64).map(|n| 0xf0 ^ n).collect();
            let memory = memory(&data);
            let result = execute(&mut after, &three(op), &memory);
            if !holds {
                assert_eq!(
                    (result, &after),
                    (Err(Trap::BoundCheck), &before),
                    "{name} with bound {bound:#x}"
                );
                assert_eq!(*memory.data.borrow(), data, "{name}");
                continue;
            }
            assert_eq!(result, Ok(()), "{name} with bound {bound:#x}");
            let mask = u64::MAX >> (64 - 8 * bytes);
            let read = u64::from_le_bytes(data[8..16].try_into().unwrap()) & mask;
            let float = name.starts_with('f');
            let source = if float { before.f(C) } else { before.r(C) };
            match access {
                Access::Write => assert_eq!(load(&memory, 8) & mask, source & mask, "{name}"),
                _ if float => assert_eq!(after.f(C) & mask, read, "{name}"),
                _ => {
                    let unused = 64 - 8 * bytes;
                    assert_eq!(after.r(C) as i64, (read as i64) << unused >> unused, "{name}");
                }
            }
            if bytes > 1 {
                let mut state = before.clone();
                state.x[usize::from(A)] += 1;
                let result = execute(&mut state, &three(op), &memory);
                assert_eq!(result, misaligned(BASE + 9, access), "{name}");
            }
        }
    }
    assert_eq!(tried.len(), 24);
    checked::assert_listed("formula-bound", tried);
}

#[test]
fn address_assertions_compare_as_signed_numbers() {
    let negative = -1i64 as u64;
    for (j, k, less_or_equal) in
        [(1, 2, true), (2, 2, true), (3, 2, false), (negative, 1, true), (1, negative, false)]
    {
        for (op, passes) in [(Op::AsrtleD, less_or_equal), (Op::AsrtgtD, !less_or_equal)] {
            let mut state = state();
            (state.x[usize::from(A)], state.x[usize::from(B)]) = (j, k);
            let i = Instruction { j: A, k: B, ..Instruction::new(op) };
            let result = execute(&mut state, &i, &memory(&[]));
            assert_eq!(
                result,
                if passes { Ok(()) } else { Err(Trap::BoundCheck) },
                "{} {j} {k}",
                op.mnemonic()
            );
            assert_eq!(state.pc, if passes { 0x1004 } else { 0x1000 });
        }
    }
    checked::assert_listed("formula-assertion", [Op::AsrtleD, Op::AsrtgtD]);
}

#[test]
fn system_calls_and_breaks_report_their_code_and_keep_the_pc() {
    for (op, trap) in [
        (Op::Syscall, Trap::Syscall(17)),
        (Op::Break, Trap::Break(17)),
        // The code of DBCL is in a different number space from BREAK's, so the trap reports 0.
        (Op::Dbcl, Trap::Break(0)),
    ] {
        let mut after = state();
        let result = execute(&mut after, &Instruction { imm: 17, ..Instruction::new(op) }, &memory(&[]));
        assert_eq!((result, after), (Err(trap), state()));
    }
    checked::assert_listed("formula-call", [Op::Syscall, Op::Break, Op::Dbcl]);
}

/// Section 2.2.10: the words are sign-extended, and rj gets the counter id.
#[test]
fn the_environment_provides_the_counter_and_the_configuration() {
    let mut memory = memory(&[]);
    memory.counter = 0x8765_4321_fedc_ba98;
    for (op, value) in [
        (Op::RdtimelW, 0xffff_ffff_fedc_ba98),
        (Op::RdtimehW, 0xffff_ffff_8765_4321),
        (Op::RdtimeD, 0x8765_4321_fedc_ba98),
    ] {
        let mut state = state();
        execute(&mut state, &Instruction { d: C, j: A, ..Instruction::new(op) }, &memory).unwrap();
        assert_eq!((state.r(C), state.r(A)), (value, 7), "{}", op.mnemonic());
        execute(&mut state, &Instruction { d: C, j: 0, ..Instruction::new(op) }, &memory).unwrap();
        assert_eq!(state.x[0], 0);
    }
    let mut state = state();
    state.x[usize::from(A)] = 1;
    execute(&mut state, &Instruction { d: C, j: A, ..Instruction::new(Op::Cpucfg) }, &memory).unwrap();
    assert_eq!(state.r(C), 0xffff_ffff_83f2_f2f2);
    checked::assert_listed("formula-configuration", [Op::RdtimelW, Op::RdtimehW, Op::RdtimeD, Op::Cpucfg]);
}

/// Section 2.2.5: a prefetch is only a hint, at any address.
#[test]
fn a_prefetch_changes_nothing_and_does_not_fault() {
    for op in [Op::Preld, Op::Preldx] {
        for hint in 0..32 {
            let mut after = state();
            (after.x[usize::from(A)], after.x[usize::from(B)]) = (u64::MAX - 2, 1 << 63);
            let before = after.clone();
            execute(&mut after, &Instruction { imm: hint, ..three(op) }, &memory(&[])).unwrap();
            assert_eq!(after, State { pc: before.pc + 4, ..before }, "{} {hint}", op.mnemonic());
        }
    }
    checked::assert_listed("formula-prefetch", [Op::Preld, Op::Preldx]);
}

#[test]
fn a_bit_field_that_ends_below_its_start_is_illegal() {
    for op in [Op::BstrinsW, Op::BstrinsD, Op::BstrpickW, Op::BstrpickD] {
        let i = Instruction { d: C, j: A, imm: 3, imm2: 4, ..Instruction::new(op) };
        let mut after = state();
        assert_eq!(execute(&mut after, &i, &memory(&[])), Err(Trap::IllegalInstruction));
        assert_eq!(after, state());
    }
}

/// The published check values of CRC-32/ISO-HDLC and CRC-32/ISCSI, which invert the checksum at the start and the end.
#[test]
fn checksums_of_the_standard_message_match_the_catalogue() {
    for (byte, half, word, double, check) in [
        (Op::CrcWBW, Op::CrcWHW, Op::CrcWWW, Op::CrcWDW, 0xcbf4_3926u32),
        (Op::CrccWBW, Op::CrccWHW, Op::CrccWWW, Op::CrccWDW, 0xe306_9283),
    ] {
        let message = b"123456789";
        for pieces in [vec![1; 9], vec![2, 2, 2, 2, 1], vec![4, 4, 1], vec![8, 1]] {
            let mut state = state();
            state.x[usize::from(B)] = 0xffff_ffff;
            let mut rest = &message[..];
            for piece in pieces {
                let mut bytes = [0; 8];
                bytes[..piece].copy_from_slice(&rest[..piece]);
                rest = &rest[piece..];
                state.x[usize::from(A)] = u64::from_le_bytes(bytes);
                let op = match piece {
                    1 => byte,
                    2 => half,
                    4 => word,
                    _ => double,
                };
                execute(&mut state, &Instruction { d: B, ..three(op) }, &memory(&[])).unwrap();
            }
            assert_eq!(!(state.r(B) as u32), check);
        }
    }
}

fn atomic_ops(predicate: impl Fn(&str) -> bool) -> Vec<Op> {
    Op::all().filter(|op| op.row().class == Class::Atomic && predicate(op.mnemonic())).collect()
}

/// Section 2.2.7.
#[test]
fn atomic_operations_require_alignment_and_a_destination_other_than_the_address() {
    let ops = atomic_ops(|name| name.starts_with("am"));
    assert_eq!(ops.len(), 52);
    for op in ops {
        let name = op.mnemonic();
        let same = Instruction { d: A, ..three(op) };
        let mut before = state();
        before.x[usize::from(A)] = BASE + 8;
        if !name.starts_with("amcas") {
            let mut after = before.clone();
            assert_eq!(execute(&mut after, &same, &memory(&[])), Err(Trap::IllegalInstruction), "{name}");
            assert_eq!(after, before);
        }
        if name.ends_with(".b") {
            continue;
        }
        before.x[usize::from(A)] += 1;
        let mut after = before.clone();
        let result = execute(&mut after, &three(op), &memory(&[]));
        assert_eq!((result, after), (misaligned(BASE + 9, Access::Write), before), "{name}");
    }
}

/// Section 2.2.7 (AM.{SWAP/ADD}.{B/H}, AMCAS).
#[test]
fn version_1_1_atomic_operations_change_just_their_bytes() {
    let sign_extend = |value: u64, bits: u32| ((value << (64 - bits)) as i64 >> (64 - bits)) as u64;
    let ops = atomic_ops(|name| {
        name.starts_with("amcas") || name.starts_with("am") && (name.ends_with(".b") || name.ends_with(".h"))
    });
    checked::assert_listed("formula-atomic", ops.iter().copied());
    for op in ops {
        let name = op.mnemonic();
        let bits = match name.rsplit('.').next() {
            Some("b") => 8,
            Some("h") => 16,
            Some("w") => 32,
            _ => 64,
        };
        let mask = u64::MAX >> (64 - bits);
        let old = 0x89ab_cdef_8182_8384u64;
        for expected in [old, old ^ 1, old ^ mask] {
            let memory = memory(&[]);
            memory.store(BASE + 8, old).unwrap();
            let mut state = state();
            let new = 0x7654_3210_7675_7473u64;
            (state.x[usize::from(A)], state.x[usize::from(B)], state.x[usize::from(C)]) =
                (BASE + 8, new, expected);
            execute(&mut state, &three(op), &memory).unwrap();
            let written = match &name[..5] {
                "amswa" => new,
                "amadd" => old.wrapping_add(new),
                _ if expected & mask == old & mask => new,
                _ => old,
            };
            assert_eq!(load(&memory, 8), old & !mask | written & mask, "{name}");
            assert_eq!(state.r(C), sign_extend(old, bits), "{name}");
            assert_eq!((load(&memory, 0), load(&memory, 16)), (0, 0), "{name}");
        }
    }
}

fn linked(link: Op, at: u64, memory: &Array) -> State {
    let mut state = state();
    state.x[usize::from(A)] = BASE + at;
    execute(&mut state, &Instruction { d: 7, j: A, ..Instruction::new(link) }, memory).unwrap();
    state
}

/// Section 2.2.7 (LL, SC, LL.ACQ, SC.REL).
#[test]
fn a_conditional_store_succeeds_once_and_only_where_it_was_linked() {
    for (link, store, bytes) in [
        (Op::LlW, Op::ScW, 4),
        (Op::LlD, Op::ScD, 8),
        (Op::LlacqW, Op::ScrelW, 4),
        (Op::LlacqD, Op::ScrelD, 8),
    ] {
        let memory = memory(&[0x80; 64]);
        let mask = u64::MAX >> (64 - 8 * bytes);
        let mut state = linked(link, 8, &memory);
        let conditional = Instruction { d: C, j: A, ..Instruction::new(store) };
        for succeeds in [true, false] {
            state.x[usize::from(C)] = 0x1234_5678_9abc_def0;
            execute(&mut state, &conditional, &memory).unwrap();
            assert_eq!(state.r(C), u64::from(succeeds));
            assert_eq!(load(&memory, 8) & mask, 0x1234_5678_9abc_def0 & mask);
        }

        let mut elsewhere = linked(link, 8, &memory);
        elsewhere.x[usize::from(A)] += 8;
        execute(&mut elsewhere, &conditional, &memory).unwrap();
        assert_eq!((elsewhere.r(C), load(&memory, 16)), (0, 0x8080_8080_8080_8080));

        let mut overtaken = linked(link, 8, &memory);
        memory.store(BASE + 8, 1u64).unwrap();
        execute(&mut overtaken, &conditional, &memory).unwrap();
        assert_eq!((overtaken.r(C), load(&memory, 8)), (0, 1));

        let mut odd = linked(link, 8, &memory);
        odd.x[usize::from(A)] += 2;
        let before = odd.clone();
        assert_eq!(execute(&mut odd, &conditional, &memory), misaligned(BASE + 10, Access::Write));
        assert_eq!(odd, before);
        let link = Instruction { d: C, j: A, ..Instruction::new(link) };
        assert_eq!(execute(&mut odd, &link, &memory), misaligned(BASE + 10, Access::Read));
    }
    let links = [Op::LlW, Op::LlD, Op::LlacqW, Op::LlacqD, Op::ScW, Op::ScD, Op::ScrelW, Op::ScrelD];
    checked::assert_listed("formula-conditional", links);
}

/// Section 2.2.7 (SC.Q): 16 bytes, linked by an LL.D of either half.
#[test]
fn a_conditional_store_of_16_bytes_sees_a_change_of_either_half() {
    let conditional = three(Op::ScQ);
    for half in [0, 8] {
        for changed in [None, Some(0), Some(8)] {
            let memory = memory(&[7; 64]);
            let mut state = linked(Op::LlD, 16 + half, &memory);
            state.x[usize::from(A)] = BASE + 16;
            (state.x[usize::from(C)], state.x[usize::from(B)]) = (0x1111, 0x2222);
            if let Some(offset) = changed {
                memory.store(BASE + 16 + offset, 5u8).unwrap();
            }
            execute(&mut state, &conditional, &memory).unwrap();
            assert_eq!(state.r(C), u64::from(changed.is_none()), "half {half}, changed {changed:?}");
            let stored = (load(&memory, 16), load(&memory, 24)) == (0x1111, 0x2222);
            assert_eq!(stored, changed.is_none());
        }
    }
    let memory = memory(&[7; 64]);
    let mut state = linked(Op::LlD, 8, &memory);
    assert_eq!(execute(&mut state, &conditional, &memory), misaligned(BASE + 8, Access::Write));
    let mut state = linked(Op::LlD, 0, &memory);
    state.x[usize::from(A)] = BASE + 16;
    execute(&mut state, &conditional, &memory).unwrap();
    assert_eq!((state.r(C), load(&memory, 16)), (0, 0x0707_0707_0707_0707));
    checked::assert_listed("formula-conditional-16", [Op::ScQ]);
}

fn float_state(mode: RoundingMode, enables: u32, values: [u64; 3]) -> State {
    let mut state = state();
    state.fcsr = Fcsr((mode as u32) << 8 | enables | 1 << 16 | 0x1f << 24);
    for (n, value) in values.into_iter().enumerate() {
        state.v[n + 1].0[0] = value;
    }
    state
}

const F: Instruction = Instruction { d: 7, j: 1, k: 2, a: 3, ..Instruction::new(Op::FaddD) };

/// Section 3.1.3: an enabled exception sets only its cause, and the destination is unchanged.
#[test]
fn an_enabled_exception_traps_and_changes_only_the_causes() {
    let (one, zero, three) = (1f64.to_bits(), 0f64.to_bits(), 3f64.to_bits());
    let (huge, tiny) = (f64::MAX.to_bits(), f64::MIN_POSITIVE.to_bits());
    const I: u32 = 1;
    const U: u32 = 2;
    const O: u32 = 4;
    const Z: u32 = 8;
    const V: u32 = 16;
    for (op, values, raised) in [
        (Op::FdivD, [one, three, 0], I),
        (Op::FdivD, [tiny, three, 0], U | I),
        (Op::FmulD, [huge, huge, 0], O | I),
        (Op::FdivD, [one, zero, 0], Z),
        (Op::FdivD, [zero, zero, 0], V),
        (Op::FsqrtD, [(-1f64).to_bits(), 0, 0], V),
        (Op::FtintLD, [huge, 0, 0], V),
        (Op::FtintrneWD, [1.5f64.to_bits(), 0, 0], I),
        (Op::FcmpSltD, [f64::NAN.to_bits(), one, 0], V),
        (Op::FcvtSD, [huge, 0, 0], O | I),
        (Op::FmaddD, [huge, three, one], O | I),
    ] {
        for enables in 0..32u32 {
            let before = float_state(RoundingMode::NearestEven, enables, values);
            let mut after = before.clone();
            let result = execute(&mut after, &Instruction { op, ..F }, &memory(&[]));
            let causes = after.fcsr.0 >> 24;
            let flags = after.fcsr.0 >> 16 & 0x1f;
            assert_eq!(causes, raised, "{} enables {enables:#x}", op.mnemonic());
            if raised & enables == 0 {
                assert_eq!((result, flags, after.pc), (Ok(()), raised | 1, 0x1004));
                continue;
            }
            assert_eq!((result, flags), (Err(Trap::FloatingPoint), 1), "{}", op.mnemonic());
            after.fcsr = before.fcsr;
            assert_eq!(after, before, "{}", op.mnemonic());
        }
    }
}

/// Section 3.1.3.4: an exact tiny result underflows only if the trap is enabled.
#[test]
fn an_exact_subnormal_underflows_only_if_that_traps() {
    let (tiny, half) = (f64::MIN_POSITIVE.to_bits(), 0.5f64.to_bits());
    let mut state = float_state(RoundingMode::NearestEven, 0, [tiny, half, 0]);
    execute(&mut state, &Instruction { op: Op::FmulD, ..F }, &memory(&[])).unwrap();
    assert_eq!((state.fcsr.0 >> 24, state.f(7)), (0, (f64::MIN_POSITIVE / 2.0).to_bits()));
    let mut state = float_state(RoundingMode::NearestEven, 2, [tiny, half, 0]);
    let result = execute(&mut state, &Instruction { op: Op::FmulD, ..F }, &memory(&[]));
    assert_eq!((result, state.fcsr.0 >> 24), (Err(Trap::FloatingPoint), 2));
}

/// Section 3.1.2.3: FCSR1 accesses the enables, FCSR2 the causes and flags, FCSR3 the rounding mode, at the same bits
/// as in FCSR0.
#[test]
fn the_control_registers_are_parts_of_the_first() {
    for (n, fields) in [(0, 0x1f1f_031fu32), (1, 0x1f), (2, 0x1f1f_0000), (3, 0x300), (4, 0), (31, 0)] {
        let mut state = state();
        state.fcsr = Fcsr(0x0a15_0111);
        state.x[usize::from(A)] = 0xffff_ffff_f5ea_feee;
        let read = Instruction { d: C, j: n, ..Instruction::new(Op::Movfcsr2gr) };
        execute(&mut state, &read, &memory(&[])).unwrap();
        assert_eq!(state.r(C), u64::from(0x0a15_0111 & fields), "fcsr{n}");
        let write = Instruction { d: n, j: A, ..Instruction::new(Op::Movgr2fcsr) };
        execute(&mut state, &write, &memory(&[])).unwrap();
        assert_eq!(state.fcsr.0, 0x0a15_0111 & !fields | 0xf5ea_feee & fields, "fcsr{n}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Section 3.2.1.2: FNMADD is `-fusedMultiplyAdd(fj, fk, fa)`, so the sum is rounded before it is negated.
    #[test]
    fn negated_sums_are_rounded_before_they_are_negated(
        j: f64, k: f64, a: f64, single in any::<[f32; 3]>(), mode in 0usize..4,
    ) {
        let mode = RoundingMode::ALL[mode];
        for (negated, plain) in [(Op::FnmaddD, Op::FmaddD), (Op::FnmsubD, Op::FmsubD)] {
            let start = float_state(mode, 0, [j.to_bits(), k.to_bits(), a.to_bits()]);
            let (mut ours, mut sum) = (start.clone(), start);
            execute(&mut ours, &Instruction { op: negated, ..F }, &memory(&[])).unwrap();
            execute(&mut sum, &Instruction { op: plain, ..F }, &memory(&[])).unwrap();
            prop_assert_eq!(ours.f(7), sum.f(7) ^ 1 << 63);
            prop_assert_eq!(ours.fcsr, sum.fcsr);
        }
        let single = single.map(|value| u64::from(value.to_bits()));
        for (negated, plain) in [(Op::FnmaddS, Op::FmaddS), (Op::FnmsubS, Op::FmsubS)] {
            let (mut ours, mut sum) = (float_state(mode, 0, single), float_state(mode, 0, single));
            execute(&mut ours, &Instruction { op: negated, ..F }, &memory(&[])).unwrap();
            execute(&mut sum, &Instruction { op: plain, ..F }, &memory(&[])).unwrap();
            prop_assert_eq!(ours.f(7) as u32, sum.f(7) as u32 ^ 1 << 31);
        }
    }

    /// Section 3.2.1 (FRECIPE, FRSQRTE): a relative error below 2^-14.
    #[test]
    fn estimates_are_within_their_bound(
        x in prop::num::f64::POSITIVE | prop::num::f64::NORMAL,
        y in prop::num::f32::POSITIVE | prop::num::f32::NORMAL,
    ) {
        let is_close = |estimate: f64, exact: f64| ((estimate - exact) / exact).abs() < 2f64.powi(-14);
        let estimate = |op, value| {
            let mut state = float_state(RoundingMode::NearestEven, 0, [value, 0, 0]);
            execute(&mut state, &Instruction { op, ..F }, &memory(&[])).unwrap();
            state.f(7)
        };
        if (1.0 / x).is_normal() {
            prop_assert!(is_close(f64::from_bits(estimate(Op::FrecipeD, x.to_bits())), 1.0 / x));
        }
        let root = 1.0 / x.abs().sqrt();
        prop_assert!(is_close(f64::from_bits(estimate(Op::FrsqrteD, x.abs().to_bits())), root));
        let single = |op, value: f32| f64::from(f32::from_bits(estimate(op, u64::from(value.to_bits())) as u32));
        if (1.0 / y).is_normal() {
            prop_assert!(is_close(single(Op::FrecipeS, y), 1.0 / f64::from(y)));
        }
        prop_assert!(is_close(single(Op::FrsqrteS, y.abs()), 1.0 / f64::from(y.abs()).sqrt()));
        checked::assert_listed("formula-estimate", [Op::FrecipeS, Op::FrecipeD, Op::FrsqrteS, Op::FrsqrteD]);
    }
}

#[test]
fn estimates_of_powers_of_two_are_exact() {
    for n in -500..500 {
        let mode = RoundingMode::NearestEven;
        assert_eq!(float::recip::<Double>(2f64.powi(n).to_bits(), mode).0, 2f64.powi(-n).to_bits());
        assert_eq!(float::rsqrt::<Double>(2f64.powi(2 * n).to_bits(), mode).0, 2f64.powi(-n).to_bits());
    }
    for n in -60i32..60 {
        let bits = |value: f32| u64::from(value.to_bits());
        let mode = RoundingMode::NearestEven;
        assert_eq!(float::recip::<Single>(bits(2f32.powi(n)), mode).0, bits(2f32.powi(-n)));
        assert_eq!(float::rsqrt::<Single>(bits(2f32.powi(2 * n)), mode).0, bits(2f32.powi(-n)));
    }
}
