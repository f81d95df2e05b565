//! Lowers integer arithmetic, logic, moves and selects. Source: Arm Architecture Reference Manual (Arm DDI 0487),
//! chapter C6; LoongArch Reference Manual, volume 1.

use longma_loongarch::Op as La;

use super::flags::{Flags, Kind, Second, Test};
use super::known::Facts;
use super::lower::Lowering;
use super::operands::NONE;
use crate::instruction::{Instruction, Op, Operand};
use crate::registers::*;
use longma_translate::front_end::{MARK_NUMBER, MARKS};

const _: () = assert!(matches!(place(0), Location::Register(MARK_NUMBER)));

impl Lowering<'_> {
    /// Lowers the instruction. Returns false for other instructions.
    pub fn integer(&mut self, i: Instruction) -> bool {
        use Op::*;
        match i.op {
            Adr | Adrp => {
                let value = i.target(self.pc).unwrap_or_default() as i64;
                self.put_constant(i.rd(), value);
            }
            AddImm | SubImm => self.add_immediate(i),
            AddReg | SubReg => self.add_register(i),
            AddExt | SubExt => self.add_extended(i),
            AndImm | OrrImm | EorImm => self.logic_immediate(i),
            AndReg | BicReg | OrrReg | OrnReg | EorReg | EonReg => self.logic_register(i),
            Movz | Movn | Movk => self.move_wide(i),
            Csel | Csinc | Csinv | Csneg => self.select(i),
            Udiv | Sdiv => self.divide(i),
            Madd | Msub => self.multiply_add(i),
            Smaddl | Smsubl | Umaddl | Umsubl => self.multiply_long(i),
            Smulh | Umulh => {
                let (n, m) = (self.whole(i.rn()), self.whole(i.rm()));
                let to = self.target(i.rd());
                self.assembler.three(if i.op == Smulh { La::MulhD } else { La::MulhDu }, to, n, m);
                self.put(i.rd(), to, true, Facts::NONE);
            }
            _ => return false,
        }
        true
    }

    /// Writes a constant and records it.
    fn put_constant(&mut self, number: u8, value: i64) {
        if number == NONE {
            return;
        }
        let to = self.target(number);
        self.assembler.constant(to, value);
        self.put(number, to, true, Facts::of(value));
        self.constants[usize::from(number)] = Some(value);
    }

    /// The value of a register, if it is a known constant.
    pub fn known_constant(&self, number: u8) -> Option<i64> {
        if number == NONE { Some(0) } else { self.constants[usize::from(number)] }
    }

    fn add_immediate(&mut self, i: Instruction) {
        let (d, n, is_wide) = (i.rd(), i.rn(), i.is_wide());
        let value = if i.op == Op::AddImm { i.arithmetic_immediate() } else { -i.arithmetic_immediate() };
        if n != NONE
            && d != NONE
            && is_wide
            && let Some(base) = self.constants[usize::from(n)]
        {
            let sum = base.wrapping_add(value);
            let from = self.whole(n);
            let to = self.target(d);
            if base & 0xfff == 0 && (0..4096).contains(&value) {
                self.assembler.immediate(La::Ori, to, from, value as i32);
            } else {
                self.assembler.constant(to, sum);
            }
            self.put(d, to, true, Facts::of(sum));
            self.constants[usize::from(d)] = Some(sum);
            return;
        }
        if d == n && is_wide && self.defer_increment(d, value) {
            return;
        }
        let (from, step) =
            if is_wide { self.stepped(n) } else { (if n == NONE { STACK_POINTER } else { self.word(n) }, 0) };
        let value = value + step;
        let to = if d == NONE { STACK_POINTER } else { self.target(d) };
        if value == 0 && is_wide {
            self.assembler.copy(to, from);
            let facts = if n == NONE || step != 0 { Facts::NONE } else { self.facts(n) };
            if d != NONE {
                self.put(d, to, true, facts);
            }
            return;
        }
        self.add_constant(to, from, value, is_wide);
        self.put_or_stack(d, to, is_wide);
    }

    fn add_register(&mut self, i: Instruction) {
        let (is_wide, d, shift) = (i.is_wide(), i.rd(), i.bits(10, 6));
        let is_sum = i.op == Op::AddReg;
        // A shift by up to 4 is part of the add instruction.
        if is_sum && is_wide && i.bits(22, 2) == 0 && (1..=4).contains(&shift) && i.rm() != NONE {
            let (m, n) = (self.whole(i.rm()), self.whole(i.rn()));
            let to = self.target(d);
            self.scaled_sum(to, m, n, shift as u8);
            return self.put_sum(d, to, true);
        }
        let (second, _) = self.shifted(i);
        let first = self.source(i.rn(), is_wide);
        let to = self.target(d);
        let op = match (is_sum, is_wide) {
            (true, true) => La::AddD,
            (true, false) => La::AddW,
            (false, true) => La::SubD,
            (false, false) => La::SubW,
        };
        self.assembler.three(op, to, first, second);
        self.put_sum(d, to, is_wide);
    }

    /// `to = (index << shift) + base`.
    pub fn scaled_sum(&mut self, to: u8, index: u8, base: u8, shift: u8) {
        let mut word = longma_loongarch::Instruction::new(La::AlslD);
        (word.d, word.j, word.k, word.imm) = (to, index, base, shift.into());
        self.assembler.push(word);
    }

    fn add_extended(&mut self, i: Instruction) {
        let is_wide = i.is_wide();
        let (option, shift) = (i.bits(13, 3), i.bits(10, 3));
        let is_sum = i.op == Op::AddExt;
        let joins = is_sum && is_wide && (1..=4).contains(&shift);
        // The second operand comes first: extending it may change its register.
        let (second, _) = self.extended(i.rm(), option, if joins { 0 } else { shift });
        let first = if i.rn() == NONE { STACK_POINTER } else { self.source(i.rn(), is_wide) };
        let to = if i.rd() == NONE { STACK_POINTER } else { self.target(i.rd()) };
        if joins {
            self.scaled_sum(to, second, first, shift as u8);
        } else {
            let op = match (is_sum, is_wide) {
                (true, true) => La::AddD,
                (true, false) => La::AddW,
                (false, true) => La::SubD,
                (false, false) => La::SubW,
            };
            self.assembler.three(op, to, first, second);
        }
        self.put_or_stack(i.rd(), to, is_wide);
    }

    /// `to = j & value`.
    pub fn and_constant(&mut self, to: u8, j: u8, value: u64) {
        let (low, high) = (value.trailing_zeros() as u8, 63 - value.leading_zeros() as u8);
        let is_run = value != 0 && u32::from(high - low) + 1 == value.count_ones();
        let gap = !value;
        let (first, last) = (gap.trailing_zeros() as u8, (63 - gap.leading_zeros().min(63)) as u8);
        let is_gap = gap != 0 && u32::from(last - first) + 1 == gap.count_ones();
        if value < 0x1000 {
            self.assembler.immediate(La::Andi, to, j, value as i32);
        } else if is_run {
            self.assembler.field(La::BstrpickD, to, j, high, low);
            if low != 0 {
                self.assembler.immediate(La::SlliD, to, to, low.into());
            }
        } else if is_gap {
            self.assembler.copy(to, j);
            self.assembler.field(La::BstrinsD, to, 0, last, first);
        } else {
            let constant = self.constant(value as i64);
            self.assembler.three(La::And, to, j, constant);
            self.free(constant);
        }
    }

    fn logic_immediate(&mut self, i: Instruction) {
        let (d, n, is_wide, mask) = (i.rd(), i.rn(), i.is_wide(), i.mask());
        if i.op == Op::OrrImm && n == NONE && d != NONE {
            return self.put_constant(d, mask as i64);
        }
        // If the mask is within the low half, the upper half does not need to be valid.
        let from = self.source(n, is_wide && !(i.op == Op::AndImm && mask >> 32 == 0));
        let to = if d == NONE { STACK_POINTER } else { self.target(d) };
        let facts = self.facts(n);
        let facts = if i.op == Op::AndImm {
            self.and_constant(to, from, mask);
            facts.and(Facts::of(mask as i64))
        } else {
            let op = if i.op == Op::OrrImm { (La::Ori, La::Or) } else { (La::Xori, La::Xor) };
            if mask < 0x1000 {
                self.assembler.immediate(op.0, to, from, mask as i32);
            } else {
                let constant = self.constant(mask as i64);
                self.assembler.three(op.1, to, from, constant);
            }
            facts.or(Facts::of(mask as i64))
        };
        if d == NONE {
            self.put_or_stack(d, to, is_wide);
        } else {
            self.put(d, to, is_wide, facts);
        }
    }

    fn logic_register(&mut self, i: Instruction) {
        let (d, n, is_wide) = (i.rd(), i.rn(), i.is_wide());
        if i.op == Op::OrrReg && n == NONE && i.bits(10, 6) == 0 {
            return self.move_register(i);
        }
        let (second, known) = self.shifted(i);
        let first = self.source(n, is_wide);
        let to = self.target(d);
        let facts = self.facts(n);
        let inverted = Facts { width: 64, sign: known.sign };
        let (op, facts) = match i.op {
            Op::AndReg => (La::And, facts.and(known)),
            Op::BicReg => (La::Andn, facts.and(inverted)),
            Op::OrrReg => (La::Or, facts.or(known)),
            Op::OrnReg => (La::Orn, facts.or(inverted)),
            Op::EorReg => (La::Xor, facts.or(known)),
            _ => {
                // Inverting one operand inverts the result.
                self.assembler.three(La::Xor, to, first, second);
                self.assembler.three(La::Nor, to, to, 0);
                let facts = Facts { width: 64, sign: facts.sign && known.sign };
                return self.put(d, to, is_wide, facts);
            }
        };
        self.assembler.three(op, to, first, second);
        self.put(d, to, is_wide, facts);
    }

    /// MOV (register). A 32-bit move clears the upper half.
    fn move_register(&mut self, i: Instruction) {
        let (d, m, is_wide) = (i.rd(), i.rm(), i.is_wide());
        if d == NONE {
            return;
        }
        let constant = self.known_constant(m);
        let facts = self.facts(m);
        if !is_wide && facts.width > 32 && !facts.sign {
            let from = self.word(m);
            let to = self.target(d);
            self.assembler.field(La::BstrpickD, to, from, 31, 0);
            return self.put(d, to, true, Facts::ZERO_EXTENDED);
        }
        if is_wide
            && m != NONE
            && let (from, step @ (i64::MIN..=-1 | 1..)) = self.stepped(m)
        {
            let to = self.target(d);
            self.assembler.immediate(La::AddiD, to, from, step as i32);
            return self.put(d, to, true, Facts::NONE);
        }
        if is_wide
            && m != NONE
            && let Some(step) = self.step_ahead(d)
        {
            // The next instruction increments this pointer. Increment it here and record the difference.
            let (from, moved) = self.stepped(m);
            let to = self.target(d);
            self.assembler.immediate(La::AddiD, to, from, moved as i32 + i32::from(step));
            self.put(d, to, true, Facts::NONE);
            self.known.steps[usize::from(d)] = -step;
            return;
        }
        let from = self.source(m, is_wide);
        let facts = self.facts(m);
        self.put(d, from, is_wide, facts);
        self.constants[usize::from(d)] = constant.filter(|value| is_wide || *value as u64 >> 32 == 0);
    }

    /// If the next use of x`number` in the block is a pre- or post-indexed access that increments it, returns the
    /// increment.
    fn step_ahead(&self, number: u8) -> Option<i16> {
        if !matches!(self.location_of(number), Location::Register(_)) {
            return None;
        }
        for (pc, i) in self.block.0.iter().skip(self.index + 1) {
            let (i, uses) = ((*i)?, self.reachable.used_by(*pc));
            if (uses.read | uses.written) >> number & 1 != 0 {
                let steps = matches!(i.row().operands.last(), Some(Operand::Address(b't' | b'p')));
                let moves_it = steps && i.rn() == number && (i.bits(26, 1) != 0 || i.rd() != number);
                return moves_it.then(|| i.signed(12, 9) as i16);
            }
            if i.is_conditional_branch() {
                return None;
            }
        }
        None
    }

    fn move_wide(&mut self, i: Instruction) {
        let (d, is_wide) = (i.rd(), i.is_wide());
        let (shift, value) = (16 * i.bits(21, 2), u64::from(i.bits(5, 16)));
        if d == NONE {
            // A move of one of these values to the zero register is a marker. The number of an event marker is in x0,
            // which is the LoongArch register [`MARK_NUMBER`].
            if i.op == Op::Movz && shift == 0 && MARKS.contains(&(value as i32)) {
                self.clear_upper(0);
                self.apply_increment(0);
                self.restore_outer_assignment();
                self.assembler.immediate(La::Andi, 0, 0, value as i32);
            }
            return;
        }
        let all = if is_wide { u64::MAX } else { 0xffff_ffff };
        let old_value = match i.op {
            Op::Movz => Some(value << shift),
            Op::Movn => Some(!(value << shift) & all),
            _ => self
                .known_constant(d)
                .map(|old_value| (old_value as u64 & !(0xffff << shift) | value << shift) & all),
        };
        let Some(constant) = old_value else {
            let from = self.source(d, is_wide);
            let to = self.target(d);
            self.assembler.copy(to, from);
            let part = self.constant(value as i64);
            self.assembler.field(La::BstrinsD, to, part, shift as u8 + 15, shift as u8);
            let facts = if is_wide { Facts::NONE } else { Facts { sign: false, ..self.facts(d) } };
            return self.put(d, to, is_wide, facts);
        };
        // If the next instruction modifies the value again, do not write it yet.
        let goes_on = self
            .following()
            .filter(|next| next.op == Op::Movk && next.rd() == d && next.is_wide() == is_wide);
        if goes_on.is_some() && matches!(self.location_of(d), Location::Register(_)) {
            self.constants[usize::from(d)] = Some(constant as i64);
            self.skip = true;
            return;
        }
        self.put_constant(d, constant as i64);
    }

    fn select(&mut self, i: Instruction) {
        let (d, n, m, is_wide) = (i.rd(), i.rn(), i.rm(), i.is_wide());
        if d == NONE {
            return;
        }
        if i.condition() >= 14 {
            let from = self.source(n, is_wide);
            let facts = self.facts(n);
            return self.put(d, from, is_wide, facts);
        }
        if is_wide {
            self.clear_upper(n);
            self.clear_upper(m);
        }
        if self.is_absolute(i) {
            return self.absolute(i);
        }
        let test = self.test(i.condition());
        if matches!(i.op, Op::Csinc | Op::Csinv) && (m == NONE && n == NONE || i.op == Op::Csinc && n == m) {
            return self.select_by_truth(i, test);
        }
        if i.op == Op::Csinv && m == NONE {
            return self.all_ones_unless(i, test);
        }
        let (mask, is_opposite) = self.mask(test);
        let (first, second) = (self.source(n, is_wide), self.source(m, is_wide));
        let (facts, other) = (self.facts(n), self.facts(m));
        let (alternative, is_own, facts) = self.alternative(i, (first, facts), (second, other));
        let facts = if is_wide && i.op != Op::Csel { Facts::NONE } else { facts };
        let (select_op, clear_op) =
            if is_opposite { (La::Masknez, La::Maskeqz) } else { (La::Maskeqz, La::Masknez) };
        if first == 0 || alternative == 0 {
            let to = self.target(d);
            if first == 0 {
                self.assembler.three(clear_op, to, alternative, mask);
            } else {
                self.assembler.three(select_op, to, first, mask);
            }
            return self.put(d, to, is_wide, facts);
        }
        let part = if is_own { alternative } else { self.own_except(second, first) };
        self.assembler.three(clear_op, part, alternative, mask);
        let to = self.target_except(d, &[part]);
        self.assembler.three(select_op, to, first, mask);
        self.assembler.three(La::Or, to, to, part);
        self.put(d, to, is_wide, facts);
    }

    /// CSINV with the zero register: the source register or all ones.
    fn all_ones_unless(&mut self, i: Instruction, test: Test) {
        let (d, n, is_wide) = (i.rd(), i.rn(), i.is_wide());
        let ones = self.temporary();
        let tested = [test.j, test.k];
        self.truth(test.not(), ones);
        tested.into_iter().for_each(|register| self.free_except(register, ones));
        self.assembler.three(La::SubD, ones, 0, ones);
        let facts = self.facts(n).or(Facts::of(-1));
        let from = self.source(n, is_wide);
        let to = if matches!(self.location_of(d), Location::Register(_)) { self.target(d) } else { ones };
        self.assembler.three(La::Or, to, from, ones);
        self.put(d, to, is_wide, if is_wide { Facts::NONE } else { facts });
    }

    /// Whether CSNEG computes the absolute value of a register.
    fn is_absolute(&self, i: Instruction) -> bool {
        let Flags::Compared(comparison) = self.known.flags else { return false };
        let is_of_sign = comparison.result == Some(i.rn())
            || comparison.kind == Kind::Sub && comparison.operands == Some((i.rn(), Second::Constant(0)));
        // GE equals PL if the difference does not overflow, and a comparison with zero never does.
        let is_positive = i.condition() == 5 || i.condition() == 10 && comparison.result.is_none();
        let is_whole = comparison.is_wide == i.is_wide() && i.rn() == i.rm() && i.rn() != NONE;
        i.op == Op::Csneg && is_of_sign && is_positive && is_whole
    }

    fn absolute(&mut self, i: Instruction) {
        let (d, is_wide) = (i.rd(), i.is_wide());
        let from = self.source(i.rn(), is_wide);
        let sign = self.temporary();
        let (shift, sub) = if is_wide { (La::SraiD, La::SubD) } else { (La::SraiW, La::SubW) };
        self.assembler.immediate(shift, sign, from, if is_wide { 63 } else { 31 });
        let to = self.target(d);
        self.assembler.three(La::Xor, to, from, sign);
        self.assembler.three(sub, to, to, sign);
        self.put_sum(d, to, is_wide);
    }

    /// Returns the value that is selected if the condition does not hold, whether it is in a temporary register, and
    /// the known properties of both values.
    fn alternative(
        &mut self,
        i: Instruction,
        (first, facts): (u8, Facts),
        (second, other): (u8, Facts),
    ) -> (u8, bool, Facts) {
        let is_wide = i.is_wide();
        if i.op == Op::Csel {
            return (second, false, facts.or(other));
        }
        if i.op == Op::Csinv && second == 0 {
            let to = self.temporary();
            self.assembler.immediate(La::AddiD, to, 0, -1);
            return (to, true, facts.or(Facts::of(-1)));
        }
        let to = self.own_except(second, first);
        match i.op {
            Op::Csinc => {
                self.assembler.immediate(if is_wide { La::AddiD } else { La::AddiW }, to, second, 1);
                (to, true, facts.or(Facts::WORD))
            }
            Op::Csinv => {
                self.assembler.three(La::Nor, to, second, 0);
                (to, true, facts.or(Facts { width: 64, sign: other.sign }))
            }
            _ => {
                self.assembler.three(if is_wide { La::SubD } else { La::SubW }, to, 0, second);
                (to, true, facts.or(Facts::WORD))
            }
        }
    }

    /// CSET, CSETM and CINC: the result is the outcome of the test as 0 or 1, its negation, or its sum with a register.
    fn select_by_truth(&mut self, i: Instruction, test: super::flags::Test) {
        let (d, n, is_wide) = (i.rd(), i.rn(), i.is_wide());
        if n != NONE {
            let truth = self.temporary();
            let tested = [test.j, test.k];
            self.truth(test.not(), truth);
            tested.into_iter().for_each(|register| self.free_except(register, truth));
            let from = self.source(n, is_wide);
            // A result that is written to memory does not need another register.
            let to =
                if matches!(self.location_of(d), Location::Register(_)) { self.target(d) } else { truth };
            self.assembler.three(if is_wide { La::AddD } else { La::AddW }, to, from, truth);
            return self.put_sum(d, to, is_wide);
        }
        let to = self.target(d);
        self.truth(test.not(), to);
        if i.op == Op::Csinc {
            return self.put(d, to, true, Facts::of_width(1));
        }
        self.assembler.three(La::SubD, to, 0, to);
        self.put(d, to, is_wide, Facts::WORD);
    }

    /// Division by zero returns zero.
    fn divide(&mut self, i: Instruction) {
        let (d, is_wide) = (i.rd(), i.is_wide());
        if d == NONE {
            return;
        }
        let is_signed = i.op == Op::Sdiv;
        let operand = |lowering: &mut Self, number| match (is_wide, is_signed) {
            (true, _) => lowering.whole(number),
            // 32-bit LoongArch divisions are undefined for operands that are not sign-extended.
            (false, _) => lowering.signed_word(number),
        };
        let (n, m) = (operand(self, i.rn()), operand(self, i.rm()));
        let to = self.target_except(d, &[m]);
        let op = match (is_signed, is_wide) {
            (true, true) => La::DivD,
            (true, false) => La::DivW,
            (false, true) => La::DivDu,
            (false, false) => La::DivWu,
        };
        self.assembler.three(op, to, n, m);
        self.assembler.three(La::Maskeqz, to, to, m);
        self.put_sum(d, to, is_wide);
    }

    fn multiply_add(&mut self, i: Instruction) {
        let (d, is_wide) = (i.rd(), i.is_wide());
        let (n, m) = (self.source(i.rn(), is_wide), self.source(i.rm(), is_wide));
        let product = if is_wide { La::MulD } else { La::MulW };
        if i.ra() == NONE && i.op == Op::Madd {
            let to = self.target(d);
            self.assembler.three(product, to, n, m);
            return self.put_sum(d, to, is_wide);
        }
        let to = self.own(n);
        self.assembler.three(product, to, n, m);
        self.free_except(m, to);
        self.accumulate(i, to, is_wide);
    }

    /// Adds a product, which is in a temporary register, to Ra, or subtracts it.
    fn accumulate(&mut self, i: Instruction, product: u8, is_wide: bool) {
        let subtracts = matches!(i.op, Op::Msub | Op::Smsubl | Op::Umsubl);
        let a = self.source(i.ra(), is_wide);
        let op = match (subtracts, is_wide) {
            (false, true) => La::AddD,
            (false, false) => La::AddW,
            (true, true) => La::SubD,
            (true, false) => La::SubW,
        };
        let to = self.target(i.rd());
        self.assembler.three(op, to, a, product);
        self.put_sum(i.rd(), to, is_wide);
    }

    fn multiply_long(&mut self, i: Instruction) {
        let is_signed = matches!(i.op, Op::Smaddl | Op::Smsubl);
        let (n, m) = (self.word(i.rn()), self.word(i.rm()));
        let op = if is_signed { La::MulwDW } else { La::MulwDWu };
        if i.ra() == NONE && matches!(i.op, Op::Smaddl | Op::Umaddl) {
            let to = self.target(i.rd());
            self.assembler.three(op, to, n, m);
            return self.put(i.rd(), to, true, Facts::NONE);
        }
        let to = self.own(n);
        self.assembler.three(op, to, n, m);
        self.free_except(m, to);
        self.accumulate(i, to, true);
    }
}
