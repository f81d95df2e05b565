//! The relation of VEX-encoded instructions to SSE's: the equivalent mnemonic and the roles of operands. Also the LASX
//! equivalents of LSX instructions. Source: Intel SDM, volume 2, chapter 2.3 (VEX); LoongArch Reference Manual, LSX and
//! LASX volumes.

use std::sync::LazyLock;

use iced_x86::{EncodingKind, Instruction, Mnemonic, OpKind};
use longma_loongarch::Op as La;
use rustc_hash::FxHashMap;

use super::fma::is_fused_scalar;
use super::lower::Lowering;

/// The SSE equivalent of each mnemonic; itself if there is none.
static OLD: LazyLock<Vec<Mnemonic>> = LazyLock::new(|| {
    let by_name: FxHashMap<String, Mnemonic> =
        Mnemonic::values().map(|mnemonic| (format!("{mnemonic:?}"), mnemonic)).collect();
    let old_of = |mnemonic: Mnemonic| {
        let name = format!("{mnemonic:?}");
        let (first, rest) = name.split_at(1);
        let (second, rest) = rest.split_at(rest.len().min(1));
        let found =
            (first == "V").then(|| by_name.get(&format!("{}{rest}", second.to_uppercase()))).flatten();
        found.copied().unwrap_or(mnemonic)
    };
    Mnemonic::values().map(old_of).collect()
});

/// The LASX equivalent of each LSX instruction; itself if there is none.
static WIDE: LazyLock<Vec<La>> = LazyLock::new(|| {
    let by_name: FxHashMap<&str, La> = La::all().map(|op| (op.mnemonic(), op)).collect();
    let wide_of = |op: La| match op {
        La::VreplveiB => La::Xvrepl128veiB,
        La::VreplveiH => La::Xvrepl128veiH,
        La::VreplveiW => La::Xvrepl128veiW,
        La::VreplveiD => La::Xvrepl128veiD,
        _ if op.mnemonic().starts_with('v') => {
            by_name.get(format!("x{}", op.mnemonic()).as_str()).copied().unwrap_or(op)
        }
        _ => op,
    };
    La::all().map(wide_of).collect()
});

/// The LASX equivalent of an LSX instruction; itself if there is none.
pub(super) fn wide(op: La) -> La {
    WIDE[op as usize]
}

/// Whether an instruction is VEX-encoded, so that it clears the bits above its result.
pub(crate) fn is_vex(i: &Instruction) -> bool {
    i.code().encoding() == EncodingKind::VEX
}

/// Whether an instruction has an unsupported encoding such as EVEX, which shares mnemonics with AVX.
pub(crate) fn is_newer(i: &Instruction) -> bool {
    !matches!(i.code().encoding(), EncodingKind::Legacy | EncodingKind::VEX)
}

/// The mnemonic, or its SSE equivalent for VEX-encoded instructions.
pub(crate) fn old(i: &Instruction) -> Mnemonic {
    if is_vex(i) { OLD[i.mnemonic() as usize] } else { i.mnemonic() }
}

fn is_immediate(kind: OpKind) -> bool {
    !matches!(kind, OpKind::Register | OpKind::Memory)
}

/// The number of operands that are not immediates.
fn places(i: &Instruction) -> u32 {
    (0..i.op_count()).filter(|operand| !is_immediate(i.op_kind(*operand))).count() as u32
}

/// Whether the first source is a separate operand from the destination.
fn is_apart(i: &Instruction) -> bool {
    use Mnemonic::*;
    let shifts =
        matches!(old(i), Psllw | Pslld | Psllq | Psrlw | Psrld | Psrlq | Psraw | Psrad | Pslldq | Psrldq);
    is_vex(i) && (places(i) > 2 || shifts) && !is_fused_scalar(i)
}

/// The operand number of the first source; in SSE, that is the destination.
pub(crate) fn first(i: &Instruction) -> u32 {
    u32::from(is_apart(i))
}

/// The operand number of the last source.
pub(crate) fn last(i: &Instruction) -> u32 {
    first(i) + 1
}

impl Lowering<'_> {
    /// The current instruction's mnemonic, or its SSE equivalent.
    pub fn mnemonic(&self) -> Mnemonic {
        old(&self.instruction)
    }

    /// The LSX instruction, or its LASX equivalent if the current instruction works on 256 bits.
    fn sized(&self, op: La) -> La {
        if self.is_wide { wide(op) } else { op }
    }

    /// Emits `op d, j, k` in the size of the current instruction.
    pub fn vectors(&mut self, op: La, d: u8, j: u8, k: u8) {
        self.assembler.three(self.sized(op), d, j, k);
    }

    /// Emits `op d, j` in the size of the current instruction.
    pub fn vectors_two(&mut self, op: La, d: u8, j: u8) {
        self.assembler.two(self.sized(op), d, j);
    }

    /// Emits `op d, j, imm` in the size of the current instruction.
    pub fn vectors_by(&mut self, op: La, d: u8, j: u8, imm: i32) {
        self.assembler.immediate(self.sized(op), d, j, imm);
    }

    /// Emits `op d, j, k, a` in the size of the current instruction.
    pub fn vectors_four(&mut self, op: La, d: u8, [j, k, a]: [u8; 3]) {
        let op = self.sized(op);
        self.assembler.push(longma_loongarch::Instruction {
            d,
            j,
            k,
            a,
            ..longma_loongarch::Instruction::new(op)
        });
    }

    /// Emits a load or store of a vector in the size of the current instruction.
    pub fn access_vector(
        &mut self,
        offset_op: La,
        sum_op: La,
        v: u8,
        location: super::operands::OperandLocation,
    ) {
        let (offset_op, sum_op) = (self.aligned(self.sized(offset_op)), self.aligned(self.sized(sum_op)));
        self.access(offset_op, sum_op, v, location);
    }
}
