//! Compares all base, bit, bound, atomic and floating-point instructions that QEMU supports with QEMU, on edge values
//! and random operands. Instructions in which QEMU deviates from the manual are listed here and checked by formulas
//! instead. `LONGMA_ORACLE_TIMES` multiplies the number of random cases, and `LONGMA_ORACLE_SEED` changes them. Source:
//! qemu-loongarch64 (7.2 or later) as the oracle; LoongArch Reference Manual, volume 1, where QEMU is wrong.

mod array;
mod cases;
#[path = "../checked/mod.rs"]
mod checked;
mod machine;

use std::collections::BTreeMap;

use cases::{DOUBLES, INTEGERS, Random, SINGLES, random_instruction};
use longma_loongarch::{Class, Extension, Instruction, Op, Operand, RegisterKind};
use machine::{Batch, Case, Difference, Registers, SCRATCH_BYTES};

/// Whether QEMU 7.2 implements `op` as in the manual; `formulas.rs` checks the others:
/// - QEMU lacks the instructions of version 1.1 of the manual, and PRELDX;
/// - its bound-checking floating-point accesses use rj + rk as the address, the manual's use rj (section 3.2.7).
fn is_right_in_qemu(op: Op) -> bool {
    let row = op.row();
    let bounded_float = row.extension == Extension::Bound
        && matches!(row.operands[0], Operand::Register(RegisterKind::Float, _));
    row.revision == "1.0" && op != Op::Preldx && !bounded_float
}

/// The random generator of a test, and the factor for its number of cases.
fn campaign(seed: u64) -> (Random, u64) {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|error| panic!("{name}={text}: {error}; set it to a number")))
    };
    let other = number("LONGMA_ORACLE_SEED").unwrap_or(0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (Random(seed ^ other), number("LONGMA_ORACLE_TIMES").unwrap_or(1))
}

fn ops(predicate: impl Fn(Op) -> bool) -> Vec<Op> {
    Op::all().filter(|op| is_right_in_qemu(*op) && predicate(*op)).collect()
}

fn random_registers(random: &mut Random) -> Registers {
    let mut registers = Registers::default();
    registers.general.iter_mut().for_each(|value| *value = random.integer());
    registers.float.iter_mut().for_each(|value| *value = random.next());
    registers.fcc.iter_mut().for_each(|value| *value = random.below(2) as u8);
    registers.scratch.iter_mut().for_each(|value| *value = random.next() as u8);
    // No exception is enabled, because a trap would end the run.
    registers.fcsr = random.next() as u32 & 0x1f1f_0300;
    registers
}

fn compare(name: &str, batch: &Batch, same: impl Fn(&Case, &Registers, &Registers) -> bool) {
    assert!(batch.len() > 100, "{name}: only {} cases", batch.len());
    println!("{name}: {} cases", batch.len());
    let differences = batch.differences(name, same);
    if differences.is_empty() {
        checked::assert_listed(&format!("qemu-{name}"), batch.ops());
        return;
    }
    let mut by_name: BTreeMap<&str, Vec<&Difference>> = BTreeMap::new();
    for difference in &differences {
        by_name.entry(difference.case.stub[0].op.mnemonic()).or_default().push(difference);
    }
    let mut report = String::new();
    for (mnemonic, differences) in by_name {
        let first = differences[0];
        report += &format!(
            "\n{mnemonic}: {} differ, the first:\n  {:x?}\n  from {:x?}\n  ours {:x?}\n  QEMU {:x?}\n",
            differences.len(),
            first.case.stub,
            first.case.start,
            first.ours,
            first.theirs
        );
    }
    panic!("{name}: {} of {} cases differ{report}", differences.len(), batch.len());
}

fn equal(_: &Case, ours: &Registers, theirs: &Registers) -> bool {
    ours == theirs
}

#[test]
fn integer_and_bit_instructions_match_qemu() {
    let (mut random, times) = campaign(0x1234_5678_9abc_def1);
    let mut batch = Batch::default();
    let computes = |op: Op| {
        matches!(op.row().extension, Extension::Base | Extension::Mul | Extension::Bit)
            && matches!(
                op.row().class,
                Class::Alu | Class::Shift | Class::Bit | Class::Mul | Class::Div | Class::Crc
            )
    };
    let ops = ops(computes);
    assert!(ops.len() > 90, "only {} instructions", ops.len());
    for op in ops {
        for _ in 0..12 * times {
            let mut i = random_instruction(op, &mut random);
            if matches!(op, Op::BstrinsW | Op::BstrinsD | Op::BstrpickW | Op::BstrpickD) && i.imm < i.imm2 {
                std::mem::swap(&mut i.imm, &mut i.imm2);
            }
            for _ in 0..16 {
                push(&mut batch, &[i], random_registers(&mut random), &[]);
            }
        }
        let sources = op.row().operands.iter().filter(|o| matches!(o, Operand::Register(..))).count();
        if sources == 3 {
            let i = Instruction { d: 6, j: 4, k: 5, ..random_instruction(op, &mut random) };
            for j in INTEGERS {
                for k in INTEGERS {
                    let mut start = Registers::default();
                    (start.general[0], start.general[1]) = (j, k);
                    push(&mut batch, &[i], start, &[]);
                }
            }
        }
    }
    compare("integer", &batch, equal);
}

