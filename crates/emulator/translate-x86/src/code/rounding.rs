//! Minimum, maximum and rounding to integral numbers. Source: Intel SDM, volume 2 (MINPD, MINSD, ROUNDPD, ROUNDSD);
//! volume 1, section 10.2.3.4 (subnormal operands counted as zeros).

use iced_x86::Mnemonic;
use longma_loongarch::{Instruction as Code, Op as La};

use super::compared::signalling;
use super::lower::Lowering;
use super::vex::{first, last};
use crate::registers::*;

/// Bit 3 of the immediate: inexact results are not recorded.
const NEVER_INEXACT: u8 = 8;

/// The LoongArch instruction that rounds in the mode selected by the immediate.
fn rounding(mode: u8, is_double: bool) -> La {
    match (mode & 7, is_double) {
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
    /// Rounds the elements of `s`.
    pub(super) fn round_vector(&mut self, d: u8, s: u8, is_double: bool) {
        let immediate = self.instruction.immediate8();
        if immediate & NEVER_INEXACT == 0 {
            return self.vectors_two(rounding(immediate, is_double), d, s);
        }
        // The rounding mode in the encoding of FCSR, or 4 for the current mode.
        let mode = if immediate & 4 != 0 { 4 } else { [0, 3, 2, 1][usize::from(immediate & 3)] };
        self.vectors_by(if is_double { La::VfrintDExact } else { La::VfrintSExact }, d, s, mode);
    }

    /// ROUNDSD and ROUNDSS.
    pub(super) fn round_scalar(&mut self) -> bool {
        let i = self.instruction;
        let is_double = self.mnemonic() == Mnemonic::Roundsd;
        let d = vector(i.op0_register());
        let s = self.float(last(&i), is_double);
        let v = self.vector_temporary();
        // The other elements must not raise exceptions.
        self.assembler.immediate(if is_double { La::VreplveiD } else { La::VreplveiW }, v, s, 0);
        match i.immediate8() & (NEVER_INEXACT | 4) {
            4 => self.assembler.two(if is_double { La::FrintD } else { La::FrintS }, v, v),
            _ => self.round_vector(v, v, is_double),
        }
        self.take_first();
        self.merge(d, v, is_double);
        true
    }

    /// MINSD, MAXSD and their variants: the result is the second operand unless the first is strictly less or greater.
    pub(super) fn min_max_scalar(&mut self) {
        use Mnemonic::*;
        let i = self.instruction;
        let is_double = matches!(self.mnemonic(), Minsd | Maxsd);
        let register = i.op0_register();
        let s = self.float(last(&i), is_double);
        let d = self.low(i.op_register(first(&i)), is_double);
        let (j, k) = if matches!(self.mnemonic(), Minsd | Minss) { (d, s) } else { (s, d) };
        let op = signalling(if is_double { La::FcmpCltD } else { La::FcmpCltS });
        self.assembler.three(op, 0, j, k);
        if self.reachable.options.exact_floats {
            let v = self.vector_temporary();
            self.assembler.push(Code { d: v, j: s, k: d, a: 0, ..Code::new(La::Fsel) });
            self.flush_subnormals(v, is_double);
            self.take_first();
            return self.merge(vector(register), v, is_double);
        }
        let result = self.result(register, is_double);
        self.assembler.push(Code { d: result.0, j: s, k: d, a: 0, ..Code::new(La::Fsel) });
        self.finish(register, result, is_double);
    }

    /// MINPS, MAXPS, MINPD and MAXPD.
    pub(super) fn min_max_vector(&mut self) {
        use Mnemonic::*;
        let d = vector(self.instruction.op0_register());
        let is_double = matches!(self.mnemonic(), Minpd | Maxpd);
        let s = self.source();
        let v = self.vector_temporary();
        let op = signalling(if is_double { La::VfcmpCltD } else { La::VfcmpCltS });
        let a = self.first_source();
        let (j, k) = if matches!(self.mnemonic(), Minps | Minpd) { (a, s) } else { (s, a) };
        self.vectors(op, v, j, k);
        self.vectors_four(La::VbitselV, d, [s, a, v]);
        if self.reachable.options.exact_floats {
            self.flush_subnormals(d, is_double);
        }
    }

    /// Replaces subnormal elements by zeros of the same sign if MXCSR requires that. Code that has not been translated
    /// with `exact_floats` never runs with that mode, so its minima and maxima need not do this.
    fn flush_subnormals(&mut self, v: u8, is_double: bool) {
        let t = self.vector_temporary();
        let (left, right, equal, fraction) = if is_double {
            (La::VslliD, La::VsrliD, La::VseqiD, 53)
        } else {
            (La::VslliW, La::VsrliW, La::VseqiW, 24)
        };
        let mode = self.temporary();
        // A mask of all bits but the sign for elements whose exponent is zero.
        self.vectors_by(left, t, v, 1);
        self.vectors_by(right, t, t, fraction);
        self.vectors_by(equal, t, t, 0);
        self.vectors_by(right, t, t, 1);
        // The mask is empty unless subnormal operands are treated as zeros.
        self.assembler.two(La::Movscr2gr, mode, SSE_CONTROL);
        self.assembler.immediate(La::SlliD, mode, mode, 63 - ZERO_SUBNORMALS);
        self.assembler.immediate(La::SraiD, mode, mode, 63);
        let w = self.vector_temporary();
        self.vectors_two(La::Vreplgr2vrD, w, mode);
        self.vectors(La::VandV, t, t, w);
        self.vectors(La::VandnV, v, t, v);
    }
}
