//! The floating-point environment of A64: FPCR and FPSR, and operations that obey them. Source: Arm Architecture
//! Reference Manual (Arm DDI 0487), sections A1.5 (flushing, NaNs), C5.2.7 (FPCR), C5.2.8 (FPSR), and the shared
//! pseudocode (FPRound, FPProcessNaN).

use longma_loongarch::float::{self, ExceptionFlags, Format, RoundingMode};
use longma_loongarch::{Fcsr, State};

use crate::registers::{SLOT_OF_FLOAT_CONTROL, SLOT_OF_SATURATION, SLOTS};
use longma_translate::front_end::UserMemory;

/// Rounding modes, indexed by FPCR.RMode.
const MODES: [RoundingMode; 4] =
    [RoundingMode::NearestEven, RoundingMode::Upward, RoundingMode::Downward, RoundingMode::TowardZero];

/// FPCR.FZ: subnormal single- and double-precision operands and results become zeros.
pub(crate) const FLUSH: u32 = 1 << 24;
/// FPCR.FZ16: the same for half precision.
pub(crate) const FLUSH_HALF: u32 = 1 << 19;
/// FPCR.DN: each NaN result is the default NaN.
pub(crate) const DEFAULT_NAN: u32 = 1 << 25;
/// The bits of FPCR that LoongArch's FCSR has no counterpart for.
const EXTRA_CONTROL: u32 = FLUSH | FLUSH_HALF | DEFAULT_NAN;

/// FPSR.IOC.
pub(super) const INVALID: u32 = 1;
/// FPSR.DZC.
pub(super) const DIVISION_BY_ZERO: u32 = 1 << 1;
/// FPSR.OFC.
pub(super) const OVERFLOW: u32 = 1 << 2;
/// FPSR.UFC.
pub(super) const UNDERFLOW: u32 = 1 << 3;
/// FPSR.IXC.
pub(super) const INEXACT: u32 = 1 << 4;
/// FPSR.IDC: a subnormal operand was flushed.
const DENORMAL: u32 = 1 << 7;
/// FPSR.QC: an integer operation saturated.
pub(super) const SATURATED: u32 = 1 << 27;
/// The bits of FPSR that LoongArch's FCSR has no counterpart for.
const EXTRA_STATUS: u32 = DENORMAL | SATURATED;

fn slot(state: &State, at: i32) -> u64 {
    state.r(SLOTS).wrapping_add_signed(at.into())
}

/// The bits of FPCR and FPSR that are in the thread's slots.
fn extra(state: &State, memory: &dyn UserMemory) -> (u32, u32) {
    let mut bytes = [0; 8];
    memory.read(slot(state, SLOT_OF_FLOAT_CONTROL), &mut bytes);
    let word = u64::from_le_bytes(bytes);
    (word as u32 & EXTRA_CONTROL, (word >> 32) as u32 & EXTRA_STATUS)
}

fn set_extra(state: &State, (control, status): (u32, u32), memory: &dyn UserMemory) {
    let word = u64::from(control & EXTRA_CONTROL) | u64::from(status & EXTRA_STATUS) << 32;
    memory.write(slot(state, SLOT_OF_FLOAT_CONTROL), &word.to_le_bytes());
}

/// FPCR: the rounding mode, FZ, FZ16 and DN.
pub(crate) fn control(state: &State, memory: &dyn UserMemory) -> u32 {
    let mode = state.fcsr.rounding_mode();
    let mode = MODES.iter().position(|other| *other == mode).unwrap_or_default() as u32;
    mode << 22 | extra(state, memory).0
}

/// Sets FPCR; see [`control`].
pub(crate) fn set_control(state: &mut State, value: u32, memory: &dyn UserMemory) {
    let mode = MODES[(value >> 22 & 3) as usize];
    state.fcsr = Fcsr(state.fcsr.0 & !Fcsr::ROUNDING | (mode as u32) << 8);
    set_extra(state, (value, extra(state, memory).1), memory);
}

/// FPSR: QC, IDC, and the accumulated exception flags, which are in the reverse order of FCSR.
pub(crate) fn status(state: &State, memory: &dyn UserMemory) -> u32 {
    let mut saturated = [0; 16];
    memory.read(slot(state, SLOT_OF_SATURATION), &mut saturated);
    let saturated = if saturated == [0; 16] { 0 } else { SATURATED };
    (state.fcsr.0 >> 16 & 31).reverse_bits() >> 27 | extra(state, memory).1 | saturated
}

/// Sets FPSR.
pub(crate) fn set_status(state: &mut State, value: u32, memory: &dyn UserMemory) {
    state.fcsr = Fcsr(state.fcsr.0 & !Fcsr::FLAGS | ((value & 31).reverse_bits() >> 27) << 16);
    memory.write(slot(state, SLOT_OF_SATURATION), &[0; 16]);
    set_extra(state, (extra(state, memory).0, value), memory);
}

/// FPCR of a thread, and the flags that an instruction adds to FPSR.
pub(super) struct Environment {
    pub mode: RoundingMode,
    control: u32,
    pub raised: u32,
}

