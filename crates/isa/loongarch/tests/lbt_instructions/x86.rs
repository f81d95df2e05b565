//! Compares the flag instructions with a bitwise reference and, on x86, with the host. Source: Intel SDM volume 2;
//! jiegec/unofficial-loongarch-intrinsics-guide for flags that x86 leaves undefined and for the four differences, which
//! the tests below name.

use longma_loongarch::{Instruction, Op};
use longma_random::SplitMix64;

use super::{any_flags, flags_after, op, operands};

const CF: u32 = 1;
const PF: u32 = 1 << 2;
const AF: u32 = 1 << 4;
const ZF: u32 = 1 << 6;
const SF: u32 = 1 << 7;
const OF: u32 = 1 << 11;

/// The parts of a flag instruction's name.
pub struct Family {
    pub op: Op,
    pub stem: &'static str,
    pub bits: u32,
    pub unsigned: bool,
    pub immediate: bool,
}

const STEMS: [&str; 17] = [
    "add", "adc", "sub", "sbc", "inc", "dec", "mul", "and", "or", "xor", "sll", "srl", "sra", "rotl", "rotr",
    "rcl", "rcr",
];

/// All instructions `x86STEM[i].WIDTH[u]`.
fn families() -> Vec<Family> {
    let family = |op: Op| {
        let (name, width) = op.mnemonic().strip_prefix("x86")?.split_once('.')?;
        let stem = STEMS.into_iter().find(|stem| name.strip_suffix('i').unwrap_or(name) == *stem)?;
        let bits = 8 << "bhwd".find(&width[..1])?;
        Some(Family { op, stem, bits, unsigned: width.ends_with('u'), immediate: name != stem })
    };
    Op::all().filter_map(family).collect()
}

pub fn tested() -> Vec<Op> {
    families().into_iter().map(|family| family.op).collect()
}

/// The bits of `value`, lowest first.
fn wires(value: u64, bits: u32) -> Vec<bool> {
    (0..bits).map(|bit| value >> bit & 1 == 1).collect()
}

fn set(flags: &mut u32, flag: u32, value: bool) {
    *flags = *flags & !flag | if value { flag } else { 0 };
}

fn set_by_result(flags: &mut u32, result: &[bool]) {
    set(flags, PF, result[..8].iter().filter(|bit| **bit).count() % 2 == 0);
    set(flags, ZF, !result.contains(&true));
    set(flags, SF, *result.last().expect("at least eight"));
}

/// A ripple-carry adder. CF, AF and OF are derived from the carries into and out of the positions.
fn ripple(flags: &mut u32, a: &[bool], b: &[bool], carry_in: bool, subtract: bool) {
    let mut carry = carry_in != subtract;
    let mut carry_into_sign = false;
    let mut result = Vec::new();
    for (position, (&a, &b)) in a.iter().zip(b).enumerate() {
        let b = b != subtract;
        carry_into_sign = carry;
        result.push(a ^ b ^ carry);
        carry = (a & b) | (a & carry) | (b & carry);
        if position == 3 {
            set(flags, AF, carry != subtract);
        }
    }
    set_by_result(flags, &result);
    set(flags, OF, carry != carry_into_sign);
    set(flags, CF, carry != subtract);
}

/// The flags according to the reference.
fn reference(family: &Family, old: u32, a: u64, b: u64) -> u32 {
    let Family { stem, bits, unsigned, .. } = *family;
    let (mut flags, mut a, b_wires) = (old, wires(a, bits), wires(b, bits));
    let carry = old & CF != 0;
    match stem {
        "add" | "sub" => ripple(&mut flags, &a, &b_wires, false, stem == "sub"),
        "adc" => ripple(&mut flags, &a, &b_wires, carry, false),
        "sbc" => {
            ripple(&mut flags, &a, &b_wires, carry, true);
            // LBT compares the low digits without the incoming borrow.
            let mut low = 0;
            ripple(&mut low, &a, &b_wires, false, true);
            set(&mut flags, AF, low & AF != 0);
        }
        "inc" | "dec" => {
            ripple(&mut flags, &a, &wires(1, bits), false, stem == "dec");
            set(&mut flags, CF, carry);
        }
        "and" | "or" | "xor" => {
            let gate = |a, b| match stem {
                "and" => a & b,
                "or" => a | b,
                _ => a ^ b,
            };
            let result: Vec<bool> = a.iter().zip(&b_wires).map(|(&a, &b)| gate(a, b)).collect();
            flags = 0;
            set_by_result(&mut flags, &result);
        }
        "mul" => {
            // Long multiplication with twice the width. The upper half must be a sign extension, or zero.
            let double = 2 * bits as usize;
            let widen = |mut wires: Vec<bool>| {
                let fill = !unsigned && *wires.last().expect("at least eight");
                wires.resize(double, fill);
                wires
            };
            let (a, b) = (widen(a), widen(b_wires));
            let mut product = vec![false; double];
            for shift in (0..double).filter(|&shift| b[shift]) {
                let mut carry = false;
                for position in shift..double {
                    let (x, y) = (product[position], a[position - shift]);
                    product[position] = x ^ y ^ carry;
                    carry = (x & y) | (x & carry) | (y & carry);
                }
            }
            let expected = !unsigned && product[bits as usize - 1];
            let fits = product[bits as usize..].iter().all(|&bit| bit == expected);
            flags = if fits { 0 } else { CF | OF };
        }
        _ => {
            // One bit at a time.
            let count = b & if bits == 64 { 63 } else { 31 };
            let top = bits as usize - 1;
            let original_sign = a[top];
            let mut carry = carry;
            for _ in 0..count {
                match stem {
                    "sll" | "rotl" | "rcl" => {
                        let (out, into) = (
                            a[top],
                            [false, a[top], carry]
                                [["sll", "rotl", "rcl"].iter().position(|s| *s == stem).unwrap()],
                        );
                        a.rotate_right(1);
                        a[0] = into;
                        carry = out;
                    }
                    _ => {
                        let into = match stem {
                            "srl" => false,
                            "sra" => a[top],
                            "rotr" => a[0],
                            _ => carry,
                        };
                        carry = a[0];
                        a.rotate_left(1);
                        a[top] = into;
                    }
                }
            }
            match stem {
                // LBT writes the carry of a plain rotate even for a count of 0.
                "rotl" => carry = a[0],
                "rotr" => carry = a[top],
                _ => {}
            }
            set(&mut flags, CF, carry);
            if matches!(stem, "sll" | "srl" | "sra") && count != 0 {
                set_by_result(&mut flags, &a);
            }
            if count == 1 {
                set(&mut flags, OF, a[top] != original_sign);
            }
        }
    }
    if unsigned && stem != "mul" {
        // LBT's unsigned additions and subtractions clear OF.
        set(&mut flags, OF, false);
    }
    flags
}

