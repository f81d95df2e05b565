//! Lowers integer instructions, loads and stores. Source: MIPS64 Architecture for Programmers, volume II-A; LoongArch
//! Reference Manual, volume 1.

use longma_loongarch::{Instruction as Code, Op as La};

use super::access::{Access, AccessAddress};
use super::deferred_expressions::{fits_imm12, split_imm16};
use super::instruction::{Instruction, Op};
use super::lower::Lowering;
use super::registers::{HIGH, LOW, SCRATCH, THREAD_POINTER, general};
use super::service::OVERFLOW;
use super::width::Width;
use longma_translate::assembler::JumpTarget;
use longma_translate::front_end::MARKS;

/// Distinguishes conditional traps from `break`, except for the overflow and division-by-zero codes. `longma-linux`
/// assigns other meanings to `break` codes.
const TRAP: i32 = 1 << 10;
/// The hardware register of the thread pointer (UserLocal).
const USER_LOCAL: u8 = 29;

impl Instruction {
    /// The general-purpose register that the instruction writes; 0 if none.
    pub(super) fn destination(self) -> u8 {
        use Op::*;
        match self.destination_at() {
            Some(at) => (self.word >> at & 31) as u8,
            None if matches!(self.op, Jal | Bltzal | Bgezal | Bltzall | Bgezall) => 31,
            None => 0,
        }
    }

    /// The position of the field of the general-purpose register that the instruction writes.
    pub(super) fn destination_at(self) -> Option<u8> {
        use Op::*;
        match self.op {
            Sll | Srl | Sra | Dsll | Dsrl | Dsra | Dsll32 | Dsrl32 | Dsra32 | Rotr | Drotr | Drotr32
            | Sllv | Srlv | Srav | Dsllv | Dsrlv | Dsrav | Rotrv | Drotrv | Movf | Movt | Jalr | JalrHb
            | Movz | Movn | Mfhi | Mflo | Add | Addu | Sub | Subu | And | Or | Xor | Nor | Slt | Sltu
            | Dadd | Daddu | Dsub | Dsubu | Mul | Clz | Clo | Dclz | Dclo | Wsbh | Seb | Seh | Dsbh
            | Dshd => Some(11),
            Addi | Addiu | Slti | Sltiu | Daddi | Daddiu | Andi | Ori | Xori | Lui | Mfc1 | Dmfc1 | Cfc1
            | Mfhc1 | Ext | Dextm | Dextu | Dext | Ins | Dinsm | Dinsu | Dins | Rdhwr | Ldl | Ldr | Lb
            | Lh | Lwl | Lw | Lbu | Lhu | Lwr | Lwu | Ll | Lld | Ld | Sc | Scd => Some(16),
            _ => None,
        }
    }

    /// Whether the engine executes the instruction.
    pub(super) fn is_served(self) -> bool {
        use Op::*;
        matches!(
            self.op,
            Add | Addi | Sub | Dadd | Daddi | Dsub | Madd | Maddu | Msub | Msubu | Cfc1 | Ctc1 | Synci
        ) || self.op == Rdhwr && self.rd() != USER_LOCAL
    }

    /// Whether the instruction is an addition with an inline overflow check.
    pub(super) fn is_checked_sum(self) -> bool {
        self.op == Op::Daddi && fits_imm12(self.imm())
    }

    /// Whether the lowered code may use the scratch register.
    pub(super) fn may_need_scratch(self) -> bool {
        use Op::*;
        let small = (-2048..2048).contains(&self.imm());
        match self.op {
            Addiu | Daddiu | Slti | Sltiu => !small,
            Sll | Srl | Sra | Dsll | Dsrl | Dsra | Dsll32 | Dsrl32 | Dsra32 | Addu | Subu | And | Or
            | Xor | Nor | Slt | Sltu | Daddu | Dsubu | Mul | Seb | Seh | Ext | Dext | Lui | Mfc1 | Dmfc1 => {
                false
            }
            Lb | Lh | Lbu | Lhu | Lw | Lwu | Ld | Sb | Sh | Sw | Sd => !small,
            _ => true,
        }
    }

    /// Whether the instruction writes a condition flag.
    pub(super) fn writes_condition(self) -> bool {
        self.mnemonic().starts_with("c.") || self.op == Op::Ctc1
    }