impl Environment {
    pub fn of(state: &State, memory: &dyn UserMemory) -> Self {
        Self { mode: state.fcsr.rounding_mode(), control: extra(state, memory).0, raised: 0 }
    }

    /// Adds the raised flags to FPSR.
    pub fn record(&self, state: &mut State, memory: &dyn UserMemory) {
        state.fcsr.0 |= ((self.raised & 31).reverse_bits() >> 27) << 16;
        if self.raised & EXTRA_STATUS != 0 {
            let (control, status) = extra(state, memory);
            set_extra(state, (control, status | self.raised), memory);
        }
    }

    /// Adds exceptions of the LoongArch arithmetic.
    pub fn raise(&mut self, flags: ExceptionFlags) {
        self.raised |= (u32::from(flags.0) & 31).reverse_bits() >> 27;
    }

    /// Whether subnormals of this format are flushed.
    pub fn flushes<F: Format>(&self) -> bool {
        self.control & if F::BITS == 16 { FLUSH_HALF } else { FLUSH } != 0
    }

    /// An operand, flushed if it is subnormal and the environment requires that.
    pub fn operand<F: Format>(&mut self, bits: u64) -> u64 {
        let bits = bits & (F::SIGN | (F::SIGN - 1));
        let is_subnormal = bits & F::INFINITY == 0 && bits & (F::SIGN - 1) != 0;
        if !is_subnormal || !self.flushes::<F>() {
            return bits;
        }
        if F::BITS != 16 {
            self.raised |= DENORMAL;
        }
        bits & F::SIGN
    }

    /// The value, or the default NaN if it is a NaN and the environment requires that.
    pub fn nan<F: Format>(&self, bits: u64) -> u64 {
        if self.control & DEFAULT_NAN != 0 && is_nan::<F>(bits) { F::DEFAULT_NAN } else { bits }
    }

    /// The first NaN of the operands as a result: a signaling one before a quiet one.
    pub fn first_nan<F: Format>(&mut self, operands: &[u64]) -> Option<u64> {
        let signaling = operands.iter().find(|bits| is_nan::<F>(**bits) && **bits & F::QUIET == 0);
        if signaling.is_some() {
            self.raised |= INVALID;
        }
        let bits = *signaling.or_else(|| operands.iter().find(|bits| is_nan::<F>(**bits)))?;
        Some(self.nan::<F>(bits | F::QUIET))
    }

    /// The default NaN of an invalid operation.
    pub fn invalid<F: Format>(&mut self) -> u64 {
        self.raised |= INVALID;
        F::DEFAULT_NAN
    }

    /// The rounded result of an operation, flushed if the environment requires that. Unlike LoongArch, Arm detects
    /// tininess before rounding.
    pub fn result<F: Format>(&mut self, operation: impl Fn(RoundingMode) -> (u64, ExceptionFlags)) -> u64 {
        self.rounded::<F>(self.flushes::<F>(), operation)
    }

    /// Like [`Self::result`], with an explicit choice whether to flush.
    pub fn rounded<F: Format>(
        &mut self,
        flushes: bool,
        operation: impl Fn(RoundingMode) -> (u64, ExceptionFlags),
    ) -> u64 {
        let (value, flags) = operation(self.mode);
        let is_inexact = flags.intersects(ExceptionFlags::INEXACT);
        let magnitude = |value: u64| value & (F::SIGN - 1);
        let smallest_normal = 1 << F::FRACTION_BITS;
        let is_tiny = match magnitude(value) {
            0 => is_inexact,
            found if found < smallest_normal => true,
            found if found == smallest_normal && is_inexact => {
                magnitude(operation(RoundingMode::TowardZero).0) < smallest_normal
            }
            _ => false,
        };
        if is_tiny && flushes {
            self.raised |= UNDERFLOW;
            return value & F::SIGN;
        }
        self.raise(flags);
        if is_tiny && is_inexact {
            self.raised |= UNDERFLOW;
        }
        self.nan::<F>(value)
    }

    /// `value` limited to an integer type. Sets QC if that changes it.
    pub fn saturated(&mut self, value: i128, bits: u32, is_signed: bool) -> u64 {
        let (least, greatest) =
            if is_signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
        let limited = value.clamp(least, greatest);
        if limited != value {
            self.raised |= SATURATED;
        }
        limited as u64
    }

    /// The flags of a comparison of two operands: N, Z, C and V in bits 3 to 0.
    pub fn compare<F: Format>(&mut self, a: u64, b: u64, signals: bool) -> u64 {
        let (a, b) = (self.operand::<F>(a), self.operand::<F>(b));
        let (relation, flags) = float::compare::<F>(a, b, signals);
        self.raise(flags);
        match relation {
            float::Relation::Less => 8,
            float::Relation::Equal => 6,
            float::Relation::Greater => 2,
            float::Relation::Unordered => 3,
        }
    }
}

pub(super) fn is_nan<F: Format>(bits: u64) -> bool {
    bits & (F::SIGN - 1) > F::INFINITY
}
