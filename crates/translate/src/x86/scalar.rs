//! Scalar floating point of SSE and SSE2, and moves between general and vector registers.
//! Not whole vectors. The upper part of a destination stays as x86 has it, which LoongArch leaves open.
//! Source: Intel SDM, volume 2; LoongArch Reference Manual, volume 1, chapter 3.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use longma_loongarch::{Instruction as Code, Op as La};

use super::lower::{Lowering, is_register};
use super::operands::Extension;
use super::registers::*;

/// Arithmetic of two scalars or one.
fn arithmetic(mnemonic: Mnemonic) -> Option<(La, bool, bool)> {
    use Mnemonic::*;
    Some(match mnemonic {
        Addsd => (La::FaddD, true, true),
        Subsd => (La::FsubD, true, true),
        Mulsd => (La::FmulD, true, true),
        Divsd => (La::FdivD, true, true),
        Sqrtsd => (La::FsqrtD, true, false),
        Addss => (La::FaddS, false, true),
        Subss => (La::FsubS, false, true),
        Mulss => (La::FmulS, false, true),
        Divss => (La::FdivS, false, true),
        Sqrtss => (La::FsqrtS, false, false),
        _ => return None,
    })
}

fn is_vector(register: Option<Register>) -> bool {
    register.is_some_and(Register::is_xmm)
}

/// Whether it has an operand of MMX.
pub(super) fn has_mmx(i: &Instruction) -> bool {
    (0..i.op_count()).any(|n| is_register(i, n).is_some_and(Register::is_mm))
}

