//! Vector instructions of SSE to SSE4.2: moves, integers, floating point, shuffles. `table` lists those with an
//! equivalent LoongArch instruction. Source: Intel SDM, volume 2; LoongArch Reference Manual, LSX volume.

use iced_x86::{Mnemonic, OpKind, Register, RflagsBits};
use longma_loongarch::Op as La;

use super::forms::number;
use super::known::Facts;
use super::lower::{Lowering, is_register};
use super::operands::Extension;
use super::scalar::has_mmx;
use super::table::{self, Order};
use super::vex::{first, last};
use crate::registers::*;

/// Horizontal instructions: the LoongArch instructions that select even and odd elements, and the operation.
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

impl Lowering<'_> {
    /// The register of the first source.
    pub fn first_source(&self) -> u8 {
        vector(self.instruction.op_register(first(&self.instruction)))
    }

    /// The register of the first source, or 0 if it is not a register.
    fn first_source_if_vector(&self) -> u8 {
        is_register(&self.instruction, first(&self.instruction)).map_or(0, vector)
    }

    /// The register of the last source.
    pub fn source(&mut self) -> u8 {
        self.whole(last(&self.instruction))
    }

    /// A register with the value of a vector operand.
    pub fn whole(&mut self, operand: u32) -> u8 {
        let i = self.instruction;
        if let Some(register) = is_register(&i, operand) {
            return vector(register);
        }
        let t = self.temporary();
        let location = self.place(t);
        let v = self.vector_temporary();
        match i.memory_size().size() {
            16 => self.access(self.aligned(La::Vld), self.aligned(La::Vldx), v, location),
            32 => self.access(self.aligned(La::Xvld), self.aligned(La::Xvldx), v, location),
            8 => self.access(La::FldD, La::FldxD, v, location),
            4 => self.access(La::FldS, La::FldxS, v, location),
            _ => {
                self.load_to(t, location, 2, Extension::Zero);
                self.vectors_two(La::Movgr2frD, v, t);
            }
        }
        v
    }

    /// Copies a vector.
    pub fn copy_vector(&mut self, d: u8, from: u8) {
        if d != from {
            self.vectors(La::VorV, d, from, from);
        }
    }

    /// Translates a vector instruction. Returns false for others.
    pub fn vector(&mut self) -> bool {
        let i = self.instruction;
        if has_mmx(&i)
            || !(0..i.op_count()).any(|n| is_register(&i, n).is_some_and(|r| r.is_xmm() || r.is_ymm()))
        {
            return false;
        }
        if let Some((op, order)) = table::binary(self.mnemonic()) {
            let d = vector(i.op0_register());
            let (a, s) = (self.first_source(), self.source());
            match order {
                Order::Straight => self.vectors(op, d, a, s),
                Order::Swapped => self.vectors(op, d, s, a),
            }
            return true;
        }
        if let Some(op) = table::unary(self.mnemonic()) {
            let d = vector(i.op0_register());
            let s = self.source();
            self.vectors_two(op, d, s);
            return true;
        }
        self.moves()
            || self.shuffles()
            || self.packs()
            || self.shifts()
            || self.floats()
            || self.cryptography()
            || self.newer()
    }

    fn moves(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        match self.mnemonic() {
            Movaps | Movups | Movapd | Movupd | Movdqa | Movdqu | Lddqu | Movntps | Movntpd | Movntdq
            | Movntdqa => self.move_vector(),
            Movlps | Movlpd => match is_register(&i, 0) {
                Some(d) => {
                    let s = self.float(last(&i), true);
                    let a = self.first_source();
                    self.copy_vector(vector(d), a);
                    self.vectors_by(La::VextrinsD, vector(d), s, 0);
                }
                None => self.store_low(vector(i.op1_register()), true),
            },
            Movhps | Movhpd => match is_register(&i, 0) {
                Some(d) => {
                    let s = self.float(last(&i), true);
                    let a = self.first_source();
                    self.vectors(La::VpackevD, vector(d), s, a);
                }
                None => {
                    let t = self.temporary();
                    let location = self.place(t);
                    let value = self.temporary();
                    self.vectors_by(La::Vpickve2grD, value, vector(i.op1_register()), 1);
                    self.store_from(value, location, 8);
                }
            },
            Movhlps => {
                let (d, a, s) = (vector(i.op0_register()), self.first_source(), self.source());
                self.vectors(La::VilvhD, d, a, s);
            }
            Movlhps => {
                let (d, a, s) = (vector(i.op0_register()), self.first_source(), self.source());
                self.vectors(La::VilvlD, d, s, a);
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
        let location = self.place(t);
        match is_register(&i, 0) {
            Some(d) => self.access_vector(La::Vld, La::Vldx, vector(d), location),
            None => self.access_vector(La::Vst, La::Vstx, vector(i.op1_register()), location),
        }
    }

    fn insert_element(&mut self) {
        let i = self.instruction;
        let d = vector(i.op0_register());
        let s = self.read(last(&i), Extension::Any);
        let (op, mask) = match self.mnemonic() {
            Mnemonic::Pinsrb => (La::Vinsgr2vrB, 15),
            Mnemonic::Pinsrw => (La::Vinsgr2vrH, 7),
            Mnemonic::Pinsrd => (La::Vinsgr2vrW, 3),
            _ => (La::Vinsgr2vrD, 1),
        };
        let a = self.first_source();
        self.copy_vector(d, a);
        self.vectors_by(op, d, s, i32::from(i.immediate8()) & mask);
    }

    fn extract_element(&mut self) {
        let i = self.instruction;
        let s = vector(i.op1_register());
        let (op, mask) = match self.mnemonic() {
            Mnemonic::Pextrb => (La::Vpickve2grBu, 15),
            Mnemonic::Pextrw => (La::Vpickve2grHu, 7),
            Mnemonic::Pextrd | Mnemonic::Extractps => (La::Vpickve2grWu, 3),
            _ => (La::Vpickve2grD, 1),
        };
        let lane = i32::from(i.immediate8()) & mask;
        match is_register(&i, 0) {
            Some(d) => {
                let (n, wide) = (number(d), self.mnemonic() == Mnemonic::Pextrq);
                let d = self.define(n);
                self.vectors_by(op, d, s, lane);
                self.defined_wide(n, if wide { Facts::NONE } else { Facts::ZERO_EXTENDED });
            }
            None => {
                let t = self.temporary();
                self.vectors_by(op, t, s, lane);
                self.write(t);
            }
        }
    }

    fn shuffles(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let d = vector(i.op0_register());
        let order = i32::from(i.immediate8());
        match self.mnemonic() {
            Pshufd => {
                let s = self.source();
                self.vectors_by(La::Vshuf4iW, d, s, order);
            }
            Pshuflw | Pshufhw => {
                let s = self.source();
                let v = self.vector_temporary();
                self.vectors_by(La::Vshuf4iH, v, s, order);
                self.copy_vector(d, s);
                let half = if self.mnemonic() == Pshuflw { 0 } else { 0x11 };
                self.vectors_by(La::VextrinsD, d, v, half);
            }
            Shufps => {
                let s = self.source();
                let v = self.vector_temporary();
                let a = self.first_source();
                self.copy_vector(v, s);
                self.vectors_by(La::VpermiW, v, a, order);
                self.copy_vector(d, v);
            }
            Shufpd => self.shuffle_doubles(order),
            Movddup => {
                let s = self.source();
                self.vectors_by(La::VreplveiD, d, s, 0);
            }
            Movshdup | Movsldup => {
                let s = self.source();
                let op = if self.mnemonic() == Movshdup { La::VpackodW } else { La::VpackevW };
                self.vectors(op, d, s, s);
            }
            Palignr => self.align(order),
            Pshufb => {
                let s = self.source();
                let (v, w) = (self.vector_temporary(), self.vector_temporary());
                let a = self.first_source();
                self.vectors_by(La::VandiB, v, s, 15);
                self.vectors_by(La::VsltiB, w, s, 0);
                self.vectors_four(La::VshufB, v, [a, a, v]);
                self.vectors(La::VandnV, d, w, v);
            }
            _ => return false,
        }
        true
    }

    /// SHUFPD.
    fn shuffle_doubles(&mut self, order: i32) {
        let d = vector(self.instruction.op0_register());
        let (a, s) = (self.first_source(), self.source());
        match order & 3 {
            0 => self.vectors(La::VilvlD, d, s, a),
            3 => self.vectors(La::VilvhD, d, s, a),
            2 if d == s && d != a => self.vectors_by(La::VextrinsD, d, a, 0),
            2 => {
                self.copy_vector(d, a);
                self.vectors_by(La::VextrinsD, d, s, 0x11);
            }
            _ => {
                let v = self.vector_temporary();
                self.vectors_by(La::VbsrlV, v, a, 8);
                self.vectors(La::VilvlD, d, s, v);
            }
        }
    }

    /// PALIGNR: 16 bytes from byte `by` on of the second source, with the first source above it.
    fn align(&mut self, by: i32) {
        let d = vector(self.instruction.op0_register());
        let (a, s) = (self.first_source(), self.source());
        let (v, w) = (self.vector_temporary(), self.vector_temporary());
        match by {
            0 => self.copy_vector(d, s),
            1..16 => {
                self.vectors_by(La::VbsrlV, v, s, by);
                self.vectors_by(La::VbsllV, w, a, 16 - by);
                self.vectors(La::VorV, d, v, w);
            }
            16..32 => self.vectors_by(La::VbsrlV, d, a, by - 16),
            _ => self.copy_vector(d, ZERO_VECTOR),
        }
    }

    fn packs(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let op = match self.mnemonic() {
            Packsswb => La::VssraniBH,
            Packuswb => La::VssraniBuH,
            Packssdw => La::VssraniHW,
            Packusdw => La::VssraniHuW,
            _ => return self.pairs() || self.sums(),
        };
        let d = vector(i.op0_register());
        let s = self.source();
        let v = self.vector_temporary();
        let a = self.first_source();
        self.copy_vector(v, s);
        self.vectors_by(op, v, a, 0);
        self.copy_vector(d, v);
        true
    }

    /// Horizontal additions and subtractions.
    fn pairs(&mut self) -> bool {
        let i = self.instruction;
        let Some((even, odd, op)) = neighbours(self.mnemonic()) else { return false };
        let d = vector(i.op0_register());
        let s = self.source();
        let (v, w) = (self.vector_temporary(), self.vector_temporary());
        let a = self.first_source();
        self.vectors(even, v, s, a);
        self.vectors(odd, w, s, a);
        self.vectors(op, d, v, w);
        true
    }

    /// Multiplications, multiply-adds, sums of absolute differences, signs.
    fn sums(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let (d, a) = (vector(i.op0_register()), self.first_source_if_vector());
        match self.mnemonic() {
            Pmaddwd => {
                let s = self.source();
                let v = self.vector_temporary();
                self.vectors(La::VmulwevWH, v, a, s);
                self.vectors(La::VmaddwodWH, v, a, s);
                self.copy_vector(d, v);
            }
            Pmaddubsw => {
                let s = self.source();
                let (v, w) = (self.vector_temporary(), self.vector_temporary());
                self.vectors(La::VmulwevHBuB, v, a, s);
                self.vectors(La::VmulwodHBuB, w, a, s);
                self.vectors(La::VsaddH, d, v, w);
            }
            Pmulhrsw => {
                let s = self.source();
                let (v, w) = (self.vector_temporary(), self.vector_temporary());
                self.vectors(La::VmulwevWH, v, a, s);
                self.vectors(La::VmulwodWH, w, a, s);
                self.vectors_by(La::VsrariW, v, v, 15);
                self.vectors_by(La::VsrariW, w, w, 15);
                self.vectors(La::VpackevH, d, w, v);
            }
            Psadbw => {
                let s = self.source();
                let v = self.vector_temporary();
                self.vectors(La::VabsdBu, v, a, s);
                self.vectors(La::VhaddwHuBu, v, v, v);
                self.vectors(La::VhaddwWuHu, v, v, v);
                self.vectors(La::VhaddwDuWu, d, v, v);
            }
            Pabsb | Pabsw | Pabsd => {
                let s = self.source();
                let v = self.vector_temporary();
                let (subtract, greater) = match self.mnemonic() {
                    Pabsb => (La::VsubB, La::VmaxB),
                    Pabsw => (La::VsubH, La::VmaxH),
                    _ => (La::VsubW, La::VmaxW),
                };
                self.vectors(subtract, v, ZERO_VECTOR, s);
                self.vectors(greater, d, s, v);
            }
            Psignb | Psignw | Psignd => {
                let s = self.source();
                let op = match self.mnemonic() {
                    Psignb => La::VsigncovB,
                    Psignw => La::VsigncovH,
                    _ => La::VsigncovW,
                };
                self.vectors(op, d, s, a);
            }
            Addsubps | Addsubpd => self.subtract_and_add(),
            _ => return false,
        }
        true
    }

    /// ADDSUBPS and ADDSUBPD: subtract even elements and add odd ones. The other elements are left out, because they
    /// might raise exceptions.
    fn subtract_and_add(&mut self) {
        let i = self.instruction;
        let d = vector(i.op0_register());
        let (a, s) = (self.first_source(), self.source());
        let [v, w, x] = [(); 3].map(|()| self.vector_temporary());
        let ops = if self.mnemonic() == Mnemonic::Addsubpd {
            [La::VpackevD, La::VpackodD, La::VfsubD, La::VfaddD]
        } else {
            [La::VpackevW, La::VpackodW, La::VfsubS, La::VfaddS]
        };
        let [even, odd, subtract, add] = ops;
        self.vectors(even, v, a, a);
        self.vectors(even, w, s, s);
        self.vectors(subtract, v, v, w);
        self.vectors(odd, w, a, a);
        self.vectors(odd, x, s, s);
        self.vectors(add, w, w, x);
        self.vectors(even, v, w, v);
        self.copy_vector(d, v);
    }

    fn shifts(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let d = vector(i.op0_register());
        let a = self.first_source_if_vector();
        if matches!(self.mnemonic(), Pslldq | Psrldq) {
            let count = i32::from(i.immediate8());
            let op = if self.mnemonic() == Pslldq { La::VbsllV } else { La::VbsrlV };
            if count > 15 {
                self.copy_vector(d, ZERO_VECTOR);
            } else {
                self.vectors_by(op, d, a, count);
            }
            return true;
        }
        let (constant_op, variable_op, bits, arithmetic) = match self.mnemonic() {
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
        if i.op_kind(last(&i)) == OpKind::Immediate8 {
            let count = i32::from(i.immediate8());
            match count {
                _ if count < bits => self.vectors_by(constant_op, d, a, count),
                _ if arithmetic => self.vectors_by(constant_op, d, a, bits - 1),
                _ => self.copy_vector(d, ZERO_VECTOR),
            }
            return true;
        }
        let s = self.source();
        let (t, u) = (self.temporary(), self.temporary());
        let v = self.vector_temporary();
        self.vectors_by(La::Vpickve2grD, t, s, 0);
        self.assembler.immediate(La::Sltui, u, t, bits);
        let fill = match bits {
            16 => La::Vreplgr2vrH,
            32 => La::Vreplgr2vrW,
            _ => La::Vreplgr2vrD,
        };
        if arithmetic {
            self.assembler.constant(SCRATCH, i64::from(bits - 1));
            self.vectors(La::Maskeqz, t, t, u);
            self.vectors(La::Masknez, SCRATCH, SCRATCH, u);
            self.vectors(La::Or, t, t, SCRATCH);
            self.vectors_two(fill, v, t);
            self.vectors(variable_op, d, a, v);
        } else {
            self.vectors_two(fill, v, t);
            self.vectors(variable_op, d, a, v);
            self.vectors(La::SubD, u, 0, u);
            self.vectors_two(La::Vreplgr2vrD, v, u);
            self.vectors(La::VandV, d, d, v);
        }
        true
    }

    fn floats(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let d = vector(i.op0_register());
        match self.mnemonic() {
            Minps | Maxps | Minpd | Maxpd => self.min_max_vector(),
            Cmpps | Cmppd => {
                let s = self.source();
                let a = self.first_source();
                self.compare_vectors(d, a, s, i.immediate8(), self.mnemonic() == Cmppd);
            }
            Cvtps2pd => {
                let s = self.source();
                self.vectors_two(La::VfcvtlDS, d, s);
            }
            Cvtpd2ps => {
                let s = self.source();
                self.vectors(La::VfcvtSD, d, ZERO_VECTOR, s);
            }
            Cvtdq2pd => {
                let s = self.source();
                self.vectors_two(La::VffintlDW, d, s);
            }
            Cvttps2dq | Cvtps2dq => self.integers_of_singles(),
            Cvttpd2dq | Cvtpd2dq => self.integers_of_doubles(),
            Roundps | Roundpd => {
                let s = self.source();
                self.round_vector(d, s, self.mnemonic() == Roundpd);
            }
            _ => return false,
        }
        true
    }

    /// CVTPS2DQ and CVTTPS2DQ.
    fn integers_of_singles(&mut self) {
        let s = self.source();
        let op = if self.mnemonic() == Mnemonic::Cvttps2dq { La::VftintrzWS } else { La::VftintWS };
        self.vectors_two(op, vector(self.instruction.op0_register()), s);
    }

    /// CVTPD2DQ and CVTTPD2DQ, for each half separately.
    pub fn integers_of_doubles(&mut self) {
        let s = self.source();
        let op = if self.mnemonic() == Mnemonic::Cvttpd2dq { La::VftintrzWD } else { La::VftintWD };
        self.vectors(op, vector(self.instruction.op0_register()), ZERO_VECTOR, s);
    }

    /// Blends: selects elements of `s` where `order` has a bit, and of `a` elsewhere. Copies the source with more
    /// elements first.
    pub fn blend(&mut self, op: La, count: i32, [d, a, s]: [u8; 3], order: u32) {
        let all = (1u32 << count) - 1;
        let order = order & all;
        let is_swapped = d != a && (d == s || order.count_ones() > (order ^ all).count_ones());
        let (base, other, order) = if is_swapped { (s, a, order ^ all) } else { (a, s, order) };
        self.copy_vector(d, base);
        for lane in (0..count).filter(|lane| order >> lane & 1 != 0) {
            self.vectors_by(op, d, other, lane << 4 | lane);
        }
    }

    /// PTEST, which only sets flags.
    fn test_bits(&mut self) {
        let i = self.instruction;
        let d = vector(i.op0_register());
        let s = self.source();
        let v = self.vector_temporary();
        let live = self.live;
        for (flag, op, register) in
            [(RflagsBits::ZF, La::VandV, NOT_ZERO), (RflagsBits::CF, La::VandnV, CARRY)]
        {
            if live & flag != 0 {
                self.vectors(op, v, d, s);
                match i.mnemonic() {
                    Mnemonic::Vtestps => self.vectors_two(La::VmskltzW, v, v),
                    Mnemonic::Vtestpd => self.vectors_two(La::VmskltzD, v, v),
                    _ => {}
                }
                let is_zero = register == CARRY;
                self.vectors_two(if is_zero { La::VseteqzV } else { La::VsetnezV }, 0, v);
                self.assembler.two(La::Movcf2gr, register, 0);
            }
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

    /// SSE4 instructions.
    fn newer(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let d = vector(i.op0_register());
        match self.mnemonic() {
            Ptest | Vtestps | Vtestpd => self.test_bits(),
            Pblendvb | Blendvps | Blendvpd => {
                let s = self.source();
                let v = self.vector_temporary();
                let op = match self.mnemonic() {
                    Pblendvb => La::VsltiB,
                    Blendvps => La::VsltiW,
                    _ => La::VsltiD,
                };
                let mask = if i.op_count() == 4 { i.op3_register() } else { Register::XMM0 };
                let a = self.first_source();
                self.vectors_by(op, v, vector(mask), 0);
                self.vectors_four(La::VbitselV, d, [a, s, v]);
            }
            Blendps | Blendpd | Pblendw => {
                let s = self.source();
                let (op, count) = match self.mnemonic() {
                    Blendps => (La::VextrinsW, 4),
                    Blendpd => (La::VextrinsD, 2),
                    _ => (La::VextrinsH, 8),
                };
                let (order, a) = (u32::from(i.immediate8()), self.first_source());
                self.blend(op, count, [d, a, s], order);
            }
            Insertps => {
                let order = i32::from(i.immediate8());
                let from = if is_register(&i, last(&i)).is_some() { order >> 6 & 3 } else { 0 };
                let s = self.source();
                let (a, v) = (self.first_source(), self.vector_temporary());
                let to = if d == a { d } else { v };
                self.copy_vector(to, a);
                self.vectors_by(La::VextrinsW, to, s, (order >> 4 & 3) << 4 | from);
                self.copy_vector(d, to);
                for lane in (0..4).filter(|lane| order >> lane & 1 != 0) {
                    self.vectors_by(La::Vinsgr2vrW, d, 0, lane);
                }
            }
            _ => {
                let Some(steps) = table::widening(self.mnemonic()) else { return false };
                let mut s = self.source();
                for op in steps {
                    self.vectors_by(*op, d, s, 0);
                    s = d;
                }
            }
        }
        true
    }
}
