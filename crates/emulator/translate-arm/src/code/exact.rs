//! Lowers floating-point arithmetic while FPCR.FZ, FZ16 or DN may be set: LoongArch computes, and the engine executes
//! the instruction instead if an operand or the result is a subnormal number or a NaN. Source: Arm Architecture
//! Reference Manual (Arm DDI 0487), section A1.5; LoongArch Reference Manual, volume 2 (VFCLASS).

use longma_loongarch::{Instruction as Code, Op as La};

use super::lower::Lowering;
use crate::instruction::{Instruction, Op, Operand, Role, lane_of};
use crate::registers::FLAG_TEMPORARY;
use longma_translate::assembler::{JumpTarget, Label};
use longma_translate::front_end::Exit;

/// The classes of VFCLASS that need the engine: NaNs and subnormal numbers.
const SPECIAL: i32 = 0b1_0001_0011;

/// The FCSR register with the exception flags.
const FLAGS: u8 = 2;

/// The checks that an instruction needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checks {
    /// Only the operands: the result is exact, or is not a floating-point value.
    Operands,
    /// Operands and result.
    Both,
}

/// The checks that a lowered instruction needs; `None` for instructions that only the engine executes.
fn checks(op: Op) -> Option<Checks> {
    use Op::*;
    Some(match op {
        Fadd | Fsub | Fmul | Fdiv | Fnmul | Fsqrt | Fmadd | Fmsub | Fnmsub | FaddV | FsubV | FmulV
        | FdivV | FsqrtV | FmlaV | FmlsV | FmulE | FmlaE | FabdV | FabdScalar => Checks::Both,
        Fmaxnm | Fminnm | FmaxnmV | FminnmV | FcmeqV | FcmgeV | FcmgtV | FcmeqScalar | FcmgeScalar
        | FcmgtScalar | FcmeqZero | FcmgeZero | FcmgtZero | FcmleZero | FcmltZero | FcvtzsV | FcvtzuV
        | FcvtzsScalar | FcvtzuScalar | Frintn | Frintp | Frintm | Frintz | Frintx | Frinti | FrintnV
        | FrintpV | FrintmV | FrintzV | FrintxV | FrintiV => Checks::Operands,
        _ => return None,
    })
}

/// Whether the result of an instruction depends on FPCR.FZ, FZ16 or DN. Comparisons of scalars do not count.
pub(super) fn depends_on_modes(i: Instruction) -> bool {
    let name = i.mnemonic();
    let is_exact = matches!(name, "fabs" | "fneg" | "fmov" | "fcsel" | "fcmp" | "fcmpe" | "fccmp" | "fccmpe");
    name.starts_with('f') && !is_exact
}

/// The vectors that an instruction reads.
fn operands(i: Instruction) -> Vec<u8> {
    let vector = |operand: &Operand| match *operand {
        Operand::Register { role: Role::Written, .. } => None,
        Operand::Register { kind: b'E', .. } => Some(lane_of(i).0),
        Operand::Register { kind, at, .. } => kind.is_ascii_uppercase().then(|| i.bits(at.into(), 5) as u8),
        _ => None,
    };
    i.row().operands.iter().filter_map(vector).collect()
}

impl Lowering<'_> {
    /// Lowers an instruction whose result depends on FPCR.
    pub(super) fn exact(&mut self, i: Instruction) {
        let Some(checks) = checks(i.op) else { return self.serve(i) };
        self.settle();
        let (reads, d) = (operands(i), i.rd());
        let [service, special, end] = [(); 3].map(|()| self.assembler.label());
        self.check(i, &reads, service);
        if checks == Checks::Operands {
            self.native(i);
            self.give_back_vectors();
            self.assembler.go(JumpTarget::Label(end));
        } else {
            let raised = self.temporary();
            self.assembler.two(La::Movfcsr2gr, raised, FLAGS);
            let old = reads.contains(&d).then(|| self.borrow_vector(&[&reads[..], &[d]].concat()));
            if let Some(old) = old {
                self.assembler.three(La::VorV, old, d, d);
            }
            self.native(i);
            self.classify(i, &[d]);
            self.branch_if_special(special);
            self.restore_vectors();
            self.assembler.go(JumpTarget::Label(end));
            self.assembler.place(special);
            // The engine raises the exceptions of the instruction.
            self.assembler.two(La::Movgr2fcsr, FLAGS, raised);
            self.free(raised);
            if let Some(old) = old {
                self.assembler.three(La::VorV, d, old, old);
            }
            self.give_back_vectors();
        }
        self.assembler.place(service);
        self.unit.exit(&mut self.assembler, self.pc, Exit::Service(i));
        self.assembler.place(end);
    }

    fn native(&mut self, i: Instruction) {
        let is_done = self.float(i) || self.vector(i);
        debug_assert!(is_done, "{i:?} is lowered");
    }

    /// Branches if an operand is special. Borrowed vectors are given back.
    pub(super) fn check(&mut self, i: Instruction, vectors: &[u8], special: Label) {
        self.classify(i, vectors);
        self.give_back_vectors();
        self.branch_if_special(special);
    }

    fn branch_if_special(&mut self, to: Label) {
        self.assembler.jump(Code { j: FLAG_TEMPORARY, ..Code::new(La::Bcnez) }, JumpTarget::Label(to));
    }

    /// Sets a condition flag if there is a special number in one of the vectors.
    fn classify(&mut self, i: Instruction, vectors: &[u8]) {
        let class = [La::VfclassS, La::VfclassD][usize::from(i.is_double())];
        let [all, current] = [(); 2].map(|()| self.borrow_vector(vectors));
        for (index, vector) in vectors.iter().enumerate() {
            let to = if index == 0 { all } else { current };
            self.assembler.two(class, to, *vector);
            if index > 0 {
                self.assembler.three(La::VorV, all, all, current);
            }
        }
        let mask = self.temporary();
        if i.bits(28, 1) != 0 {
            self.assembler.immediate(La::Vpickve2grW, mask, all, 0);
            self.assembler.immediate(La::Andi, mask, mask, SPECIAL);
            self.assembler.three(La::Sltu, mask, 0, mask);
            self.assembler.two(La::Movgr2cf, FLAG_TEMPORARY, mask);
        } else {
            self.assembler.immediate(La::AddiD, mask, 0, SPECIAL);
            self.assembler.two(if i.is_double() { La::Vreplgr2vrD } else { La::Vreplgr2vrW }, current, mask);
            self.assembler.three(La::VandV, all, all, current);
            self.assembler.two(La::VsetnezV, FLAG_TEMPORARY, all);
        }
        self.free(mask);
    }
}
