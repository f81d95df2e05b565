//! The text of instructions, which must be the manual's spelling and equal to LLVM's output. Source: LLVM's
//! disassembler; LoongArch ELF psABI for register names.

mod checked;
mod llvm;

use longma_loongarch::{Instruction, Op, Register, RegisterKind, decode};
use longma_random::SplitMix64;

#[test]
fn every_instruction_prints_as_llvm_prints_it() {
    let mut random = SplitMix64::new(1);
    let words: Vec<u32> = Op::all()
        .flat_map(|op| {
            let fillers = [0, !0, 0x20, 0x40].into_iter().chain([(); 20].map(|()| random.next_u64() as u32));
            fillers.map(|filler| op.row().matched | filler & !op.row().mask).collect::<Vec<_>>()
        })
        .collect();
    let mut compared = std::collections::BTreeSet::new();
    for (word, theirs) in words.iter().zip(llvm::disassemble(&words)) {
        let ours = decode(*word).expect("a word made from the table");
        if let Some(theirs) = theirs {
            assert_eq!(ours.to_string(), theirs, "{word:#010x}");
            compared.insert(ours.op);
        }
    }
    // LLVM 19 does not support the guest-TLB instructions, so the list omits them.
    checked::assert_listed("llvm", compared);
}

#[test]
fn instructions_print_as_in_the_manual() {
    for (instruction, text) in [
        (Instruction { d: 4, j: 3, imm: 16, ..Instruction::new(Op::AddiD) }, "addi.d $a0, $sp, 16"),
        (Instruction { d: 4, imm: -1, ..Instruction::new(Op::Lu12iW) }, "lu12i.w $a0, -1"),
        (Instruction { j: 1, ..Instruction::new(Op::Jirl) }, "jirl $zero, $ra, 0"),
        (Instruction { d: 4, k: 5, j: 6, ..Instruction::new(Op::AmaddW) }, "amadd.w $a0, $a1, $a2"),
        (Instruction { d: 4, j: 5, k: 6, imm: 3, ..Instruction::new(Op::AlslD) }, "alsl.d $a0, $a1, $a2, 3"),
        (
            Instruction { d: 4, j: 5, imm: 31, imm2: 8, ..Instruction::new(Op::BstrpickD) },
            "bstrpick.d $a0, $a1, 31, 8",
        ),
        (Instruction { j: 4, imm: 8, imm2: -32, ..Instruction::new(Op::Preld) }, "preld 8, $a0, -32"),
        (
            Instruction { d: 2, j: 32 - 1, k: 8, ..Instruction::new(Op::FcmpCltD) },
            "fcmp.clt.d $fcc2, $fs7, $ft0",
        ),
        (Instruction { d: 1, j: 21, ..Instruction::new(Op::Movgr2scr) }, "movgr2scr $scr1, $r21"),
        (Instruction { d: 0, j: 22, ..Instruction::new(Op::Movgr2fcsr) }, "movgr2fcsr $fcsr0, $fp"),
        (Instruction { d: 4, imm: 6, ..Instruction::new(Op::Csrxchg) }, "csrrd $a0, 6"),
        (Instruction { d: 4, j: 1, imm: 6, ..Instruction::new(Op::Csrxchg) }, "csrwr $a0, 6"),
        (Instruction { d: 4, j: 5, imm: 6, ..Instruction::new(Op::Csrxchg) }, "csrxchg $a0, $a1, 6"),
        (Instruction::new(Op::X86inctop), "x86inctop"),
    ] {
        assert_eq!(instruction.to_string(), text);
    }
}

#[test]
fn a_branch_printed_at_an_address_shows_where_it_goes() {
    let branch = |op, d, j, imm| Instruction { d, j, imm, ..Instruction::new(op) };
    for (instruction, text, target) in [
        (branch(Op::B, 0, 0, -4), "b 0x1200000fc", Some(0x1_2000_00fc)),
        (branch(Op::Bl, 0, 0, 8), "bl 0x120000108", Some(0x1_2000_0108)),
        (branch(Op::Beqz, 0, 4, 64), "beqz $a0, 0x120000140", Some(0x1_2000_0140)),
        (branch(Op::Bltu, 5, 4, -256), "bltu $a0, $a1, 0x120000000", Some(0x1_2000_0000)),
        (branch(Op::Bcnez, 0, 3, 4), "bcnez $fcc3, 0x120000104", Some(0x1_2000_0104)),
        (branch(Op::Jirl, 0, 1, 4), "jirl $zero, $ra, 4", None),
        (branch(Op::Jiscr1, 0, 0, 4), "jiscr1 4", None),
        (branch(Op::Pcaddi, 4, 0, 4), "pcaddi $a0, 4", None),
    ] {
        let pc = 0x1_2000_0100;
        assert_eq!(instruction.at(pc).to_string(), text);
        assert_eq!(instruction.branch_target(pc), target, "{text}");
    }
    assert_eq!(branch(Op::B, 0, 0, -8).branch_target(4), Some(0u64.wrapping_sub(4)), "addresses wrap");
}

#[test]
fn registers_have_the_names_of_the_psabi() {
    let name = |kind, number| Register { kind, number }.to_string();
    assert_eq!(Register::general(3).to_string(), "$sp");
    assert_eq!(Register::general(21).to_string(), "$r21");
    assert_eq!(Register::float(8).to_string(), "$ft0");
    assert_eq!(name(RegisterKind::Vector128, 31), "$vr31");
    assert_eq!(name(RegisterKind::Vector256, 0), "$xr0");
    assert_eq!(name(RegisterKind::Condition, 7), "$fcc7");
    assert_eq!(name(RegisterKind::General, 32), "$r32", "a number that no field can hold is printed");
}
