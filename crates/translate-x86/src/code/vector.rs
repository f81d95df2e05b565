//! Whole vectors of SSE to SSE4.2: moves, integers, floating point, shuffles.
//! Not scalars. `table` has what one LoongArch instruction does.
//! Source: Intel SDM, volume 2; the manual's LSX volume.

use iced_x86::{Mnemonic, OpKind, Register, RflagsBits};
use longma_loongarch::{Instruction as Code, Op as La};

use super::forms::number;
use super::known::Facts;
use super::lower::{Lowering, is_register};
use super::operands::Extension;
use super::scalar::has_mmx;
use super::table::{self, Order};
use crate::registers::*;

/// Instructions that combine neighbours: what picks the even elements, the odd ones, and what is done with both.
fn neighbours(mnemonic: Mnemonic) -> Option<(La, La, La)> {
    use Mnemonic::*;
    Some(match mnemonic {
        Phaddw => (La::VpickevH, La::VpickodH, La::VaddH),
        Phaddd => (La::VpickevW, La::VpickodW, La::VaddW),
        Phaddsw => (La::VpickevH, La::VpickodH, La::VsaddH),
        Phsubw => (La::VpickevH, La::VpickodH, La::VsubH),
        Phsubd => (La::VpickevW, La::VpickodW, La::VsubW),
        Phsubsw => (La::VpickevH, La::VpickodH, La::VssubH),
        Haddps => (La::VpickevW, La::VpickodW, La::VfaddS),
        Hsubps => (La::VpickevW, La::VpickodW, La::VfsubS),
        Haddpd => (La::VpickevD, La::VpickodD, La::VfaddD),
        Hsubpd => (La::VpickevD, La::VpickodD, La::VfsubD),
        _ => return None,
    })
}

/// ROUNDPS and ROUNDPD by their immediate.
fn rounding(how: u8, double: bool) -> La {
    match (how & 7, double) {
        (0, true) => La::VfrintrneD,
        (1, true) => La::VfrintrmD,
        (2, true) => La::VfrintrpD,
        (3, true) => La::VfrintrzD,
        (_, true) => La::VfrintD,
        (0, false) => La::VfrintrneS,
        (1, false) => La::VfrintrmS,
        (2, false) => La::VfrintrpS,
        (3, false) => La::VfrintrzS,
        (_, false) => La::VfrintS,
    }
}

