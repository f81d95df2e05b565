//! Lowers shifts, bit-field operations, byte and bit reversals, bit counts and CRC instructions. `operands` lowers
//! shifted second operands. Source: Arm Architecture Reference Manual (Arm DDI 0487), section C6.2; LoongArch Reference
//! Manual, volume 1.

use longma_loongarch::Op as La;

use super::known::Facts;
use super::lower::Lowering;
use super::operands::NONE;
use crate::instruction::{Instruction, Op};

impl Lowering<'_> {
    /// Lowers the instruction. Returns false for other instructions.
    pub fn bit_field(&mut self, i: Instruction) -> bool {
        use Op::*;
        if i.rd() == NONE && !matches!(i.op, Sbfm | Bfm | Ubfm | Extr) {
            return self.is_of_bits(i);
        }
        match i.op {
            Ubfm => self.extract_unsigned(i),
            Sbfm => self.extract_signed(i),
            Bfm => self.insert(i),
            Extr => self.extract_pair(i),
            Lslv | Lsrv | Asrv | Rorv => self.shift(i),
            Rbit | Rev16 | RevW | Rev32 | RevX | Clz | Cls => self.rearrange(i),
            Crc32b | Crc32h | Crc32w | Crc32x | Crc32cb | Crc32ch | Crc32cw | Crc32cx => self.checksum(i),
            _ => return false,
        }
        true
    }

    fn is_of_bits(&self, i: Instruction) -> bool {
        use Op::*;
        matches!(
            i.op,
            Lslv | Lsrv
                | Asrv
                | Rorv
                | Rbit
                | Rev16
                | RevW
                | Rev32
                | RevX
                | Clz
                | Cls
                | Crc32b
                | Crc32h
                | Crc32w
                | Crc32x
                | Crc32cb
                | Crc32ch
                | Crc32cw
                | Crc32cx
        )
    }

    /// The fields immr and imms.
    fn field_of(i: Instruction) -> (u8, u8) {
        (i.bits(16, 6) as u8, i.bits(10, 6) as u8)
    }

    /// UBFM: LSL, LSR, UBFX, UBFIZ, UXTB, UXTH.
    fn extract_unsigned(&mut self, i: Instruction) {
        let ((first, last), is_wide, d) = (Self::field_of(i), i.is_wide(), i.rd());
        let size = if is_wide { 64 } else { 32 };
        // If the field is within the low half, the upper half does not need to be valid.
        let from = self.source(i.rn(), is_wide && last >= 32);
        let facts = self.facts(i.rn());
        let to = self.target(d);
        if last >= first {
            let width = last - first + 1;
            if first == 0 && facts.width <= width {
                return self.put(d, from, is_wide, facts);
            }
            self.assembler.field(La::BstrpickD, to, from, last, first);
            return self.put(d, to, true, Facts::of_width(width));
        }
        let shift = size - first;
        if last + 1 + shift == size {
            let op = if is_wide { La::SlliD } else { La::SlliW };
            self.assembler.immediate(op, to, from, shift.into());
            return self.put_sum(d, to, is_wide);
        }
        let narrow = if facts.width <= last + 1 {
            from
        } else {
            self.assembler.field(La::BstrpickD, to, from, last, 0);
            to
        };
        self.assembler.immediate(La::SlliD, to, narrow, shift.into());
        self.put(d, to, true, Facts::of_width(last + 1 + shift));
    }

    /// SBFM: ASR, SBFX, SBFIZ, SXTB, SXTH, SXTW.
    fn extract_signed(&mut self, i: Instruction) {
        let ((first, last), is_wide, d) = (Self::field_of(i), i.is_wide(), i.rd());
        let size = if is_wide { 64 } else { 32 };
        // If the field is within the low half, the upper half does not need to be valid.
        let from = self.source(i.rn(), last >= 32);
        let facts = self.facts(i.rn());
        let to = self.target(d);
        let short = Facts { width: 64, sign: true };
        match (first, last) {
            (0, 31) if facts.sign => return self.put(d, from, is_wide, Facts { sign: true, ..facts }),
            (0, 7) => self.assembler.two(La::ExtWB, to, from),
            (0, 15) => self.assembler.two(La::ExtWH, to, from),
            (..=31, 31) => self.assembler.immediate(La::SraiW, to, from, first.into()),
            (_, 63) => {
                self.assembler.immediate(La::SraiD, to, from, first.into());
                return self.put(d, to, true, Facts { width: 64, sign: first >= 32 });
            }
            _ => {
                // Shift the field to the top, then down to its final position.
                let position = if last >= first { 0 } else { size - first };
                let low = if last >= first { first } else { 0 };
                self.assembler.immediate(La::SlliD, to, from, (63 - last).into());
                self.assembler.immediate(La::SraiD, to, to, (63 - last + low - position).into());
                let top = last - low + position;
                return self.put(d, to, is_wide, Facts { width: 64, sign: top < 32 });
            }
        }
        self.put(d, to, is_wide, short);
    }

    /// BFM: BFI, BFXIL, BFC.
    fn insert(&mut self, i: Instruction) {
        let ((first, last), is_wide, d) = (Self::field_of(i), i.is_wide(), i.rd());
        if d == NONE {
            return;
        }
        let size = if is_wide { 64 } else { 32 };
        let from = self.source(i.rn(), is_wide);
        let into = self.source(d, is_wide);
        let (part, low, width) = if last >= first {
            let part = if first == 0 {
                from
            } else {
                let to = self.own(from);
                self.assembler.field(La::BstrpickD, to, from, last, first);
                to
            };
            (part, 0, last - first + 1)
        } else {
            (from, size - first, last + 1)
        };
        self.assembler.field(La::BstrinsD, into, part, low + width - 1, low);
        let facts = self.facts(d);
        let facts = if is_wide { Facts::NONE } else { Facts { width: facts.width.max(32), sign: false } };
        self.put(d, into, is_wide, facts);
    }

    fn extract_pair(&mut self, i: Instruction) {
        let (is_wide, d, low) = (i.is_wide(), i.rd(), i.bits(10, 6) as u8);
        let size = if is_wide { 64 } else { 32 };
        let (n, m) = (self.source(i.rn(), is_wide), self.source(i.rm(), is_wide));
        if low == 0 || i.rn() == i.rm() {
            let to = self.target(d);
            let op = if is_wide { La::RotriD } else { La::RotriW };
            self.assembler.immediate(op, to, m, low.into());
            return self.put_sum(d, to, is_wide);
        }
        let to = self.own(m);
        self.assembler.field(La::BstrpickD, to, m, size - 1, low);
        self.assembler.field(La::BstrinsD, to, n, size - 1, size - low);
        self.put(d, to, true, if is_wide { Facts::NONE } else { Facts::ZERO_EXTENDED });
    }

    fn shift(&mut self, i: Instruction) {
        let is_wide = i.is_wide();
        let ops = match i.op {
            Op::Lslv => [La::SllW, La::SllD],
            Op::Lsrv => [La::SrlW, La::SrlD],
            Op::Asrv => [La::SraW, La::SraD],
            _ => [La::RotrW, La::RotrD],
        };
        let (n, m) = (self.source(i.rn(), is_wide), self.word(i.rm()));
        let to = self.target(i.rd());
        self.assembler.three(ops[usize::from(is_wide)], to, n, m);
        self.put_sum(i.rd(), to, is_wide);
    }

    fn rearrange(&mut self, i: Instruction) {
        let (is_wide, d) = (i.is_wide(), i.rd());
        let from = self.source(i.rn(), is_wide);
        let to = self.target_except(d, &[from]);
        let select = |narrow, wide| if is_wide { wide } else { narrow };
        let (op, facts) = match i.op {
            Op::Rbit => (select(La::BitrevW, La::BitrevD), Facts::WORD),
            Op::Rev16 => (select(La::Revb2h, La::Revb4h), Facts::WORD),
            Op::RevW | Op::Rev32 => (La::Revb2w, Facts::NONE),
            Op::RevX => (La::RevbD, Facts::NONE),
            Op::Clz => (select(La::ClzW, La::ClzD), Facts::of_width(7)),
            _ => {
                // Count the leading bits that equal the sign bit, excluding the sign bit itself.
                self.assembler.immediate(
                    select(La::SraiW, La::SraiD),
                    to,
                    from,
                    if is_wide { 63 } else { 31 },
                );
                self.assembler.three(La::Xor, to, to, from);
                self.assembler.two(select(La::ClzW, La::ClzD), to, to);
                self.assembler.immediate(La::AddiD, to, to, -1);
                return self.put(d, to, true, Facts::of_width(7));
            }
        };
        self.assembler.two(op, to, from);
        let facts = if is_wide && facts == Facts::WORD { Facts::NONE } else { facts };
        self.put(d, to, is_wide, facts);
    }

    fn checksum(&mut self, i: Instruction) {
        let op = match i.op {
            Op::Crc32b => La::CrcWBW,
            Op::Crc32h => La::CrcWHW,
            Op::Crc32w => La::CrcWWW,
            Op::Crc32x => La::CrcWDW,
            Op::Crc32cb => La::CrccWBW,
            Op::Crc32ch => La::CrccWHW,
            Op::Crc32cw => La::CrccWWW,
            _ => La::CrccWDW,
        };
        let (sum, data) = (self.word(i.rn()), self.source(i.rm(), i.is_wide()));
        let to = self.target(i.rd());
        self.assembler.three(op, to, data, sum);
        self.put(i.rd(), to, false, Facts::WORD);
    }
}
