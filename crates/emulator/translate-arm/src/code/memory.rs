//! Lowers loads and stores of one or two registers. Source: Arm Architecture Reference Manual (Arm DDI 0487), sections
//! C1.3.3 (addressing modes) and C6.2; LoongArch Reference Manual, volume 1.

use longma_loongarch::Op as La;

use super::known::{CachedValue, Facts};
use super::lower::Lowering;
use super::operands::NONE;
use crate::instruction::{Instruction, Op, Operand};
use crate::registers::TEMPORARIES;

/// The type of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    bytes: u8,
    loads: bool,
    /// The register is a vector register.
    is_vector: bool,
    /// A load sign-extends: to 64 bits if `is_wide`, otherwise to 32.
    is_signed: bool,
    is_wide: bool,
}

/// The address of an access: a base register and an offset in bytes, or two registers to add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    Near(u8, i64),
    Sum(u8, u8),
}

impl Access {
    /// Decodes a single-register access from size, V and opc.
    fn of_one(i: Instruction) -> Self {
        let (size, is_vector, opc) = (i.bits(30, 2), i.bits(26, 1) != 0, i.bits(22, 2));
        if is_vector {
            let bytes = if opc >= 2 { 16 } else { 1 << size };
            return Self { bytes, loads: opc & 1 != 0, is_vector, is_signed: false, is_wide: false };
        }
        let (is_signed, is_wide) = (opc >= 2, opc == 2 || size == 3);
        Self { bytes: 1 << size, loads: opc != 0, is_vector, is_signed, is_wide }
    }

    /// Decodes a register-pair access from opc, V and L.
    fn of_two(i: Instruction) -> Self {
        let (opc, is_vector, loads) = (i.bits(30, 2), i.bits(26, 1) != 0, i.bits(22, 1) != 0);
        let bytes = if is_vector {
            4 << opc
        } else if opc == 2 {
            8
        } else {
            4
        };
        Self { bytes, loads, is_vector, is_signed: opc == 1, is_wide: opc != 0 }
    }

    /// Decodes a literal load from opc and V.
    fn of_literal(i: Instruction) -> Self {
        let (opc, is_vector) = (i.bits(30, 2), i.bits(26, 1) != 0);
        let bytes = match (is_vector, opc) {
            (true, _) => 4 << opc,
            (false, 1) => 8,
            _ => 4,
        };
        Self { bytes, loads: true, is_vector, is_signed: opc == 2, is_wide: opc != 0 }
    }

    /// The LoongArch instructions with a 12-bit offset, a 16-bit offset and an index register.
    fn ops(self) -> (La, Option<La>, La) {
        match (self.bytes, self.loads, self.is_signed) {
            (1, true, false) => (La::LdBu, None, La::LdxBu),
            (1, true, true) => (La::LdB, None, La::LdxB),
            (1, false, _) => (La::StB, None, La::StxB),
            (2, true, false) => (La::LdHu, None, La::LdxHu),
            (2, true, true) => (La::LdH, None, La::LdxH),
            (2, false, _) => (La::StH, None, La::StxH),
            (4, true, false) => (La::LdWu, None, La::LdxWu),
            (4, true, true) => (La::LdW, Some(La::LdptrW), La::LdxW),
            (4, false, _) => (La::StW, Some(La::StptrW), La::StxW),
            (_, true, _) => (La::LdD, Some(La::LdptrD), La::LdxD),
            (_, false, _) => (La::StD, Some(La::StptrD), La::StxD),
        }
    }

    fn vector_ops(self) -> (La, La) {
        match (self.bytes, self.loads) {
            (4, true) => (La::FldS, La::FldxS),
            (4, false) => (La::FstS, La::FstxS),
            (8, true) => (La::FldD, La::FldxD),
            (8, false) => (La::FstD, La::FstxD),
            (_, true) => (La::Vld, La::Vldx),
            (_, false) => (La::Vst, La::Vstx),
        }
    }

    /// The known properties of a loaded value.
    fn facts(self) -> Facts {
        match (self.is_signed, self.bytes) {
            (true, _) => Facts::WORD,
            (false, 8) => Facts::NONE,
            (false, bytes) => Facts::of_width(8 * bytes),
        }
    }
}

