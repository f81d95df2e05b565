//! What CPUID announces: chosen once, before programs run.
//! Not what can be executed, which does not depend on it but for XGETBV and XSAVE.
//! Source: Intel SDM, volume 2 (CPUID); System V ABI, AMD64 supplement, section 3.1.1 (micro-architecture levels).

use std::sync::atomic::{AtomicBool, Ordering};

/// What is announced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Features {
    /// SSE2, as the first x86-64 processors: programs that choose code by CPUID choose what needs no more.
    #[default]
    Sse2,
    /// All of x86-64-v3: up to AVX2, with FMA, BMI1, BMI2, F16C, LZCNT and MOVBE.
    Avx2,
}

impl Features {
    const ALL: [Self; 2] = [Self::Sse2, Self::Avx2];

    /// What a command calls them.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sse2 => "sse2",
            Self::Avx2 => "avx2",
        }
    }

    /// The one of this name.
    ///
    /// # Errors
    /// There is none; says which there are.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|features| features.name() == name);
        found.ok_or_else(|| format!("there are no features '{name}' of x86-64; use 'sse2' or 'avx2'"))
    }
}

static HAS_AVX: AtomicBool = AtomicBool::new(false);

/// Chooses what all programs of this process are told from now on.
pub fn announce(features: Features) {
    HAS_AVX.store(features == Features::Avx2, Ordering::Relaxed);
}

/// What programs are told.
pub fn announced() -> Features {
    if has_avx() { Features::Avx2 } else { Features::Sse2 }
}

pub(crate) fn has_avx() -> bool {
    HAS_AVX.load(Ordering::Relaxed)
}