fn push(batch: &mut Batch, stub: &[Instruction], start: Registers, pointers: &[u8]) {
    batch.push(Case { stub: stub.to_vec(), start, pointers: pointers.to_vec() });
}

/// The number of bytes that a memory instruction accesses, according to its name.
fn access_bytes(op: Op) -> u64 {
    let name = op.mnemonic();
    match name.rsplit('.').next().unwrap_or_default() {
        "b" | "bu" => 1,
        "h" | "hu" => 2,
        "w" | "wu" | "s" => 4,
        _ => 8,
    }
}

#[test]
fn loads_and_stores_match_qemu() {
    let (mut random, times) = campaign(0x9e37_79b9_7f4a_7c15);
    let mut batch = Batch::default();
    let ops =
        ops(|op| matches!(op.row().class, Class::Load | Class::Store | Class::Prefetch | Class::Barrier));
    let ops: Vec<Op> = ops
        .into_iter()
        .filter(|op| matches!(op.row().extension, Extension::Base | Extension::Fp | Extension::Bound))
        .collect();
    assert!(ops.len() == 53, "{} instructions", ops.len());
    for op in ops {
        for _ in 0..200 * times {
            let i = Instruction { j: 4, k: 5, ..random_instruction(op, &mut random) };
            // The data register is not part of the address, but may be r0.
            let i = if matches!(i.d, 4 | 5) { Instruction { d: 6, ..i } } else { i };
            let bytes = access_bytes(op);
            let mut start = random_registers(&mut random);
            let bounded = op.row().extension == Extension::Bound;
            let offset = random.below(SCRATCH_BYTES as u64 - bytes + 1);
            // Bound-checking accesses must be aligned.
            let offset = if bounded { offset / bytes * bytes } else { offset };
            let has_index = op.row().operands.contains(&Operand::Register(RegisterKind::General, 10));
            let mut pointers = vec![4];
            if bounded {
                start.general[0] = offset;
                let distance = random.below(1 << 20);
                let greater = op.mnemonic().contains("gt");
                start.general[1] =
                    if greater { offset.wrapping_sub(distance + 1) } else { offset.wrapping_add(distance) };
                pointers.push(5);
            } else if has_index {
                let index = random.integer();
                (start.general[0], start.general[1]) = (offset.wrapping_sub(index), index);
            } else {
                start.general[0] = offset.wrapping_sub(i.imm as i64 as u64);
            }
            // The first immediate of a prefetch is its hint.
            if op == Op::Preld {
                start.general[0] = offset;
            }
            push(&mut batch, &[i], start, &pointers);
        }
    }
    compare("memory", &batch, same_but_open_halves);
}

