//! Sequences for floating-point rounding and conversion.

use iced_x86::Code;

use super::super::host_vectors::*;
use super::steps::{HostStep::*, Location::*};
use super::{Mnemonic, Steps};

/// A shuffle that copies the upper doubleword to both positions.
const UPPER_HALF: i32 = 0b11_10_11_10;

pub(super) fn steps(mnemonic: &Mnemonic<'_>) -> Option<Steps> {
    let rounding = match mnemonic.stem {
        // Use the rounding mode of MXCSR, which follows the guest's.
        "frint" => Some(4),
        "frintrne" => Some(0),
        "frintrm" => Some(1),
        "frintrp" => Some(2),
        "frintrz" => Some(3),
        _ => None,
    };
    if let Some(mode) = rounding {
        let code = if mnemonic.formats == "s" { ROUNDPS } else { ROUNDPD };
        return Some(vec![One(code, D, J, mode)]);
    }
    if mnemonic.is_wide {
        return None;
    }
    let widened = |code, is_upper| {
        let upper = [One(PSHUFD, A, J, UPPER_HALF), Narrow(code, D, A)];
        if is_upper { upper.to_vec() } else { vec![Narrow(code, D, J)] }
    };
    let narrowed = |code| vec![Narrow(code, A, K), Narrow(code, B, J), Two(PUNPCKLQDQ, D, A, B)];
    match (mnemonic.stem, mnemonic.formats) {
        ("fcvtl", "d.s") => Some(widened(Code::VEX_Vcvtps2pd_xmm_xmmm64, false)),
        ("fcvth", "d.s") => Some(widened(Code::VEX_Vcvtps2pd_xmm_xmmm64, true)),
        ("ffintl", "d.w") => Some(widened(Code::VEX_Vcvtdq2pd_xmm_xmmm64, false)),
        ("ffinth", "d.w") => Some(widened(Code::VEX_Vcvtdq2pd_xmm_xmmm64, true)),
        ("fcvt", "s.d") => Some(narrowed(Code::VEX_Vcvtpd2ps_xmm_xmmm128)),
        ("ftint", "w.d") => Some(narrowed(Code::VEX_Vcvtpd2dq_xmm_xmmm128)),
        ("ftintrz", "w.d") => Some(narrowed(Code::VEX_Vcvttpd2dq_xmm_xmmm128)),
        _ => None,
    }
}
