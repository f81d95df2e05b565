//! Flags in the EFLAGS register of LoongArch's binary-translation extension (LBT). They stay there until the end of the
//! block, or until a branch with live flags; elsewhere they are in general registers. Source: Intel SDM, volume 1,
//! section 3.4.3 and appendix B (conditions); jiegec/la-inst, LBT.md, for the extension.

use iced_x86::{ConditionCode, FlowControl, RflagsBits};
use longma_loongarch::{Op as La, State};

use super::flags::{is_cmovcc, is_setcc};
use super::integer::{Arithmetic, steps};
use super::lower::Lowering;
use super::unit::{ARITHMETIC, may_keep_flags};
use crate::registers::*;
use longma_translate::optimizations::Optimization;

/// Flags that depend on the result only.
const OF_RESULT: u32 = RflagsBits::ZF | RflagsBits::SF | RflagsBits::PF;
/// LBT is used if the flags take more than this number of instructions without it.
const MAX_PLAIN: u32 = 2;

/// The number of instructions to compute these flags without LBT.
fn plain_cost(is_logic: bool, flags: u32) -> u32 {
    if is_logic {
        return flags.count_ones();
    }
    let cost_if = |flag, cost| if flags & flag != 0 { cost } else { 0 };
    (flags & OF_RESULT).count_ones()
        + cost_if(RflagsBits::CF, 1)
        + cost_if(RflagsBits::AF, 2)
        + cost_if(RflagsBits::OF, 3)
}

/// The encoding of a condition in `setx86j`.
fn number_of(condition: ConditionCode) -> Option<i32> {
    use ConditionCode::*;
    Some(match condition {
        a => 0,
        ae => 1,
        b => 2,
        be => 3,
        e => 4,
        ne => 5,
        g => 6,
        ge => 7,
        l => 8,
        le => 9,
        s => 10,
        ns => 11,
        o => 12,
        no => 13,
        p => 14,
        np => 15,
        ConditionCode::None => return Option::None,
    })
}

/// The LBT instruction for the flags of an addition or subtraction of `bytes` bytes. `is_step` selects INC and DEC.
fn operation(kind: Arithmetic, is_step: bool, bytes: usize) -> La {
    let row = match (kind, is_step) {
        (Arithmetic::Add, false) => [La::X86addB, La::X86addH, La::X86addW, La::X86addD],
        (Arithmetic::Add, true) => [La::X86incB, La::X86incH, La::X86incW, La::X86incD],
        (_, false) => [La::X86subB, La::X86subH, La::X86subW, La::X86subD],
        (_, true) => [La::X86decB, La::X86decH, La::X86decW, La::X86decD],
    };
    row[bytes.trailing_zeros() as usize]
}

impl Lowering<'_> {
    /// Computes the flags of an operation with result `d` by LBT, if that is cheaper. Returns false if not. `b` is
    /// `None` if only flags of the result are live.
    pub fn extension_flags(&mut self, kind: Arithmetic, a: u8, b: Option<u8>, d: u8) -> bool {
        let i = self.instruction;
        let live_flags = self.live & i.rflags_modified();
        let has_lbt = self.reachable.options.has(Optimization::Lbt);
        if !has_lbt || plain_cost(kind.is_logic(), live_flags) <= MAX_PLAIN {
            return false;
        }
        match b.filter(|_| !kind.is_logic()) {
            Some(b) => {
                let operation = operation(kind, steps(&i), self.bytes_of(0));
                self.assembler.three(operation, 0, a, if steps(&i) { 0 } else { b });
                self.extended = i.rflags_modified() & ARITHMETIC;
            }
            // `d & d` is `d`.
            None => {
                self.assembler.three(La::X86andD, 0, d, d);
                self.extended = if kind.is_logic() { ARITHMETIC } else { OF_RESULT };
            }
        }
        true
    }

    /// A register that holds the instruction's condition as 0 or 1, if all flags that it reads are in EFLAGS.
    pub fn extension_condition(&mut self, condition: ConditionCode) -> Option<u8> {
        let read = self.instruction.rflags_read() & ARITHMETIC;
        let number = number_of(condition).filter(|_| read != 0 && read & !self.known.flagged == 0)?;
        let t = self.temporary();
        self.assembler.immediate(La::Setx86j, t, 0, number);
        Some(t)
    }

    /// Before an instruction: moves flags to general registers if the instruction reads them there or may leave them
    /// unchanged, or if they are live at its target.
    pub fn prepare_flags(&mut self) {
        let i = self.instruction;
        let read = i.rflags_read() & ARITHMETIC;
        let tests = i.is_jcc_short_or_near() || is_setcc(&i) || is_cmovcc(&i);
        let mut to_move = if tests && read & !self.known.flagged == 0 { 0 } else { read };
        if may_keep_flags(&i) {
            to_move |= i.rflags_modified();
        }
        if !matches!(i.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch) {
            to_move |= self.live;
        }
        self.flags_to_registers(to_move);
    }

    /// Records which flags are in EFLAGS after the instructions from `first` on.
    pub fn note_flags(&mut self, first: usize) {
        let last = self.index.min(self.block.len() - 1);
        let written = self.block[first..=last].iter().fold(0, |sum, i| sum | i.rflags_modified());
        self.known.flagged = self.known.flagged & !written | std::mem::take(&mut self.extended);
    }

    /// Before a position where all state must be architectural: moves live flags to general registers.
    pub fn settle_flags(&mut self) {
        let live_after = self.contexts.get(self.index).map_or(ARITHMETIC, |contexts| contexts.flags);
        self.flags_to_registers(live_after | self.instruction.rflags_read());
        self.known.flagged = 0;
    }

    /// Moves these flags to general registers if they are in EFLAGS.
    pub fn flags_to_registers(&mut self, flags: u32) {
        let moved = flags & self.known.flagged;
        self.known.flagged &= !moved;
        let is_moved = |flag| moved & flag != 0;
        if is_moved(RflagsBits::CF) {
            self.assembler.immediate(La::X86mfflag, CARRY, 0, 1);
        }
        if is_moved(RflagsBits::ZF) {
            self.assembler.immediate(La::Setx86j, NOT_ZERO, 0, 5);
        }
        for (flag, register, number) in [(RflagsBits::SF, SIGN, 10), (RflagsBits::OF, OVERFLOW, 12)] {
            if is_moved(flag) {
                self.assembler.immediate(La::Setx86j, register, 0, number);
                self.assembler.three(La::SubD, register, 0, register);
            }
        }
        if is_moved(RflagsBits::PF) {
            self.assembler.immediate(La::Setx86j, PARITY, 0, 15);
        }
        if is_moved(RflagsBits::AF) {
            self.assembler.immediate(La::X86mfflag, ADJUST, 0, 4);
        }
    }
}

/// Moves these flags of a thread to general registers.
pub(super) fn settle(flags: u32, state: &mut State) {
    let all = set_of(state.lbt.eflags);
    for (flag, register) in [
        (RflagsBits::CF, CARRY),
        (RflagsBits::ZF, NOT_ZERO),
        (RflagsBits::SF, SIGN),
        (RflagsBits::OF, OVERFLOW),
        (RflagsBits::PF, PARITY),
        (RflagsBits::AF, ADJUST),
    ] {
        if flags & flag != 0 {
            state.set_r(register, all[usize::from(register)]);
        }
    }
}

/// General registers with the flags in `eflags`.
fn set_of(eflags: u32) -> [u64; 32] {
    let mut x = [0; 32];
    let _ = set_flags(&mut x, eflags.into());
    x
}