#[test]
fn atomic_instructions_match_qemu() {
    let (mut random, times) = campaign(0x0bad_cafe_0bad_cafe);
    let mut batch = Batch::default();
    let links = [Op::LlW, Op::LlD, Op::ScW, Op::ScD];
    let ops = ops(|op| op.row().class == Class::Atomic && !links.contains(&op));
    assert!(ops.len() == 36, "{} instructions", ops.len());
    for op in ops {
        let bytes = access_bytes(op);
        for _ in 0..100 * times {
            let mut i = Instruction { j: 4, ..random_instruction(op, &mut random) };
            // rd = rj is illegal and rd = rk undefined.
            if i.d == 4 {
                i.d = 0;
            }
            if i.k == i.d || i.k == 4 {
                i.k = if i.d == 5 { 6 } else { 5 };
            }
            let mut start = random_registers(&mut random);
            start.general[0] = random.below(SCRATCH_BYTES as u64 / bytes) * bytes;
            let offset = start.general[0] as usize;
            if random.below(2) == 0 {
                start.scratch[offset..offset + bytes as usize]
                    .copy_from_slice(&random.pick(&INTEGERS).to_le_bytes()[..bytes as usize]);
            }
            push(&mut batch, &[i], start, &[4]);
        }
    }
    for (load, store, bytes) in [(Op::LlW, Op::ScW, 4), (Op::LlD, Op::ScD, 8)] {
        for _ in 0..300 * times {
            let mut start = random_registers(&mut random);
            let (linked, stored) = (random.below(8) * 8, random.below(8) * 8);
            let stored = if random.below(3) == 0 { stored } else { linked };
            let imm = (random.below(200) as i32 - 100) * 4;
            (start.general[0], start.general[1]) = (linked.wrapping_sub(imm as i64 as u64), stored);
            let link = Instruction { d: 6, j: 4, imm, ..Instruction::new(load) };
            let conditional = Instruction { d: 7, j: 5, ..Instruction::new(store) };
            let between = match random.below(4) {
                // A different value makes the store fail.
                0 => vec![Instruction { d: 8, j: 5, ..Instruction::new(Op::StB) }],
                // A second store has no reservation.
                1 => vec![Instruction { d: 9, j: 5, ..Instruction::new(store) }],
                _ => vec![],
            };
            assert_eq!(bytes % 4, 0);
            let stub: Vec<_> = [link].into_iter().chain(between).chain([conditional]).collect();
            push(&mut batch, &stub, start, &[4, 5]);
        }
    }
    compare("atomic", &batch, equal);
}

#[test]
fn branches_and_jumps_match_qemu() {
    let (mut random, times) = campaign(0xfeed_f00d_1357_9bdf);
    let mut batch = Batch::default();
    let mark = |imm| Instruction { d: 15, j: 15, imm, ..Instruction::new(Op::AddiD) };
    let ops = ops(|op| {
        matches!(op.row().class, Class::Branch | Class::Jump)
            && matches!(op.row().extension, Extension::Base | Extension::Fp)
    });
    assert!(ops.len() == 13, "{} instructions", ops.len());
    for op in ops {
        for _ in 0..300 * times {
            let mut start = random_registers(&mut random);
            if random.below(3) == 0 {
                start.general[1] = start.general[0];
            }
            let branch = Instruction { d: 4, j: 5, imm: 12, ..Instruction::new(op) };
            let stub = match op {
                Op::Bceqz | Op::Bcnez => {
                    let branch = Instruction { d: 0, j: random.below(8) as u8, ..branch };
                    vec![branch, mark(1), mark(2), mark(4)]
                }
                // r14 holds the return address while BL uses r1.
                Op::Bl => vec![
                    Instruction { d: 14, j: 1, ..Instruction::new(Op::Or) },
                    Instruction { d: 0, j: 0, ..branch },
                    mark(1),
                    mark(2),
                    Instruction { d: 13, j: 1, ..Instruction::new(Op::Or) },
                    Instruction { d: 1, j: 14, ..Instruction::new(Op::Or) },
                    Instruction { d: 14, ..Instruction::new(Op::Or) },
                ],
                Op::Jirl => {
                    // The register and the offset cancel, and rd = rj in half of the cases.
                    let offset = (random.below(500) as i32 - 250) * 4;
                    let d = if random.below(2) == 0 { 12 } else { 11 };
                    vec![
                        Instruction { d: 12, imm: 4, ..Instruction::new(Op::Pcaddi) },
                        Instruction { d: 12, j: 12, imm: -offset, ..Instruction::new(Op::AddiD) },
                        Instruction { d, j: 12, imm: offset, ..Instruction::new(op) },
                        mark(1),
                        mark(2),
                    ]
                }
                _ => vec![branch, mark(1), mark(2), mark(4)],
            };
            // Clear the registers of forms that have none.
            let stub = stub
                .into_iter()
                .map(|mut i| {
                    if i.op == Op::B {
                        (i.d, i.j) = (0, 0);
                    }
                    if matches!(i.op, Op::Beqz | Op::Bnez) {
                        i.d = 0;
                        i.j = if random.below(2) == 0 { 0 } else { 5 };
                    }
                    i
                })
                .collect::<Vec<_>>();
            push(&mut batch, &stub, start, &[]);
        }
    }
    compare("branch", &batch, equal);
}

#[test]
fn every_branch_offset_reaches_its_target() {
    // Backward branches: into the start of the code, and out by another branch.
    let mut batch = Batch::default();
    let (mut random, times) = campaign(0x0123_4567_89ab_cdef);
    for _ in 0..200 * times {
        let count = random.below(6) as i32 + 1;
        let stub = [
            Instruction { d: 4, imm: count, ..Instruction::new(Op::AddiD) },
            Instruction { d: 5, j: 5, k: 4, ..Instruction::new(Op::AddD) },
            Instruction { d: 4, j: 4, imm: -1, ..Instruction::new(Op::AddiD) },
            Instruction { j: 4, imm: -8, ..Instruction::new(Op::Bnez) },
        ];
        push(&mut batch, &stub, random_registers(&mut random), &[]);
    }
    compare("backward", &batch, equal);
}

