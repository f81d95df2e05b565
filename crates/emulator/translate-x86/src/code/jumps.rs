//! Conditional branches, and the targets of indirect jumps and calls. Source: Intel SDM, volume 2 (Jcc, JMP, CALL,
//! LOOP); LoongArch Reference Manual, volume 1.

use iced_x86::{Instruction, Mnemonic, OpKind};
use longma_loongarch::{Instruction as Code, Op as La};

use super::forms::number;
use super::known::RegisterStates;
use super::lower::{Branch, Lowering};
use super::operands::Extension;
use crate::registers::*;
use longma_translate::assembler::JumpTarget;
use longma_translate::optimizations::Optimization;

impl Lowering<'_> {
    /// Loads the target of an indirect jump or call into its register.
    pub fn target(&mut self) {
        let i = self.instruction;
        if i.op0_kind() == OpKind::Register {
            let register = self.wide(number(i.op0_register()));
            self.assembler.copy(TARGET, register);
        } else {
            let t = self.temporary();
            let location = self.place(t);
            self.load_to(TARGET, location, 8, Extension::Zero);
        }
    }

    /// Looks up the host address of the target.
    pub fn look_up(&mut self, d: u8) {
        let options = self.reachable.options;
        if options.has(Optimization::Table) {
            return self.look_up_in_table(d);
        }
        // All temporaries are free here.
        let spare = TEMPORARIES[0];
        let (miss, resume) = (self.assembler.label(), self.assembler.label());
        self.assembler.look_up_hashed(&options, 1, [d, TARGET, spare], miss);
        self.assembler.place(resume);
        self.misses.push((miss, d, self.instruction.ip(), resume));
    }

    /// Looks up the host address of the target in the lookup table.
    pub fn look_up_in_table(&mut self, d: u8) {
        self.assembler.push(Code { d, j: TARGET, k: TABLE, imm: 2, ..Code::new(La::AlslD) });
        self.assembler.immediate(La::LdWu, d, d, 0);
    }

    /// A conditional branch that is not fused with a comparison.
    pub fn conditional(&mut self) {
        let i = self.instruction;
        self.ready(i.near_branch_target());
        let branch = match i.mnemonic() {
            Mnemonic::Jrcxz => {
                let counter = self.wide(1);
                Branch::of(La::Beqz, La::Bnez, counter, 0)
            }
            Mnemonic::Jecxz => {
                let t = self.unsigned(1);
                Branch::of(La::Beqz, La::Bnez, t, 0)
            }
            Mnemonic::Loop | Mnemonic::Loope | Mnemonic::Loopne => self.loop_condition(),
            _ => self.condition(i.condition_code()),
        };
        self.branch(branch);
    }

    fn loop_condition(&mut self) -> Branch {
        let i = self.instruction;
        let (t, u) = (self.temporary(), self.temporary());
        let is_short = i.op0_kind() == OpKind::NearBranch64 && i.code().is_loop() && is_ecx(&i);
        let from = self.wide(1);
        let counter = self.define(1);
        self.assembler.immediate(La::AddiD, counter, from, -1);
        if is_short {
            self.assembler.field(La::BstrpickD, counter, counter, 31, 0);
        }
        match i.mnemonic() {
            Mnemonic::Loop => return Branch::of(La::Bnez, La::Beqz, counter, 0),
            Mnemonic::Loope => self.assembler.immediate(La::Sltui, t, NOT_ZERO, 1),
            _ => self.assembler.three(La::Sltu, t, 0, NOT_ZERO),
        }
        self.assembler.three(La::Sltu, u, 0, counter);
        self.assembler.three(La::And, t, t, u);
        Branch::of(La::Bnez, La::Beqz, t, 0)
    }

    /// Before a backward branch, emits the transition for its target in advance, because the branch is usually taken.
    pub fn ready(&mut self, target: u64) {
        if target <= self.instruction.ip() && self.target_of_jumps(target).is_some() {
            let (_, required, live) = self.jump_to(target);
            // This includes registers that the branch's comparison or address still reads.
            let read = self.live_after().or(self.contexts[self.index].uses.reads);
            // More than one conversion would cost the fall-through path too much, and it may need the state that the
            // transition destroys.
            if self.misfits(&required, live) > 1 || self.loses(&required, live, read) {
                return;
            }
            self.fit(&required, live, true);
        }
    }

    /// Emits a branch to the target of the current instruction.
    pub fn branch(&mut self, branch: Branch) {
        let target = self.instruction.near_branch_target();
        self.flags_to_registers(self.reachable.live_at_target(&self.instruction));
        self.record_out_state(target);
        let (jump_target, required, live) = self.jump_to(target);
        if self.fits(&required, live) {
            self.assembler.jump(branch.holds, jump_target);
        } else {
            let transition = self.assembler.label();
            self.transitions.push((transition, RegisterStates { flagged: 0, ..self.known }, target));
            self.assembler.jump(branch.holds, JumpTarget::Label(transition));
        }
    }
}

/// Whether a loop instruction counts in ECX.
fn is_ecx(i: &Instruction) -> bool {
    use iced_x86::Code::*;
    matches!(i.code(), Loop_rel8_64_ECX | Loope_rel8_64_ECX | Loopne_rel8_64_ECX)
}
