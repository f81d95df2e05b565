//! Integer multiplication and division. The engine executes divisions that trap and those of less than 32 bits. Source:
//! Intel SDM, volume 2 (MUL, IMUL, DIV, IDIV); LoongArch Reference Manual, volume 1.

use iced_x86::{Mnemonic, Register, RflagsBits};
use longma_loongarch::{Instruction as Code, Op as La};

use super::forms::number;
use super::known::Facts;
use super::lower::Lowering;
use super::operands::Extension;
use crate::registers::*;
use longma_translate::assembler::{JumpTarget, Label};

/// DIV or IDIV.
#[derive(Clone, Copy)]
struct Division {
    /// The register with the divisor.
    by: u8,
    signed: bool,
    /// The upper half of the dividend is zero.
    upper_is_zero: bool,
    /// Registers for the quotient and the remainder.
    quotient: u8,
    rest: u8,
    /// The label of the out-of-line exit to the engine, which then executes the division.
    rare: Label,
}

impl Lowering<'_> {
    /// IMUL with two or three operands.
    pub(super) fn product(&mut self) {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let needs_flags = self.live & (RflagsBits::CF | RflagsBits::OF) != 0;
        let extension = if needs_flags || bytes < 4 { Extension::Sign } else { Extension::Any };
        let (a, b) = if i.op_count() == 3 {
            let a = self.read(1, extension);
            (a, self.read(2, Extension::Sign))
        } else {
            let a = self.read(0, extension);
            (a, self.read(1, extension))
        };
        let n = number(i.op0_register());
        if bytes >= 4 && !needs_flags {
            let d = self.define(n);
            self.assembler.three(if bytes == 4 { La::MulW } else { La::MulD }, d, a, b);
            if bytes == 4 {
                self.defined(n, Facts::WORD)
            } else {
                self.defined_wide(n, Facts::NONE)
            }
            return;
        }
        let d = self.temporary();
        if needs_flags && bytes == 8 {
            self.assembler.three(La::MulhD, SCRATCH, a, b);
        }
        self.assembler.three(La::MulD, d, a, b);
        if needs_flags {
            // The product overflows if the upper half is not the sign extension of the lower one.
            if bytes == 8 {
                self.assembler.immediate(La::SraiD, CARRY, d, 63);
                self.assembler.three(La::Xor, SCRATCH, SCRATCH, CARRY);
            } else {
                self.extend(SCRATCH, d, bytes, Extension::Sign);
                self.assembler.three(La::Xor, SCRATCH, SCRATCH, d);
            }
            self.product_flags(SCRATCH);
        }
        self.write_register(i.op0_register(), d);
    }

    /// Sets CF and OF if `upper` is nonzero.
    fn product_flags(&mut self, upper: u8) {
        self.assembler.three(La::Sltu, CARRY, 0, upper);
        if self.live & RflagsBits::OF != 0 {
            self.assembler.three(La::SubD, OVERFLOW, 0, CARRY);
        }
    }

    /// MUL and IMUL with one operand.
    pub(super) fn wide_product(&mut self) {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let signed = i.mnemonic() == Mnemonic::Imul;
        let extension = if signed { Extension::Sign } else { Extension::Zero };
        let needs_flags = self.live & (RflagsBits::CF | RflagsBits::OF) != 0;
        let b = self.read(0, extension);
        if bytes == 8 {
            let a = self.wide(0);
            let t = self.temporary();
            self.assembler.three(if signed { La::MulhD } else { La::MulhDu }, t, a, b);
            let low = self.define(0);
            self.assembler.three(La::MulD, low, a, b);
            let high = self.define(2);
            self.assembler.copy(high, t);
            if needs_flags {
                if signed {
                    self.assembler.immediate(La::SraiD, SCRATCH, low, 63);
                    self.assembler.three(La::Xor, t, t, SCRATCH);
                }
                self.product_flags(t);
            }
            return;
        }
        let accumulator = match bytes {
            4 => Register::EAX,
            2 => Register::AX,
            _ => Register::AL,
        };
        let a = self.read_register(accumulator, extension);
        let t = self.temporary();
        self.assembler.three(La::MulD, t, a, b);
        match bytes {
            4 => {
                let low = self.define(0);
                self.assembler.field(La::BstrpickD, low, t, 31, 0);
                self.defined(0, Facts::ZERO_EXTENDED);
                let high = self.define(2);
                self.assembler.immediate(La::SrliD, high, t, 32);
                self.defined(2, Facts::ZERO_EXTENDED);
            }
            2 => {
                self.assembler.immediate(La::SrliD, SCRATCH, t, 16);
                self.write_register(Register::AX, t);
                self.write_register(Register::DX, SCRATCH);
            }
            _ => self.write_register(Register::AX, t),
        }
        if needs_flags {
            self.extend(SCRATCH, t, bytes, extension);
            self.assembler.three(La::Xor, SCRATCH, SCRATCH, t);
            self.product_flags(SCRATCH);
        }
    }

    /// DIV and IDIV of 32 and 64 bits. If the quotient may overflow, the engine executes them.
    pub(super) fn division(&mut self) -> bool {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        if bytes < 4 {
            return false;
        }
        let signed = i.mnemonic() == Mnemonic::Idiv;
        // The upper half is typically zero because of a preceding XOR EDX, EDX.
        let upper_is_zero = self.known.value(2).width == 0;
        // The engine may execute the instruction, so all state must be architectural until its end.
        self.settle(true);
        self.pinned = !0;
        let resume = self.assembler.label();
        let rare = self.rare(resume);
        let b = self.read(0, if signed { Extension::Sign } else { Extension::Zero });
        self.unless(rare, La::Beqz, b, 0);
        let (quotient, rest) = (self.temporary(), self.temporary());
        let division = Division { by: b, signed, upper_is_zero, quotient, rest, rare };
        if bytes == 8 {
            self.divide_wide(division)
        } else {
            self.divide_words(division)
        }
        self.assembler.place(resume);
        for n in [0, 2] {
            self.define(n);
            if bytes == 8 {
                self.defined_wide(n, Facts::NONE);
            } else {
                self.defined(n, Facts::ZERO_EXTENDED);
            }
        }
        true
    }

    /// Jumps to `rare` if condition `op` holds for `j` and, if it takes two operands, `d`.
    fn unless(&mut self, rare: Label, op: La, j: u8, d: u8) {
        self.assembler.jump(Code { j, d, ..Code::new(op) }, JumpTarget::Label(rare));
    }

    /// Divides RDX:RAX if RDX is the extension of RAX. RAX receives the quotient, RDX the remainder.
    fn divide_wide(&mut self, division: Division) {
        let Division { by: b, signed, upper_is_zero, rest, rare, .. } = division;
        if signed {
            self.assembler.immediate(La::SraiD, SCRATCH, RAX, 63);
            self.unless(rare, La::Bne, SCRATCH, RDX);
            // The smallest number divided by -1 overflows.
            self.assembler.immediate(La::AddiD, SCRATCH, b, 1);
            self.unless(rare, La::Beqz, SCRATCH, 0);
        } else if !upper_is_zero {
            self.unless(rare, La::Bnez, RDX, 0);
        }
        self.assembler.three(if signed { La::ModD } else { La::ModDu }, rest, RAX, b);
        self.assembler.three(if signed { La::DivD } else { La::DivDu }, RAX, RAX, b);
        self.assembler.copy(RDX, rest);
    }

    /// Divides EDX:EAX. EAX receives the quotient, EDX the remainder.
    fn divide_words(&mut self, division: Division) {
        let Division { by: b, signed, upper_is_zero, quotient, rest, rare } = division;
        if !signed && upper_is_zero {
            let dividend = self.unsigned(0);
            self.assembler.three(La::ModDu, rest, dividend, b);
            self.assembler.three(La::DivDu, RAX, dividend, b);
            self.assembler.copy(RDX, rest);
            return;
        }
        let dividend = self.temporary();
        self.assembler.immediate(La::SlliD, dividend, RDX, 32);
        self.assembler.field(La::BstrpickD, SCRATCH, RAX, 31, 0);
        self.assembler.three(La::Or, dividend, dividend, SCRATCH);
        self.assembler.three(if signed { La::DivD } else { La::DivDu }, quotient, dividend, b);
        if signed {
            self.assembler.immediate(La::SlliW, SCRATCH, quotient, 0);
            self.unless(rare, La::Bne, SCRATCH, quotient);
        } else {
            self.assembler.immediate(La::SrliD, SCRATCH, quotient, 32);
            self.unless(rare, La::Bnez, SCRATCH, 0);
        }
        self.assembler.three(if signed { La::ModD } else { La::ModDu }, rest, dividend, b);
        self.assembler.field(La::BstrpickD, RAX, quotient, 31, 0);
        self.assembler.field(La::BstrpickD, RDX, rest, 31, 0);
    }
}
