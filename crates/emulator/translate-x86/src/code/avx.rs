//! Instructions that are new with AVX and AVX2, and those that work across the two halves of 256 bits. Source: Intel
//! SDM, volume 2; LoongArch Reference Manual, LASX volume.

use iced_x86::{Mnemonic, OpKind, Register};
use longma_loongarch::Op as La;

use super::known::Upper;
use super::lower::{Lowering, is_register};
use super::operands::OperandLocation;
use super::uses::Uses;
use super::vex::{first, wide};
use crate::registers::*;

/// The immediate of `xvpermi.q d, j`. Halves 0 and 1 are those of j, 2 and 3 those of d.
const fn halves(low: i32, high: i32) -> i32 {
    high << 4 | low
}

/// `xvpermi.d` order that moves doubleword 1 to the upper 128-bit half, for instructions that widen the lower half of
/// each 128-bit half.
const SPREAD: i32 = 0b00_01_00_00;
/// `xvpermi.d` order that packs the lower doublewords of both halves.
const GATHER: i32 = 0b00_00_10_00;

/// The element size in bytes of a broadcast.
fn broadcast(mnemonic: Mnemonic) -> Option<usize> {
    use Mnemonic::*;
    Some(match mnemonic {
        Vpbroadcastb => 1,
        Vpbroadcastw => 2,
        Vpbroadcastd | Vbroadcastss => 4,
        Vpbroadcastq | Vbroadcastsd => 8,
        Vbroadcastf128 | Vbroadcasti128 => 16,
        _ => return None,
    })
}

/// The LoongArch instruction that widens 128 bits to 256.
fn widening(mnemonic: Mnemonic) -> Option<La> {
    use Mnemonic::*;
    Some(match mnemonic {
        Vpmovsxbw => La::Vext2xvHB,
        Vpmovsxbd => La::Vext2xvWB,
        Vpmovsxbq => La::Vext2xvDB,
        Vpmovsxwd => La::Vext2xvWH,
        Vpmovsxwq => La::Vext2xvDH,
        Vpmovsxdq => La::Vext2xvDW,
        Vpmovzxbw => La::Vext2xvHuBu,
        Vpmovzxbd => La::Vext2xvWuBu,
        Vpmovzxbq => La::Vext2xvDuBu,
        Vpmovzxwd => La::Vext2xvWuHu,
        Vpmovzxwq => La::Vext2xvDuHu,
        Vpmovzxdq => La::Vext2xvDuWu,
        Vcvtps2pd => La::XvfcvtlDS,
        Vcvtdq2pd => La::XvffintlDW,
        _ => return None,
    })
}

