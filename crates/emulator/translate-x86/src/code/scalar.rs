//! Scalar floating-point instructions of SSE and SSE2, and moves between general and vector registers. The upper part
//! of a destination is preserved as on x86, whereas LoongArch leaves it undefined. Source: Intel SDM, volume 2;
//! LoongArch Reference Manual, volume 1, chapter 3.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use longma_loongarch::{Instruction as Code, Op as La};

use super::compared::{is_signalling, scalar, signalling};
use super::forms::number;
use super::known::Facts;
use super::lower::{Lowering, is_register};
use super::operands::Extension;
use super::vex::{first, is_vex, last};
use crate::registers::*;

/// The LoongArch instruction of scalar arithmetic, whether it is double, and whether it has two sources.
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

/// The size of a scalar in bytes.
const fn size_of(is_double: bool) -> u8 {
    if is_double { 8 } else { 4 }
}

fn is_vector(register: Option<Register>) -> bool {
    register.is_some_and(Register::is_xmm)
}

/// Whether the instruction has an MMX operand.
pub(super) fn has_mmx(i: &Instruction) -> bool {
    (0..i.op_count()).any(|n| is_register(i, n).is_some_and(Register::is_mm))
}

impl Lowering<'_> {
    /// A floating-point register with the low part of a vector register or memory operand.
    pub fn float(&mut self, operand: u32, is_double: bool) -> u8 {
        let i = self.instruction;
        if let Some(register) = is_register(&i, operand) {
            return self.low(register, is_double);
        }
        let t = self.temporary();
        let location = self.place(t);
        let v = self.vector_temporary();
        let (offset_op, sum_op) = if is_double { (La::FldD, La::FldxD) } else { (La::FldS, La::FldxS) };
        self.access(offset_op, sum_op, v, location);
        v
    }

    /// A vector register whose low part is valid.
    pub fn low(&mut self, register: Register, is_double: bool) -> u8 {
        let v = register.number();
        if self.known.valid[v] < size_of(is_double) {
            self.complete(v);
        }
        vector(register)
    }

    /// Whether the part of vector `v` above the scalar need not be preserved, because it is zero or dead.
    fn is_low_only(&self, v: usize, is_double: bool) -> bool {
        let live = self.live_after();
        let i = &self.instruction;
        let from = is_register(i, first(i)).map_or(v, Register::number);
        self.known.used[from] <= size_of(is_double) || is_double && live.whole >> v & 1 == 0
    }

    /// The register to compute the low part of a vector in, and whether it must be merged into the vector afterwards.
    pub fn result(&mut self, register: Register, is_double: bool) -> (u8, bool) {
        let v = register.number();
        if self.is_low_only(v, is_double) {
            (vector(register), false)
        } else {
            (self.vector_temporary(), true)
        }
    }

    /// Completes a scalar result that was computed in the register from [`Self::result`].
    pub fn finish(&mut self, register: Register, (at, merges): (u8, bool), is_double: bool) {
        if merges {
            self.take_first();
            self.merge(vector(register), at, is_double);
        } else {
            self.has_low(register, is_double);
        }
    }

    /// Copies the first source to the destination before a part of the destination changes.
    pub fn take_first(&mut self) {
        let i = self.instruction;
        let (d, from) = (i.op0_register(), i.op_register(first(&i)));
        if d != from {
            self.complete(from.number());
            self.copy_vector(vector(d), vector(from));
            self.known.valid[d.number()] = 16;
            self.known.used[d.number()] = self.known.used[from.number()];
        }
    }

    /// Records that only the low part of a vector is valid; the rest is zero.
    fn has_low(&mut self, register: Register, is_double: bool) {
        let v = register.number();
        self.known.valid[v] = size_of(is_double);
        self.known.used[v] = size_of(is_double);
    }

    /// The operands of a comparison.
    pub fn float_operands(&mut self, is_double: bool) -> (u8, u8) {
        let a = self.float(0, is_double);
        (a, self.float(1, is_double))
    }

    /// Inserts the low part of `from` into `d`.
    pub fn merge(&mut self, d: u8, from: u8, is_double: bool) {
        let op = if is_double { La::VextrinsD } else { La::VextrinsW };
        self.assembler.immediate(op, d, from, 0);
    }

    /// Translates a scalar instruction or move that tracks the valid part of vectors. Returns false for others.
    pub fn scalar_in_place(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        if has_mmx(&i) {
            return false;
        }
        let last = last(&i);
        if let Some((op, is_double, two)) = arithmetic(self.mnemonic()) {
            let d = i.op0_register();
            let s = self.float(last, is_double);
            let first = if two { self.low(i.op_register(first(&i)), is_double) } else { 0 };
            let result = self.result(d, is_double);
            if two {
                self.assembler.three(op, result.0, first, s);
            } else {
                self.assembler.two(op, result.0, s);
            }
            self.finish(d, result, is_double);
            return true;
        }
        match self.mnemonic() {
            Movsd | Movss if !i.is_string_instruction() => self.move_scalar(),
            Movq | Movd => self.move_bits(),
            Movaps | Movups | Movapd | Movupd | Movdqa | Movdqu => self.move_whole(),
            Xorps | Xorpd | Pxor if self.is_zeroing_vector() => {
                let d = i.op0_register();
                self.assembler.three(La::VxorV, vector(d), vector(d), vector(d));
                self.known.valid[d.number()] = 16;
                self.known.used[d.number()] = 0;
            }
            Minsd | Maxsd | Minss | Maxss => self.min_max_scalar(),
            Ucomisd | Comisd | Ucomiss | Comiss => {
                let is_double = matches!(self.mnemonic(), Ucomisd | Comisd);
                let (a, b) = self.float_operands(is_double);
                let signals = matches!(self.mnemonic(), Comisd | Comiss);
                self.float_flags(a, b, is_double, signals);
            }
            Cvtsi2sd | Cvtsi2ss => self.integer_to_float(),
            Cvttsd2si | Cvtsd2si | Cvttss2si | Cvtss2si => self.float_to_integer(),
            Cvtss2sd => self.unary(La::FcvtDS, false, true),
            Cvtsd2ss => self.unary(La::FcvtSD, true, false),
            _ => return self.fused_scalars(),
        }
        true
    }

    /// Whether the instruction is a zeroing idiom for vectors.
    pub fn is_zeroing_vector(&self) -> bool {
        use Mnemonic::*;
        let i = &self.instruction;
        matches!(self.mnemonic(), Xorps | Xorpd | Pxor) && is_register(i, first(i)) == is_register(i, last(i))
    }

    /// Translates another scalar instruction, which needs complete vectors. Returns false for others.
    pub fn scalar(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        if has_mmx(&i) {
            return false;
        }
        match self.mnemonic() {
            Roundsd | Roundss => return self.round_scalar(),
            Cmpsd | Cmpss => return self.compare_scalar(),
            Movmskpd => self.mask(La::VmskltzD, 2),
            Movmskps => self.mask(La::VmskltzW, 4),
            Pmovmskb => self.mask(La::VmskltzB, 16),
            _ => return false,
        }
        true
    }

    fn unary(&mut self, op: La, from_double: bool, to_double: bool) {
        let d = self.instruction.op0_register();
        let s = self.float(last(&self.instruction), from_double);
        let result = self.result(d, to_double);
        self.assembler.two(op, result.0, s);
        self.finish(d, result, to_double);
    }

    /// Moves a whole vector.
    fn move_whole(&mut self) {
        let i = self.instruction;
        match (is_register(&i, 0), is_register(&i, 1)) {
            (Some(d), Some(s)) => {
                if self.is_wide {
                    self.complete_wide(s.number());
                }
                let valid = self.known.valid[s.number()];
                if d != s {
                    if valid == 16 {
                        self.vectors(La::VorV, vector(d), vector(s), vector(s));
                    } else {
                        self.assembler.two(La::FmovD, vector(d), vector(s));
                    }
                }
                self.known.valid[d.number()] = valid;
                self.known.used[d.number()] = self.known.used[s.number()];
            }
            (Some(d), None) => {
                let t = self.temporary();
                let location = self.place(t);
                self.access_vector(La::Vld, La::Vldx, vector(d), location);
                self.known.valid[d.number()] = 16;
                self.known.used[d.number()] = 16;
            }
            (None, _) => {
                let s = i.op1_register();
                if self.is_wide {
                    self.complete_wide(s.number());
                } else {
                    self.complete(s.number());
                }
                let t = self.temporary();
                let location = self.place(t);
                self.access_vector(La::Vst, La::Vstx, vector(s), location);
            }
        }
    }

    /// MOVMSKPS, MOVMSKPD and PMOVMSKB: the sign bits of elements, `each` in each half.
    fn mask(&mut self, op: La, each: u8) {
        let i = self.instruction;
        let v = self.vector_temporary();
        self.vectors_two(op, v, vector(i.op1_register()));
        let n = number(i.op0_register());
        let d = self.define(n);
        if self.is_wide {
            self.assembler.immediate(La::Xvpickve2grWu, d, v, 0);
            self.assembler.immediate(La::Xvpickve2grWu, SCRATCH, v, 4);
            self.assembler.field(La::BstrinsD, d, SCRATCH, 2 * each - 1, each);
            self.defined(n, if each == 16 { Facts::ZERO_EXTENDED } else { Facts::of_width(2 * each) });
        } else {
            self.assembler.immediate(La::Vpickve2grWu, d, v, 0);
            self.defined(n, Facts::of_width(16));
        }
    }

    fn move_scalar(&mut self) {
        let i = self.instruction;
        let is_double = self.mnemonic() == Mnemonic::Movsd;
        match (is_register(&i, 0), is_register(&i, last(&i))) {
            (Some(d), Some(s)) => {
                let from = self.low(s, is_double);
                if d == s && first(&i) == 0 {
                } else if d == s && !self.is_low_only(d.number(), is_double) {
                    let v = self.vector_temporary();
                    self.assembler.two(if is_double { La::FmovD } else { La::FmovS }, v, from);
                    self.take_first();
                    self.merge(vector(d), v, is_double);
                } else if self.is_low_only(d.number(), is_double) {
                    self.assembler.two(if is_double { La::FmovD } else { La::FmovS }, vector(d), from);
                    self.has_low(d, is_double);
                } else {
                    self.take_first();
                    self.merge(vector(d), from, is_double);
                }
            }
            (Some(d), None) => self.load_low(d, is_double),
            (None, _) => {
                let s = self.low(i.op1_register(), is_double);
                self.store_low(s, is_double);
            }
        }
    }

    /// Loads a scalar; the rest of the vector is zero.
    fn load_low(&mut self, d: Register, is_double: bool) {
        let t = self.temporary();
        let location = self.place(t);
        let (offset_op, sum_op) = if is_double { (La::FldD, La::FldxD) } else { (La::FldS, La::FldxS) };
        self.access(offset_op, sum_op, vector(d), location);
        self.has_low(d, is_double);
    }

    /// Stores the low part of a register.
    pub fn store_low(&mut self, v: u8, is_double: bool) {
        let t = self.temporary();
        let location = self.place(t);
        let (offset_op, sum_op) = if is_double { (La::FstD, La::FstxD) } else { (La::FstS, La::FstxS) };
        self.access(offset_op, sum_op, v, location);
    }

    /// MOVD and MOVQ.
    fn move_bits(&mut self) {
        let i = self.instruction;
        let (to, from) = (is_register(&i, 0), is_register(&i, 1));
        let wide = self.mnemonic() == Mnemonic::Movq
            || to.is_some_and(Register::is_gpr64)
            || from.is_some_and(Register::is_gpr64);
        if let Some(d) = to.filter(|_| is_vector(to)) {
            match from {
                Some(s) if s.is_xmm() => {
                    let from = self.low(s, true);
                    let valid = self.known.valid[s.number()];
                    let used = self.known.used[s.number()];
                    if d != s || used > 8 {
                        if d != s {
                            self.assembler.two(La::FmovD, vector(d), from);
                        }
                        self.known.valid[d.number()] = valid.min(8);
                        self.known.used[d.number()] = used.clamp(4, 8);
                        if self.known.valid[d.number()] < self.known.used[d.number()] {
                            self.known.valid[d.number()] = self.known.used[d.number()];
                        }
                    }
                }
                Some(s) => {
                    if wide {
                        let s = self.wide(number(s));
                        self.assembler.two(La::Movgr2frD, vector(d), s);
                    } else {
                        let s = self.read_register(s, Extension::Any);
                        self.assembler.two(La::Movgr2frW, vector(d), s);
                    }
                    self.has_low(d, wide);
                }
                None => self.load_low(d, wide),
            }
            return;
        }
        let s = self.low(i.op1_register(), wide);
        match to {
            Some(register) => {
                let n = number(register);
                let d = self.define(n);
                if wide {
                    self.assembler.two(La::Movfr2grD, d, s);
                    self.defined_wide(n, Facts::NONE);
                } else {
                    self.assembler.two(La::Movfr2grS, d, s);
                    self.defined(n, Facts::WORD);
                }
            }
            None => self.store_low(s, wide),
        }
    }

    fn integer_to_float(&mut self) {
        let i = self.instruction;
        let is_double = self.mnemonic() == Mnemonic::Cvtsi2sd;
        let wide = self.bytes_of(last(&i)) == 8;
        let d = i.op0_register();
        let s = self.read(last(&i), Extension::Any);
        let result = self.result(d, is_double);
        let v = result.0;
        let op = match (is_double, wide) {
            (true, true) => La::FfintDL,
            (true, false) => La::FfintDW,
            (false, true) => La::FfintSL,
            (false, false) => La::FfintSW,
        };
        self.assembler.two(if wide { La::Movgr2frD } else { La::Movgr2frW }, v, s);
        self.assembler.two(op, v, v);
        self.finish(d, result, is_double);
    }

    /// Conversions to integers. Numbers that do not fit become the smallest integer (see
    /// [`longma_loongarch::Fcsr::SSE_RULES`]).
    fn float_to_integer(&mut self) {
        use Mnemonic::*;
        let i = self.instruction;
        let is_double = matches!(self.mnemonic(), Cvttsd2si | Cvtsd2si);
        let truncates = matches!(self.mnemonic(), Cvttsd2si | Cvttss2si);
        let wide = self.bytes_of(0) == 8;
        let s = self.float(1, is_double);
        let v = self.vector_temporary();
        let op = match (is_double, truncates, wide) {
            (true, true, true) => La::FtintrzLD,
            (true, false, true) => La::FtintLD,
            (false, true, true) => La::FtintrzLS,
            (false, false, true) => La::FtintLS,
            (true, true, false) => La::FtintrzWD,
            (true, false, false) => La::FtintWD,
            (false, true, false) => La::FtintrzWS,
            (false, false, false) => La::FtintWS,
        };
        self.assembler.two(op, v, s);
        let n = number(i.op0_register());
        let d = self.define(n);
        if wide {
            self.assembler.two(La::Movfr2grD, d, v);
            self.defined_wide(n, Facts::NONE);
        } else {
            self.assembler.two(La::Movfr2grS, d, v);
            self.defined(n, Facts::WORD);
        }
    }

    fn compare_scalar(&mut self) -> bool {
        let i = self.instruction;
        if i.is_string_instruction() || i.op0_kind() != OpKind::Register {
            return false;
        }
        let is_double = self.mnemonic() == Mnemonic::Cmpsd;
        let d = vector(i.op0_register());
        let s = self.float(last(&i), is_double);
        let (v, ones) = (self.vector_temporary(), self.vector_temporary());
        let a = self.first_source();
        // A comparison of whole vectors would raise the exceptions of other elements.
        self.assembler.three(La::VseqB, ones, ZERO_VECTOR, ZERO_VECTOR);
        match self.comparison([a, s], i.immediate8(), is_double) {
            Some((op, j, k)) => {
                self.assembler.three(scalar(op), 0, j, k);
                self.assembler.push(Code { d: v, j: ZERO_VECTOR, k: ones, a: 0, ..Code::new(La::Fsel) });
                self.take_first();
                self.merge(d, v, is_double);
            }
            None => {
                let never = scalar(self.always_false(i.immediate8(), is_double));
                self.assembler.three(never, 0, a, s);
                self.take_first();
                self.merge(d, ones, is_double);
            }
        }
        true
    }

    /// A vector comparison by its predicate. Predicates from 16 on only differ in whether they signal quiet NaNs.
    pub fn compare_vectors(&mut self, v: u8, d: u8, s: u8, predicate: u8, is_double: bool) {
        match self.comparison([d, s], predicate, is_double) {
            Some((op, j, k)) => self.vectors(op, v, j, k),
            None => {
                // The result is always true, but the operands may raise exceptions.
                let never = self.always_false(predicate, is_double);
                let w = self.vector_temporary();
                self.vectors(never, w, d, s);
                self.vectors(La::VseqB, v, ZERO_VECTOR, ZERO_VECTOR);
            }
        }
    }

    /// The comparison that never holds and raises the exceptions of a predicate that always does.
    fn always_false(&self, predicate: u8, is_double: bool) -> La {
        let op = if is_double { La::VfcmpCafD } else { La::VfcmpCafS };
        if is_signalling(predicate & 31) { signalling(op) } else { op }
    }

    /// The comparison for a predicate and its operands; `None` if it always holds.
    fn comparison(&self, [d, s]: [u8; 2], predicate: u8, is_double: bool) -> Option<(La, u8, u8)> {
        let signals = is_signalling(predicate & if is_vex(&self.instruction) { 31 } else { 7 });
        let predicate = predicate & if is_vex(&self.instruction) { 15 } else { 7 };
        let (single, double, j, k) = match predicate {
            0 => (La::VfcmpCeqS, La::VfcmpCeqD, d, s),
            1 => (La::VfcmpCltS, La::VfcmpCltD, d, s),
            2 => (La::VfcmpCleS, La::VfcmpCleD, d, s),
            3 => (La::VfcmpCunS, La::VfcmpCunD, d, s),
            4 => (La::VfcmpCuneS, La::VfcmpCuneD, d, s),
            5 => (La::VfcmpCuleS, La::VfcmpCuleD, s, d),
            6 => (La::VfcmpCultS, La::VfcmpCultD, s, d),
            7 => (La::VfcmpCorS, La::VfcmpCorD, d, s),
            8 => (La::VfcmpCueqS, La::VfcmpCueqD, d, s),
            9 => (La::VfcmpCultS, La::VfcmpCultD, d, s),
            10 => (La::VfcmpCuleS, La::VfcmpCuleD, d, s),
            11 => (La::VfcmpCafS, La::VfcmpCafD, d, s),
            12 => (La::VfcmpCneS, La::VfcmpCneD, d, s),
            13 => (La::VfcmpCleS, La::VfcmpCleD, s, d),
            14 => (La::VfcmpCltS, La::VfcmpCltD, s, d),
            _ => return None,
        };
        let op = if is_double { double } else { single };
        Some((if signals { signalling(op) } else { op }, j, k))
    }
}