impl Lowering<'_> {
    /// The low part of a vector register or memory as a floating-point register.
    pub fn float(&mut self, operand: u32, is_double: bool) -> u8 {
        let i = self.instruction;
        if let Some(register) = is_register(&i, operand) {
            return vector(register);
        }
        let t = self.temporary();
        let place = self.place(t);
        let v = self.vector_temporary();
        let (near, sum) = if is_double { (La::FldD, La::FldxD) } else { (La::FldS, La::FldxS) };
        self.access(near, sum, v, place);
        v
    }

    /// The operands of a comparison.
    pub fn float_operands(&mut self, is_double: bool) -> (u8, u8) {
        let a = self.float(0, is_double);
        (a, self.float(1, is_double))
    }

    /// Puts the low part of `from` into `d`, whose rest stays.
    pub fn merge(&mut self, d: u8, from: u8, is_double: bool) {
        let op = if is_double { La::VextrinsD } else { La::VextrinsW };
        self.assembler.immediate(op, d, from, 0);
    }

    /// Translates an instruction on scalars, or says that it is none of this file's.
    pub fn scalar(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        if has_mmx(&i) {
            return false;
        }
        if let Some((op, is_double, two)) = arithmetic(i.mnemonic()) {
            let d = vector(i.op0_register());
            let s = self.float(1, is_double);
            let v = self.vector_temporary();
            if two {
                self.assembler.three(op, v, d, s);
            } else {
                self.assembler.two(op, v, s);
            }
            self.merge(d, v, is_double);
            return true;
        }
        match i.mnemonic() {
            Movsd | Movss => self.move_scalar(),
            Movq | Movd => self.move_bits(),
            Minsd | Maxsd | Minss | Maxss => self.least_or_most(),
            Ucomisd | Comisd | Ucomiss | Comiss => {
                let is_double = matches!(i.mnemonic(), Ucomisd | Comisd);
                let (a, b) = self.float_operands(is_double);
                self.float_flags(a, b, is_double);
            }
            Cvtsi2sd | Cvtsi2ss => self.integer_to_float(),
            Cvttsd2si | Cvtsd2si | Cvttss2si | Cvtss2si => self.float_to_integer(),
            Cvtss2sd => self.unary(La::FcvtDS, false, true),
            Cvtsd2ss => self.unary(La::FcvtSD, true, false),
            Roundsd | Roundss => return self.round_scalar(),
            Cmpsd | Cmpss => return self.compare_scalar(),
            Movmskpd => self.mask(La::VmskltzD),
            Movmskps => self.mask(La::VmskltzW),
            Pmovmskb => self.mask(La::VmskltzB),
            _ => return false,
        }
        true
    }

    fn unary(&mut self, op: La, from_double: bool, to_double: bool) {
        let d = vector(self.instruction.op0_register());
        let s = self.float(1, from_double);
        let v = self.vector_temporary();
        self.assembler.two(op, v, s);
        self.merge(d, v, to_double);
    }

    fn mask(&mut self, op: La) {
        let i = self.instruction;
        let v = self.vector_temporary();
        self.assembler.two(op, v, vector(i.op1_register()));
        let d = general(i.op0_register());
        self.assembler.immediate(La::Vpickve2grWu, d, v, 0);
    }

    fn move_scalar(&mut self) {
        let i = self.instruction;
        let is_double = i.mnemonic() == Mnemonic::Movsd;
        match (is_register(&i, 0), is_register(&i, 1)) {
            (Some(d), Some(s)) => self.merge(vector(d), vector(s), is_double),
            (Some(d), None) => self.load_low(vector(d), is_double),
            (None, _) => self.store_low(vector(i.op1_register()), is_double),
        }
    }

    /// Loads a scalar and clears what is above.
    pub fn load_low(&mut self, d: u8, is_double: bool) {
        if is_double {
            let v = self.float(1, true);
            self.assembler.three(La::VpackevD, d, ZERO_VECTOR, v);
        } else {
            let t = self.temporary();
            let place = self.place(t);
            self.load_to(t, place, 4, Extension::Zero);
            self.assembler.two(La::Movgr2frD, d, t);
            self.assembler.three(La::VpackevD, d, ZERO_VECTOR, d);
        }
    }

    /// Stores the low part of a register.
    pub fn store_low(&mut self, v: u8, is_double: bool) {
        let t = self.temporary();
        let place = self.place(t);
        let (near, sum) = if is_double { (La::FstD, La::FstxD) } else { (La::FstS, La::FstxS) };
        self.access(near, sum, v, place);
    }

    /// MOVD and MOVQ.
    fn move_bits(&mut self) {
        let i = self.instruction;
        let (to, from) = (is_register(&i, 0), is_register(&i, 1));
        let wide = i.mnemonic() == Mnemonic::Movq
            || to.is_some_and(Register::is_gpr64)
            || from.is_some_and(Register::is_gpr64);
        if is_vector(to) {
            let d = vector(i.op0_register());
            match from {
                Some(s) if s.is_xmm() => self.assembler.three(La::VpackevD, d, ZERO_VECTOR, vector(s)),
                Some(s) => {
                    let s = self.read_register(s, Extension::Zero);
                    self.assembler.two(La::Movgr2frD, d, s);
                    self.assembler.three(La::VpackevD, d, ZERO_VECTOR, d);
                }
                None => self.load_low(d, wide),
            }
            return;
        }
        let s = vector(i.op1_register());
        match to {
            Some(d) if wide => self.assembler.two(La::Movfr2grD, general(d), s),
            Some(d) => self.assembler.immediate(La::Vpickve2grWu, general(d), s, 0),
            None => self.store_low(s, wide),
        }
    }

    /// The second operand is the result unless the first one is truly less or greater.
    fn least_or_most(&mut self) {
        use Mnemonic::*;
        let i = self.instruction;
        let is_double = matches!(i.mnemonic(), Minsd | Maxsd);
        let d = vector(i.op0_register());
        let s = self.float(1, is_double);
        let (j, k) = if matches!(i.mnemonic(), Minsd | Minss) { (d, s) } else { (s, d) };
        self.assembler.three(if is_double { La::FcmpCltD } else { La::FcmpCltS }, 0, j, k);
        let v = self.vector_temporary();
        self.assembler.push(Code { d: v, j: s, k: d, a: 0, ..Code::new(La::Fsel) });
        self.merge(d, v, is_double);
    }

    fn integer_to_float(&mut self) {
        let i = self.instruction;
        let is_double = i.mnemonic() == Mnemonic::Cvtsi2sd;
        let wide = self.bytes_of(1) == 8;
        let d = vector(i.op0_register());
        let s = self.read(1, if wide { Extension::Any } else { Extension::Sign });
        let v = self.vector_temporary();
        self.assembler.two(La::Movgr2frD, v, s);
        self.assembler.two(if is_double { La::FfintDL } else { La::FfintSL }, v, v);
        self.merge(d, v, is_double);
    }

    /// What does not fit becomes the smallest number.
    fn float_to_integer(&mut self) {
        use Mnemonic::*;
        let i = self.instruction;
        let is_double = matches!(i.mnemonic(), Cvttsd2si | Cvtsd2si);
        let truncates = matches!(i.mnemonic(), Cvttsd2si | Cvttss2si);
        let wide = self.bytes_of(0) == 8;
        let s = self.float(1, is_double);
        let v = self.vector_temporary();
        let op = match (is_double, truncates) {
            (true, true) => La::FtintrzLD,
            (true, false) => La::FtintLD,
            (false, true) => La::FtintrzLS,
            (false, false) => La::FtintLS,
        };
        self.assembler.two(op, v, s);
        let (t, u, limit) = (self.temporary(), self.temporary(), self.temporary());
        self.assembler.two(La::Movfr2grD, t, v);
        self.assembler.three(if is_double { La::FcmpCunD } else { La::FcmpCunS }, 0, s, s);
        self.assembler.two(La::Movcf2gr, u, 0);
        if wide {
            // LoongArch gives the largest number for what is too large, and zero for what is no number.
            self.assembler.immediate(La::Lu52iD, limit, 0, -2048);
            self.assembler.immediate(La::AddiD, SCRATCH, limit, -1);
            self.assembler.three(La::Xor, SCRATCH, SCRATCH, t);
            self.assembler.immediate(La::Sltui, SCRATCH, SCRATCH, 1);
        } else {
            self.assembler.immediate(La::Lu12iW, limit, 0, -0x80000);
            self.assembler.immediate(La::SlliW, SCRATCH, t, 0);
            self.assembler.three(La::Xor, SCRATCH, SCRATCH, t);
        }
        self.assembler.three(La::Or, u, u, SCRATCH);
        self.assembler.three(La::Maskeqz, limit, limit, u);
        self.assembler.three(La::Masknez, t, t, u);
        self.assembler.three(La::Or, t, t, limit);
        self.write_register(i.op0_register(), t);
    }

    fn round_scalar(&mut self) -> bool {
        let i = self.instruction;
        let is_double = i.mnemonic() == Mnemonic::Roundsd;
        let d = vector(i.op0_register());
        let s = self.float(1, is_double);
        let v = self.vector_temporary();
        let op = match (i.immediate8() & 7, is_double) {
            (0, true) => La::VfrintrneD,
            (1, true) => La::VfrintrmD,
            (2, true) => La::VfrintrpD,
            (3, true) => La::VfrintrzD,
            (_, true) => La::FrintD,
            (0, false) => La::VfrintrneS,
            (1, false) => La::VfrintrmS,
            (2, false) => La::VfrintrpS,
            (3, false) => La::VfrintrzS,
            (_, false) => La::FrintS,
        };
        self.assembler.two(op, v, s);
        self.merge(d, v, is_double);
        true
    }

    fn compare_scalar(&mut self) -> bool {
        let i = self.instruction;
        if i.is_string_instruction() || i.op0_kind() != OpKind::Register {
            return false;
        }
        let is_double = i.mnemonic() == Mnemonic::Cmpsd;
        let d = vector(i.op0_register());
        let s = self.float(1, is_double);
        let v = self.vector_temporary();
        self.compare_vectors(v, d, s, i.immediate8(), is_double);
        self.merge(d, v, is_double);
        true
    }

    /// A comparison of vectors by the number of its predicate.
    pub fn compare_vectors(&mut self, v: u8, d: u8, s: u8, predicate: u8, is_double: bool) {
        let (single, double, j, k) = match predicate & 7 {
            0 => (La::VfcmpCeqS, La::VfcmpCeqD, d, s),
            1 => (La::VfcmpCltS, La::VfcmpCltD, d, s),
            2 => (La::VfcmpCleS, La::VfcmpCleD, d, s),
            3 => (La::VfcmpCunS, La::VfcmpCunD, d, s),
            4 => (La::VfcmpCuneS, La::VfcmpCuneD, d, s),
            5 => (La::VfcmpCuleS, La::VfcmpCuleD, s, d),
            6 => (La::VfcmpCultS, La::VfcmpCultD, s, d),
            _ => (La::VfcmpCorS, La::VfcmpCorD, d, s),
        };
        self.assembler.three(if is_double { double } else { single }, v, j, k);
    }
}
