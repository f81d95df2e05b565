//! Dot products and conversions of half precision, which the engine executes. Source: Intel SDM, volume 2 (DPPD, DPPS,
//! VCVTPH2PS, VCVTPS2PH); volume 1, section 4.8.3.5 (NaNs).

use iced_x86::{Mnemonic, OpKind};
use longma_loongarch::Fcsr;
use longma_loongarch::float::{self, Double, ExceptionFlags, Format, Half, RoundingMode, Rules, Single};

use super::vectors::{lane, put_lane};
use super::{Done, Machine, raise};
use crate::code::old;

/// The order of the rounding modes in MXCSR and in immediates.
const MODES: [RoundingMode; 4] =
    [RoundingMode::NearestEven, RoundingMode::Downward, RoundingMode::Upward, RoundingMode::TowardZero];

type Rounded = fn(u64, u64, RoundingMode) -> (u64, ExceptionFlags);

/// The rounding mode and the rules of an instruction, and the exceptions of all its elements.
struct Arithmetic {
    mode: RoundingMode,
    rules: Rules,
    raised: ExceptionFlags,
}

impl Arithmetic {
    /// The result of an operation, or the NaN that SSE returns instead: the first operand that is one, made quiet, or
    /// the default NaN.
    fn of<F: Format>(&mut self, a: u64, b: u64, operation: Rounded) -> u64 {
        let mode = self.mode;
        let (value, raised) = self.rules.apply::<F, F, 2>([a, b], |[a, b]| operation(a, b, mode));
        self.raised |= raised;
        let is_nan = |bits: u64| bits & (F::SIGN - 1) > F::INFINITY;
        match [a, b].into_iter().find(|operand| is_nan(*operand)) {
            Some(nan) => nan | F::QUIET,
            None if is_nan(value) => F::SIGN | F::DEFAULT_NAN,
            None => value,
        }
    }

    /// The sum of the selected products, of neighbours first. Which of two NaNs processors return depends on the form
    /// of the instruction.
    fn dot<F: Format>(&mut self, a: &[u8], b: &[u8], takes: impl Fn(usize) -> bool) -> u64 {
        let size = F::BITS as usize / 8;
        let mut sums: Vec<u64> = (0..16 / size)
            .map(|at| {
                let [a, b] = [a, b].map(|from| lane(from, at, size));
                if takes(at) { self.of::<F>(a, b, float::mul::<F>) } else { 0 }
            })
            .collect();
        if let [a, b, c, d] = sums[..] {
            sums = [[a, b], [c, d]].map(|[a, b]| self.of::<F>(a, b, float::add::<F>)).to_vec();
        }
        self.of::<F>(sums[0], sums[1], float::add::<F>)
    }
}

impl Machine<'_> {
    fn arithmetic(&self) -> Arithmetic {
        let fcsr = self.state.fcsr;
        Arithmetic { mode: fcsr.rounding_mode(), rules: fcsr.rules(), raised: ExceptionFlags::NONE }
    }

    fn record(&mut self, raised: ExceptionFlags) {
        let mut fcsr = Fcsr(0);
        // Nothing traps, since no exception is enabled.
        let _ = fcsr.record(raised);
        let flags = [(20, 0), (21, 1), (19, 2), (18, 3), (17, 4), (16, 5)];
        raise(self.state, flags.into_iter().map(|(from, to)| (fcsr.0 >> from & 1) << to).sum());
    }

    /// DPPS and DPPD.
    pub(super) fn dot_product(&mut self) -> Done {
        let i = self.instruction;
        let [a, b] = self.sources()?;
        let order = i.immediate8();
        let mut arithmetic = self.arithmetic();
        let mut result = [0; 32];
        for half in 0..self.width() / 16 {
            let (a, b, to) = (&a[16 * half..], &b[16 * half..], &mut result[16 * half..16 * half + 16]);
            let takes = |at: usize| order >> (4 + at) & 1 != 0;
            let (sum, size) = if old(&i) == Mnemonic::Dppd {
                (arithmetic.dot::<Double>(a, b, takes), 8)
            } else {
                (arithmetic.dot::<Single>(a, b, takes), 4)
            };
            (0..16 / size).filter(|at| order >> at & 1 != 0).for_each(|at| put_lane(to, at, size, sum));
        }
        self.record(arithmetic.raised);
        self.vector_out(i.op0_register(), &result);
        Ok(())
    }

    /// VCVTPH2PS.
    pub(super) fn widen_halves(&mut self) -> Done {
        let i = self.instruction;
        let source = self.vector_in(1)?;
        let (mut result, mut raised) = ([0; 32], ExceptionFlags::NONE);
        for at in 0..self.width() / 4 {
            let (value, flags) =
                float::convert::<Half, Single>(lane(&source, at, 2), RoundingMode::NearestEven);
            raised |= flags;
            put_lane(&mut result, at, 4, value);
        }
        self.record(raised);
        self.vector_out(i.op0_register(), &result);
        Ok(())
    }

    /// VCVTPS2PH.
    pub(super) fn narrow_to_halves(&mut self) -> Done {
        let i = self.instruction;
        let source = self.vector_in(1)?;
        let Arithmetic { mode, rules, mut raised } = self.arithmetic();
        let mode = if i.immediate8() & 4 != 0 { mode } else { MODES[usize::from(i.immediate8() & 3)] };
        let count = i.op1_register().size() / 4;
        let mut result = [0; 32];
        for at in 0..count {
            let (value, flags) = rules.apply::<Single, Half, 1>([lane(&source, at, 4)], |[value]| {
                float::convert::<Single, Half>(value, mode)
            });
            raised |= flags;
            put_lane(&mut result, at, 2, value);
        }
        if i.op0_kind() == OpKind::Register {
            self.vector_out(i.op0_register(), &result);
        } else {
            self.store_bytes(self.address(), &result[..2 * count])?;
        }
        self.record(raised);
        Ok(())
    }
}