impl Lowering<'_> {
    /// A whole vector operand.
    pub fn whole(&mut self, operand: u32) -> u8 {
        let i = self.instruction;
        if let Some(register) = is_register(&i, operand) {
            return vector(register);
        }
        let t = self.temporary();
        let place = self.place(t);
        let v = self.vector_temporary();
        match i.memory_size().size() {
            16 => self.access(La::Vld, La::Vldx, v, place),
            8 => self.access(La::FldD, La::FldxD, v, place),
            4 => self.access(La::FldS, La::FldxS, v, place),
            _ => {
                self.load_to(t, place, 2, Extension::Zero);
                self.assembler.two(La::Movgr2frD, v, t);
            }
        }
        v
    }

    fn field_move(&mut self, op: La, d: u8, from: u8, which: i32) {
        self.assembler.immediate(op, d, from, which);
    }

    /// A copy of a vector.
    fn copy_vector(&mut self, d: u8, from: u8) {
        if d != from {
            self.assembler.three(La::VorV, d, from, from);
        }
    }

    /// Translates an instruction on vectors, or says that it is none of this file's.
    pub fn vector(&mut self) -> bool {
        let i = self.instruction;
        if has_mmx(&i) || !(0..i.op_count()).any(|n| is_register(&i, n).is_some_and(Register::is_xmm)) {
            return false;
        }
        if let Some((op, order)) = table::binary(i.mnemonic()) {
            let d = vector(i.op0_register());
            let s = self.whole(1);
            match order {
                Order::Straight => self.assembler.three(op, d, d, s),
                Order::Swapped => self.assembler.three(op, d, s, d),
            }
            return true;
        }
        if let Some(op) = table::unary(i.mnemonic()) {
            let d = vector(i.op0_register());
            let s = self.whole(1);
            self.assembler.two(op, d, s);
            return true;
        }
        self.moves() || self.shuffles() || self.packs() || self.shifts() || self.floats() || self.newer()
    }

    fn moves(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        match i.mnemonic() {
            Movaps | Movups | Movapd | Movupd | Movdqa | Movdqu | Lddqu | Movntps | Movntpd | Movntdq
            | Movntdqa => self.move_vector(),
            Movlps | Movlpd => match is_register(&i, 0) {
                Some(d) => {
                    let s = self.float(1, true);
                    self.field_move(La::VextrinsD, vector(d), s, 0);
                }
                None => self.store_low(vector(i.op1_register()), true),
            },
            Movhps | Movhpd => match is_register(&i, 0) {
                Some(d) => {
                    let s = self.float(1, true);
                    self.assembler.three(La::VpackevD, vector(d), s, vector(d));
                }
                None => {
                    let t = self.temporary();
                    let place = self.place(t);
                    let value = self.temporary();
                    self.field_move(La::Vpickve2grD, value, vector(i.op1_register()), 1);
                    self.store_from(value, place, 8);
                }
            },
            Movhlps => {
                let (d, s) = (vector(i.op0_register()), vector(i.op1_register()));
                self.assembler.three(La::VilvhD, d, d, s);
            }
            Movlhps => {
                let (d, s) = (vector(i.op0_register()), vector(i.op1_register()));
                self.assembler.three(La::VilvlD, d, s, d);
            }
            Pinsrb | Pinsrw | Pinsrd | Pinsrq => self.insert_element(),
            Pextrb | Pextrw | Pextrd | Pextrq | Extractps => self.extract_element(),
            _ => return false,
        }
        true
    }

    fn move_vector(&mut self) {
        let i = self.instruction;
        if let (Some(d), Some(s)) = (is_register(&i, 0), is_register(&i, 1)) {
            return self.copy_vector(vector(d), vector(s));
        }
        let t = self.temporary();
        let place = self.place(t);
        match is_register(&i, 0) {
            Some(d) => self.access(La::Vld, La::Vldx, vector(d), place),
            None => self.access(La::Vst, La::Vstx, vector(i.op1_register()), place),
        }
    }

    fn insert_element(&mut self) {
        let i = self.instruction;
        let d = vector(i.op0_register());
        let s = self.read(1, Extension::Any);
        let (op, mask) = match i.mnemonic() {
            Mnemonic::Pinsrb => (La::Vinsgr2vrB, 15),
            Mnemonic::Pinsrw => (La::Vinsgr2vrH, 7),
            Mnemonic::Pinsrd => (La::Vinsgr2vrW, 3),
            _ => (La::Vinsgr2vrD, 1),
        };
        self.field_move(op, d, s, i32::from(i.immediate8()) & mask);
    }

    fn extract_element(&mut self) {
        let i = self.instruction;
        let s = vector(i.op1_register());
        let (op, mask) = match i.mnemonic() {
            Mnemonic::Pextrb => (La::Vpickve2grBu, 15),
            Mnemonic::Pextrw => (La::Vpickve2grHu, 7),
            Mnemonic::Pextrd | Mnemonic::Extractps => (La::Vpickve2grWu, 3),
            _ => (La::Vpickve2grD, 1),
        };
        let which = i32::from(i.immediate8()) & mask;
        match is_register(&i, 0) {
            Some(d) => {
                let (n, wide) = (number(d), i.mnemonic() == Mnemonic::Pextrq);
                let d = self.define(n);
                self.field_move(op, d, s, which);
                self.defined_wide(n, if wide { Facts::NONE } else { Facts::ZERO_EXTENDED });
            }
            None => {
                let t = self.temporary();
                self.field_move(op, t, s, which);
                self.write(t);
            }
        }
    }

    fn shuffles(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let d = vector(i.op0_register());
        let order = i32::from(i.immediate8());
        match i.mnemonic() {
            Pshufd => {
                let s = self.whole(1);
                self.field_move(La::Vshuf4iW, d, s, order);
            }
            Pshuflw | Pshufhw => {
                let s = self.whole(1);
                let v = self.vector_temporary();
                self.field_move(La::Vshuf4iH, v, s, order);
                self.copy_vector(d, s);
                let half = if i.mnemonic() == Pshuflw { 0 } else { 0x11 };
                self.field_move(La::VextrinsD, d, v, half);
            }
            Shufps => {
                let s = self.whole(1);
                let v = self.vector_temporary();
                self.copy_vector(v, s);
                self.field_move(La::VpermiW, v, d, order);
                self.copy_vector(d, v);
            }
            Shufpd => self.shuffle_doubles(order),
            Movddup => {
                let s = self.whole(1);
                self.field_move(La::VreplveiD, d, s, 0);
            }
            Movshdup | Movsldup => {
                let s = self.whole(1);
                let op = if i.mnemonic() == Movshdup { La::VpackodW } else { La::VpackevW };
                self.assembler.three(op, d, s, s);
            }
            Palignr => self.align(order),
            Pshufb => {
                let s = self.whole(1);
                let (v, w) = (self.vector_temporary(), self.vector_temporary());
                self.field_move(La::VandiB, v, s, 15);
                self.field_move(La::VsltiB, w, s, 0);
                self.assembler.push(Code { d: v, j: d, k: d, a: v, ..Code::new(La::VshufB) });
                self.assembler.three(La::VandnV, d, w, v);
            }
            _ => return false,
        }
        true
    }

    /// SHUFPD.
    fn shuffle_doubles(&mut self, order: i32) {
        let d = vector(self.instruction.op0_register());
        let s = self.whole(1);
        match order & 3 {
            0 => self.assembler.three(La::VilvlD, d, s, d),
            3 => self.assembler.three(La::VilvhD, d, s, d),
            2 => self.field_move(La::VextrinsD, d, s, 0x11),
            _ => {
                let v = self.vector_temporary();
                self.field_move(La::VbsrlV, v, d, 8);
                self.assembler.three(La::VilvlD, d, s, v);
            }
        }
    }

    /// PALIGNR: 16 bytes from `first` on, of the second operand and the first above it.
    fn align(&mut self, first: i32) {
        let d = vector(self.instruction.op0_register());
        let s = self.whole(1);
        let (v, w) = (self.vector_temporary(), self.vector_temporary());
        match first {
            0..16 => {
                self.field_move(La::VbsrlV, v, s, first);
                if first == 0 {
                    return self.copy_vector(d, v);
                }
                self.field_move(La::VbsllV, w, d, 16 - first);
                self.assembler.three(La::VorV, d, v, w);
            }
            16..32 => self.field_move(La::VbsrlV, d, d, first - 16),
            _ => self.copy_vector(d, ZERO_VECTOR),
        }
    }

    fn packs(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let op = match i.mnemonic() {
            Packsswb => La::VssraniBH,
            Packuswb => La::VssraniBuH,
            Packssdw => La::VssraniHW,
            Packusdw => La::VssraniHuW,
            _ => return self.pairs() || self.sums(),
        };
        let d = vector(i.op0_register());
        let s = self.whole(1);
        let v = self.vector_temporary();
        self.copy_vector(v, s);
        self.field_move(op, v, d, 0);
        self.copy_vector(d, v);
        true
    }

    /// Sums and differences of neighbours.
    fn pairs(&mut self) -> bool {
        let i = self.instruction;
        let Some((even, odd, op)) = neighbours(i.mnemonic()) else { return false };
        let d = vector(i.op0_register());
        let s = self.whole(1);
        let (v, w) = (self.vector_temporary(), self.vector_temporary());
        self.assembler.three(even, v, s, d);
        self.assembler.three(odd, w, s, d);
        self.assembler.three(op, d, v, w);
        true
    }

    /// Products, sums of products and of differences, signs.
    fn sums(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let d = vector(i.op0_register());
        match i.mnemonic() {
            Pmaddwd => {
                let s = self.whole(1);
                let v = self.vector_temporary();
                self.assembler.three(La::VmulwevWH, v, d, s);
                self.assembler.three(La::VmaddwodWH, v, d, s);
                self.copy_vector(d, v);
            }
            Pmaddubsw => {
                let s = self.whole(1);
                let (v, w) = (self.vector_temporary(), self.vector_temporary());
                self.assembler.three(La::VmulwevHBuB, v, d, s);
                self.assembler.three(La::VmulwodHBuB, w, d, s);
                self.assembler.three(La::VsaddH, d, v, w);
            }
            Pmulhrsw => {
                let s = self.whole(1);
                let (v, w) = (self.vector_temporary(), self.vector_temporary());
                self.assembler.three(La::VmulwevWH, v, d, s);
                self.assembler.three(La::VmulwodWH, w, d, s);
                self.field_move(La::VsrariW, v, v, 15);
                self.field_move(La::VsrariW, w, w, 15);
                self.assembler.three(La::VpackevH, d, w, v);
            }
            Psadbw => {
                let s = self.whole(1);
                let v = self.vector_temporary();
                self.assembler.three(La::VabsdBu, v, d, s);
                self.assembler.three(La::VhaddwHuBu, v, v, v);
                self.assembler.three(La::VhaddwWuHu, v, v, v);
                self.assembler.three(La::VhaddwDuWu, d, v, v);
            }
            Pabsb | Pabsw | Pabsd => {
                let s = self.whole(1);
                let v = self.vector_temporary();
                let (subtract, greater) = match i.mnemonic() {
                    Pabsb => (La::VsubB, La::VmaxB),
                    Pabsw => (La::VsubH, La::VmaxH),
                    _ => (La::VsubW, La::VmaxW),
                };
                self.assembler.three(subtract, v, ZERO_VECTOR, s);
                self.assembler.three(greater, d, s, v);
            }
            Psignb | Psignw | Psignd => {
                let s = self.whole(1);
                let op = match i.mnemonic() {
                    Psignb => La::VsigncovB,
                    Psignw => La::VsigncovH,
                    _ => La::VsigncovW,
                };
                self.assembler.three(op, d, s, d);
            }
            Addsubps | Addsubpd => self.subtract_and_add(),
            _ => return false,
        }
        true
    }

    /// ADDSUBPS and ADDSUBPD: differences of the even elements, sums of the odd ones.
    fn subtract_and_add(&mut self) {
        let i = self.instruction;
        let d = vector(i.op0_register());
        let s = self.whole(1);
        let (v, w) = (self.vector_temporary(), self.vector_temporary());
        let double = i.mnemonic() == Mnemonic::Addsubpd;
        let (add, subtract) = if double { (La::VfaddD, La::VfsubD) } else { (La::VfaddS, La::VfsubS) };
        self.assembler.three(subtract, v, d, s);
        self.assembler.three(add, w, d, s);
        if double {
            self.field_move(La::VextrinsD, v, w, 0x11);
        } else {
            self.field_move(La::VextrinsW, v, w, 0x11);
            self.field_move(La::VextrinsW, v, w, 0x33);
        }
        self.copy_vector(d, v);
    }

    fn shifts(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let d = vector(i.op0_register());
        if matches!(i.mnemonic(), Pslldq | Psrldq) {
            let count = i32::from(i.immediate8());
            let op = if i.mnemonic() == Pslldq { La::VbsllV } else { La::VbsrlV };
            if count > 15 {
                self.copy_vector(d, ZERO_VECTOR);
            } else {
                self.field_move(op, d, d, count);
            }
            return true;
        }
        let (known, by_register, bits, arithmetic) = match i.mnemonic() {
            Psllw => (La::VslliH, La::VsllH, 16, false),
            Pslld => (La::VslliW, La::VsllW, 32, false),
            Psllq => (La::VslliD, La::VsllD, 64, false),
            Psrlw => (La::VsrliH, La::VsrlH, 16, false),
            Psrld => (La::VsrliW, La::VsrlW, 32, false),
            Psrlq => (La::VsrliD, La::VsrlD, 64, false),
            Psraw => (La::VsraiH, La::VsraH, 16, true),
            Psrad => (La::VsraiW, La::VsraW, 32, true),
            _ => return false,
        };
        if i.op1_kind() == OpKind::Immediate8 {
            let count = i32::from(i.immediate8());
            match count {
                _ if count < bits => self.field_move(known, d, d, count),
                _ if arithmetic => self.field_move(known, d, d, bits - 1),
                _ => self.copy_vector(d, ZERO_VECTOR),
            }
            return true;
        }
        let s = self.whole(1);
        let (t, u) = (self.temporary(), self.temporary());
        let v = self.vector_temporary();
        self.field_move(La::Vpickve2grD, t, s, 0);
        self.assembler.immediate(La::Sltui, u, t, bits);
        let fill = match bits {
            16 => La::Vreplgr2vrH,
            32 => La::Vreplgr2vrW,
            _ => La::Vreplgr2vrD,
        };
        if arithmetic {
            self.assembler.constant(SCRATCH, i64::from(bits - 1));
            self.assembler.three(La::Maskeqz, t, t, u);
            self.assembler.three(La::Masknez, SCRATCH, SCRATCH, u);
            self.assembler.three(La::Or, t, t, SCRATCH);
            self.assembler.two(fill, v, t);
            self.assembler.three(by_register, d, d, v);
        } else {
            self.assembler.two(fill, v, t);
            self.assembler.three(by_register, d, d, v);
            self.assembler.three(La::SubD, u, 0, u);
            self.assembler.two(La::Vreplgr2vrD, v, u);
            self.assembler.three(La::VandV, d, d, v);
        }
        true
    }

    fn floats(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let d = vector(i.op0_register());
        match i.mnemonic() {
            Minps | Maxps | Minpd | Maxpd => {
                let s = self.whole(1);
                let v = self.vector_temporary();
                let op = if matches!(i.mnemonic(), Minps | Maxps) { La::VfcmpCltS } else { La::VfcmpCltD };
                let (j, k) = if matches!(i.mnemonic(), Minps | Minpd) { (d, s) } else { (s, d) };
                self.assembler.three(op, v, j, k);
                self.assembler.push(Code { d, j: s, k: d, a: v, ..Code::new(La::VbitselV) });
            }
            Cmpps | Cmppd => {
                let s = self.whole(1);
                self.compare_vectors(d, d, s, i.immediate8(), i.mnemonic() == Cmppd);
            }
            Cvtps2pd => {
                let s = self.whole(1);
                self.assembler.two(La::VfcvtlDS, d, s);
            }
            Cvtpd2ps => {
                let s = self.whole(1);
                self.assembler.three(La::VfcvtSD, d, ZERO_VECTOR, s);
            }
            Cvtdq2pd => {
                let s = self.whole(1);
                self.assembler.two(La::VffintlDW, d, s);
            }
            Cvttps2dq | Cvtps2dq => self.integers_of_singles(),
            Cvttpd2dq | Cvtpd2dq => self.integers_of_doubles(),
            Roundps | Roundpd => {
                let s = self.whole(1);
                let op = rounding(i.immediate8(), i.mnemonic() == Roundpd);
                self.assembler.two(op, d, s);
            }
            _ => return false,
        }
        true
    }

    /// CVTPS2DQ and CVTTPS2DQ.
    fn integers_of_singles(&mut self) {
        let i = self.instruction;
        let s = self.whole(1);
        let (v, w) = (self.vector_temporary(), self.vector_temporary());
        // What is not below 2^31 becomes the smallest number; what is too small LoongArch makes that by itself.
        self.assembler.immediate(La::Lu12iW, SCRATCH, 0, 0x4f000);
        self.assembler.two(La::Vreplgr2vrW, w, SCRATCH);
        self.assembler.three(La::VfcmpCuleS, w, w, s);
        let op = if i.mnemonic() == Mnemonic::Cvttps2dq { La::VftintrzWS } else { La::VftintWS };
        self.assembler.two(op, v, s);
        self.smallest(vector(i.op0_register()), v, w);
    }

    /// CVTPD2DQ and CVTTPD2DQ.
    fn integers_of_doubles(&mut self) {
        let i = self.instruction;
        let s = self.whole(1);
        let (v, w) = (self.vector_temporary(), self.vector_temporary());
        let op = if i.mnemonic() == Mnemonic::Cvttpd2dq { La::VftintrzWD } else { La::VftintWD };
        self.assembler.three(op, v, ZERO_VECTOR, s);
        // The largest number stands for what is too large as well: it is told by comparing.
        let t = self.temporary();
        self.assembler.constant(t, 0x41df_ffff_ffe0_0000);
        self.assembler.two(La::Vreplgr2vrD, w, t);
        self.assembler.three(La::VfcmpCuleD, w, w, s);
        self.assembler.three(La::VpickevW, w, ZERO_VECTOR, w);
        self.smallest(vector(i.op0_register()), v, w);
    }

    /// `d` becomes `v`, but the smallest word where `w` is all ones.
    fn smallest(&mut self, d: u8, v: u8, w: u8) {
        self.assembler.immediate(La::Lu12iW, SCRATCH, 0, -0x80000);
        let x = self.vector_temporary();
        self.assembler.two(La::Vreplgr2vrW, x, SCRATCH);
        self.assembler.push(Code { d, j: v, k: x, a: w, ..Code::new(La::VbitselV) });
    }

    /// PTEST: only flags come of it.
    fn test_bits(&mut self) {
        let d = vector(self.instruction.op0_register());
        let s = self.whole(1);
        let v = self.vector_temporary();
        let live = self.live;
        for (flag, op, register) in
            [(RflagsBits::ZF, La::VandV, NOT_ZERO), (RflagsBits::CF, La::VandnV, CARRY)]
        {
            if live & flag != 0 {
                self.assembler.three(op, v, d, s);
                self.field_move(La::Vpickve2grD, register, v, 0);
                self.field_move(La::Vpickve2grD, SCRATCH, v, 1);
                self.assembler.three(La::Or, register, register, SCRATCH);
            }
        }
        if live & RflagsBits::CF != 0 {
            self.assembler.immediate(La::Sltui, CARRY, CARRY, 1);
        }
        if live & RflagsBits::PF != 0 {
            self.assembler.immediate(La::Ori, PARITY, 0, 1);
        }
        for (flag, register) in [(RflagsBits::OF, OVERFLOW), (RflagsBits::SF, SIGN), (RflagsBits::AF, ADJUST)]
        {
            if live & flag != 0 {
                self.assembler.copy(register, 0);
            }
        }
    }

    /// SSE4.
    fn newer(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let d = vector(i.op0_register());
        match i.mnemonic() {
            Ptest => self.test_bits(),
            Pblendvb | Blendvps | Blendvpd => {
                let s = self.whole(1);
                let v = self.vector_temporary();
                let op = match i.mnemonic() {
                    Pblendvb => La::VsltiB,
                    Blendvps => La::VsltiW,
                    _ => La::VsltiD,
                };
                self.field_move(op, v, vector(Register::XMM0), 0);
                self.assembler.push(Code { d, j: d, k: s, a: v, ..Code::new(La::VbitselV) });
            }
            Blendps | Blendpd | Pblendw => {
                let s = self.whole(1);
                let (op, count) = match i.mnemonic() {
                    Blendps => (La::VextrinsW, 4),
                    Blendpd => (La::VextrinsD, 2),
                    _ => (La::VextrinsH, 8),
                };
                for lane in (0..count).filter(|lane| i.immediate8() >> lane & 1 != 0) {
                    self.field_move(op, d, s, lane << 4 | lane);
                }
            }
            Insertps => {
                let order = i32::from(i.immediate8());
                let from = if is_register(&i, 1).is_some() { order >> 6 & 3 } else { 0 };
                let s = self.whole(1);
                self.field_move(La::VextrinsW, d, s, (order >> 4 & 3) << 4 | from);
                for lane in (0..4).filter(|lane| order >> lane & 1 != 0) {
                    self.field_move(La::Vinsgr2vrW, d, 0, lane);
                }
            }
            _ => {
                let Some(steps) = table::widening(i.mnemonic()) else { return false };
                let mut s = self.whole(1);
                for op in steps {
                    self.field_move(*op, d, s, 0);
                    s = d;
                }
            }
        }
        true
    }
}
