//! The CPU features that CPUID announces. They are chosen once, before programs run. Except for XGETBV and XSAVE,
//! unannounced instructions execute as well. Source: Intel SDM, volume 2 (CPUID); System V ABI, AMD64 supplement,
//! section 3.1.1 (micro-architecture levels).

use std::sync::atomic::{AtomicBool, Ordering};

/// A set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Features {
    /// SSE2, like the first x86-64 processors. Programs that select code by CPUID then use the baseline.
    #[default]
    Sse2,
    /// All of x86-64-v3: up to AVX2, with FMA, BMI1, BMI2, F16C, LZCNT and MOVBE.
    Avx2,
}

impl Features {
    const ALL: [Self; 2] = [Self::Sse2, Self::Avx2];

    /// The name in command-line options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sse2 => "sse2",
            Self::Avx2 => "avx2",
        }
    }

    /// The features with this name.
    ///
    /// # Errors
    /// The name is unknown; the message lists the known ones.
    pub fn named(name: &str) -> Result<Self, String> {
        let matching = Self::ALL.into_iter().find(|features| features.name() == name);
        matching.ok_or_else(|| format!("unknown x86-64 feature level '{name}': use 'sse2' or 'avx2'"))
    }
}

static HAS_AVX: AtomicBool = AtomicBool::new(false);

/// Sets the features that all programs of this process see from now on.
pub fn announce(features: Features) {
    HAS_AVX.store(features == Features::Avx2, Ordering::Relaxed);
}

/// The announced features.
pub fn announced() -> Features {
    if has_avx() { Features::Avx2 } else { Features::Sse2 }
}

pub(crate) fn has_avx() -> bool {
    HAS_AVX.load(Ordering::Relaxed)
}
