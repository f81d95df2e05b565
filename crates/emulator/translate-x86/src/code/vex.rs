//! What the forms with three operands have in common with SSE's: which instruction of SSE does the same, and which operand is which; and which
//! instruction of LASX is the one of LSX on both halves.
//! Not what is new with AVX: see `avx`.
//! Source: Intel SDM, volume 2, chapter 2.3 (VEX); the manual's LSX and LASX volumes.

use std::sync::LazyLock;

use iced_x86::{EncodingKind, Instruction, Mnemonic, OpKind};
use longma_loongarch::Op as La;
use rustc_hash::FxHashMap;

use super::fma::is_fused_scalar;
use super::lower::Lowering;

/// By mnemonic: the one without the V, if there is one.
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

/// By the instruction of LSX: that of LASX.
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

/// The instruction of LASX that does to both halves what this one of LSX does; itself if there is none.
pub(super) fn wide(op: La) -> La {
    WIDE[op as usize]
}

/// Whether an instruction has the encoding of AVX, and so clears what is above its result.
pub(crate) fn is_vex(i: &Instruction) -> bool {
    i.code().encoding() == EncodingKind::VEX
}

/// Whether an instruction has the encoding of AVX-512 or another that is not there: those have mnemonics of AVX, and other registers.
pub(crate) fn is_newer(i: &Instruction) -> bool {
    !matches!(i.code().encoding(), EncodingKind::Legacy | EncodingKind::VEX)
}

/// The mnemonic, of AVX's forms that of SSE.
pub(crate) fn old(i: &Instruction) -> Mnemonic {
    if is_vex(i) { OLD[i.mnemonic() as usize] } else { i.mnemonic() }
}

fn is_immediate(kind: OpKind) -> bool {
    !matches!(kind, OpKind::Register | OpKind::Memory)
}

/// The number of operands that are no constants.
fn places(i: &Instruction) -> u32 {
    (0..i.op_count()).filter(|operand| !is_immediate(i.op_kind(*operand))).count() as u32
}

/// Whether the first source is an operand of its own, not the destination.
fn is_apart(i: &Instruction) -> bool {
    use Mnemonic::*;
    let shifts =
        matches!(old(i), Psllw | Pslld | Psllq | Psrlw | Psrld | Psrlq | Psraw | Psrad | Pslldq | Psrldq);
    is_vex(i) && (places(i) > 2 || shifts) && !is_fused_scalar(i)
}

/// The operand that is the first source: in SSE that is the destination.
pub(crate) fn first(i: &Instruction) -> u32 {
    u32::from(is_apart(i))
}

/// The operand that is the last source.
pub(crate) fn last(i: &Instruction) -> u32 {
    first(i) + 1
}

impl Lowering<'_> {
    /// The mnemonic, of AVX's forms that of SSE.
    pub fn mnemonic(&self) -> Mnemonic {
        old(&self.instruction)
    }

    /// An instruction of LSX, or, where the source's works on 256 bits, that of LASX.
    fn sized(&self, op: La) -> La {
        if self.is_wide { wide(op) } else { op }
    }

    /// `op d, j, k` on all of the vectors that the source's instruction works on.
    pub fn vectors(&mut self, op: La, d: u8, j: u8, k: u8) {
        self.assembler.three(self.sized(op), d, j, k);
    }

    /// `op d, j` on all of the vectors.
    pub fn vectors_two(&mut self, op: La, d: u8, j: u8) {
        self.assembler.two(self.sized(op), d, j);
    }

    /// `op d, j, imm` on all of the vectors.
    pub fn vectors_by(&mut self, op: La, d: u8, j: u8, imm: i32) {
        self.assembler.immediate(self.sized(op), d, j, imm);
    }

    /// `op d, j, k, a` on all of the vectors.
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

    /// A load or store of all of a vector.
    pub fn access_vector(&mut self, near: La, sum: La, v: u8, place: super::operands::Place) {
        let (near, sum) = (self.sized(near), self.sized(sum));
        self.access(near, sum, v, place);
    }
}
