//! The upper halves of YMM registers. They are in separate registers or memory while SSE instructions preserve them,
//! above the XMM registers while AVX works on 256 bits, and nowhere after AVX has cleared them. Source: Intel SDM,
//! volume 1, section 14.1.2 (upper halves); LoongArch Reference Manual, LASX (LSX leaves upper halves undefined).

use longma_loongarch::{Instruction as Code, Op as La};

use super::known::{RegisterStates, Upper};
use super::lower::Lowering;
use super::uses::Live;
use crate::Position;
use crate::registers::*;
use longma_translate::assembler::{JumpTarget, Label};

/// Out-of-line code that clears the locations of upper halves if any of them is in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpperClearing {
    label: Label,
    cleared: u16,
    back: Label,
}

/// The immediate of `xvpermi.q`: the halves of the result, each one of the source's halves (0, 1) or the destination's
/// (2, 3).
const fn halves(low: i32, high: i32) -> i32 {
    high << 4 | low
}

impl Lowering<'_> {
    /// Moves the upper half of `v` from above the XMM register to its separate location.
    fn save_upper(&mut self, v: usize) {
        let (register, half) = upper_place(v);
        let order = if half == 0 { halves(1, 3) } else { halves(2, 1) };
        self.assembler.immediate(La::XvpermiQ, register, 16 + v as u8, order);
    }

    fn clear_place(&mut self, v: usize) {
        let (register, half) = upper_place(v);
        let order = if half == 0 { halves(0, 3) } else { halves(2, 0) };
        self.assembler.immediate(La::XvpermiQ, register, ZERO_VECTOR, order);
    }

    /// Records that a place may be nonzero.
    fn note_in_use(&mut self) {
        self.assembler.two(La::VseteqzV, UPPERS, ZERO_VECTOR);
        self.known.is_clean = false;
    }

    /// Saves the upper half before an instruction writes the XMM register and preserves the upper half.
    pub fn keep_upper(&mut self, v: usize) {
        if self.known.upper(v) == Upper::Above {
            self.save_upper(v);
            self.note_in_use();
            self.known.set_upper(v, Upper::Separate);
        }
    }

    /// Makes all 256 bits of a YMM register valid.
    pub fn complete_wide(&mut self, v: usize) {
        let register = 16 + v as u8;
        match self.known.upper(v) {
            Upper::Above => {}
            Upper::Separate => {
                self.complete(v);
                let (place, half) = upper_place(v);
                self.assembler.immediate(La::XvpermiQ, register, place, halves(2, half.into()));
            }
            Upper::Zero => {
                match self.known.valid[v] {
                    4 => self.assembler.immediate(La::XvpickveW, register, register, 0),
                    8 => self.assembler.immediate(La::XvpickveD, register, register, 0),
                    _ => self.assembler.immediate(La::XvpermiQ, register, ZERO_VECTOR, halves(2, 0)),
                }
                self.known.valid[v] = 16;
            }
        }
        self.known.used[v] = 16;
        self.known.set_upper(v, Upper::Above);
    }

    /// The location that the upper half of `v` must have for a transition to `required` with live registers `live`;
    /// `None` if it need not move.
    fn upper_wanted(&self, v: usize, required: &RegisterStates, live: Live) -> Option<Upper> {
        let upper = required.upper(v);
        (live.uppers >> v & 1 != 0 && self.known.upper(v) != upper).then_some(upper)
    }

    /// The number of upper halves that must move for a transition to `required` with live registers `live`.
    pub fn misfit_uppers(&self, required: &RegisterStates, live: Live) -> usize {
        (0..16).filter(|v| self.upper_wanted(*v, required, live).is_some()).count()
    }

    /// Moves upper halves for a transition to `required` with live registers `live`.
    pub fn fit_uppers(&mut self, required: &RegisterStates, live: Live) {
        let (mut is_in_use, mut cleared) = (false, 0u16);
        for v in 0..16 {
            match self.upper_wanted(v, required, live) {
                Some(Upper::Above) => self.complete_wide(v),
                Some(Upper::Separate) if self.known.upper(v) == Upper::Above => {
                    self.save_upper(v);
                    is_in_use = true;
                    self.known.set_upper(v, Upper::Separate);
                }
                Some(Upper::Separate) => {
                    cleared |= 1 << v;
                    self.known.set_upper(v, Upper::Separate);
                }
                _ => {}
            }
        }
        let was_clean = self.known.is_clean;
        if is_in_use {
            self.note_in_use();
        }
        if cleared != 0 && !was_clean {
            self.clear_places(cleared, is_in_use);
        }
    }

    /// Clears the given upper halves. Unless `is_in_use`, the emitted code first tests the flag that is set while any
    /// upper half is in use.
    fn clear_places(&mut self, cleared: u16, is_in_use: bool) {
        if is_in_use {
            return (0..16).filter(|v| cleared >> v & 1 != 0).for_each(|v| self.clear_place(v));
        }
        let (label, resume) = (self.assembler.label(), self.assembler.label());
        self.assembler.jump(Code { j: UPPERS, ..Code::new(La::Bcnez) }, JumpTarget::Label(label));
        self.assembler.place(resume);
        self.clearings.push(UpperClearing { label, cleared, back: resume });
        self.known.is_clean |= cleared == !0;
    }

    /// Records that the following code is reached from the middle of an instruction.
    pub fn aside(&mut self) {
        let offset = self.assembler.words.len() as u32;
        let pc = self.source_pc;
        self.unit.positions.push(Position {
            offset,
            pc,
            is_boundary: false,
            counted: None,
            begins: true,
            pending: None,
        });
    }

    /// Emits the out-of-line clearings.
    pub fn clear_out_of_line(&mut self) {
        for clearing in std::mem::take(&mut self.clearings) {
            self.assembler.place(clearing.label);
            self.aside();
            for v in (0..16).filter(|v| clearing.cleared >> v & 1 != 0) {
                if clearing.cleared != !0 {
                    self.clear_place(v);
                } else if v % 2 == 0 {
                    self.assembler.three(La::XvxorV, upper_place(v).0, ZERO_VECTOR, ZERO_VECTOR);
                }
            }
            if clearing.cleared == !0 {
                self.assembler.two(La::Movgr2cf, UPPERS, 0);
            }
            self.assembler.go(JumpTarget::Label(clearing.back));
        }
    }
}

/// The common location of the upper half of `v` with these incoming states. The flag marks loop back edges.
pub(super) fn join_upper(outs: &[(bool, RegisterStates)], v: usize) -> Upper {
    let all = |upper: Upper| outs.iter().all(|(_, known)| known.upper(v) == upper);
    let any = |upper: Upper| outs.iter().any(|(_, known)| known.upper(v) == upper);
    if all(Upper::Zero) {
        Upper::Zero
    } else if outs.iter().any(|(backwards, known)| *backwards && known.upper(v) == Upper::Above)
        || any(Upper::Above) && !any(Upper::Separate)
    {
        Upper::Above
    } else {
        Upper::Separate
    }
}
