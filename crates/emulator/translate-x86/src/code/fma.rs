//! FMA: fused multiplications and additions. Source: Intel SDM, volume 2; LoongArch Reference Manual, volume 1, section
//! 3.2.1, and LASX.

use std::sync::LazyLock;

use iced_x86::{Instruction, Mnemonic};
use longma_loongarch::{Instruction as Code, Op as La};
use rustc_hash::FxHashMap;

use super::lower::{Lowering, is_register};
use crate::registers::*;

/// How the addend is combined with the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addend {
    Added,
    Subtracted,
    /// Subtracted in even elements and added in odd ones, or the other way round.
    Alternating(bool),
}

/// A fused instruction, decoded from its name.
#[derive(Clone, Copy, Debug)]
struct Fused {
    is_negated: bool,
    addend: Addend,
    /// The two operands that are multiplied, and the addend.
    order: [u32; 3],
    is_double: bool,
    is_scalar: bool,
}

impl Fused {
    fn named(name: &str) -> Option<Self> {
        let name = name.strip_prefix("Vf")?;
        let (is_negated, name) = match name.strip_prefix("nm") {
            Some(_) => (true, &name[1..]),
            None => (false, name),
        };
        let at = name.find(|letter: char| letter.is_ascii_digit())?;
        let (operation, rest) = name.split_at(at);
        let addend = match operation {
            "madd" => Addend::Added,
            "msub" => Addend::Subtracted,
            "maddsub" => Addend::Alternating(true),
            "msubadd" => Addend::Alternating(false),
            _ => return None,
        };
        let order = match rest.get(..3)? {
            "132" => [0, 2, 1],
            "213" => [1, 0, 2],
            "231" => [1, 2, 0],
            _ => return None,
        };
        let (is_double, is_scalar) = match &rest[3..] {
            "ps" => (false, false),
            "pd" => (true, false),
            "ss" => (false, true),
            "sd" => (true, true),
            _ => return None,
        };
        Some(Self { is_negated, addend, order, is_double, is_scalar })
    }
}

static FUSED: LazyLock<FxHashMap<Mnemonic, Fused>> = LazyLock::new(|| {
    Mnemonic::values()
        .filter_map(|mnemonic| Some((mnemonic, Fused::named(&format!("{mnemonic:?}"))?)))
        .collect()
});

/// Whether the instruction is a scalar FMA instruction.
pub(super) fn is_fused_scalar(i: &Instruction) -> bool {
    FUSED.get(&i.mnemonic()).is_some_and(|fused| fused.is_scalar)
}

impl Lowering<'_> {
    /// Translates a fused vector instruction. Returns false for others.
    pub fn fused_multiplication(&mut self) -> bool {
        let Some(&fused) = FUSED.get(&self.instruction.mnemonic()).filter(|fused| !fused.is_scalar) else {
            return false;
        };
        let i = self.instruction;
        let d = vector(i.op0_register());
        let operands = [d, vector(i.op1_register()), self.whole(2)];
        let [mut j, k, c] = fused.order.map(|operand| operands[operand as usize]);
        let double = fused.is_double;
        if fused.is_negated {
            let v = self.vector_temporary();
            let (op, sign) = if double { (La::VbitreviD, 63) } else { (La::VbitreviW, 31) };
            self.vectors_by(op, v, j, sign);
            j = v;
        }
        let (add, subtract) = if double { (La::VfmaddD, La::VfmsubD) } else { (La::VfmaddS, La::VfmsubS) };
        match fused.addend {
            Addend::Added => self.vectors_four(add, d, [j, k, c]),
            Addend::Subtracted => self.vectors_four(subtract, d, [j, k, c]),
            Addend::Alternating(subtracts_even) => {
                let (v, w) = (self.vector_temporary(), self.vector_temporary());
                let (even, odd) = if subtracts_even { (subtract, add) } else { (add, subtract) };
                self.vectors_four(even, v, [j, k, c]);
                self.vectors_four(odd, w, [j, k, c]);
                self.vectors_by(if double { La::VextrinsD } else { La::VextrinsW }, v, w, 0x11);
                if !double {
                    self.vectors_by(La::VextrinsW, v, w, 0x33);
                }
                self.copy_vector(d, v);
            }
        }
        true
    }

    /// Translates a fused scalar instruction, which does not need complete vectors. Returns false for others.
    pub fn fused_scalars(&mut self) -> bool {
        let Some(&fused) = FUSED.get(&self.instruction.mnemonic()).filter(|fused| fused.is_scalar) else {
            return false;
        };
        let i = self.instruction;
        let double = fused.is_double;
        let operands = [0, 1, 2].map(|operand| self.float(operand, double));
        let [mut j, k, c] = fused.order.map(|operand| operands[operand as usize]);
        if fused.is_negated {
            let v = self.vector_temporary();
            self.assembler.two(if double { La::FnegD } else { La::FnegS }, v, j);
            j = v;
        }
        let op = match (fused.addend, double) {
            (Addend::Subtracted, true) => La::FmsubD,
            (Addend::Subtracted, false) => La::FmsubS,
            (_, true) => La::FmaddD,
            (_, false) => La::FmaddS,
        };
        let d = i.op0_register();
        let result = self.result(d, double);
        self.assembler.push(Code { d: result.0, j, k, a: c, ..Code::new(op) });
        self.finish(d, result, double);
        debug_assert!(is_register(&i, 0).is_some(), "the destination of a fused instruction is a register");
        true
    }
}
