//! Computation of live flags and of conditions. Where a comparison directly precedes its user, the condition is
//! computed without flags. Source: Intel SDM, volume 1, section 3.4.3 and appendix B (conditions).

use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind, Register, RflagsBits};
use longma_loongarch::{Instruction as Code, Op as La};

use super::compared::signalling;
use super::forms::number;
use super::known::Facts;
use super::lower::{Branch, Lowering, is_register};
use super::operands::Extension;
use crate::registers::*;

/// The source from which the flags are derived.
#[derive(Clone, Copy, Debug)]
pub(super) enum Comparison {
    /// The comparison of two sign-extended values.
    Difference(u8, u8),
    /// A sign-extended result with CF and OF clear.
    Result(u8),
    /// A sign-extended result whose CF and OF are not used.
    Sum(u8),
    /// The comparison of two doubles (`true`) or singles, and whether it signals quiet NaNs.
    Floats(u8, u8, bool, bool),
}

impl Lowering<'_> {
    fn wants(&self, flags: u32) -> bool {
        self.live & flags != 0
    }

    /// Computes ZF, SF and PF of a sign-extended result.
    pub fn result_flags(&mut self, result: u8) {
        if self.wants(RflagsBits::ZF) {
            self.assembler.copy(NOT_ZERO, result);
        }
        if self.wants(RflagsBits::SF) {
            self.assembler.copy(SIGN, result);
        }
        if self.wants(RflagsBits::PF) {
            self.assembler.copy(PARITY, result);
        }
    }

    fn carry_and_overflow_clear(&mut self) {
        for (flag, register) in
            [(RflagsBits::CF, CARRY), (RflagsBits::OF, OVERFLOW), (RflagsBits::AF, ADJUST)]
        {
            if self.wants(flag) {
                self.assembler.copy(register, 0);
            }
        }
    }

    /// Computes the flags of AND, OR, XOR and TEST.
    pub fn logic_flags(&mut self, result: u8) {
        self.result_flags(result);
        self.carry_and_overflow_clear();
    }

    /// Computes the flags of an addition; all values are sign-extended. Flags in `preserved` are unchanged.
    pub fn sum_flags(&mut self, [a, b, result]: [u8; 3], preserved: u32) {
        let live = self.live;
        self.live &= !preserved;
        self.adjust([a, b, result]);
        if self.wants(RflagsBits::OF) {
            // Both operands have the opposite sign of the result.
            self.assembler.three(La::Xor, SCRATCH, a, result);
            self.assembler.three(La::Xor, OVERFLOW, b, result);
            self.assembler.three(La::And, OVERFLOW, OVERFLOW, SCRATCH);
        }
        if self.wants(RflagsBits::CF) {
            self.assembler.three(La::Sltu, CARRY, result, a);
        }
        self.result_flags(result);
        self.live = live;
    }

    /// Computes the flags of a subtraction; all values are sign-extended. Flags in `preserved` are unchanged.
    pub fn difference_flags(&mut self, [a, b, result]: [u8; 3], preserved: u32) {
        let live = self.live;
        self.live &= !preserved;
        self.adjust([a, b, result]);
        if self.wants(RflagsBits::OF) {
            self.assembler.three(La::Xor, SCRATCH, a, b);
            self.assembler.three(La::Xor, OVERFLOW, a, result);
            self.assembler.three(La::And, OVERFLOW, OVERFLOW, SCRATCH);
        }
        if self.wants(RflagsBits::CF) {
            self.assembler.three(La::Sltu, CARRY, a, b);
        }
        self.result_flags(result);
        self.live = live;
    }

    /// Computes AF, the carry into bit 4.
    pub fn adjust(&mut self, [a, b, result]: [u8; 3]) {
        if self.wants(RflagsBits::AF) {
            self.assembler.three(La::Xor, ADJUST, a, b);
            self.assembler.three(La::Xor, ADJUST, ADJUST, result);
        }
    }

    /// Computes the flags of COMISS, COMISD and their variants.
    pub fn float_flags(&mut self, a: u8, b: u8, is_double: bool, signals: bool) {
        let compare = |lowering: &mut Self, single: La, double: La, flag: u32, register: u8| {
            if lowering.wants(flag) {
                let op = if is_double { double } else { single };
                let op = if signals { signalling(op) } else { op };
                lowering.assembler.three(op, 0, a, b);
                lowering.assembler.two(La::Movcf2gr, register, 0);
            }
        };
        compare(self, La::FcmpCultS, La::FcmpCultD, RflagsBits::CF, CARRY);
        compare(self, La::FcmpCneS, La::FcmpCneD, RflagsBits::ZF, NOT_ZERO);
        // PF is clear (odd parity: one bit) if the operands are ordered.
        compare(self, La::FcmpCorS, La::FcmpCorD, RflagsBits::PF, PARITY);
        for (flag, register) in [(RflagsBits::OF, OVERFLOW), (RflagsBits::SF, SIGN), (RflagsBits::AF, ADJUST)]
        {
            if self.wants(flag) {
                self.assembler.copy(register, 0);
            }
        }
    }

    /// A register that is nonzero if a condition of the flags holds. If the second value is `true`, the meaning is
    /// inverted.
    pub fn condition_value(&mut self, condition: ConditionCode) -> (u8, bool) {
        use ConditionCode::*;
        if let Some(value) = self.extension_condition(condition) {
            return (value, false);
        }
        let negative = matches!(condition, no | ae | ne | a | ns | np | ge | g);
        let positive = match condition {
            no => o,
            ae => b,
            ne => e,
            a => be,
            ns => s,
            np => p,
            ge => l,
            g => le,
            other => other,
        };
        if positive == e {
            return (NOT_ZERO, !negative);
        }
        if positive == b {
            return (CARRY, negative);
        }
        let t = self.temporary();
        match positive {
            o => self.assembler.three(La::Slt, t, OVERFLOW, 0),
            s => self.assembler.three(La::Slt, t, SIGN, 0),
            be => {
                self.assembler.immediate(La::Sltui, t, NOT_ZERO, 1);
                self.assembler.three(La::Or, t, t, CARRY);
            }
            p => self.parity(t),
            _ => {
                self.assembler.three(La::Xor, t, SIGN, OVERFLOW);
                self.assembler.three(La::Slt, t, t, 0);
                if positive == le {
                    self.assembler.immediate(La::Sltui, SCRATCH, NOT_ZERO, 1);
                    self.assembler.three(La::Or, t, t, SCRATCH);
                }
            }
        }
        (t, negative)
    }

    /// Computes PF as 0 or 1.
    pub fn parity(&mut self, t: u8) {
        for shift in [4, 2, 1] {
            let from = if shift == 4 { PARITY } else { t };
            self.assembler.immediate(La::SrliD, SCRATCH, from, shift);
            self.assembler.three(La::Xor, t, from, SCRATCH);
        }
        self.assembler.immediate(La::Andi, t, t, 1);
        self.assembler.immediate(La::Xori, t, t, 1);
    }

    /// A branch on a condition of the flags.
    pub fn condition(&mut self, condition: ConditionCode) -> Branch {
        match condition {
            _ if self.known.flagged & self.instruction.rflags_read() != 0 => {}
            ConditionCode::s => return Branch::of(La::Blt, La::Bge, SIGN, 0),
            ConditionCode::ns => return Branch::of(La::Bge, La::Blt, SIGN, 0),
            ConditionCode::o => return Branch::of(La::Blt, La::Bge, OVERFLOW, 0),
            ConditionCode::no => return Branch::of(La::Bge, La::Blt, OVERFLOW, 0),
            _ => {}
        }
        let (value, if_zero) = self.condition_value(condition);
        let branch = Branch::of(La::Bnez, La::Beqz, value, 0);
        if if_zero { branch.opposite() } else { branch }
    }

    /// A branch on a condition of a comparison; `None` if it requires flags.
    fn branch_of(&mut self, comparison: Comparison, condition: ConditionCode) -> Option<Branch> {
        use ConditionCode::*;
        Some(match comparison {
            Comparison::Difference(x, y) => match condition {
                e | ne if x == 0 || y == 0 => {
                    let branch = Branch::of(La::Beqz, La::Bnez, x | y, 0);
                    if condition == e { branch } else { branch.opposite() }
                }
                e => Branch::of(La::Beq, La::Bne, x, y),
                ne => Branch::of(La::Bne, La::Beq, x, y),
                b => Branch::of(La::Bltu, La::Bgeu, x, y),
                ae => Branch::of(La::Bgeu, La::Bltu, x, y),
                be => Branch::of(La::Bgeu, La::Bltu, y, x),
                a => Branch::of(La::Bltu, La::Bgeu, y, x),
                l => Branch::of(La::Blt, La::Bge, x, y),
                ge => Branch::of(La::Bge, La::Blt, x, y),
                le => Branch::of(La::Bge, La::Blt, y, x),
                g => Branch::of(La::Blt, La::Bge, y, x),
                _ => return Option::None,
            },
            Comparison::Result(x) | Comparison::Sum(x) => {
                let is_sum = matches!(comparison, Comparison::Sum(_));
                match condition {
                    e => Branch::of(La::Beqz, La::Bnez, x, 0),
                    ne => Branch::of(La::Bnez, La::Beqz, x, 0),
                    s => Branch::of(La::Blt, La::Bge, x, 0),
                    ns => Branch::of(La::Bge, La::Blt, x, 0),
                    _ if is_sum => return Option::None,
                    be => Branch::of(La::Beqz, La::Bnez, x, 0),
                    a => Branch::of(La::Bnez, La::Beqz, x, 0),
                    l => Branch::of(La::Blt, La::Bge, x, 0),
                    ge => Branch::of(La::Bge, La::Blt, x, 0),
                    le => Branch::of(La::Bge, La::Blt, 0, x),
                    g => Branch::of(La::Blt, La::Bge, 0, x),
                    _ => return Option::None,
                }
            }
            Comparison::Floats(x, y, is_double, signals) => {
                self.compare_floats([x, y], is_double, signals, condition)?;
                let make = |op| Code { j: 0, ..Code::new(op) };
                Branch { holds: make(La::Bcnez), fails: make(La::Bceqz) }
            }
        })
    }

    /// Sets fcc0 to a condition of two floats.
    fn compare_floats(
        &mut self,
        [x, y]: [u8; 2],
        is_double: bool,
        signals: bool,
        condition: ConditionCode,
    ) -> Option<()> {
        use ConditionCode::*;
        let (single, double, x, y) = match condition {
            b => (La::FcmpCultS, La::FcmpCultD, x, y),
            be => (La::FcmpCuleS, La::FcmpCuleD, x, y),
            a => (La::FcmpCltS, La::FcmpCltD, y, x),
            ae => (La::FcmpCleS, La::FcmpCleD, y, x),
            e => (La::FcmpCueqS, La::FcmpCueqD, x, y),
            ne => (La::FcmpCneS, La::FcmpCneD, x, y),
            p => (La::FcmpCunS, La::FcmpCunD, x, y),
            np => (La::FcmpCorS, La::FcmpCorD, x, y),
            _ => return Option::None,
        };
        let op = if is_double { double } else { single };
        self.assembler.three(if signals { signalling(op) } else { op }, 0, x, y);
        Some(())
    }

    /// A register that is nonzero if a condition of a comparison holds. If the second value is `true`, the meaning is
    /// inverted.
    pub fn value_of(&mut self, comparison: Comparison, condition: ConditionCode) -> Option<(u8, bool)> {
        use ConditionCode::*;
        let t = match comparison {
            Comparison::Difference(x, 0) if matches!(condition, e | ne) => return Some((x, condition == e)),
            Comparison::Result(x) | Comparison::Sum(x) if matches!(condition, e | ne) => {
                return Some((x, condition == e));
            }
            Comparison::Result(x) if matches!(condition, be | a) => return Some((x, condition == be)),
            _ => self.temporary(),
        };
        Some(match comparison {
            Comparison::Difference(x, y) => match condition {
                e | ne => {
                    self.assembler.three(La::Xor, t, x, y);
                    (t, condition == e)
                }
                b | ae => {
                    self.assembler.three(La::Sltu, t, x, y);
                    (t, condition == ae)
                }
                be | a => {
                    self.assembler.three(La::Sltu, t, y, x);
                    (t, condition == be)
                }
                l | ge => {
                    self.assembler.three(La::Slt, t, x, y);
                    (t, condition == ge)
                }
                le | g => {
                    self.assembler.three(La::Slt, t, y, x);
                    (t, condition == le)
                }
                _ => return Option::None,
            },
            Comparison::Result(x) | Comparison::Sum(x) => match (condition, comparison) {
                (s | ns, _) | (l | ge, Comparison::Result(_)) => {
                    self.assembler.three(La::Slt, t, x, 0);
                    (t, matches!(condition, ns | ge))
                }
                (le | g, Comparison::Result(_)) => {
                    self.assembler.three(La::Slt, t, 0, x);
                    (t, condition == le)
                }
                _ => return Option::None,
            },
            Comparison::Floats(x, y, is_double, signals) => {
                self.compare_floats([x, y], is_double, signals, condition)?;
                self.assembler.two(La::Movcf2gr, t, 0);
                (t, false)
            }
        })
    }

    /// The next instruction, if it is the only user of this one's flags and can be fused with the comparison.
    pub fn direct_reader(&self, comparison: Comparison) -> Option<Instruction> {
        let reader = self.sole_reader()?;
        let condition = reader.condition_code();
        if condition == ConditionCode::None || !is_known(comparison, condition) {
            return None;
        }
        let is_register = reader.op0_kind() == OpKind::Register;
        let can = reader.is_jcc_short_or_near()
            || is_register && is_setcc(&reader)
            || is_register && is_cmovcc(&reader) && reader.op1_kind() == OpKind::Register;
        can.then_some(reader)
    }

    /// Translates the next instruction fused with the comparison. [`Self::direct_reader`] must have returned it.
    pub fn read_directly(&mut self, comparison: Comparison) {
        self.skip_reader();
        let reader = self.instruction;
        let condition = reader.condition_code();
        if reader.is_jcc_short_or_near() {
            if let Some(branch) = self.branch_of(comparison, condition) {
                self.position(false);
                self.branch(branch);
            }
        } else if let Some((value, if_zero)) = self.value_of(comparison, condition) {
            self.position(false);
            let is_bit = !matches!(
                comparison,
                Comparison::Difference(..) | Comparison::Result(_) | Comparison::Sum(_)
            ) || !is_equality(condition)
                && !matches!(
                    (comparison, condition),
                    (Comparison::Result(_), ConditionCode::be | ConditionCode::a)
                );
            if is_setcc(&reader) {
                self.set_byte(value, if_zero, is_bit);
            } else {
                self.conditional_move(value, if_zero);
            }
        }
    }

    /// Translates the next instruction, whose condition is in a register as 0 or 1; inverted if `if_zero`.
    pub fn read_value(&mut self, value: u8, if_zero: bool) {
        self.skip_reader();
        self.position(false);
        let reader = self.instruction;
        if reader.is_jcc_short_or_near() {
            let branch = Branch::of(La::Bnez, La::Beqz, value, 0);
            self.branch(if if_zero { branch.opposite() } else { branch });
        } else if is_setcc(&reader) {
            self.set_byte(value, if_zero, true);
        } else {
            self.conditional_move(value, if_zero);
        }
    }

    /// SETcc from a value; `is_bit` is true if the value is 0 or 1.
    pub fn set_byte(&mut self, value: u8, if_zero: bool, is_bit: bool) {
        let i = self.instruction;
        let widened = is_register(&i, 0).filter(|register| !is_high(*register) && self.is_widened(*register));
        if let Some(register) = widened {
            let n = number(register);
            let d = self.define(n);
            self.put_bit(d, value, if_zero, is_bit);
            self.defined(n, Facts::of_width(1));
            return;
        }
        // `value` may be in use, so do not modify it.
        let t = self.temporary();
        self.put_bit(t, value, if_zero, is_bit);
        self.write(t);
    }

    fn put_bit(&mut self, d: u8, value: u8, if_zero: bool, is_bit: bool) {
        match (if_zero, is_bit) {
            (true, true) => self.assembler.immediate(La::Xori, d, value, 1),
            (true, false) => self.assembler.immediate(La::Sltui, d, value, 1),
            (false, true) => self.assembler.copy(d, value),
            (false, false) => self.assembler.three(La::Sltu, d, 0, value),
        }
    }

    /// Whether only the lowest byte of a register is used: the rest is zero already, or the next instruction clears it.
    fn is_widened(&self, register: Register) -> bool {
        let n = number(register);
        if self.known.value(n).width <= 8 {
            return true;
        }
        let Some(next) = self.block.get(self.index + 1) else { return false };
        next.mnemonic() == Mnemonic::Movzx
            && next.op1_kind() == OpKind::Register
            && next.op1_register() == register
            && number(next.op0_register()) == n
            && next.op0_register().size() >= 4
    }

    /// CMOVcc from a value.
    pub fn conditional_move(&mut self, value: u8, if_zero: bool) {
        let i = self.instruction;
        let register = i.op0_register();
        let (n, bytes) = (number(register), register.size());
        let source = self.read(1, Extension::Any);
        let of_source = match i.op1_kind() {
            OpKind::Register => self.known.of(source),
            _ if bytes == 4 => Facts::ZERO_EXTENDED,
            _ => Facts::NONE,
        };
        let old = if bytes == 8 { self.wide(n) } else { self.at(n) };
        let of_old = self.known.of(old);
        let (new_value_mask, old_value_mask) =
            if if_zero { (La::Masknez, La::Maskeqz) } else { (La::Maskeqz, La::Masknez) };
        let d = if bytes == 2 { self.temporary() } else { self.define(n) };
        if source == 0 {
            self.assembler.three(old_value_mask, d, old, value);
        } else if old == 0 {
            self.assembler.three(new_value_mask, d, source, value);
        } else {
            self.assembler.three(new_value_mask, SCRATCH, source, value);
            self.assembler.three(old_value_mask, d, old, value);
            self.assembler.three(La::Or, d, d, SCRATCH);
        }
        match bytes {
            8 => self.defined_wide(n, of_source.or(of_old)),
            4 => self.defined(n, of_source.or(of_old)),
            _ => self.write_register(register, d),
        }
    }
}

