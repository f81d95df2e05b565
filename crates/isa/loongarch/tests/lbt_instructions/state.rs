//! Scratch registers, jumps through them, x86's conditions and flag moves, and the top of the x87 stack. Source:
//! jiegec/la-inst, LBT.md; Intel SDM volume 1, appendix B (conditions).

use longma_loongarch::{Instruction, Op, State, Trap};

use super::{after, op};

pub fn tested() -> Vec<Op> {
    [
        "movgr2scr",
        "movscr2gr",
        "jiscr0",
        "jiscr1",
        "setx86j",
        "setx86loope",
        "setx86loopne",
        "x86mfflag",
        "x86mtflag",
        "x86mttop",
        "x86mftop",
        "x86inctop",
        "x86dectop",
        "x86settm",
        "x86clrtm",
        "x86settag",
    ]
    .map(op)
    .to_vec()
}

fn numbered(op: Op, d: u8, imm: i32) -> Instruction {
    Instruction { d, imm, ..Instruction::new(op) }
}

#[test]
fn a_scratch_register_holds_the_value_moved_to_it() {
    let mut state = State::default();
    for number in 0..4 {
        state.x[4] = 0x1111_2222_3333_4444 * (u64::from(number) + 1);
        state = after(&state, &Instruction { d: number, j: 4, ..Instruction::new(Op::Movgr2scr) }).unwrap();
    }
    for number in 0..4 {
        state = after(&state, &Instruction { d: 10 + number, j: number, ..Instruction::new(Op::Movscr2gr) })
            .unwrap();
        assert_eq!(state.x[10 + usize::from(number)], 0x1111_2222_3333_4444 * (u64::from(number) + 1));
    }
    let to_zero = Instruction { d: 0, j: 1, ..Instruction::new(Op::Movscr2gr) };
    assert_eq!(after(&state, &to_zero).unwrap().x[0], 0, "r0 stays 0");
}

#[test]
fn a_jump_through_a_scratch_register_adds_its_offset_and_jiscr1_remembers_its_own_address() {
    let mut state = State { pc: 0x4000, ..State::default() };
    state.lbt.scratch = [0x1000, 0x2000, 0, 0];
    let first = after(&state, &numbered(Op::Jiscr0, 0, 20)).unwrap();
    assert_eq!((first.pc, first.lbt), (0x1014, state.lbt));
    let second = after(&state, &numbered(Op::Jiscr1, 0, -8)).unwrap();
    assert_eq!((second.pc, second.lbt.scratch), (0x1ff8, [0x4000, 0x2000, 0, 0]));
    let after_return = after(&second, &numbered(Op::Jiscr0, 0, 4)).unwrap();
    assert_eq!(after_return.pc, 0x4004, "a jiscr0 of 4 continues after the jiscr1");
}

#[test]
fn x86_conditions_match_the_manual() {
    type Holds = fn(bool, bool, bool, bool, bool) -> bool;
    const CONDITIONS: [(&str, Holds); 16] = [
        ("a", |c, _, z, _, _| !(c | z)),
        ("ae", |c, _, _, _, _| !c),
        ("b", |c, _, _, _, _| c),
        ("be", |c, _, z, _, _| c | z),
        ("e", |_, _, z, _, _| z),
        ("ne", |_, _, z, _, _| !z),
        ("g", |_, _, z, s, o| !(z | (s ^ o))),
        ("ge", |_, _, _, s, o| !(s ^ o)),
        ("l", |_, _, _, s, o| s ^ o),
        ("le", |_, _, z, s, o| z | (s ^ o)),
        ("s", |_, _, _, s, _| s),
        ("ns", |_, _, _, s, _| !s),
        ("o", |_, _, _, _, o| o),
        ("no", |_, _, _, _, o| !o),
        ("p", |_, p, _, _, _| p),
        ("np", |_, p, _, _, _| !p),
    ];
    for pattern in 0..64u32 {
        let is = |bit: u32| pattern >> bit & 1 == 1;
        let flags = [(0, 1), (1, 4), (2, 16), (3, 64), (4, 128), (5, 2048)]
            .iter()
            .filter(|(bit, _)| is(*bit))
            .map(|(_, f)| f)
            .sum();
        let mut state = State::default();
        state.lbt.eflags = flags;
        for (code, (name, holds)) in CONDITIONS.iter().enumerate() {
            let actual = after(&state, &numbered(Op::Setx86j, 4, code as i32)).unwrap().x[4];
            assert_eq!(
                actual,
                u64::from(holds(is(0), is(1), is(3), is(4), is(5))),
                "{name} with flags {flags:#x}"
            );
        }
        for counter in [0, 1, 1 << 40, u64::MAX] {
            state.x[5] = counter;
            let go_on = |op| after(&state, &Instruction { d: 4, j: 5, ..Instruction::new(op) }).unwrap().x[4];
            assert_eq!(go_on(Op::Setx86loope), u64::from(counter != 0 && is(3)));
            assert_eq!(go_on(Op::Setx86loopne), u64::from(counter != 0 && !is(3)));
        }
    }
}