    /// Whether the instruction is a branch that compares two registers.
    pub(super) fn compares_two_registers(self) -> bool {
        matches!(self.op, Op::Beq | Op::Bne | Op::Beql | Op::Bnel)
    }
}

/// The code of a `break`. Assemblers put it into either half of the field. Linux defines no code that uses both.
fn break_code(word: u32) -> i32 {
    let (high, low) = (word >> 16 & 0x3ff, word >> 6 & 0x3ff);
    if high != 0 && low != 0 { 0 } else { (high | low) as i32 }
}

impl Lowering<'_> {
    /// Lowers an instruction that is not a jump.
    pub(super) fn plain(&mut self, instruction: Instruction) {
        let (value, width) = (self.value_of(instruction), self.width_of(instruction));
        let written = instruction.destination();
        match value {
            Some(value) if general(written) != 0 => self.assembler.constant(general(written), value),
            _ if self.trapping_sum(instruction) => {}
            _ if instruction.is_served() => self.serve(instruction),
            _ => {
                let _ = self.arithmetic(instruction)
                    || self.immediate(instruction)
                    || self.bits(instruction)
                    || self.product(instruction)
                    || self.memory(instruction)
                    || self.conditional(instruction)
                    || self.float(instruction);
            }
        }
        self.changed(general(written));
        self.note(written, value, width);
    }

    /// Records the known value or width of a register that an instruction has written.
    pub(super) fn note(&mut self, written: u8, value: Option<i64>, width: Width) {
        if written != 0 {
            self.known[usize::from(written)] = value.filter(|_| general(written) != 0);
            self.widths[usize::from(written)] = width;
        }
    }

    /// DADDI. Go's compiler uses it for all constant additions.
    fn trapping_sum(&mut self, i: Instruction) -> bool {
        if !i.is_checked_sum() {
            return false;
        }
        let (to, from) = (general(i.rt()), self.read(i.rs()));
        let overflow = self.trap(OVERFLOW as i32);
        self.assembler.immediate(La::AddiD, SCRATCH, from, i.imm());
        // Without an overflow, the sum is less than the operand exactly if the constant is negative.
        let (j, d) = if i.imm() < 0 { (from, SCRATCH) } else { (SCRATCH, from) };
        self.assembler.jump(Code { j, d, ..Code::new(La::Blt) }, JumpTarget::Label(overflow));
        self.assembler.copy(to, SCRATCH);
        true
    }

    /// The result of an instruction on known values.
    pub(super) fn value_of(&self, i: Instruction) -> Option<i64> {
        let rs = self.known[usize::from(i.rs())];
        let imm = i64::from(i.imm());
        match i.op {
            Op::Lui => Some(i64::from((i.unsigned() << 16) as i32)),
            Op::Addiu => Some(i64::from(rs?.wrapping_add(imm) as i32)),
            Op::Daddiu => Some(rs?.wrapping_add(imm)).filter(|value| *value == i64::from(*value as i32)),
            Op::Ori => Some(rs? | i64::from(i.unsigned())),
            _ => None,
        }
    }

    fn arithmetic(&mut self, i: Instruction) -> bool {
        let (d, s, t) = (general(i.rd()), self.read(i.rs()), self.read(i.rt()));
        let op = match i.op {
            Op::Addu => La::AddW,
            Op::Subu => La::SubW,
            Op::Daddu => La::AddD,
            Op::Dsubu => La::SubD,
            Op::And => La::And,
            Op::Or => La::Or,
            Op::Xor => La::Xor,
            Op::Nor => La::Nor,
            Op::Slt => La::Slt,
            Op::Sltu => La::Sltu,
            Op::Mul => La::MulW,
            Op::Sllv => La::SllW,
            Op::Srlv => La::SrlW,
            Op::Srav => La::SraW,
            Op::Dsllv => La::SllD,
            Op::Dsrlv => La::SrlD,
            Op::Dsrav => La::SraD,
            Op::Rotrv => La::RotrW,
            Op::Drotrv => La::RotrD,
            _ => return self.shift(i),
        };
        let is_shift = matches!(
            i.op,
            Op::Sllv | Op::Srlv | Op::Srav | Op::Dsllv | Op::Dsrlv | Op::Dsrav | Op::Rotrv | Op::Drotrv
        );
        if d != 0 {
            let (j, k) = if is_shift { (t, s) } else { (s, t) };
            self.assembler.three(op, d, j, k);
        }
        true
    }

    fn shift(&mut self, i: Instruction) -> bool {
        let (d, t, amount) = (general(i.rd()), self.read(i.rt()), i32::from(i.sa()));
        let (op, amount) = match i.op {
            Op::Sll => (La::SlliW, amount),
            Op::Srl => (La::SrliW, amount),
            Op::Sra => (La::SraiW, amount),
            Op::Rotr => (La::RotriW, amount),
            Op::Dsll => (La::SlliD, amount),
            Op::Dsrl => (La::SrliD, amount),
            Op::Dsra => (La::SraiD, amount),
            Op::Drotr => (La::RotriD, amount),
            Op::Dsll32 => (La::SlliD, amount + 32),
            Op::Dsrl32 => (La::SrliD, amount + 32),
            Op::Dsra32 => (La::SraiD, amount + 32),
            Op::Drotr32 => (La::RotriD, amount + 32),
            _ => return false,
        };
        if d != 0 {
            self.assembler.immediate(op, d, t, amount);
        }
        true
    }

    fn immediate(&mut self, i: Instruction) -> bool {
        let (t, s, imm) = (general(i.rt()), self.read(i.rs()), i.imm());
        let signed = |op, wide| Some((op, wide, imm, (-2048..2048).contains(&imm)));
        let unsigned = |op, wide| Some((op, wide, i.unsigned() as i32, i.unsigned() < 4096));
        let equivalent = match i.op {
            Op::Addiu => signed(La::AddiW, La::AddW),
            Op::Daddiu => signed(La::AddiD, La::AddD),
            Op::Slti => signed(La::Slti, La::Slt),
            Op::Sltiu => signed(La::Sltui, La::Sltu),
            Op::Andi => unsigned(La::Andi, La::And),
            Op::Ori => unsigned(La::Ori, La::Or),
            Op::Xori => unsigned(La::Xori, La::Xor),
            _ => None,
        };
        let Some((narrow, wide, value, fits)) = equivalent else { return false };
        if t == 0 {
            // Markers are the same instruction on LoongArch, with the event number in the same register.
            if i.op == Op::Andi && s == 0 && MARKS.contains(&value) {
                self.assembler.immediate(La::Andi, 0, 0, value);
            }
            return true;
        }
        let mask_bits = (value as u32).trailing_ones() as u8;
        let halves = (-4096..=4094).contains(&value) && matches!(i.op, Op::Addiu | Op::Daddiu);
        if fits {
            self.assembler.immediate(narrow, t, s, value);
        } else if i.op == Op::Andi && value as u32 >> mask_bits == 0 {
            self.assembler.field(La::BstrpickD, t, s, mask_bits - 1, 0);
        } else if halves {
            let first = value / 2;
            self.assembler.immediate(narrow, t, s, first);
            self.assembler.immediate(narrow, t, t, value - first);
        } else {
            self.assembler.constant(SCRATCH, value.into());
            self.assembler.three(wide, t, s, SCRATCH);
        }
        true
    }

    fn bits(&mut self, i: Instruction) -> bool {
        let (t, s, d) = (general(i.rt()), self.read(i.rs()), general(i.rd()));
        let from = self.read(i.rt());
        let one = |op, to, from| Some((op, to, from));
        let simple = match i.op {
            Op::Seb => one(La::ExtWB, d, from),
            Op::Seh => one(La::ExtWH, d, from),
            Op::Wsbh => one(La::Revb2h, d, from),
            Op::Dsbh => one(La::Revb4h, d, from),
            Op::Dshd => one(La::RevhD, d, from),
            Op::Clz => one(La::ClzW, d, s),
            Op::Clo => one(La::CloW, d, s),
            Op::Dclz => one(La::ClzD, d, s),
            Op::Dclo => one(La::CloD, d, s),
            _ => None,
        };
        if let Some((op, to, from)) = simple {
            if to != 0 {
                self.assembler.two(op, to, from);
            }
            return true;
        }
        let op = match i.op {
            Op::Ext => La::BstrpickW,
            Op::Dext | Op::Dextm | Op::Dextu => La::BstrpickD,
            Op::Ins => La::BstrinsW,
            Op::Dins | Op::Dinsm | Op::Dinsu => La::BstrinsD,
            _ => return false,
        };
        if t != 0 {
            let (low, size) = i.bit_field();
            self.assembler.field(op, t, s, low + size - 1, low);
        }
        true
    }

    fn product(&mut self, i: Instruction) -> bool {
        let (d, s) = (general(i.rd()), self.read(i.rs()));
        match i.op {
            Op::Mult | Op::Multu | Op::Dmult | Op::Dmultu | Op::Div | Op::Divu | Op::Ddiv | Op::Ddivu => {
                self.defer_product(i);
            }
            Op::Mflo if d != 0 => self.read_half(d, LOW),
            Op::Mfhi if d != 0 => self.read_half(d, HIGH),
            Op::Mflo | Op::Mfhi => {}
            Op::Mtlo => self.assembler.two(La::Movgr2scr, LOW, s),
            Op::Mthi => self.assembler.two(La::Movgr2scr, HIGH, s),
            Op::Rdhwr if general(i.rt()) != 0 => {
                self.assembler.two(La::Movscr2gr, general(i.rt()), THREAD_POINTER);
            }
            Op::Rdhwr | Op::Pref | Op::Prefx => {}
            Op::Sync => self.assembler.push(Code::new(La::Dbar)),
            _ => return false,
        }
        true
    }

    /// Lowers conditional moves and traps.
    fn conditional(&mut self, i: Instruction) -> bool {
        let (d, s, t) = (general(i.rd()), self.read(i.rs()), self.read(i.rt()));
        let (clear_if, keep_if) = match i.op {
            Op::Movz => (La::Masknez, La::Maskeqz),
            Op::Movn => (La::Maskeqz, La::Masknez),
            Op::Movf | Op::Movt => {
                let skip = if i.op == Op::Movt { La::Bceqz } else { La::Bcnez };
                self.skip_one(Code { j: i.cc(), ..Code::new(skip) });
                self.assembler.three(La::Or, d, s, 0);
                return true;
            }
            Op::Break => {
                self.assembler.push(Code { imm: break_code(i.word), ..Code::new(La::Break) });
                return true;
            }
            _ => return self.trap_if(i),
        };
        if d == 0 || d == s {
        } else if s == 0 {
            self.assembler.three(keep_if, d, d, t);
        } else {
            self.assembler.three(clear_if, SCRATCH, s, t);
            self.assembler.three(keep_if, d, d, t);
            self.assembler.three(La::Or, d, d, SCRATCH);
        }
        true
    }

    /// Emits a branch over the next word.
    pub(super) fn skip_one(&mut self, branch: Code) {
        self.assembler.push(Code { imm: 8, ..branch });
    }

    fn trap_if(&mut self, i: Instruction) -> bool {
        let (s, mut t) = (self.read(i.rs()), self.read(i.rt()));
        let op = match i.op {
            Op::Teq | Op::Teqi => La::Beq,
            Op::Tne | Op::Tnei => La::Bne,
            Op::Tge | Op::Tgei => La::Bge,
            Op::Tgeu | Op::Tgeiu => La::Bgeu,
            Op::Tlt | Op::Tlti => La::Blt,
            Op::Tltu | Op::Tltiu => La::Bltu,
            _ => return false,
        };
        let mut code = (i.word >> 6 & 0x3ff) as i32;
        if matches!(i.op, Op::Teqi | Op::Tnei | Op::Tgei | Op::Tgeiu | Op::Tlti | Op::Tltiu) {
            self.assembler.constant(SCRATCH, i.imm().into());
            (t, code) = (SCRATCH, 0);
        }
        let label = self.trap(if matches!(code, 6 | 7) { code } else { code | TRAP });
        self.assembler.jump(Code { j: s, d: t, ..Code::new(op) }, JumpTarget::Label(label));
        true
    }

    fn memory(&mut self, i: Instruction) -> bool {
        let atomic = match i.op {
            Op::Ll => La::LlW,
            Op::Lld => La::LlD,
            Op::Sc => La::ScW,
            Op::Scd => La::ScD,
            Op::Lwl | Op::Lwr | Op::Ldl | Op::Ldr | Op::Swl | Op::Swr | Op::Sdl | Op::Sdr => {
                return self.part(i);
            }
            _ => {
                let Some(access) = i.access() else { return false };
                let address =
                    self.fold_address(i, access).expect("a base that cannot be folded has been computed");
                let register = if access.float { i.rt() } else { self.moved_register(i) };
                self.access(access, register, address);
                return true;
            }
        };
        let (base, mut offset) = (self.read(i.rs()), i.imm());
        let base = if offset % 4 == 0 {
            base
        } else {
            self.assembler.constant(SCRATCH, offset.into());
            self.assembler.three(La::AddD, SCRATCH, SCRATCH, base);
            offset = 0;
            SCRATCH
        };
        self.assembler.immediate(atomic, general(i.rt()), base, offset);
        true
    }

    /// A load must write the register itself. A store can read a register that holds a copy.
    fn moved_register(&self, i: Instruction) -> u8 {
        if i.destination_at().is_some() { general(i.rt()) } else { self.read(i.rt()) }
    }

    /// Emits an access of a LoongArch register.
    fn access(&mut self, access: Access, register: u8, address: AccessAddress) {
        let AccessAddress { mut j, k, mut imm } = address;
        if k != 0 && imm == 0 {
            self.assembler.three(access.indexed, register, j, k);
            return;
        }
        if k != 0 {
            self.assembler.three(La::AddD, SCRATCH, j, k);
            j = SCRATCH;
        }
        let words = access.words.filter(|_| imm % 4 == 0);
        let wide = |imm: i32| imm as i16 as i32 == imm && words.is_some();
        match split_imm16(imm) {
            _ if fits_imm12(imm) || wide(imm) => {}
            _ if (-4096..=4094).contains(&imm) => {
                self.assembler.immediate(La::AddiD, SCRATCH, j, imm / 2);
                (j, imm) = (SCRATCH, imm - imm / 2);
            }
            Some((high, low)) if high != 0 && (fits_imm12(low) || wide(low)) => {
                self.assembler.immediate(La::Addu16iD, SCRATCH, j, high);
                (j, imm) = (SCRATCH, low);
            }
            _ => {
                let low = imm << 20 >> 20;
                self.assembler.immediate(La::Lu12iW, SCRATCH, 0, (imm - low) >> 12);
                self.assembler.three(La::AddD, SCRATCH, SCRATCH, j);
                (j, imm) = (SCRATCH, low);
            }
        }
        let op = if fits_imm12(imm) { access.near } else { words.unwrap_or(access.near) };
        self.assembler.immediate(op, register, j, imm);
    }

    /// Unaligned partial accesses. An adjacent pair becomes one unaligned LoongArch access, a single one an instruction
    /// of the binary-translation extension.
    fn part(&mut self, i: Instruction) -> bool {
        let (op, other, aligned, bytes) = match i.op {
            Op::Lwl => (La::LdlW, Op::Lwr, La::LdW, 4),
            Op::Lwr => (La::LdrW, Op::Lwl, La::LdW, 4),
            Op::Ldl => (La::LdlD, Op::Ldr, La::LdD, 8),
            Op::Ldr => (La::LdrD, Op::Ldl, La::LdD, 8),
            Op::Swl => (La::StlW, Op::Swr, La::StW, 4),
            Op::Swr => (La::StrW, Op::Swl, La::StW, 4),
            Op::Sdl => (La::StlD, Op::Sdr, La::StD, 8),
            _ => (La::StrD, Op::Sdl, La::StD, 8),
        };
        let is_left = matches!(i.op, Op::Lwl | Op::Ldl | Op::Swl | Op::Sdl);
        let low = if is_left { i.imm() - bytes + 1 } else { i.imm() };
        let pair = self.following().filter(|next| {
            let aligned_end = if is_left { low } else { low + bytes - 1 };
            next.op == other && next.rt() == i.rt() && next.rs() == i.rs() && next.imm() == aligned_end
        });
        let loads = matches!(aligned, La::LdW | La::LdD);
        if pair.is_some() && !(loads && i.rt() == i.rs()) {
            self.access_part(aligned, i, low);
            self.skip = true;
        } else {
            self.access_part(op, i, i.imm());
        }
        true
    }

    fn access_part(&mut self, op: La, i: Instruction, imm: i32) {
        let access = Access { near: op, words: None, indexed: op, float: false };
        self.access(access, self.moved_register(i), AccessAddress { j: self.read(i.rs()), k: 0, imm });
    }
}
