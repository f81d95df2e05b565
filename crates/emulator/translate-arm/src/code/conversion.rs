//! Lowers conversions between floating-point formats and to and from integers. The engine executes fixed-point and rare
//! conversions (`service`). Source: Arm Architecture Reference Manual (Arm DDI 0487), section C7.2 (FCVT, FCVTZS, SCVTF
//! and related instructions); LoongArch Reference Manual, volume 1, section 3.2.3.

use longma_loongarch::{Instruction as Code, Op as La};

use super::known::Facts;
use super::lower::Lowering;
use super::operands::NONE;
use super::vector::rounding::power_of_two;
use crate::instruction::{Instruction, Op};
use longma_translate::assembler::JumpTarget;

impl Lowering<'_> {
    /// Lowers the instruction. Returns false for other instructions.
    pub fn conversion(&mut self, i: Instruction) -> bool {
        use Op::*;
        match i.op {
            FcvtDs => {
                self.assembler.two(La::FcvtDS, i.rd(), i.rn());
                self.put_scalar(i.rd(), true);
            }
            FcvtSd => {
                self.widen(i.rn(), 8);
                self.assembler.two(La::FcvtSD, i.rd(), i.rn());
                self.put_scalar(i.rd(), false);
            }
            Fcvtzs => self.truncate(i, None),
            Fcvtns => self.round_to_signed(
                i,
                None,
                [La::FtintrneWS, La::FtintrneWD, La::FtintrneLS, La::FtintrneLD],
            ),
            Fcvtps => {
                self.round_to_signed(i, None, [La::FtintrpWS, La::FtintrpWD, La::FtintrpLS, La::FtintrpLD])
            }
            Fcvtms => {
                self.round_to_signed(i, None, [La::FtintrmWS, La::FtintrmWD, La::FtintrmLS, La::FtintrmLD])
            }
            Fcvtzu => self.round_to_unsigned(i, None),
            Fcvtas | Fcvtau => {
                let n = self.scalar(i.rn(), i);
                let rounded = self.round_away(i, n, &[n]);
                if i.op == Fcvtas {
                    self.truncate(i, Some(rounded))
                } else {
                    self.round_to_unsigned(i, Some(rounded))
                }
            }
            FcvtzsFixed | FcvtzuFixed => {
                let scaled = self.scaled(i);
                if i.op == FcvtzsFixed {
                    self.truncate(i, Some(scaled))
                } else {
                    self.round_to_unsigned(i, Some(scaled))
                }
            }
            ScvtfFixed | UcvtfFixed => {
                if i.op == ScvtfFixed {
                    self.convert_signed(i)
                } else {
                    self.convert_unsigned(i)
                }
                let double = usize::from(i.is_double());
                let scale = self.borrow_vector(&[i.rd()]);
                let value = self.temporary();
                self.assembler.constant(value, power_of_two(i.bits(10, 6) as i32 - 64, double));
                self.assembler.two(La::Movgr2frD, scale, value);
                self.assembler.three([La::FmulS, La::FmulD][double], i.rd(), i.rd(), scale);
            }
            FcvtSh => {
                self.assembler.two(La::VfcvtlSH, i.rd(), i.rn());
                self.put_scalar(i.rd(), false);
            }
            FcvtHs => {
                let n = i.rn();
                self.assembler.three(La::VfcvtHS, i.rd(), n, n);
                let value = self.temporary();
                self.assembler.immediate(La::Vpickve2grHu, value, i.rd(), 0);
                self.put_half(i.rd(), value);
            }
            Scvtf => self.convert_signed(i),
            Ucvtf => self.convert_unsigned(i),
            _ => return false,
        }
        true
    }

    /// A floating-point number times 2 to the number of fraction bits, in a borrowed vector.
    fn scaled(&mut self, i: Instruction) -> u8 {
        let (n, double) = (self.scalar(i.rn(), i), usize::from(i.is_double()));
        let scale = self.borrow_vector(&[n]);
        let value = self.temporary();
        self.assembler.constant(value, power_of_two(64 - i.bits(10, 6) as i32, double));
        self.assembler.two(La::Movgr2frD, scale, value);
        self.free(value);
        self.assembler.three([La::FmulS, La::FmulD][double], scale, n, scale);
        scale
    }

    fn truncate(&mut self, i: Instruction, from: Option<u8>) {
        self.round_to_signed(i, from, [La::FtintrzWS, La::FtintrzWD, La::FtintrzLS, La::FtintrzLD]);
    }

    /// The operand, which is in a borrowed vector if `from` is given, and a vector for the result.
    fn between(&mut self, i: Instruction, from: Option<u8>) -> (u8, u8) {
        match from {
            Some(borrowed) => (borrowed, borrowed),
            None => {
                let n = self.scalar(i.rn(), i);
                (n, self.borrow_scalar(&[n]))
            }
        }
    }

    fn round_to_signed(&mut self, i: Instruction, from: Option<u8>, ops: [La; 4]) {
        let (d, is_wide) = (i.rd(), i.is_wide());
        let (n, between) = self.between(i, from);
        // Convert even without a destination, because of the exception flags.
        self.assembler.two(ops[2 * usize::from(is_wide) + usize::from(i.is_double())], between, n);
        if d == NONE {
            return;
        }
        let to = self.target(d);
        self.assembler.two(if is_wide { La::Movfr2grD } else { La::Movfr2grS }, to, between);
        self.put_sum(d, to, is_wide);
    }

    fn round_to_unsigned(&mut self, i: Instruction, from: Option<u8>) {
        let (d, is_wide) = (i.rd(), i.is_wide());
        let (n, between) = self.between(i, from);
        // The instructions convert all elements, but only this one may raise exceptions.
        self.spread(between, n, i);
        // Convert even without a destination, because of the exception flags.
        let to = if d == NONE { self.temporary() } else { self.target(d) };
        if !is_wide && !i.is_double() {
            self.assembler.two(La::VftintrzWuS, between, between);
            self.assembler.two(La::Movfr2grS, to, between);
            return self.put_converted(d, to, false, Facts::WORD);
        }
        if !i.is_double() {
            self.assembler.two(La::VfcvtlDS, between, between);
        }
        self.assembler.two(La::VftintrzLuD, between, between);
        self.assembler.two(La::Movfr2grD, to, between);
        if is_wide {
            return self.put_converted(d, to, true, Facts::NONE);
        }
        // Saturate: values that need more than 32 bits become all ones.
        let excess = self.temporary();
        self.assembler.immediate(La::SrliD, excess, to, 32);
        self.assembler.three(La::Sltu, excess, 0, excess);
        self.assembler.three(La::SubD, excess, 0, excess);
        self.assembler.three(La::Or, to, to, excess);
        // All ones are a NaN, whose conversion is invalid.
        self.assembler.two(La::Movgr2frD, between, excess);
        self.assembler.two(La::FtintrzWD, between, between);
        self.put_converted(d, to, false, Facts::NONE);
    }

    /// Writes the result in `to` to x`d`, if there is a destination.
    fn put_converted(&mut self, d: u8, to: u8, is_wide: bool, facts: Facts) {
        if d == NONE {
            self.free(to);
        } else {
            self.put(d, to, is_wide, facts);
        }
    }

    fn convert_signed(&mut self, i: Instruction) {
        let (d, is_wide) = (i.rd(), i.is_wide());
        let from = self.source(i.rn(), is_wide);
        self.assembler.two(La::Movgr2frD, d, from);
        let ops = [La::FfintSW, La::FfintDW, La::FfintSL, La::FfintDL];
        self.assembler.two(ops[2 * usize::from(is_wide) + usize::from(i.is_double())], d, d);
        self.put_scalar(d, i.is_double());
    }

    fn convert_unsigned(&mut self, i: Instruction) {
        let d = i.rd();
        if !i.is_wide() {
            let from = self.unsigned_word(i.rn());
            self.assembler.two(La::Movgr2frD, d, from);
            self.assembler.two(if i.is_double() { La::FfintDL } else { La::FfintSL }, d, d);
            return self.put_scalar(d, i.is_double());
        }
        let from = self.whole(i.rn());
        let (convert, add) = if i.is_double() { (La::FfintDL, La::FaddD) } else { (La::FfintSL, La::FaddS) };
        let end = self.assembler.label();
        self.assembler.two(La::Movgr2frD, d, from);
        self.assembler.two(convert, d, d);
        // If the top bit is set, the signed conversion was wrong. It was inexact only if the correct conversion is
        // inexact too, so the accumulated flags stay correct.
        self.assembler.jump(Code { j: from, d: 0, ..Code::new(La::Bge) }, JumpTarget::Label(end));
        // Convert half the value, with the lost bit ORed into the last one (sticky), and double the result.
        let half = self.temporary();
        let last = self.temporary();
        self.assembler.immediate(La::Andi, last, from, 1);
        self.assembler.immediate(La::SrliD, half, from, 1);
        self.assembler.three(La::Or, half, half, last);
        self.assembler.two(La::Movgr2frD, d, half);
        self.assembler.two(convert, d, d);
        self.assembler.three(add, d, d, d);
        self.assembler.place(end);
        self.put_scalar(d, i.is_double());
    }
}
