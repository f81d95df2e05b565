//! Masked moves and gathers, element by element. Masked-off elements are not accessed. The engine executes MASKMOVDQU.
//! Source: Intel SDM, volume 2 (VMASKMOV, VPMASKMOV, VGATHER, VPGATHER).

use iced_x86::{Mnemonic, OpKind, Register};
use longma_loongarch::{Instruction as Code, Op as La};

use super::forms::number;
use super::known::Upper;
use super::lower::Lowering;
use crate::registers::*;
use longma_translate::assembler::{JumpTarget, Label};

/// The LoongArch instructions that move an element between a vector, a general register and memory.
struct Element {
    bytes: i32,
    pick: La,
    insert: La,
    load: La,
    store: La,
}

impl Element {
    fn of(bytes: usize) -> Self {
        if bytes == 4 {
            Self { bytes: 4, pick: La::Xvpickve2grW, insert: La::Xvinsgr2vrW, load: La::LdW, store: La::StW }
        } else {
            Self { bytes: 8, pick: La::Xvpickve2grD, insert: La::Xvinsgr2vrD, load: La::LdD, store: La::StD }
        }
    }
}

impl Lowering<'_> {
    /// Jumps over an element that is masked off.
    fn unless_masked(&mut self, element: &Element, t: u8, mask: u8, at: i32) -> Label {
        let skip = self.assembler.label();
        self.assembler.immediate(element.pick, t, mask, at);
        self.assembler.jump(Code { j: t, d: 0, ..Code::new(La::Bge) }, JumpTarget::Label(skip));
        skip
    }

    /// Translates a masked move or gather. Returns false for others.
    pub fn masked(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let bytes = match i.mnemonic() {
            Vmaskmovps | Vpmaskmovd => 4,
            Vmaskmovpd | Vpmaskmovq => 8,
            _ if i.is_vsib() => return self.gather(),
            _ => return false,
        };
        let (element, mask) = (Element::of(bytes), vector(i.op1_register()));
        let (base, t) = (self.address(), self.temporary());
        let is_load = i.op0_kind() == OpKind::Register;
        let register = if is_load { i.op0_register() } else { i.op2_register() };
        let v = self.vector_temporary();
        if is_load {
            self.assembler.three(La::XvxorV, v, v, v);
        }
        for at in 0..register.size() as i32 / element.bytes {
            let skip = self.unless_masked(&element, t, mask, at);
            let offset = at * element.bytes;
            if is_load {
                self.assembler.immediate(element.load, t, base, offset);
                self.assembler.immediate(element.insert, v, t, at);
            } else {
                self.assembler.immediate(element.pick, t, vector(register), at);
                self.assembler.immediate(element.store, t, base, offset);
            }
            self.assembler.place(skip);
        }
        if is_load {
            self.copy_vector(vector(register), v);
        }
        true
    }

    /// Gathers. The mask and the destination are written at the end, so that a fault restarts the instruction.
    fn gather(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let (d, chooser, index) = (i.op0_register(), i.op2_register(), i.memory_index());
        let numbers = [d, chooser, index].map(Register::number);
        let is_plain =
            matches!(i.memory_segment(), Register::DS | Register::SS) && i.memory_base().size() == 8;
        if !is_plain || numbers[0] == numbers[1] || numbers[1] == numbers[2] || numbers[0] == numbers[2] {
            return false;
        }
        let by_words = matches!(i.mnemonic(), Vpgatherdd | Vpgatherdq | Vgatherdps | Vgatherdpd);
        let indices = Element::of(if by_words { 4 } else { 8 });
        let element = Element::of(i.memory_size().size());
        let count = (d.size() as i32 / element.bytes).min(index.size() as i32 / indices.bytes);
        let mut base = self.wide(number(i.memory_base()));
        let displacement = i.memory_displacement64() as i64;
        if displacement != 0 {
            let sum = self.temporary();
            self.add_constant(sum, base, displacement);
            base = sum;
        }
        let (t, v, mask) = (self.temporary(), self.vector_temporary(), vector(chooser));
        self.assembler.three(La::XvorV, v, vector(d), vector(d));
        for at in 0..count {
            let skip = self.unless_masked(&element, t, mask, at);
            self.assembler.immediate(indices.pick, t, vector(index), at);
            match i.memory_index_scale() {
                1 => self.assembler.three(La::AddD, t, t, base),
                scale => {
                    let imm = scale.trailing_zeros() as i32;
                    self.assembler.push(Code { d: t, j: t, k: base, imm, ..Code::new(La::AlslD) });
                }
            }
            self.assembler.immediate(element.load, t, t, 0);
            self.assembler.immediate(element.insert, v, t, at);
            self.assembler.place(skip);
        }
        if count * element.bytes == 8 {
            self.assembler.three(La::VpackevD, vector(d), ZERO_VECTOR, v);
        } else {
            self.copy_vector(vector(d), v);
        }
        self.assembler.three(La::VxorV, mask, ZERO_VECTOR, ZERO_VECTOR);
        (self.known.valid[numbers[1]], self.known.used[numbers[1]]) = (16, 0);
        self.known.set_upper(numbers[1], Upper::Zero);
        true
    }
}
