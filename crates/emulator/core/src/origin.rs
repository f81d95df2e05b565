//! The architecture that a program was compiled for, which determines its floating-point rules and the instructions
//! that it may contain.

/// The architecture that a program was compiled for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// LoongArch.
    #[default]
    LoongArch,
    /// x86-64: translated code, whose floating point follows [`Fcsr::SSE_RULES`](longma_loongarch::Fcsr::SSE_RULES).
    X86,
    /// Another architecture: translated code.
    Other,
}

impl Origin {
    /// Whether the code is translated, so that it may contain the instructions of
    /// [`Extension::Private`](longma_loongarch::Extension::Private).
    pub const fn is_translated(self) -> bool {
        !matches!(self, Self::LoongArch)
    }
}
