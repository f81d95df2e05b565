//! Floating-point comparisons that also raise the invalid exception for quiet NaNs. Source: Intel SDM, volume 2 (CMPPD,
//! COMISD, MINPD); LoongArch Reference Manual, volume 1, section 3.2.2.1 (`fcmp.cond`).

use std::sync::LazyLock;

use longma_loongarch::Op as La;
use rustc_hash::FxHashMap;

static SIGNALLING: LazyLock<FxHashMap<La, La>> = LazyLock::new(|| PAIRS.into_iter().collect());

/// The comparison with the same result that raises the invalid exception also for quiet NaNs.
pub(super) fn signalling(quiet: La) -> La {
    SIGNALLING.get(&quiet).copied().unwrap_or(quiet)
}

static SCALARS: LazyLock<FxHashMap<La, La>> = LazyLock::new(|| SCALAR_PAIRS.into_iter().collect());

/// The scalar comparison that corresponds to a vector comparison.
pub(super) fn scalar(of_vectors: La) -> La {
    SCALARS.get(&of_vectors).copied().unwrap_or(of_vectors)
}

/// Whether a predicate of CMPPS and its relatives raises the invalid exception for quiet NaNs. Bit 4 inverts the
/// relation of the lower bits.
pub(super) fn is_signalling(predicate: u8) -> bool {
    matches!(predicate & 3, 1 | 2) != (predicate & 16 != 0)
}

const PAIRS: [(La, La); 66] = [
    (La::FcmpCltS, La::FcmpSltS),
    (La::FcmpCltD, La::FcmpSltD),
    (La::FcmpCleS, La::FcmpSleS),
    (La::FcmpCleD, La::FcmpSleD),
    (La::FcmpCeqS, La::FcmpSeqS),
    (La::FcmpCeqD, La::FcmpSeqD),
    (La::FcmpCunS, La::FcmpSunS),
    (La::FcmpCunD, La::FcmpSunD),
    (La::FcmpCultS, La::FcmpSultS),
    (La::FcmpCultD, La::FcmpSultD),
    (La::FcmpCuleS, La::FcmpSuleS),
    (La::FcmpCuleD, La::FcmpSuleD),
    (La::FcmpCueqS, La::FcmpSueqS),
    (La::FcmpCueqD, La::FcmpSueqD),
    (La::FcmpCneS, La::FcmpSneS),
    (La::FcmpCneD, La::FcmpSneD),
    (La::FcmpCorS, La::FcmpSorS),
    (La::FcmpCorD, La::FcmpSorD),
    (La::FcmpCuneS, La::FcmpSuneS),
    (La::FcmpCuneD, La::FcmpSuneD),
    (La::FcmpCafS, La::FcmpSafS),
    (La::FcmpCafD, La::FcmpSafD),
    (La::VfcmpCltS, La::VfcmpSltS),
    (La::VfcmpCltD, La::VfcmpSltD),
    (La::VfcmpCleS, La::VfcmpSleS),
    (La::VfcmpCleD, La::VfcmpSleD),
    (La::VfcmpCeqS, La::VfcmpSeqS),
    (La::VfcmpCeqD, La::VfcmpSeqD),
    (La::VfcmpCunS, La::VfcmpSunS),
    (La::VfcmpCunD, La::VfcmpSunD),
    (La::VfcmpCultS, La::VfcmpSultS),
    (La::VfcmpCultD, La::VfcmpSultD),
    (La::VfcmpCuleS, La::VfcmpSuleS),
    (La::VfcmpCuleD, La::VfcmpSuleD),
    (La::VfcmpCueqS, La::VfcmpSueqS),
    (La::VfcmpCueqD, La::VfcmpSueqD),
    (La::VfcmpCneS, La::VfcmpSneS),
    (La::VfcmpCneD, La::VfcmpSneD),
    (La::VfcmpCorS, La::VfcmpSorS),
    (La::VfcmpCorD, La::VfcmpSorD),
    (La::VfcmpCuneS, La::VfcmpSuneS),
    (La::VfcmpCuneD, La::VfcmpSuneD),
    (La::VfcmpCafS, La::VfcmpSafS),
    (La::VfcmpCafD, La::VfcmpSafD),
    (La::XvfcmpCltS, La::XvfcmpSltS),
    (La::XvfcmpCltD, La::XvfcmpSltD),
    (La::XvfcmpCleS, La::XvfcmpSleS),
    (La::XvfcmpCleD, La::XvfcmpSleD),
    (La::XvfcmpCeqS, La::XvfcmpSeqS),
    (La::XvfcmpCeqD, La::XvfcmpSeqD),
    (La::XvfcmpCunS, La::XvfcmpSunS),
    (La::XvfcmpCunD, La::XvfcmpSunD),
    (La::XvfcmpCultS, La::XvfcmpSultS),
    (La::XvfcmpCultD, La::XvfcmpSultD),
    (La::XvfcmpCuleS, La::XvfcmpSuleS),
    (La::XvfcmpCuleD, La::XvfcmpSuleD),
    (La::XvfcmpCueqS, La::XvfcmpSueqS),
    (La::XvfcmpCueqD, La::XvfcmpSueqD),
    (La::XvfcmpCneS, La::XvfcmpSneS),
    (La::XvfcmpCneD, La::XvfcmpSneD),
    (La::XvfcmpCorS, La::XvfcmpSorS),
    (La::XvfcmpCorD, La::XvfcmpSorD),
    (La::XvfcmpCuneS, La::XvfcmpSuneS),
    (La::XvfcmpCuneD, La::XvfcmpSuneD),
    (La::XvfcmpCafS, La::XvfcmpSafS),
    (La::XvfcmpCafD, La::XvfcmpSafD),
];

