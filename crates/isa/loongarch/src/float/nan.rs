//! NaN propagation. Source: LoongArch Reference Manual, volume 1, section 3.1.1.3 (non-numerical results).

use super::{ExceptionFlags, Format};

pub(super) fn is_nan<F: Format>(bits: u64) -> bool {
    bits & (F::SIGN - 1) > F::INFINITY
}

pub(super) fn is_signaling<F: Format>(bits: u64) -> bool {
    is_nan::<F>(bits) && bits & F::QUIET == 0
}

/// The NaN result of an operation on `operands`, which are in descending priority: the first signaling NaN, made quiet,
/// otherwise the first quiet NaN. `None` if no operand is a NaN.
pub(super) fn propagate<F: Format>(operands: &[u64]) -> Option<(u64, ExceptionFlags)> {
    let pattern = F::SIGN | (F::SIGN - 1);
    if let Some(bits) = operands.iter().find(|bits| is_signaling::<F>(**bits)) {
        return Some((bits & pattern | F::QUIET, ExceptionFlags::INVALID));
    }
    let quiet = operands.iter().find(|bits| is_nan::<F>(**bits))?;
    Some((quiet & pattern, ExceptionFlags::NONE))
}

/// The default NaN, which is the result of an invalid operation, and the invalid-operation exception.
pub(super) fn invalid<F: Format>() -> (u64, ExceptionFlags) {
    (F::DEFAULT_NAN, ExceptionFlags::INVALID)
}
