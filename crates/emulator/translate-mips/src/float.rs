//! Lowers floating-point instructions. The engine accesses the control register (`service`). Source: MIPS64
//! Architecture for Programmers, volume II-A; LoongArch Reference Manual, volume 1, chapter 3.

use longma_loongarch::{Instruction as Code, Op as La};

use super::instruction::{Instruction, Op};
use super::lower::Lowering;
use super::registers::general;

impl Lowering<'_> {
    /// Lowers the instruction. Returns false for other instructions.
    pub(super) fn float(&mut self, i: Instruction) -> bool {
        self.float_arithmetic(i)
            || self.float_conversion(i)
            || self.float_move(i)
            || self.float_comparison(i)
            || self.indexed(i)
    }

    fn float_arithmetic(&mut self, i: Instruction) -> bool {
        let (d, s, t) = (i.sa(), i.rd(), i.rt());
        let op = match i.op {
            Op::AddS => La::FaddS,
            Op::AddD => La::FaddD,
            Op::SubS => La::FsubS,
            Op::SubD => La::FsubD,
            Op::MulS => La::FmulS,
            Op::MulD => La::FmulD,
            Op::DivS => La::FdivS,
            Op::DivD => La::FdivD,
            _ => return self.float_two(i) || self.fused(i),
        };
        self.assembler.three(op, d, s, t);
        true
    }

    fn float_two(&mut self, i: Instruction) -> bool {
        let op = match i.op {
            Op::SqrtS => La::FsqrtS,
            Op::SqrtD => La::FsqrtD,
            Op::AbsS => La::FabsS,
            Op::AbsD => La::FabsD,
            Op::NegS => La::FnegS,
            Op::NegD => La::FnegD,
            Op::MovS => La::FmovS,
            Op::MovD => La::FmovD,
            Op::RecipS => La::FrecipS,
            Op::RecipD => La::FrecipD,
            Op::RsqrtS => La::FrsqrtS,
            Op::RsqrtD => La::FrsqrtD,
            _ => return false,
        };
        self.assembler.two(op, i.sa(), i.rd());
        true
    }

    /// Multiply-add with a single rounding, as on Loongson's MIPS64 processors.
    fn fused(&mut self, i: Instruction) -> bool {
        let op = match i.op {
            Op::MaddS => La::FmaddS,
            Op::MaddD => La::FmaddD,
            Op::MsubS => La::FmsubS,
            Op::MsubD => La::FmsubD,
            Op::NmaddS => La::FnmaddS,
            Op::NmaddD => La::FnmaddD,
            Op::NmsubS => La::FnmsubS,
            Op::NmsubD => La::FnmsubD,
            _ => return false,
        };
        self.assembler.push(Code { d: i.sa(), j: i.rd(), k: i.rt(), a: i.rs(), ..Code::new(op) });
        true
    }

    fn float_conversion(&mut self, i: Instruction) -> bool {
        let op = match i.op {
            Op::CvtSD => La::FcvtSD,
            Op::CvtDS => La::FcvtDS,
            Op::CvtSW => La::FfintSW,
            Op::CvtDW => La::FfintDW,
            Op::CvtSL => La::FfintSL,
            Op::CvtDL => La::FfintDL,
            Op::CvtWS => La::FtintWS,
            Op::CvtWD => La::FtintWD,
            Op::CvtLS => La::FtintLS,
            Op::CvtLD => La::FtintLD,
            Op::RoundWS => La::FtintrneWS,
            Op::RoundWD => La::FtintrneWD,
            Op::RoundLS => La::FtintrneLS,
            Op::RoundLD => La::FtintrneLD,
            Op::TruncWS => La::FtintrzWS,
            Op::TruncWD => La::FtintrzWD,
            Op::TruncLS => La::FtintrzLS,
            Op::TruncLD => La::FtintrzLD,
            Op::CeilWS => La::FtintrpWS,
            Op::CeilWD => La::FtintrpWD,
            Op::CeilLS => La::FtintrpLS,
            Op::CeilLD => La::FtintrpLD,
            Op::FloorWS => La::FtintrmWS,
            Op::FloorWD => La::FtintrmWD,
            Op::FloorLS => La::FtintrmLS,
            Op::FloorLD => La::FtintrmLD,
            _ => return false,
        };
        self.assembler.two(op, i.sa(), i.rd());
        true
    }

    fn float_move(&mut self, i: Instruction) -> bool {
        let (to, g) = (general(i.rt()), self.read(i.rt()));
        let (s, d, cc) = (i.rd(), i.sa(), i.cc());
        let choose = |fj, fk| Code { d, j: fj, k: fk, a: cc, ..Code::new(La::Fsel) };
        match i.op {
            Op::Mfc1 if to != 0 => self.assembler.two(La::Movfr2grS, to, s),
            Op::Dmfc1 if to != 0 => self.assembler.two(La::Movfr2grD, to, s),
            Op::Mfhc1 if to != 0 => self.assembler.two(La::Movfrh2grS, to, s),
            Op::Mfc1 | Op::Dmfc1 | Op::Mfhc1 => {}
            Op::Mtc1 => self.assembler.two(La::Movgr2frW, s, g),
            Op::Dmtc1 => self.assembler.two(La::Movgr2frD, s, g),
            Op::Mthc1 => self.assembler.two(La::Movgr2frhW, s, g),
            Op::MovtS | Op::MovtD => self.assembler.push(choose(d, s)),
            Op::MovfS | Op::MovfD => self.assembler.push(choose(s, d)),
            Op::MovzS | Op::MovzD | Op::MovnS | Op::MovnD => {
                let skip = if matches!(i.op, Op::MovzS | Op::MovzD) { La::Bnez } else { La::Beqz };
                self.skip_one(Code { j: g, ..Code::new(skip) });
                self.assembler.two(La::FmovD, d, s);
            }
            _ => return false,
        }
        true
    }

    fn float_comparison(&mut self, i: Instruction) -> bool {
        use La::*;
        const SINGLE: [La; 16] = [
            FcmpCafS, FcmpCunS, FcmpCeqS, FcmpCueqS, FcmpCltS, FcmpCultS, FcmpCleS, FcmpCuleS, FcmpSafS,
            FcmpSunS, FcmpSeqS, FcmpSueqS, FcmpSltS, FcmpSultS, FcmpSleS, FcmpSuleS,
        ];
        const DOUBLE: [La; 16] = [
            FcmpCafD, FcmpCunD, FcmpCeqD, FcmpCueqD, FcmpCltD, FcmpCultD, FcmpCleD, FcmpCuleD, FcmpSafD,
            FcmpSunD, FcmpSeqD, FcmpSueqD, FcmpSltD, FcmpSultD, FcmpSleD, FcmpSuleD,
        ];
        if !i.mnemonic().starts_with("c.") {
            return false;
        }
        let condition = (i.word & 15) as usize;
        let is_double = i.rs() == 17;
        let op = if is_double { DOUBLE[condition] } else { SINGLE[condition] };
        self.assembler.three(op, (i.word >> 8 & 7) as u8, i.rd(), i.rt());
        true
    }

    fn indexed(&mut self, i: Instruction) -> bool {
        let (base, index) = (self.read(i.rs()), self.read(i.rt()));
        let (op, register) = match i.op {
            Op::Lwxc1 => (La::FldxS, i.sa()),
            Op::Ldxc1 | Op::Luxc1 => (La::FldxD, i.sa()),
            Op::Swxc1 => (La::FstxS, i.rd()),
            Op::Sdxc1 | Op::Suxc1 => (La::FstxD, i.rd()),
            _ => return false,
        };
        self.assembler.three(op, register, base, index);
        true
    }
}
