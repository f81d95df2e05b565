//! Deferred hi and lo: a product or quotient is computed when it is read, and written to hi and lo only if necessary.
//! Source: MIPS64 Architecture for Programmers, volume II-A; LoongArch Reference Manual, volume 1.

use longma_loongarch::Op as La;

use super::code::Product;
use super::instruction::{Instruction, Op};
use super::lower::Lowering;
use super::registers::{HIGH, LOW, SCRATCH, general};
use super::uses::half_bit;

impl Lowering<'_> {
    /// Computes the deferred product if `instruction` would change its operands.
    pub(super) fn prepare(&mut self, instruction: Instruction) {
        let Some(pending) = self.product else { return };
        let written = general(instruction.destination());
        let changes = written != 0 && pending.operands.contains(&written);
        match instruction.op {
            Op::Mflo | Op::Mfhi if !changes => {}
            Op::Mflo | Op::Mfhi => {
                // The instruction overwrites an operand of the product. Write the half that it does not read, and the half that
                // it reads if that is still live.
                let other = if instruction.op == Op::Mflo { HIGH } else { LOW };
                for half in [LOW, HIGH] {
                    if half == other || self.is_live(self.pc.wrapping_add(4), half) {
                        self.write_half(pending, half, self.pc);
                    }
                }
            }
            Op::Syscall | Op::Break | Op::Mthi | Op::Mtlo => self.settle(self.pc),
            _ if changes || instruction.is_served() => self.settle(self.pc),
            _ => {}
        }
    }

    /// Writes hi and lo if the code at `pc` may read them.
    pub(super) fn settle(&mut self, pc: u64) {
        let Some(pending) = self.product else { return };
        for half in [LOW, HIGH] {
            self.write_half(pending, half, pc);
        }
        self.product = None;
    }

    /// Like `settle`, if `register` is an operand of the product and about to change.
    pub(super) fn settle_before_change(&mut self, register: u8) {
        if self.product.is_some_and(|product| product.operands.contains(&register)) {
            self.settle(self.pc);
        }
    }

    /// Writes a product of a delay slot immediately, because the state after the jump does not include it.
    pub(super) fn settle_in_slot(&mut self) {
        let Some(product) = self.product.take() else { return };
        for half in [LOW, HIGH] {
            self.compute(product, half, SCRATCH);
            self.assembler.two(La::Movgr2scr, half, SCRATCH);
        }
    }

    /// Like `settle`, at a jump. A return drops the product, because no caller reads a result from hi and lo. A call
    /// writes it, because the caller may read hi and lo after the call: a compiler that analyses callees (GCC's
    /// -fipa-ra) knows which of them leave hi and lo unchanged.
    pub(super) fn settle_at_end(&mut self, instruction: Instruction, pc: u64) {
        let slot = self.reachable.instruction(pc.wrapping_add(4));
        let slot_reads = slot.is_some_and(|slot| matches!(slot.op, Op::Mflo | Op::Mfhi | Op::Break));
        if !slot_reads && is_return(instruction) {
            self.product = None;
        }
        if slot_reads {
            self.settle_in_slot();
        }
        self.settle(pc);
    }

    fn write_half(&mut self, pending: Product, half: u8, pc: u64) {
        if self.is_live(pc, half) {
            self.compute(pending, half, SCRATCH);
            self.assembler.two(La::Movgr2scr, half, SCRATCH);
        }
    }

    /// Whether lo or hi is live at `pc`.
    fn is_live(&self, pc: u64, half: u8) -> bool {
        self.live.before(pc) & half_bit(half) != 0
    }

    /// Defers a multiplication or division until its result is read.
    pub(super) fn defer_product(&mut self, instruction: Instruction) {
        let operands = [self.read(instruction.rs()), self.read(instruction.rt())];
        self.product = Some(Product { op: instruction.op, operands });
    }

    /// Reads lo or hi.
    pub(super) fn read_half(&mut self, d: u8, half: u8) {
        match self.product {
            Some(pending) => {
                self.compute(pending, half, d);
                if pending.operands.contains(&d) {
                    self.product = None;
                }
            }
            None => self.assembler.two(La::Movscr2gr, d, half),
        }
    }

    fn compute(&mut self, pending: Product, half: u8, d: u8) {
        let op = match (pending.op, half) {
            (Op::Mult | Op::Multu, LOW) => La::MulW,
            (Op::Mult, _) => La::MulhW,
            (Op::Multu, _) => La::MulhWu,
            (Op::Dmult | Op::Dmultu, LOW) => La::MulD,
            (Op::Dmult, _) => La::MulhD,
            (Op::Dmultu, _) => La::MulhDu,
            (Op::Div, LOW) => La::DivW,
            (Op::Div, _) => La::ModW,
            (Op::Divu, LOW) => La::DivWu,
            (Op::Divu, _) => La::ModWu,
            (Op::Ddiv, LOW) => La::DivD,
            (Op::Ddiv, _) => La::ModD,
            (_, LOW) => La::DivDu,
            _ => La::ModDu,
        };
        let [j, k] = pending.operands;
        self.assembler.three(op, d, j, k);
    }
}

fn is_return(instruction: Instruction) -> bool {
    matches!(instruction.op, Op::Jr | Op::JrHb) && instruction.rs() == 31
}