/// Whether the floating-point result has 32 bits. The upper half of the register is then undefined.
fn writes_word(op: Op) -> bool {
    let name = op.mnemonic();
    let result = name.split('.').nth(1).unwrap_or_default();
    match name.split('.').next().unwrap_or_default() {
        start if start.starts_with("ftint") => result == "w",
        "movgr2fr" => result == "w",
        _ => result == "s",
    }
}

/// Whether the states are equal except for the upper half of a register with a single-precision result, which the
/// manual leaves undefined.
fn same_but_open_halves(case: &Case, ours: &Registers, theirs: &Registers) -> bool {
    let i = case.stub[0];
    let writes_float = matches!(i.op.row().operands.first(), Some(Operand::Register(RegisterKind::Float, 0)))
        && i.op.row().class != Class::Store;
    if !(writes_float && writes_word(i.op)) {
        return ours == theirs;
    }
    let mut theirs = theirs.clone();
    let register = usize::from(i.d);
    theirs.float[register] = theirs.float[register] & 0xffff_ffff | ours.float[register] & !0xffff_ffff;
    *ours == theirs
}

/// Whether the floating-point operands are doubles.
fn takes_doubles(op: Op) -> bool {
    op.mnemonic().ends_with(".d") || op.mnemonic().ends_with(".l")
}

fn is_float_arithmetic(op: Op) -> bool {
    op.row().extension == Extension::Fp
        && matches!(
            op.row().class,
            Class::FpAdd
                | Class::FpMul
                | Class::FpFma
                | Class::FpDiv
                | Class::FpSqrt
                | Class::FpCompare
                | Class::FpConvert
                | Class::FpMove
        )
}

fn operand(random: &mut Random, op: Op) -> u64 {
    let name = op.mnemonic();
    // An integer source: of ffint, and sometimes the exponent of fscaleb.
    if name.starts_with("ffint") || name.starts_with("fscaleb") && random.below(2) == 0 {
        return match random.below(3) {
            0 => random.below(200).wrapping_sub(100),
            _ => random.integer(),
        };
    }
    if takes_doubles(op) { random.double() } else { random.single() }
}

fn edges(op: Op) -> Vec<u64> {
    let name = op.mnemonic();
    if name.starts_with("ffint") {
        return INTEGERS.to_vec();
    }
    if takes_doubles(op) {
        DOUBLES.to_vec()
    } else {
        SINGLES.iter().map(|bits| 0xdead_beef_0000_0000 | u64::from(*bits)).collect()
    }
}

/// FNMADD and FNMSUB negate the rounded sum. QEMU 7.2 rounds the negated sum, which differs in the directed rounding
/// modes.
fn rounds_before_negating(op: Op) -> bool {
    matches!(op, Op::FnmaddS | Op::FnmaddD | Op::FnmsubS | Op::FnmsubD)
}

fn float_batch(ops: &[Op], random: &mut Random, randoms: u64) -> Batch {
    let mut batch = Batch::default();
    for op in ops {
        let modes: &[u32] = if rounds_before_negating(*op) { &[0, 1] } else { &[0, 1, 2, 3] };
        let fixed = random_free(Instruction { d: 0, j: 1, k: 2, a: 3, ..Instruction::new(*op) });
        for mode in modes {
            for operands in edge_operands(*op, random) {
                let mut start = Registers { fcsr: mode << 8, ..Registers::default() };
                if random.below(4) == 0 {
                    start.fcsr |= random.next() as u32 & 0x1f1f_0000;
                }
                start.float[0] = random.next();
                start.float[1..4].copy_from_slice(&operands);
                push(&mut batch, &[fixed], start, &[]);
            }
            // Random registers, which may coincide.
            let mut i = fixed;
            for n in 0..randoms {
                if n % 10 == 0 {
                    i = random_instruction(*op, random);
                }
                let mut start = Registers { fcsr: mode << 8, ..Registers::default() };
                start.float.iter_mut().for_each(|bits| *bits = operand(random, *op));
                push(&mut batch, &[i], start, &[]);
            }
        }
    }
    batch
}

