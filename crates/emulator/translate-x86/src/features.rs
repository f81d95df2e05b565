//! The CPU features that CPUID announces. They are chosen once, before programs run. Except for XGETBV and XSAVE,
//! unannounced instructions execute as well. Source: Intel SDM, volume 2 (CPUID); System V ABI, AMD64 supplement,
//! section 3.1.1 (micro-architecture levels).

use std::sync::atomic::{AtomicU8, Ordering};

/// A set of features. Each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Features {
    /// SSE2, like the first x86-64 processors. Programs that select code by CPUID then use the baseline.
    Sse2,
    /// x86-64-v2: up to SSE4.2, with POPCNT and CMPXCHG16B. Newer programs may require it.
    Sse4,
    /// All of x86-64-v3: up to AVX2, with FMA, BMI1, BMI2, F16C, LZCNT and MOVBE.
    Avx2,
}

impl Features {
    const ALL: [Self; 3] = [Self::Sse2, Self::Sse4, Self::Avx2];

    /// The name in command-line options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sse2 => "sse2",
            Self::Sse4 => "sse4",
            Self::Avx2 => "avx2",
        }
    }

    /// The features with this name.
    ///
    /// # Errors
    /// The name is unknown; the message lists the known ones.
    pub fn named(name: &str) -> Result<Self, String> {
        let matching = Self::ALL.into_iter().find(|features| features.name() == name);
        matching.ok_or_else(|| format!("unknown x86-64 feature level '{name}': use 'sse2', 'sse4' or 'avx2'"))
    }

    /// The flags in Linux's /proc/cpuinfo, in its order (arch/x86/include/asm/cpufeatures.h).
    pub fn flags(self) -> String {
        let if_sse4 = |flags: &'static str| if self >= Self::Sse4 { flags } else { "" };
        let if_avx2 = |flags: &'static str| if self >= Self::Avx2 { flags } else { "" };
        [
            "fpu tsc cx8 cmov clflush mmx fxsr sse sse2 syscall nx rdtscp lm constant_tsc nopl nonstop_tsc cpuid",
            if_sse4(" pni"),
            if_avx2(" pclmulqdq"),
            if_sse4(" ssse3"),
            if_avx2(" fma"),
            if_sse4(" cx16 sse4_1 sse4_2"),
            if_avx2(" movbe"),
            if_sse4(" popcnt"),
            if_avx2(" aes xsave avx f16c rdrand"),
            " lahf_lm",
            if_avx2(" abm fsgsbase bmi1 avx2 bmi2 rdseed adx clflushopt clwb sha_ni xsaveopt xsavec xgetbv1"),
        ]
        .concat()
    }

    /// The largest set of features that cores execute at full speed. 256-bit vectors need cores with LASX.
    pub fn of_cores(have_lasx: bool) -> Self {
        if have_lasx { Self::Avx2 } else { Self::Sse4 }
    }
}

static ANNOUNCED: AtomicU8 = AtomicU8::new(Features::Avx2 as u8);

/// Sets the features that all programs of this process see from now on.
pub fn announce(features: Features) {
    ANNOUNCED.store(features as u8, Ordering::Relaxed);
}

/// The announced features: all, until they are chosen.
pub fn announced() -> Features {
    Features::ALL[usize::from(ANNOUNCED.load(Ordering::Relaxed))]
}

pub(crate) fn has_avx() -> bool {
    announced() >= Features::Avx2
}

pub(crate) fn has_sse4() -> bool {
    announced() >= Features::Sse4
}
