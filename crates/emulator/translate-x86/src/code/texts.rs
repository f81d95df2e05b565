//! The forms of PCMPISTRI that test bytes for equality. The C library searches and compares strings with them. Source:
//! Intel SDM, volume 2, section 4.1; LoongArch Reference Manual, volume 2.

use iced_x86::{Mnemonic, RflagsBits};
use longma_loongarch::{Instruction as Code, Op as La};

use super::known::Facts;
use super::lower::Lowering;
use crate::registers::*;
use longma_translate::assembler::JumpTarget;

/// Bits of the immediate: elements of 16 bits, the kind of comparison, the index of the last element.
const WORDS: u8 = 1;
const KIND: u8 = 3 << 2;
const LAST: u8 = 1 << 6;

impl Lowering<'_> {
    /// Translates a PCMPISTRI of bytes. Returns false for other instructions and kinds of comparison.
    pub fn compare_texts(&mut self) -> bool {
        let i = self.instruction;
        let control = i.immediate8();
        if i.mnemonic() != Mnemonic::Pcmpistri || control & (WORDS | LAST) != 0 {
            return false;
        }
        let is_set = match (control & KIND) >> 2 {
            0 => true,
            2 => false,
            _ => return false,
        };
        let (text, set) = (self.source(), vector(i.op0_register()));
        let (v, w) = (self.vector_temporary(), self.vector_temporary());
        let [in_set, in_text, found] = [(); 3].map(|()| self.temporary());
        self.bytes_before_zero(in_set, set, v);
        self.bytes_before_zero(in_text, text, v);
        if is_set {
            self.find_any([in_set, found], [set, text], [v, w]);
            self.assembler.three(La::And, found, found, in_text);
        } else {
            self.assembler.three(La::VseqB, w, set, text);
            self.bits_of(found, w);
            self.assembler.three(La::And, SCRATCH, in_set, in_text);
            self.assembler.three(La::And, found, found, SCRATCH);
            // After the ends of both strings, elements compare as equal.
            self.assembler.three(La::Nor, SCRATCH, in_set, in_text);
            self.assembler.field(La::BstrpickD, SCRATCH, SCRATCH, 15, 0);
            self.assembler.three(La::Or, found, found, SCRATCH);
        }
        match control >> 4 & 3 {
            1 => {
                self.assembler.three(La::Nor, found, found, 0);
                self.assembler.field(La::BstrpickD, found, found, 15, 0);
            }
            3 => self.assembler.three(La::Xor, found, found, in_text),
            _ => {}
        }
        self.text_flags([in_set, in_text, found]);
        // The index is 16 if no bit is set.
        self.assembler.immediate(La::Lu12iW, SCRATCH, 0, 0x10);
        self.assembler.three(La::Or, SCRATCH, SCRATCH, found);
        let d = self.define(1);
        self.assembler.two(La::CtzW, d, SCRATCH);
        self.defined(1, Facts::of_width(5));
        true
    }

    /// The sign bits of the bytes of a vector, which is overwritten.
    fn bits_of(&mut self, d: u8, v: u8) {
        self.assembler.two(La::VmskltzB, v, v);
        self.assembler.immediate(La::Vpickve2grWu, d, v, 0);
    }

    /// A bit for each byte before the first zero.
    fn bytes_before_zero(&mut self, d: u8, from: u8, v: u8) {
        self.assembler.three(La::VseqB, v, ZERO_VECTOR, from);
        self.bits_of(d, v);
        self.assembler.immediate(La::AddiD, SCRATCH, d, -1);
        self.assembler.three(La::Andn, d, SCRATCH, d);
        self.assembler.field(La::BstrpickD, d, d, 15, 0);
    }

    /// Sets a bit of `found` for each byte of the text that is in the set.
    fn find_any(&mut self, [in_set, found]: [u8; 2], [set, text]: [u8; 2], [v, all]: [u8; 2]) {
        let (rest, bytes) = (self.temporary(), found);
        let end = self.assembler.label();
        self.assembler.three(La::VxorV, all, all, all);
        for half in 0..2 {
            let again = self.assembler.label();
            self.assembler.field(La::BstrpickD, rest, in_set, 8 * half + 7, 8 * half);
            self.assembler.jump(Code { j: rest, ..Code::new(La::Beqz) }, JumpTarget::Label(end));
            self.assembler.immediate(La::Vpickve2grD, bytes, set, half.into());
            self.assembler.place(again);
            self.assembler.two(La::Vreplgr2vrB, v, bytes);
            self.assembler.three(La::VseqB, v, v, text);
            self.assembler.three(La::VorV, all, all, v);
            self.assembler.immediate(La::SrliD, bytes, bytes, 8);
            self.assembler.immediate(La::SrliD, rest, rest, 1);
            self.assembler.jump(Code { j: rest, ..Code::new(La::Bnez) }, JumpTarget::Label(again));
        }
        self.assembler.place(end);
        self.bits_of(found, all);
    }

    fn text_flags(&mut self, [in_set, in_text, found]: [u8; 3]) {
        let live = self.live;
        let wants = |flag: u32| live & flag != 0;
        if wants(RflagsBits::CF) {
            self.assembler.three(La::Sltu, CARRY, 0, found);
        }
        // ZF and SF: the text and the set end before the sixteenth byte.
        if wants(RflagsBits::ZF) {
            self.assembler.immediate(La::AddiD, SCRATCH, in_text, 1);
            self.assembler.immediate(La::SrliD, NOT_ZERO, SCRATCH, 16);
        }
        if wants(RflagsBits::SF) {
            self.assembler.immediate(La::AddiD, SCRATCH, in_set, 1);
            self.assembler.immediate(La::SrliD, SIGN, SCRATCH, 16);
            self.assembler.immediate(La::AddiD, SIGN, SIGN, -1);
        }
        if wants(RflagsBits::OF) {
            self.assembler.immediate(La::SlliD, OVERFLOW, found, 63);
        }
        if wants(RflagsBits::AF) {
            self.assembler.copy(ADJUST, 0);
        }
        if wants(RflagsBits::PF) {
            self.assembler.immediate(La::Ori, PARITY, 0, 1);
        }
    }
}
