//! The registers of a user program. Source: LoongArch Reference Manual, volume 1, sections 2.1 and 3.1; LSX and LASX
//! registers; LBT state.

/// A 256-bit vector register. Its low 128 bits are an LSX register, its low 64 bits a floating-point register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(32))]
pub struct Vector(
    /// 64-bit lanes, the lowest first.
    pub [u64; 4],
);

/// A floating-point control and status register, FCSR0.
///
/// Bits 4..0 enables (V Z O U I from high to low: V is bit 4, Z 3, O 2, U 1, I 0), 9..8 rounding mode, 20..16 flags,
/// 28..24 causes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Fcsr(pub u32);

/// The state of the binary-translation extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ExtendedFlags {
    /// scr0 to scr3.
    pub scratch: [u64; 4],
    /// x86 flags: CF 0, PF 2, AF 4, ZF 6, SF 7, OF 11. Arm's N Z C V are SF ZF CF OF.
    pub eflags: u32,
    /// The x87 top of stack, 0-7.
    pub top: u8,
    /// Whether `top` renames f0 to f7.
    pub stack_mode: bool,
}

/// The reservation of a load-linked. A store-conditional succeeds if memory still holds the loaded value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Reservation {
    /// The address, or [`Reservation::NONE`].
    pub address: u64,
    /// The loaded value, zero-extended.
    pub value: u64,
    /// After a load-linked of a doubleword: the other doubleword of the same aligned 16 bytes, loaded no later than
    /// `value`. SC.Q compares both.
    pub neighbour: u64,
}

impl Reservation {
    /// The address without a reservation. It is misaligned, so no load-linked can set it.
    pub const NONE: u64 = u64::MAX;
}

impl Default for Reservation {
    fn default() -> Self {
        Self { address: Self::NONE, value: 0, neighbour: 0 }
    }
}

/// The registers of one hardware thread that a user program can access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct State {
    /// r0 to r31; `x[0]` is always 0.
    pub x: [u64; 32],
    /// vr/xr0 to 31; `v[n].0[0]` is f`n`.
    pub v: [Vector; 32],
    /// The program counter.
    pub pc: u64,
    /// fcc0 to fcc7, each 0 or 1.
    pub fcc: [u8; 8],
    /// fcsr0.
    pub fcsr: Fcsr,
    /// The reservation of the last load-linked.
    pub reservation: Reservation,
    /// The state of the binary-translation extension.
    pub lbt: ExtendedFlags,
}

impl State {
    /// The vector register that holds floating-point register `n`. In stack mode, f0 to f7 are relative to the top of
    /// the x87 stack. Vector instructions are not renamed.
    #[inline]
    pub fn fpr_index(&self, n: u8) -> usize {
        usize::from(if self.lbt.stack_mode && n < 8 { n.wrapping_add(self.lbt.top) & 7 } else { n })
    }

    /// The bits of floating-point register `n`, renamed in stack mode.
    #[inline]
    pub fn f(&self, n: u8) -> u64 {
        self.v[self.fpr_index(n)].0[0]
    }

    /// Sets floating-point register `n`, renamed in stack mode. The other lanes of the vector register keep their
    /// values, which the manual leaves undefined.
    #[inline]
    pub fn set_f(&mut self, n: u8, bits: u64) {
        self.v[self.fpr_index(n)].0[0] = bits;
    }

    /// Sets the low 32 bits of floating-point register `n`. The upper bits keep their values, which the manual leaves
    /// undefined.
    #[inline]
    pub fn set_f_word(&mut self, n: u8, bits: u32) {
        self.set_f(n, self.f(n) & !0xffff_ffff | u64::from(bits));
    }

    /// General register `n`.
    #[inline]
    pub fn r(&self, n: u8) -> u64 {
        self.x[usize::from(n)]
    }

    /// Sets general register `n`; r0 stays 0.
    #[inline]
    pub fn set_r(&mut self, n: u8, value: u64) {
        if n != 0 {
            self.x[usize::from(n)] = value;
        }
    }
}