/// Calls `check` with all families and many operands: `(family, flags before, a, b, flags after)`.
fn each_case(mut check: impl FnMut(&Family, u32, u64, u64, u32)) {
    let mut random = SplitMix64::new(0x1234_5678_9abc_def1);
    for family in families() {
        for (a, b) in operands(&mut random, 600) {
            let (mut instruction, mut b) = (Instruction { j: 4, k: 5, ..Instruction::new(family.op) }, b);
            if family.immediate {
                b %= u64::from(family.bits);
                instruction = Instruction { k: 0, imm: b as i32, ..instruction };
            }
            let old = any_flags(&mut random);
            check(&family, old, a, b, flags_after(&instruction, old, a, b));
        }
    }
}

#[test]
fn flags_match_a_bit_serial_reference() {
    each_case(|family, old, a, b, new| {
        let expected = reference(family, old, a, b);
        assert_eq!(
            new,
            expected,
            "{} {a:#x}, {b:#x} with flags {old:#x}: {new:#x}, not {expected:#x}",
            family.op.mnemonic()
        );
    });
}

#[test]
#[cfg(target_arch = "x86_64")]
fn flags_match_the_host_where_x86_defines_them_except_for_four_differences() {
    let mut compared = std::collections::BTreeMap::<&str, u32>::new();
    each_case(|family, old, a, b, new| {
        let Family { stem, bits, unsigned, .. } = *family;
        let host = super::host::flags(stem, bits, unsigned, old, a, b);
        let count = b as u32 & if bits == 64 { 63 } else { 31 };
        // The flags that x86 defines (Intel SDM), without those in which LBT is known to differ.
        let defined = match stem {
            "add" | "sub" if unsigned => CF | PF | AF | ZF | SF,
            "add" | "adc" | "sub" | "inc" | "dec" => CF | PF | AF | ZF | SF | OF,
            "sbc" => {
                let borrow_decides = old & CF != 0 && a & 15 == b & 15;
                CF | PF | ZF | SF | OF | if borrow_decides { 0 } else { AF }
            }
            "and" | "or" | "xor" => CF | PF | ZF | SF | OF,
            "mul" => CF | OF,
            "sll" | "srl" | "sra" if count == 0 => CF | PF | AF | ZF | SF | OF,
            "sll" | "srl" if count >= bits => PF | ZF | SF,
            "sll" | "srl" | "sra" => CF | PF | ZF | SF | if count == 1 { OF } else { 0 },
            "rotl" | "rotr" if count == 0 => PF | AF | ZF | SF | OF,
            _ if count == 0 => CF | PF | AF | ZF | SF | OF,
            _ => CF | PF | AF | ZF | SF | if count == 1 { OF } else { 0 },
        };
        assert_eq!(
            new & defined,
            host & defined,
            "{} {a:#x}, {b:#x} with flags {old:#x}: {new:#x} here, {host:#x} on the host",
            family.op.mnemonic(),
        );
        *compared.entry(stem).or_default() += 1;
    });
    assert_eq!(compared.len(), STEMS.len(), "every family has met the host");
}

#[test]
fn differences_between_lbt_and_x86_are_as_measured() {
    let run = |mnemonic, flags, a, b| {
        flags_after(&Instruction { j: 4, k: 5, ..Instruction::new(op(mnemonic)) }, flags, a, b)
    };
    assert_eq!(run("x86sbc.b", CF, 0x20, 0x10) & AF, 0, "the borrow into the low digit does not count");
    assert_eq!(run("x86add.w", 0, 0x7fff_ffff, 1) & OF, OF);
    assert_eq!(run("x86add.wu", 0, 0x7fff_ffff, 1) & OF, 0, "the unsigned form has no overflow");
    assert_eq!(run("x86sub.du", 0, 1 << 63, 1) & OF, 0, "the unsigned form has no overflow");
    assert_eq!(run("x86rotl.d", 0, 1, 0) & CF, CF, "a rotate by 0 writes the carry");
    assert_eq!(run("x86rotr.b", CF, 0x7f, 32) & CF, 0, "a rotate by 0 writes the carry");
    assert_eq!(run("x86mul.d", 0x8d5, 2, 3), 0, "what x86 leaves undefined after a product is 0");
    assert_eq!(
        run("x86and.h", 0x8d5, 0xff, 0xff) & AF,
        0,
        "what x86 leaves undefined after a logical operation is 0"
    );
    assert_eq!(
        run("x86sll.b", AF | OF, 1, 3) & (AF | OF),
        AF | OF,
        "what x86 leaves undefined after a shift stays"
    );
}
