//! Integer instructions of BMI1, BMI2 and MOVBE, except TZCNT and LZCNT (see `bits`). Source: Intel SDM, volume 2.

use iced_x86::{Mnemonic, OpKind, RflagsBits};
use longma_loongarch::Op as La;

use super::forms::number;
use super::known::Facts;
use super::lower::{Lowering, is_register};
use super::operands::Extension;
use crate::registers::*;

impl Lowering<'_> {
    /// ADCX and ADOX: a sum with CF or OF as carry, which changes no other flag.
    pub fn add_with_one_flag(&mut self) {
        let i = self.instruction;
        let (bytes, uses_carry) = (self.bytes_of(0), i.mnemonic() == Mnemonic::Adcx);
        let a = self.read_register(i.op0_register(), Extension::Zero);
        let b = self.read(1, Extension::Zero);
        let (half, d) = (self.temporary(), self.temporary());
        self.assembler.three(La::AddD, half, a, b);
        let carry = if uses_carry {
            CARRY
        } else {
            self.assembler.immediate(La::SrliD, SCRATCH, OVERFLOW, 63);
            SCRATCH
        };
        self.assembler.three(La::AddD, d, half, carry);
        let flag = if uses_carry { RflagsBits::CF } else { RflagsBits::OF };
        if self.live & flag != 0 {
            let flag_register = if uses_carry { CARRY } else { OVERFLOW };
            if bytes == 8 {
                self.assembler.three(La::Sltu, SCRATCH, half, a);
                self.assembler.three(La::Sltu, flag_register, d, half);
                self.assembler.three(La::Or, flag_register, flag_register, SCRATCH);
            } else {
                self.assembler.immediate(La::SrliD, flag_register, d, 32);
            }
            if !uses_carry {
                self.assembler.immediate(La::SlliD, OVERFLOW, OVERFLOW, 63);
            }
        }
        self.write_register(i.op0_register(), d);
    }

    /// Translates a VEX-encoded integer instruction. Returns false for others.
    pub fn general_extended(&mut self) -> bool {
        use Mnemonic::*;
        match self.instruction.mnemonic() {
            Andn => self.and_not(),
            Blsi | Blsr | Blsmsk => self.lowest_bit(),
            Bzhi => self.low_bits(),
            Rorx => self.rotate_right(),
            Sarx | Shlx | Shrx => self.shift_without_flags(),
            Mulx => self.product_without_flags(),
            Bextr | Pdep | Pext => self.serve(),
            _ => return false,
        }
        true
    }

    /// Writes a result to the first operand. For 32-bit operands, the upper half of `value` is ignored.
    fn put(&mut self, value: u8) {
        let register = self.instruction.op0_register();
        let n = number(register);
        let d = self.define(n);
        self.assembler.copy(d, value);
        if register.size() == 4 { self.defined(n, Facts::WORD) } else { self.defined_wide(n, Facts::NONE) }
    }

    /// Computes all flags of a sign-extended result except CF.
    fn flags_but_carry(&mut self, result: u8) {
        let live = self.live;
        self.live &= !RflagsBits::CF;
        self.logic_flags(result);
        self.live = live;
    }

    /// ANDN.
    fn and_not(&mut self) {
        let (a, b) = (self.read(1, Extension::Sign), self.read(2, Extension::Sign));
        let t = self.temporary();
        self.assembler.three(La::Andn, t, b, a);
        self.logic_flags(t);
        self.put(t);
    }

    /// BLSI, BLSR and BLSMSK.
    fn lowest_bit(&mut self) {
        use Mnemonic::*;
        let mnemonic = self.instruction.mnemonic();
        let a = self.read(1, Extension::Sign);
        let t = self.temporary();
        let op = match mnemonic {
            Blsi => {
                self.assembler.three(La::SubD, t, 0, a);
                La::And
            }
            _ => {
                self.assembler.immediate(La::AddiD, t, a, -1);
                if mnemonic == Blsr { La::And } else { La::Xor }
            }
        };
        // Subtracting from or negating the smallest word overflows the sign extension, so extend again.
        self.assembler.three(op, t, t, a);
        if self.bytes_of(0) == 4 {
            self.assembler.immediate(La::SlliW, t, t, 0);
        }
        if self.live & RflagsBits::CF != 0 {
            if mnemonic == Blsi {
                self.assembler.three(La::Sltu, CARRY, 0, a);
            } else {
                self.assembler.immediate(La::Sltui, CARRY, a, 1);
            }
        }
        self.flags_but_carry(t);
        self.put(t);
    }

    /// BZHI.
    fn low_bits(&mut self) {
        let bits = 8 * self.bytes_of(0) as i32;
        let a = self.read(1, Extension::Sign);
        let count = self.read(2, Extension::Any);
        let (t, u) = (self.temporary(), self.temporary());
        self.assembler.immediate(La::Andi, t, count, 255);
        self.assembler.immediate(La::Sltui, u, t, bits);
        self.assembler.immediate(La::AddiD, SCRATCH, 0, -1);
        self.assembler.three(La::SllD, SCRATCH, SCRATCH, t);
        self.assembler.three(La::Maskeqz, SCRATCH, SCRATCH, u);
        self.assembler.three(La::Andn, t, a, SCRATCH);
        if self.live & RflagsBits::CF != 0 {
            self.assembler.immediate(La::Xori, CARRY, u, 1);
        }
        self.flags_but_carry(t);
        self.put(t);
    }

    /// RORX.
    fn rotate_right(&mut self) {
        let a = self.read(1, Extension::Any);
        let t = self.temporary();
        let count = i32::from(self.instruction.immediate8());
        if self.bytes_of(0) == 4 {
            self.assembler.immediate(La::RotriW, t, a, count & 31);
        } else {
            self.assembler.immediate(La::RotriD, t, a, count & 63);
        }
        self.put(t);
    }

    /// SARX, SHLX and SHRX.
    fn shift_without_flags(&mut self) {
        let i = self.instruction;
        let a = self.read(1, Extension::Any);
        let count = self.read(2, Extension::Any);
        let op = match (i.mnemonic(), self.bytes_of(0)) {
            (Mnemonic::Sarx, 4) => La::SraW,
            (Mnemonic::Sarx, _) => La::SraD,
            (Mnemonic::Shlx, 4) => La::SllW,
            (Mnemonic::Shlx, _) => La::SllD,
            (_, 4) => La::SrlW,
            _ => La::SrlD,
        };
        let n = number(i.op0_register());
        let d = self.define(n);
        self.assembler.three(op, d, a, count);
        if i.op0_register().size() == 4 {
            self.defined(n, Facts::WORD);
        } else {
            self.defined_wide(n, Facts::NONE);
        }
    }

    /// MULX: the upper half goes to the first operand, the lower to the second. If both are the same register, it
    /// receives the upper half.
    fn product_without_flags(&mut self) {
        let i = self.instruction;
        let (t, u) = (self.temporary(), self.temporary());
        let wide = self.bytes_of(0) == 8;
        let extension = if wide { Extension::Any } else { Extension::Zero };
        let b = self.read(2, extension);
        let a = if wide { self.wide(2) } else { self.unsigned(2) };
        self.assembler.three(La::MulD, t, a, b);
        if wide {
            self.assembler.three(La::MulhDu, u, a, b);
        } else {
            self.assembler.immediate(La::SraiD, u, t, 32);
        }
        for (register, value) in [(i.op1_register(), t), (i.op0_register(), u)] {
            let n = number(register);
            let d = self.define(n);
            if wide {
                self.assembler.copy(d, value);
                self.defined_wide(n, Facts::NONE);
            } else {
                self.assembler.immediate(La::SlliW, d, value, 0);
                self.defined(n, Facts::WORD);
            }
        }
    }

    /// MOVBE.
    pub fn move_swapped(&mut self) {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let op = match bytes {
            2 => La::Revb4h,
            4 => La::Revb2w,
            _ => La::RevbD,
        };
        let t = self.temporary();
        if i.op1_kind() == OpKind::Memory {
            let location = self.place(t);
            self.load_to(t, location, bytes, Extension::Zero);
            self.assembler.two(op, t, t);
            self.write_register(i.op0_register(), t);
        } else {
            let register = is_register(&i, 1).unwrap_or_default();
            let value = self.read_register(register, Extension::Any);
            let location = self.place(t);
            self.assembler.two(op, SCRATCH, value);
            self.store_from(SCRATCH, location, bytes);
        }
    }
}