impl Lowering<'_> {
    /// Lowers the instruction. Returns false for other instructions.
    pub fn memory(&mut self, i: Instruction) -> bool {
        let Some(Operand::Address(kind)) = i.row().operands.last() else { return false };
        if matches!(i.row().operands[0], Operand::Other("prefetch")) {
            return true;
        }
        match kind {
            b'o' => {
                let access = Access::of_one(i);
                self.one(i, access, i64::from(i.bits(10, 12)) * i64::from(access.bytes), None);
            }
            b'u' => self.one(i, Access::of_one(i), i.signed(12, 9), None),
            b't' => self.one(i, Access::of_one(i), 0, Some(i.signed(12, 9))),
            b'p' => self.one(i, Access::of_one(i), i.signed(12, 9), Some(i.signed(12, 9))),
            b'r' => self.indexed(i),
            b'l' => {
                let address = i.target(self.pc).unwrap_or_default() as i64;
                let low = address << 52 >> 52;
                let base = self.constant(address - low);
                self.access(Access::of_literal(i), i.rd(), Address::Near(base, low));
            }
            b'h' | b'i' | b'j' => self.two(i, *kind),
            _ => return false,
        }
        true
    }

    /// Accesses one register at base plus offset, then adds `step` to the base.
    fn one(&mut self, i: Instruction, access: Access, offset: i64, step: Option<i64>) {
        let (base, stepped) = self.near_base(i, access, offset);
        let register = Self::kept(i, access, i.rd(), step);
        self.access(access, register, Address::Near(base, stepped));
        self.step_base(i.rn(), base, step);
    }

    /// Returns the register that an access loads or stores. The manual leaves open what an access with write-back does if
    /// it loads its own base: here, as in QEMU, the new base replaces the loaded value.
    fn kept(i: Instruction, access: Access, register: u8, step: Option<i64>) -> u8 {
        let is_base = register == i.rn() && access.loads && !access.is_vector;
        if is_base && step.is_some() { NONE } else { register }
    }

    /// Returns the base register and the offset. Adds the base's deferred increment to the offset if the sum is
    /// encodable.
    fn near_base(&mut self, i: Instruction, access: Access, offset: i64) -> (u8, i64) {
        let number = i.rn();
        let (base, step) = self.stepped(number);
        let is_near = (-2048..2032).contains(&(offset + step));
        // If the base register is also stored, its deferred increment must be added.
        let is_stored = !access.loads && !access.is_vector && [i.rd(), i.ra()].contains(&number);
        if step == 0 || is_near && !is_stored {
            return (base, offset + step);
        }
        (self.full_or_stack(number), offset)
    }

    /// Adds `step` to the base.
    pub fn step_base(&mut self, number: u8, base: u8, step: Option<i64>) {
        let Some(step) = step else { return };
        if self.defer_increment(number, step) {
            return;
        }
        self.add_constant(base, base, step, true);
        self.put_or_stack(number, base, true);
    }

    fn indexed(&mut self, i: Instruction) {
        let access = Access::of_one(i);
        let shift = if i.bits(12, 1) != 0 { access.bytes.trailing_zeros() } else { 0 };
        let sum = self.cached_sum(i, shift as u8);
        if let Some((_, Some(register))) = sum {
            return self.access(access, i.rd(), Address::Near(register, 0));
        }
        // The index comes first: extending it may change its register.
        let shifted = self.index_shifted(i, shift as u8);
        let index = shifted.unwrap_or_else(|| self.extended(i.rm(), i.bits(13, 3), 0).0);
        let base = self.full_or_stack(i.rn());
        let address = if shift == 0 || shifted.is_some() {
            Address::Sum(base, index)
        } else {
            let to = if sum.is_some() && !TEMPORARIES.contains(&index) {
                self.cacheable_temporary()
            } else {
                self.own(index)
            };
            self.scaled_sum(to, index, base, shift as u8);
            self.free_except(base, to);
            if let Some((what, _)) = sum {
                self.cache_value(what, to);
            }
            Address::Near(to, 0)
        };
        self.access(access, i.rd(), address);
    }

    /// Returns the address of an access if it is a sum that is worth caching, and the register if it is already cached.
    fn cached_sum(&mut self, i: Instruction, shift: u8) -> Option<(CachedValue, Option<u8>)> {
        let is_plain = shift != 0 && i.bits(13, 2) == 3 && i.rn() != NONE && i.rm() != NONE;
        let cached_value = CachedValue::Sum(i.rn(), i.rm(), shift);
        (is_plain && !self.reachable.frugal.contains(&self.pc))
            .then(|| (cached_value, self.cached(cached_value)))
    }

    /// Returns a temporary register with the shifted index, if another access uses the same.
    fn index_shifted(&mut self, i: Instruction, shift: u8) -> Option<u8> {
        let (number, is_wide) = (i.rm(), i.bits(13, 2) == 3);
        if shift == 0 || number == NONE || !is_wide {
            return None;
        }
        let cached_value = CachedValue::Shifted(number, shift);
        if let Some(register) = self.cached(cached_value) {
            return Some(register);
        }
        if !self.is_indexed_again(i, shift) || self.reachable.frugal.contains(&self.pc) {
            return None;
        }
        let from = self.whole(number);
        let to = if TEMPORARIES.contains(&from) { self.own(from) } else { self.cacheable_temporary() };
        self.assembler.immediate(La::SlliD, to, from, shift.into());
        self.cache_value(cached_value, to);
        Some(to)
    }

    /// Whether another access of the block uses the same shifted index before the register changes.
    fn is_indexed_again(&self, i: Instruction, shift: u8) -> bool {
        let number = i.rm();
        if self.reachable.used_by(self.pc).written >> number & 1 != 0 {
            return false;
        }
        let same = |other: Instruction| {
            let is_indexed = matches!(other.row().operands.last(), Some(Operand::Address(b'r')));
            let shifted =
                if other.bits(12, 1) != 0 { Access::of_one(other).bytes.trailing_zeros() } else { 0 };
            is_indexed && other.rm() == number && other.bits(13, 2) == 3 && shifted == u32::from(shift)
        };
        let following = self.block.0.iter().skip(self.index + 1);
        for (pc, other) in following {
            if other.is_some_and(same) {
                return true;
            }
            if self.reachable.used_by(*pc).written >> number & 1 != 0 {
                return false;
            }
        }
        false
    }

    fn two(&mut self, i: Instruction, kind: u8) {
        let access = Access::of_two(i);
        let distance = i.signed(15, 7) * i64::from(access.bytes);
        let (offset, step) = match kind {
            b'i' => (0, Some(distance)),
            b'j' => (distance, Some(distance)),
            _ => (distance, None),
        };
        let [mut first, second] = [i.rd(), i.ra()].map(|register| Self::kept(i, access, register, step));
        if access.loads && first == second && !access.is_vector {
            // The manual leaves open which value remains. In QEMU, it is the second.
            first = NONE;
        }
        let (base, offset) = self.near_base(i, access, offset);
        let next = offset + i64::from(access.bytes);
        // A load into the base register comes last, because the other load still reads the base.
        if access.loads && !access.is_vector && first == i.rn() && first != NONE {
            self.access(access, second, Address::Near(base, next));
            self.access(access, first, Address::Near(base, offset));
        } else {
            self.access(access, first, Address::Near(base, offset));
            self.access(access, second, Address::Near(base, next));
        }
        self.step_base(i.rn(), base, step);
    }

    fn access(&mut self, access: Access, register: u8, address: Address) {
        if access.is_vector {
            return self.access_vector(access, register, address);
        }
        let (near_op, far_op, index) = access.ops();
        if access.loads {
            let saved_temporaries = self.taken;
            let to = self.target(register);
            self.emit(near_op, far_op, index, to, address);
            self.put(register, to, access.is_wide, access.facts());
            self.taken = saved_temporaries;
        } else {
            let from = self.source(register, access.bytes == 8);
            self.emit(near_op, far_op, index, from, address);
            self.free(from);
        }
    }

    fn access_vector(&mut self, access: Access, register: u8, address: Address) {
        if access.bytes < 4 {
            let (near_op, far_op, index) = Access { is_vector: false, ..access }.ops();
            let part = self.temporary();
            if access.loads {
                self.emit(near_op, far_op, index, part, address);
                self.assembler.two(La::Movgr2frD, register, part);
                self.put_vector(register, 8);
            } else {
                self.assembler.two(La::Movfr2grS, part, register);
                self.emit(near_op, far_op, index, part, address);
            }
            return self.free(part);
        }
        let (near_op, index) = access.vector_ops();
        if !access.loads {
            self.widen(register, access.bytes);
        }
        self.emit(near_op, None, index, register, address);
        if access.loads {
            self.put_vector(register, access.bytes);
        }
    }

    /// Emits a single LoongArch access with the encoding that the address requires.
    fn emit(&mut self, near_op: La, far_op: Option<La>, index: La, register: u8, address: Address) {
        match (address, far_op) {
            (Address::Sum(base, other), _) => self.assembler.three(index, register, base, other),
            (Address::Near(base, offset), _) if (-2048..2048).contains(&offset) => {
                self.assembler.immediate(near_op, register, base, offset as i32);
            }
            (Address::Near(base, offset), Some(far_op))
                if offset % 4 == 0 && (-0x8000..0x8000).contains(&offset) =>
            {
                self.assembler.immediate(far_op, register, base, offset as i32);
            }
            (Address::Near(base, offset), _) => {
                let low = offset << 52 >> 52;
                let at = self.temporary();
                self.assembler.constant(at, offset - low);
                self.assembler.three(La::AddD, at, at, base);
                self.assembler.immediate(near_op, register, at, low as i32);
                self.free(at);
            }
        }
    }

    /// The address of an instruction whose only address operand is a base register.
    pub fn base(&mut self, i: Instruction) -> u8 {
        self.full_or_stack(i.rn())
    }

    /// DC ZVA clears 64 bytes.
    pub fn clear_block(&mut self, i: Instruction) {
        debug_assert!(i.op == Op::DcZva);
        let from = self.whole(i.rd());
        let to = self.own(from);
        self.assembler.copy(to, from);
        self.assembler.field(La::BstrinsD, to, 0, 5, 0);
        for at in (0..64).step_by(8) {
            self.assembler.immediate(La::StD, 0, to, at);
        }
    }
}
