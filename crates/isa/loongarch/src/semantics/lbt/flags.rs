//! The flag register: its bits, conditions, and its x86 and Arm layouts in a general register. Source: Intel SDM volume
//! 1, section 3.4.3 (EFLAGS) and appendix B (conditions); Arm ARM, C1.2.4 (conditions); numbering of the conditions and
//! masks of the moves: jiegec/la-inst, LBT.md.

/// Carry; Arm's C.
pub(super) const CF: u32 = 1 << 0;
/// Parity of the result's low byte, set if even.
pub(super) const PF: u32 = 1 << 2;
/// Carry out of bit 3.
pub(super) const AF: u32 = 1 << 4;
/// Zero; Arm's Z.
pub(super) const ZF: u32 = 1 << 6;
/// Sign; Arm's N.
pub(super) const SF: u32 = 1 << 7;
/// Signed overflow; Arm's V.
pub(super) const OF: u32 = 1 << 11;
/// All flags.
pub(super) const ALL: u32 = CF | PF | AF | ZF | SF | OF;

/// The flags in the order of the mask bits of `x86mfflag` and similar instructions.
const BY_MASK_BIT: [u32; 6] = [CF, PF, AF, ZF, SF, OF];

/// `flags` with those of `mask` replaced by `values`.
pub(super) fn replace(flags: u32, mask: u32, values: u32) -> u32 {
    flags & !mask | values & mask
}

/// `flag` if `condition` holds, else 0.
pub(super) fn when(condition: bool, flag: u32) -> u32 {
    if condition { flag } else { 0 }
}

/// The flags that a mask of the move instructions selects.
pub(super) fn selected(mask: i32) -> u32 {
    BY_MASK_BIT.iter().enumerate().map(|(bit, flag)| when(mask >> bit & 1 == 1, *flag)).sum()
}

/// Arm's layout: N Z C V in bits 31 to 28, sign-extended.
pub(super) fn to_nzcv(flags: u32) -> u64 {
    let bits = [(SF, 31), (ZF, 30), (CF, 29), (OF, 28)];
    let word: u32 = bits.iter().map(|&(flag, bit)| when(flags & flag != 0, 1 << bit)).sum();
    word as i32 as u64
}

/// Converts from Arm's layout.
pub(super) fn from_nzcv(word: u64) -> u32 {
    let bits = [(SF, 31), (ZF, 30), (CF, 29), (OF, 28)];
    bits.iter().map(|&(flag, bit)| when(word >> bit & 1 == 1, flag)).sum()
}

/// Whether condition `code` (0 to 15) of `setx86j` holds.
pub(super) fn x86_condition(flags: u32, code: i32) -> bool {
    let is = |flag| flags & flag != 0;
    let less = is(SF) != is(OF);
    match code & 15 {
        0 => !is(CF) && !is(ZF),
        1 => !is(CF),
        2 => is(CF),
        3 => is(CF) || is(ZF),
        4 => is(ZF),
        5 => !is(ZF),
        6 => !is(ZF) && !less,
        7 => !less,
        8 => less,
        9 => is(ZF) || less,
        10 => is(SF),
        11 => !is(SF),
        12 => is(OF),
        13 => !is(OF),
        14 => is(PF),
        _ => !is(PF),
    }
}

/// Whether Arm's condition `code` (0 to 15) holds; 14 and 15 always do.
pub(super) fn arm_condition(flags: u32, code: i32) -> bool {
    let is = |flag| flags & flag != 0;
    let holds = match code >> 1 & 7 {
        0 => is(ZF),
        1 => is(CF),
        2 => is(SF),
        3 => is(OF),
        4 => is(CF) && !is(ZF),
        5 => is(SF) == is(OF),
        6 => !is(ZF) && is(SF) == is(OF),
        _ => return true,
    };
    holds != (code & 1 == 1)
}