/// Combinations of edge values: all for one or two operands, many for three.
fn edge_operands(op: Op, random: &mut Random) -> Vec<[u64; 3]> {
    let edges = edges(op);
    match op.row().operands.len() - 1 {
        1 => edges.iter().map(|j| [*j, 0, 0]).collect(),
        2 => edges.iter().flat_map(|j| edges.iter().map(|k| [*j, *k, 0])).collect(),
        _ => {
            // NaN results, especially with infinity times zero: 0, 1, infinity, a quiet and a signaling NaN.
            let kinds = [0, 2, 19, 21, 23].map(|n| edges[n]);
            let all_kinds = (0..125).map(|n| [kinds[n % 5], kinds[n / 5 % 5], kinds[n / 25]]);
            let picked = std::iter::repeat_with(|| [(); 3].map(|()| random.pick(&edges)));
            all_kinds.chain(picked.take(2000)).collect()
        }
    }
}

/// Clears the registers that the instruction does not have, so that it encodes.
fn random_free(i: Instruction) -> Instruction {
    let mut free = Instruction::new(i.op);
    for operand in i.op.row().operands {
        if let Operand::Register(_, position) = operand {
            match position {
                0 => free.d = i.d,
                5 => free.j = i.j,
                10 => free.k = i.k,
                _ => free.a = i.a,
            }
        }
    }
    free
}

#[test]
fn floating_point_arithmetic_matches_qemu() {
    let (mut random, times) = campaign(0x00c0_ffee_00c0_ffee);
    let classes = [Class::FpAdd, Class::FpMul, Class::FpDiv, Class::FpSqrt];
    let ops = ops(|op| is_float_arithmetic(op) && classes.contains(&op.row().class));
    assert!(ops.len() == 26, "{} instructions", ops.len());
    compare("fp-arithmetic", &float_batch(&ops, &mut random, 250 * times), same_but_open_halves);
}

#[test]
fn fused_multiply_add_matches_qemu() {
    let (mut random, times) = campaign(0x00c0_ffee_0000_0001);
    let ops = ops(|op| is_float_arithmetic(op) && op.row().class == Class::FpFma);
    assert_eq!(ops.len(), 8);
    compare("fp-fma", &float_batch(&ops, &mut random, 1500 * times), same_but_open_halves);
}

#[test]
fn floating_point_conversions_match_qemu() {
    let (mut random, times) = campaign(0x00c0_ffee_0000_0003);
    let ops = ops(|op| is_float_arithmetic(op) && op.row().class == Class::FpConvert);
    assert!(ops.len() == 28, "{} instructions", ops.len());
    compare("fp-convert", &float_batch(&ops, &mut random, 300 * times), same_but_open_halves);
}

#[test]
fn floating_point_comparisons_match_qemu() {
    let (mut random, times) = campaign(0x00c0_ffee_0000_0005);
    let ops = ops(|op| is_float_arithmetic(op) && op.row().class == Class::FpCompare);
    assert!(ops.len() == 46, "{} instructions", ops.len());
    let mut batch = Batch::default();
    for op in ops {
        let i = random_free(Instruction { d: random.below(8) as u8, j: 1, k: 2, ..Instruction::new(op) });
        let edges = edges(op);
        for j in &edges {
            for k in edges.iter().step_by(1 + random.below(2) as usize) {
                let mut start = random_registers(&mut random);
                (start.float[1], start.float[2]) = (*j, *k);
                push(&mut batch, &[i], start, &[]);
            }
        }
        for _ in 0..100 * times {
            let mut start = random_registers(&mut random);
            (start.float[1], start.float[2]) = (operand(&mut random, op), operand(&mut random, op));
            push(&mut batch, &[i], start, &[]);
        }
    }
    compare("fp-compare", &batch, same_but_open_halves);
}

#[test]
fn floating_point_moves_match_qemu() {
    let (mut random, times) = campaign(0x00c0_ffee_0000_0007);
    let ops = ops(|op| is_float_arithmetic(op) && op.row().class == Class::FpMove);
    assert!(ops.len() > 20, "{} instructions", ops.len());
    let mut batch = Batch::default();
    for op in ops {
        for _ in 0..200 * times {
            let mut i = random_instruction(op, &mut random);
            let mut start = random_registers(&mut random);
            match op {
                // Only FCSR0 to FCSR3 exist, and no exception may be enabled.
                Op::Movgr2fcsr => {
                    (i.d, i.j) = (i.d & 3, 4);
                    start.general[0] &= 0x1f1f_0300;
                }
                Op::Movfcsr2gr => i.j &= 3,
                _ => {}
            }
            push(&mut batch, &[i], start, &[]);
        }
    }
    compare("fp-move", &batch, same_but_open_halves);
}