#[test]
fn the_mask_selects_the_flags_moved_to_and_from_a_register() {
    let all = [1u32, 4, 16, 64, 128, 2048];
    for mask in 0..=255i32 {
        let selected: u32 =
            all.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1).map(|(_, flag)| flag).sum();
        for (flags, value) in [(0, u64::MAX), (0x8d5, 0), (0x891, 0x844), (0x44, 0xffff_ffff_ffff_f7ff)] {
            let mut state = State::default();
            (state.lbt.eflags, state.x[4]) = (flags, value);
            let read = after(&state, &numbered(Op::X86mfflag, 4, mask)).unwrap();
            assert_eq!(read.x[4], u64::from(flags & selected), "mask {mask:#x}");
            let written = after(&state, &numbered(Op::X86mtflag, 4, mask)).unwrap();
            assert_eq!(written.lbt.eflags, flags & !selected | value as u32 & selected, "mask {mask:#x}");
            assert_eq!(written.x, state.x);
        }
    }
}

#[test]
fn the_top_of_stack_wraps_and_renames_f0_to_f7_in_stack_mode_only() {
    let step = |state: &State, op| after(state, &Instruction::new(op)).unwrap();
    let mut state = State::default();
    for number in 0..32 {
        state.v[number].0 = [100 + number as u64, 1, 2, 3];
    }
    for top in 0..8u8 {
        let at_top = after(&state, &numbered(Op::X86mttop, 0, top.into())).unwrap();
        assert_eq!(after(&at_top, &numbered(Op::X86mftop, 4, 0)).unwrap().x[4], top.into());
        assert_eq!(step(&at_top, Op::X86inctop).lbt.top, (top + 1) % 8);
        assert_eq!(step(&at_top, Op::X86dectop).lbt.top, (top + 7) % 8);

        let on = step(&at_top, Op::X86settm);
        for n in 0..32u8 {
            assert_eq!(at_top.f(n), 100 + u64::from(n), "stack mode is off");
            assert_eq!(on.f(n), 100 + u64::from(if n < 8 { (n + top) % 8 } else { n }));
        }
        let mut written = on.clone();
        written.set_f(3, 7);
        assert_eq!(written.v[usize::from((3 + top) % 8)].0, [7, 1, 2, 3]);
        let off = step(&on, Op::X86clrtm);
        assert_eq!(off.f(3), 103, "stack mode is off again");
        assert_eq!(off.lbt.top, top, "the top stays");
    }
}

#[test]
fn tags_change_only_from_the_state_that_the_operation_requires() {
    // Value, operation, position and result, as measured (la-inst, x86settag).
    for (tags, operation, position, expected) in [
        (0x1234_5678, 0, 0, Some(0x1234_5679)),
        (0x4321, 0, 7, Some(0x43a1)),
        (0x4321, 0, 0, None),
        (0x4321, 1, 8, Some(0x4320)),
        (0x4320, 1, 8, None),
        (0b11, 2, 0o10, Some(0b11)),
        (0b10, 2, 0o10, None),
        (0b01, 2, 0o10, None),
        (0b11, 3, 0o10, Some(0b10)),
        (0b10, 3, 0o10, None),
        (0b101, 4, 0o20, Some(0)),
        (0b001, 4, 0o20, None),
        (0b111, 5, 0o10, Some(0b111)),
        (u64::MAX, 9, 0, Some(u64::MAX - 1)),
    ] {
        let mut state = State::default();
        state.x[4] = tags;
        let instruction =
            Instruction { d: 4, imm: operation, imm2: position, ..Instruction::new(Op::X86settag) };
        let actual = after(&state, &instruction).map(|state| state.x[4]);
        assert_eq!(actual, expected.ok_or(Trap::IllegalInstruction), "{instruction} on {tags:#b}");
    }
}
