//! Options of code generation that depend on the architecture that the program was compiled for, and on the host.

use crate::origin::Origin;

/// The private instructions that translated code may contain, and its floating-point rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OriginSupport {
    /// The guest may execute private instructions.
    pub is_translated: bool,
    /// Floating point follows [`Fcsr::SSE_RULES`](longma_loongarch::Fcsr::SSE_RULES).
    pub has_sse_rules: bool,
    /// The host has AES-NI.
    pub aes: bool,
    /// The host has SHA-NI.
    pub sha: bool,
}

impl OriginSupport {
    /// Every private instruction, on any host, with LoongArch's floating point.
    pub const ALL: Self = Self { is_translated: true, has_sse_rules: false, aes: true, sha: true };

    /// The private instructions that the host has.
    pub fn supported_by_host(origin: Origin) -> Self {
        Self {
            is_translated: origin.is_translated(),
            has_sse_rules: origin == Origin::X86,
            aes: std::arch::is_x86_feature_detected!("aes"),
            sha: std::arch::is_x86_feature_detected!("sha"),
        }
    }
}