/// Whether a condition depends on signs.
pub(super) fn is_signed(condition: ConditionCode) -> bool {
    use ConditionCode::*;
    !matches!(condition, e | ne | b | ae | be | a)
}

/// Whether a condition tests for equality.
pub(super) fn is_equality(condition: ConditionCode) -> bool {
    matches!(condition, ConditionCode::e | ConditionCode::ne)
}

/// Whether a condition can be computed from a comparison without flags.
fn is_known(comparison: Comparison, condition: ConditionCode) -> bool {
    use ConditionCode::*;
    match comparison {
        Comparison::Difference(..) => !matches!(condition, s | ns | o | no | p | np),
        Comparison::Result(_) => !matches!(condition, o | no | p | np | b | ae),
        Comparison::Sum(_) => matches!(condition, e | ne | s | ns),
        Comparison::Floats(..) => matches!(condition, b | be | a | ae | e | ne | p | np),
    }
}

pub(super) fn is_setcc(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        i.mnemonic(),
        Seto | Setno
            | Setb
            | Setae
            | Sete
            | Setne
            | Setbe
            | Seta
            | Sets
            | Setns
            | Setp
            | Setnp
            | Setl
            | Setge
            | Setle
            | Setg
    )
}

pub(super) fn is_cmovcc(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        i.mnemonic(),
        Cmovo
            | Cmovno
            | Cmovb
            | Cmovae
            | Cmove
            | Cmovne
            | Cmovbe
            | Cmova
            | Cmovs
            | Cmovns
            | Cmovp
            | Cmovnp
            | Cmovl
            | Cmovge
            | Cmovle
            | Cmovg
    )
}