const SCALAR_PAIRS: [(La, La); 44] = [
    (La::VfcmpCltS, La::FcmpCltS),
    (La::VfcmpCltD, La::FcmpCltD),
    (La::VfcmpCleS, La::FcmpCleS),
    (La::VfcmpCleD, La::FcmpCleD),
    (La::VfcmpCeqS, La::FcmpCeqS),
    (La::VfcmpCeqD, La::FcmpCeqD),
    (La::VfcmpCunS, La::FcmpCunS),
    (La::VfcmpCunD, La::FcmpCunD),
    (La::VfcmpCultS, La::FcmpCultS),
    (La::VfcmpCultD, La::FcmpCultD),
    (La::VfcmpCuleS, La::FcmpCuleS),
    (La::VfcmpCuleD, La::FcmpCuleD),
    (La::VfcmpCueqS, La::FcmpCueqS),
    (La::VfcmpCueqD, La::FcmpCueqD),
    (La::VfcmpCneS, La::FcmpCneS),
    (La::VfcmpCneD, La::FcmpCneD),
    (La::VfcmpCorS, La::FcmpCorS),
    (La::VfcmpCorD, La::FcmpCorD),
    (La::VfcmpCuneS, La::FcmpCuneS),
    (La::VfcmpCuneD, La::FcmpCuneD),
    (La::VfcmpCafS, La::FcmpCafS),
    (La::VfcmpCafD, La::FcmpCafD),
    (La::VfcmpSltS, La::FcmpSltS),
    (La::VfcmpSltD, La::FcmpSltD),
    (La::VfcmpSleS, La::FcmpSleS),
    (La::VfcmpSleD, La::FcmpSleD),
    (La::VfcmpSeqS, La::FcmpSeqS),
    (La::VfcmpSeqD, La::FcmpSeqD),
    (La::VfcmpSunS, La::FcmpSunS),
    (La::VfcmpSunD, La::FcmpSunD),
    (La::VfcmpSultS, La::FcmpSultS),
    (La::VfcmpSultD, La::FcmpSultD),
    (La::VfcmpSuleS, La::FcmpSuleS),
    (La::VfcmpSuleD, La::FcmpSuleD),
    (La::VfcmpSueqS, La::FcmpSueqS),
    (La::VfcmpSueqD, La::FcmpSueqD),
    (La::VfcmpSneS, La::FcmpSneS),
    (La::VfcmpSneD, La::FcmpSneD),
    (La::VfcmpSorS, La::FcmpSorS),
    (La::VfcmpSorD, La::FcmpSorD),
    (La::VfcmpSuneS, La::FcmpSuneS),
    (La::VfcmpSuneD, La::FcmpSuneD),
    (La::VfcmpSafS, La::FcmpSafS),
    (La::VfcmpSafD, La::FcmpSafD),
];