impl Lowering<'_> {
    /// Translates a VEX-encoded instruction.
    pub fn extended(&mut self, used: &Uses) {
        if self.general_extended() || self.clears_uppers() {
            return;
        }
        let i = self.instruction;
        if self.is_executed_by_engine() {
            return self.serve();
        }
        let is_wide = |operand| is_register(&i, operand).is_some_and(Register::is_ymm);
        self.is_wide = (0..i.op_count()).any(is_wide) || i.memory_size().size() == 32;
        let d = is_register(&i, 0).filter(|d| used.vectors_written >> (d.number() & 15) & 1 != 0);
        let d = d.filter(|d| d.is_vector_register());
        let upper = if is_wide(0) && !self.is_zeroing_vector() { Upper::Above } else { Upper::Zero };
        let wide = self.wide_operands();
        if self.scalar_in_place() {
            if let Some(d) = d {
                self.known.set_upper(d.number(), upper);
            }
            return;
        }
        for v in (0..16).filter(|v| used.reads.vectors >> v & 1 != 0) {
            if wide >> v & 1 != 0 { self.complete_wide(v) } else { self.complete(v) }
        }
        if self.avx() || self.vector() || self.scalar() {
            if let Some(d) = d {
                (self.known.valid[d.number()], self.known.used[d.number()]) = (16, 16);
                self.known.set_upper(d.number(), upper);
            }
        } else {
            self.serve();
        }
    }

    /// VZEROUPPER and VZEROALL.
    pub fn clears_uppers(&mut self) -> bool {
        match self.instruction.mnemonic() {
            Mnemonic::Vzeroupper => {}
            Mnemonic::Vzeroall => {
                for v in 0..16 {
                    self.assembler.three(La::VxorV, 16 + v as u8, ZERO_VECTOR, ZERO_VECTOR);
                    (self.known.valid[v], self.known.used[v]) = (16, 0);
                }
            }
            _ => return false,
        }
        (0..16).for_each(|v| self.known.set_upper(v, Upper::Zero));
        true
    }

    /// A mask of YMM operands whose upper half the instruction does not read.
    pub fn half_read(&self) -> u16 {
        let i = &self.instruction;
        let inserts = matches!(i.mnemonic(), Mnemonic::Vinsertf128 | Mnemonic::Vinserti128);
        let only_low = inserts && i.immediate8() & 1 != 0;
        let extracts = matches!(i.mnemonic(), Mnemonic::Vextractf128 | Mnemonic::Vextracti128);
        if only_low || extracts && i.immediate8() & 1 == 0 { 1 << i.op1_register().number() } else { 0 }
    }

    /// Translates an instruction that is new with AVX or crosses halves. Returns false for others.
    pub fn avx(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        if let Some(bytes) = broadcast(i.mnemonic()) {
            self.broadcast(bytes);
            return true;
        }
        if let Some(op) = widening(i.mnemonic()).filter(|_| self.is_wide) {
            self.widen(op);
            return true;
        }
        match i.mnemonic() {
            Vblendps | Vpblendd => self.blend_halves(La::VextrinsW, 4),
            Vblendpd => self.blend_halves(La::VextrinsD, 2),
            Vextractf128 | Vextracti128 => self.extract_half(),
            Vinsertf128 | Vinserti128 => self.insert_half(),
            Vperm2f128 | Vperm2i128 => self.permute_halves(),
            Vpermq | Vpermpd => {
                let s = self.whole(1);
                self.assembler.immediate(La::XvpermiD, vector(i.op0_register()), s, i.immediate8().into());
            }
            Vpermd | Vpermps => {
                let s = self.whole(2);
                self.assembler.three(La::XvpermW, vector(i.op0_register()), s, vector(i.op1_register()));
            }
            Vpermilps | Vpermilpd => self.permute_within(),
            Vshufpd if self.is_wide => return self.shuffle_wide_doubles(),
            Vpsllvd | Vpsrlvd | Vpsllvq | Vpsrlvq | Vpsravd => self.shift_each(),
            Vcvtpd2ps if self.is_wide => {
                let s = self.whole(1);
                let v = self.vector_temporary();
                self.assembler.three(La::XvfcvtSD, v, ZERO_VECTOR, s);
                self.assembler.immediate(La::XvpermiD, vector(i.op0_register()), v, GATHER);
            }
            Vcvtpd2dq | Vcvttpd2dq if self.is_wide => {
                self.integers_of_doubles();
                let d = vector(i.op0_register());
                self.assembler.immediate(La::XvpermiD, d, d, GATHER);
            }
            _ => return self.fused_multiplication() || self.masked(),
        }
        true
    }

    fn broadcast(&mut self, bytes: usize) {
        let i = self.instruction;
        let d = vector(i.op0_register());
        let load = match bytes {
            1 => La::VldreplB,
            2 => La::VldreplH,
            4 => La::VldreplW,
            _ => La::VldreplD,
        };
        let Some(s) = is_register(&i, 1).map(vector) else {
            let t = self.temporary();
            let location = self.place(t);
            if bytes == 16 {
                self.access(La::Vld, La::Vldx, d, location);
                return self.assembler.immediate(La::XvpermiQ, d, d, halves(0, 0));
            }
            let load = if self.is_wide { wide(load) } else { load };
            return match location {
                OperandLocation::Near(base, offset) if offset % bytes as i32 == 0 => {
                    self.assembler.immediate(load, d, base, offset);
                }
                location => {
                    self.address_into(t, location);
                    self.assembler.immediate(load, d, t, 0);
                }
            };
        };
        let (narrow, wide) = match bytes {
            1 => (La::VreplveiB, La::Xvreplve0B),
            2 => (La::VreplveiH, La::Xvreplve0H),
            4 => (La::VreplveiW, La::Xvreplve0W),
            _ => (La::VreplveiD, La::Xvreplve0D),
        };
        if self.is_wide {
            self.assembler.two(wide, d, s);
        } else {
            self.assembler.immediate(narrow, d, s, 0);
        }
    }

    fn widen(&mut self, op: La) {
        let d = vector(self.instruction.op0_register());
        let s = self.whole(1);
        if matches!(op, La::XvfcvtlDS | La::XvffintlDW) {
            let v = self.vector_temporary();
            self.assembler.immediate(La::XvpermiD, v, s, SPREAD);
            self.assembler.two(op, d, v);
        } else {
            self.assembler.two(op, d, s);
        }
    }

    /// A blend whose halves have separate masks for `count` elements each.
    fn blend_halves(&mut self, op: La, count: i32) {
        let i = self.instruction;
        let d = vector(i.op0_register());
        let (a, s) = (self.first_source(), self.source());
        let all = (1u32 << count) - 1;
        let (low, high) = (u32::from(i.immediate8()) & all, u32::from(i.immediate8()) >> count & all);
        if !self.is_wide || low == high {
            return self.blend(op, count, [d, a, s], low);
        }
        let low = self.blended(op, count, [a, s], low);
        let high = self.blended(op, count, [a, s], high);
        // Combine the lower half of one register with the upper half of the other.
        if d == high && d != low {
            self.assembler.immediate(La::XvpermiQ, d, low, halves(0, 3));
        } else {
            if d != low {
                self.copy_vector(d, low);
            }
            self.assembler.immediate(La::XvpermiQ, d, high, halves(2, 1));
        }
    }

    /// Returns a register whose halves both contain the blend with mask `order`. If the mask selects only one source,
    /// returns its register.
    fn blended(&mut self, op: La, count: i32, [a, s]: [u8; 2], order: u32) -> u8 {
        if order == 0 {
            return a;
        }
        if order == (1 << count) - 1 {
            return s;
        }
        let v = self.vector_temporary();
        self.blend(op, count, [v, a, s], order);
        v
    }

    /// VEXTRACTF128.
    fn extract_half(&mut self) {
        let i = self.instruction;
        let s = vector(i.op1_register());
        let is_high = i.immediate8() & 1 != 0;
        if let Some(d) = is_register(&i, 0).map(vector) {
            if is_high {
                self.assembler.immediate(La::XvpermiQ, d, s, halves(1, 1));
            } else {
                self.assembler.three(La::VorV, d, s, s);
            }
            return;
        }
        let t = self.temporary();
        let location = self.place(t);
        let from = if is_high {
            let v = self.vector_temporary();
            self.assembler.immediate(La::XvpermiQ, v, s, halves(1, 1));
            v
        } else {
            s
        };
        self.access(La::Vst, La::Vstx, from, location);
    }

    /// VINSERTF128.
    fn insert_half(&mut self) {
        let i = self.instruction;
        let (d, a) = (vector(i.op0_register()), vector(i.op1_register()));
        let s = self.whole(2);
        let is_high = i.immediate8() & 1 != 0;
        if d == s && d != a {
            let order = if is_high { halves(0, 2) } else { halves(2, 1) };
            return self.assembler.immediate(La::XvpermiQ, d, a, order);
        }
        self.copy_vector(d, a);
        self.assembler.immediate(La::XvpermiQ, d, s, if is_high { halves(2, 0) } else { halves(0, 3) });
    }

    /// VPERM2F128.
    fn permute_halves(&mut self) {
        let i = self.instruction;
        let d = vector(i.op0_register());
        let (a, s) = (self.first_source(), self.source());
        let order = i32::from(i.immediate8());
        let v = if d == a && d != s { d } else { self.vector_temporary() };
        self.copy_vector(v, a);
        // `v` holds the first source, so its halves are 2 and 3.
        self.assembler.immediate(La::XvpermiQ, v, s, halves(order & 3 ^ 2, order >> 4 & 3 ^ 2));
        let nonzero_half = match (order & 8 != 0, order & 0x80 != 0) {
            (false, false) => None,
            (true, false) => Some(halves(0, 3)),
            (false, true) => Some(halves(2, 0)),
            (true, true) => Some(halves(0, 0)),
        };
        if let Some(nonzero_half) = nonzero_half {
            self.assembler.immediate(La::XvpermiQ, v, ZERO_VECTOR, nonzero_half);
        }
        self.copy_vector(d, v);
    }

    /// VPERMILPS and VPERMILPD.
    fn permute_within(&mut self) {
        let i = self.instruction;
        let d = vector(i.op0_register());
        let double = i.mnemonic() == Mnemonic::Vpermilpd;
        if i.op_kind(2) == OpKind::Immediate8 {
            let s = self.whole(1);
            let order = i32::from(i.immediate8());
            if !double {
                return self.vectors_by(La::Vshuf4iW, d, s, order);
            }
            let words = |order: i32| [0x44, 0x4e, 0xe4, 0xee][order as usize & 3];
            if !self.is_wide || order & 3 == order >> 2 & 3 {
                return self.vectors_by(La::Vshuf4iW, d, s, words(order));
            }
            let bit = |n: i32| order >> n & 1;
            let order = bit(0) | bit(1) << 2 | (2 | bit(2)) << 4 | (2 | bit(3)) << 6;
            return self.assembler.immediate(La::XvpermiD, d, s, order);
        }
        let (a, s) = (self.first_source(), self.source());
        let v = self.vector_temporary();
        if double {
            self.vectors_by(La::VsrliD, v, s, 1);
            self.vectors_by(La::VslliD, v, v, 63);
            self.vectors_by(La::VsrliD, v, v, 63);
            self.vectors(La::VshufD, v, a, a);
        } else {
            self.vectors_by(La::VslliW, v, s, 30);
            self.vectors_by(La::VsrliW, v, v, 30);
            self.vectors(La::VshufW, v, a, a);
        }
        self.copy_vector(d, v);
    }

    /// VSHUFPD of 256 bits if its halves differ. Returns false otherwise.
    fn shuffle_wide_doubles(&mut self) -> bool {
        let i = self.instruction;
        let order = i32::from(i.immediate8());
        if order & 3 == order >> 2 & 3 {
            return false;
        }
        let (a, s) = (self.first_source(), self.source());
        let (v, w) = (self.vector_temporary(), self.vector_temporary());
        let bit = |n: i32| order >> n & 1;
        self.assembler.immediate(La::XvpermiD, v, a, bit(0) | (2 | bit(2)) << 4);
        self.assembler.immediate(La::XvpermiD, w, s, bit(1) | (2 | bit(3)) << 4);
        self.assembler.three(La::XvpackevD, vector(i.op0_register()), w, v);
        true
    }

    /// Shifts with a count for each element. LoongArch uses only the low bits of a count, so counts that exceed the
    /// element size are handled separately.
    fn shift_each(&mut self) {
        use Mnemonic::*;
        let i = self.instruction;
        let d = vector(i.op0_register());
        let (a, s) = (self.first_source(), self.source());
        let v = self.vector_temporary();
        let (op, double) = match i.mnemonic() {
            Vpsravd => {
                self.vectors_by(La::VminiWu, v, s, 31);
                return self.vectors(La::VsraW, d, a, v);
            }
            Vpsllvd => (La::VsllW, false),
            Vpsrlvd => (La::VsrlW, false),
            Vpsllvq => (La::VsllD, true),
            _ => (La::VsrlD, true),
        };
        if double {
            self.vectors_by(La::VsrliD, v, s, 6);
            self.vectors_by(La::VseqiD, v, v, 0);
        } else {
            self.vectors_by(La::VsleiWu, v, s, 31);
        }
        let w = self.vector_temporary();
        self.vectors(op, w, a, s);
        self.vectors(La::VandV, d, w, v);
    }

    /// Whether the engine executes the instruction.
    pub fn is_executed_by_engine(&self) -> bool {
        use Mnemonic::*;
        let i = &self.instruction;
        let is_gather = i.is_vsib() && i.memory_base().size() != 8;
        is_gather
            || matches!(
                i.mnemonic(),
                Vmaskmovdqu
                    | Vmpsadbw
                    | Vdpps
                    | Vdppd
                    | Vphminposuw
                    | Vpcmpestri
                    | Vpcmpestri64
                    | Vpcmpestrm
                    | Vpcmpestrm64
                    | Vpcmpistri
                    | Vpcmpistrm
                    | Vcvtph2ps
                    | Vcvtps2ph
                    | Vldmxcsr
                    | Vstmxcsr
                    | Vrcpps
                    | Vrcpss
                    | Vrsqrtps
                    | Vrsqrtss
            )
    }

    /// A mask of operands of which the instruction reads all 256 bits.
    pub fn wide_operands(&self) -> u16 {
        let i = &self.instruction;
        let named = (first(i)..i.op_count()).chain([0]);
        let wide = named.filter_map(|n| is_register(i, n).filter(|register| Register::is_ymm(*register)));
        let index = i.memory_index();
        let of_index = if index.is_ymm() { 1 << index.number() } else { 0 };
        wide.fold(of_index, |set: u16, register| set | 1 << register.number()) & !self.half_read()
    }
}
