//! Chooses which results are deferred, and folds deferred sums, shifts and comparisons into the loads, stores, sums and
//! branches that use them. Source: MIPS64 Architecture for Programmers, volume II-A; LoongArch Reference Manual, volume
//! 1.

use longma_loongarch::{Instruction as Code, Op as La};

use super::access::{Access, AccessAddress};
use super::deferred_expressions::{DeferredExpr, ExprKind, Plan, fits_imm12, mask_bounds, split_imm16};
use super::instruction::{Instruction, Op};
use super::lower::Lowering;
use super::registers::{STACK_POINTER, general};
use super::uses::bit;
use super::width::Width;

impl Lowering<'_> {
    /// Decides how to lower an instruction that is not a jump, and computes the deferred values that it needs.
    pub(super) fn plan(&mut self, i: Instruction) -> Plan {
        let d = general(i.destination());
        self.make_room(d);
        // A marker reports the value of a register to the model.
        let is_marker = i.op == Op::Andi && i.rt() == 0;
        if i.is_served() && !i.is_checked_sum() || is_marker || i.op == Op::Break {
            self.flush(u64::MAX);
            return Plan::Regular;
        }
        if d != 0
            && self.defers
            && let Some(plan) = self.constant_plan(i, d).or_else(|| self.sum_plan(i, d))
        {
            return plan;
        }
        if let Some(access) = i.access() {
            let base = i.rs();
            self.before_change(d);
            if matches!(i.op, Op::Sb | Op::Sh | Op::Sw | Op::Sd) {
                self.before_reads(bit(general(i.rt())));
            }
            if self.fold_address(i, access).is_none() {
                self.materialise(general(base));
            }
            return Plan::Regular;
        }
        self.before_instruction(i);
        Plan::Regular
    }

    /// The plan for an instruction with a result known at translation time.
    fn constant_plan(&mut self, i: Instruction, d: u8) -> Option<Plan> {
        let value = i32::try_from(self.value_of(i)?).ok()?;
        (d != STACK_POINTER).then_some(Plan::Defer(d, DeferredExpr::sum(0, value)))
    }

    /// Returns the registers' values as sums of other registers. Deferred values of other shapes are computed first.
    fn sums(&mut self, numbers: [u8; 2]) -> [DeferredExpr; 2] {
        for register in numbers.map(general) {
            if self.form(register).is_some_and(|form| form.shape != ExprKind::Sum) {
                self.materialise(register);
            }
        }
        numbers.map(general).map(|register| self.form(register).unwrap_or(DeferredExpr::sum(register, 0)))
    }

    /// The plan for an instruction that can be deferred or that uses a deferred value.
    fn sum_plan(&mut self, i: Instruction, d: u8) -> Option<Plan> {
        let source = self.copy_source(i);
        let form = match i.op {
            _ if source.is_some() => self.copy_of(source?),
            Op::Sll | Op::Dsll if (1..=4).contains(&i.sa()) => {
                self.before_reads(bit(general(i.rt())));
                let shape = if i.op == Op::Sll { ExprKind::ShiftWord } else { ExprKind::Sum };
                DeferredExpr { shape, j: 0, k: self.read(i.rt()), shift: i.sa(), imm: 0 }
            }
            Op::Daddiu => self.immediate_sum(i, d)?,
            Op::Daddu => self.register_sum(i, d)?,
            Op::Addu => return self.word_sum(i, d),
            Op::Andi => self.mask(i)?,
            Op::Srl | Op::Dsrl => return self.field(i, d),
            Op::Slt | Op::Sltu | Op::Slti | Op::Sltiu => self.comparison(i)?,
            _ => return None,
        };
        let defers = d != STACK_POINTER && self.may_defer(d, form);
        defers.then_some(Plan::Defer(d, form))
    }

    /// The source register, if the instruction only copies it (including redundant extensions).
    fn copy_source(&self, i: Instruction) -> Option<u8> {
        let (s, t) = (i.rs(), i.rt());
        let is_word = |number| self.width(number).is_word;
        let bits = self.width(s).bits;
        match i.op {
            Op::Or | Op::Daddu if t == 0 => Some(s),
            Op::Or | Op::Daddu if s == 0 => Some(t),
            Op::Addu if t == 0 && is_word(s) => Some(s),
            Op::Addu if s == 0 && is_word(t) => Some(t),
            Op::Sll if i.sa() == 0 && is_word(t) => Some(t),
            Op::Dext | Op::Dextm | Op::Ext if i.bit_field().0 == 0 && i.bit_field().1 >= bits => Some(s),
            Op::Andi if i.unsigned().trailing_ones() >= u32::from(bits) => Some(s),
            _ => None,
        }
    }

    /// The expression of a copy of a source register.
    fn copy_of(&mut self, from: u8) -> DeferredExpr {
        let register = general(from);
        if self.form(register).is_some_and(|form| !form.is_register_plus_constant() || form.cost() > 1) {
            self.materialise(register);
        }
        self.form(register).unwrap_or(DeferredExpr::sum(register, 0))
    }

    /// Whether a source register is dead after the instruction.
    fn is_last_read(&self, number: u8, d: u8) -> bool {
        general(number) == d || self.live_after & bit(general(number)) == 0
    }

    /// `daddiu`.
    fn immediate_sum(&mut self, i: Instruction, d: u8) -> Option<DeferredExpr> {
        let [form, _] = self.sums([i.rs(), 0]);
        let imm = form.imm.checked_add(i.imm());
        let together = imm.filter(|imm| {
            form.is_register_plus_constant()
                && form.j != 0
                && (fits_imm12(*imm) || self.is_last_read(i.rs(), d))
        });
        if let Some(imm) = together {
            return Some(DeferredExpr { imm, ..form });
        }
        self.before_reads(bit(general(i.rs())));
        Some(DeferredExpr::sum(self.read(i.rs()), i.imm()))
    }

    /// `daddu`.
    fn register_sum(&mut self, i: Instruction, d: u8) -> Option<DeferredExpr> {
        let [s, t] = self.sums([i.rs(), i.rt()]);
        for ((a, number), b) in [((s, i.rs()), t), ((t, i.rt()), s)] {
            if !b.is_copy() {
                continue;
            }
            let last = self.is_last_read(number, d);
            if a.is_shift() {
                return Some(DeferredExpr { j: b.j, ..a });
            }
            if a.is_register_plus_constant()
                && a.j == 0
                && (fits_imm12(a.imm) || last && DeferredExpr::sum(1, a.imm).cost() < 3)
            {
                return Some(DeferredExpr::sum(b.j, a.imm));
            }
            if a.is_register_plus_constant() && a.j != 0 && !a.is_copy() && last && b.j != 0 {
                return Some(DeferredExpr { k: b.j, ..a });
            }
        }
        self.before_reads(i.read());
        Some(DeferredExpr { k: self.read(i.rt()), ..DeferredExpr::sum(self.read(i.rs()), 0) })
            .map(|form| if form.j == 0 { DeferredExpr::sum(form.k, 0) } else { form })
    }

    /// `addu` of a register and a shifted register.
    fn word_sum(&mut self, i: Instruction, d: u8) -> Option<Plan> {
        let shifted = |form: &DeferredExpr| form.is_shift() || form.shape == ExprKind::ShiftWord;
        let forms = [i.rs(), i.rt()].map(|number| self.form(general(number)));
        let at = forms.iter().position(|form| form.as_ref().is_some_and(shifted))?;
        let other = [i.rt(), i.rs()][at];
        if other == [i.rs(), i.rt()][at] {
            return None;
        }
        self.before_change(d);
        self.before_reads(bit(general(other)));
        let form = self.form(general([i.rs(), i.rt()][at])).filter(shifted)?;
        let (j, k) = (form.k, self.read(other));
        Some(Plan::Emit(Code { d, j, k, imm: form.shift.into(), ..Code::new(La::AlslW) }))
    }

    /// `andi` with a mask of adjacent bits that does not fit into one instruction.
    fn mask(&mut self, i: Instruction) -> Option<DeferredExpr> {
        let mask = i.unsigned() as i32;
        if mask < 4096 {
            return None;
        }
        let (high, low) = mask_bounds(mask);
        if low == 0 || mask >> low != (1 << (high - low + 1)) - 1 {
            return None;
        }
        self.before_reads(i.read());
        Some(DeferredExpr { shape: ExprKind::Mask, imm: mask, ..DeferredExpr::sum(self.read(i.rs()), 0) })
    }

    /// A right shift of the result of such an `andi`, as one instruction that extracts the bits.
    fn field(&mut self, i: Instruction, d: u8) -> Option<Plan> {
        self.before_change(d);
        let form = self.form(general(i.rt())).filter(|form| form.shape == ExprKind::Mask)?;
        let (high, low) = mask_bounds(form.imm);
        let is_within = (low..=high).contains(&i.sa());
        let code = Code { d, j: form.j, imm: high.into(), imm2: i.sa().into(), ..Code::new(La::BstrpickD) };
        is_within.then_some(Plan::Emit(code))
    }

    /// A comparison that can be fused with a branch.
    fn comparison(&mut self, i: Instruction) -> Option<DeferredExpr> {
        let shape = match i.op {
            Op::Slt => ExprKind::Less,
            Op::Sltu => ExprKind::LessUnsigned,
            Op::Slti if i.imm() == 0 => ExprKind::Less,
            Op::Slti if i.imm() == 1 => ExprKind::LessImmediate,
            Op::Sltiu if i.imm() == 1 => ExprKind::LessUnsignedImmediate,
            _ => return None,
        };
        self.before_reads(i.read());
        let k = if matches!(i.op, Op::Slt | Op::Sltu) { self.read(i.rt()) } else { 0 };
        let imm =
            if matches!(shape, ExprKind::LessImmediate | ExprKind::LessUnsignedImmediate) { 1 } else { 0 };
        Some(DeferredExpr { shape, j: self.read(i.rs()), k, shift: 0, imm })
    }

    /// The address of a load or store if the deferred value of its base can be folded into it. Uses two instructions
    /// only if the base is dead afterwards.
    pub(super) fn fold_address(&self, i: Instruction, access: Access) -> Option<AccessAddress> {
        let base = i.rs();
        let plain = AccessAddress { j: general(base), k: 0, imm: i.imm() };
        let Some(form) = self.form(general(base)) else { return Some(plain) };
        let imm = form.imm.checked_add(i.imm()).filter(|_| form.shape == ExprKind::Sum && form.shift == 0)?;
        let folded = AccessAddress { j: form.j, k: form.k, imm };
        let is_wide = |imm: i32| imm % 4 == 0 && imm as i16 as i32 == imm && access.words.is_some();
        let fits = fits_imm12(imm) || is_wide(imm);
        let last = self.live_after & bit(general(base)) == 0 || general(i.destination()) == general(base);
        let folds = match form.k {
            0 if fits || form.is_copy() => true,
            0 => {
                last && form.j != 0
                    && split_imm16(imm).is_some_and(|(_, low)| fits_imm12(low) || is_wide(low))
            }
            _ if imm == 0 => true,
            _ => last && form.imm != 0 && fits,
        };
        folds.then_some(folded)
    }

    /// The known width of a source register's value.
    pub(super) fn width(&self, number: u8) -> Width {
        if general(number) == 0 { Width::of(0) } else { self.widths[usize::from(number)] }
    }

    /// The known width of the result of an instruction that has not been executed yet.
    pub(super) fn width_of(&self, i: Instruction) -> Width {
        use Op::*;
        let (s, t) = (self.width(i.rs()), self.width(i.rt()));
        let sa = i.sa();
        match i.op {
            Lbu => Width::of(8),
            Lhu => Width::of(16),
            Lwu => Width::of(32),
            Slt | Sltu | Slti | Sltiu => Width::of(1),
            Andi => Width::of(s.bits.min(32 - i.unsigned().leading_zeros() as u8)),
            And => {
                Width { bits: s.bits.min(t.bits), is_word: s.is_word && t.is_word || s.bits.min(t.bits) < 32 }
            }
            Or | Xor => Width { bits: s.bits.max(t.bits), is_word: s.is_word && t.is_word },
            Srl if sa > 0 => Width::of(t.bits.min(32) - sa.min(t.bits)),
            Dsrl => Width {
                bits: t.bits.saturating_sub(sa),
                is_word: t.is_word && sa == 0 || t.bits.saturating_sub(sa) < 32,
            },
            Dsrl32 => Width::of(t.bits.saturating_sub(sa + 32)),
            Ext | Dext | Dextm | Dextu => {
                let size = i.bit_field().1;
                if i.op == Ext && size == 32 { Width::WORD } else { Width::of(size) }
            }
            Lb | Lh | Lw | Ll | Addu | Addiu | Subu | Sll | Srl | Sra | Sllv | Srlv | Srav | Rotr | Rotrv
            | Mul | Lui | Seb | Seh | Clz | Clo | Dclz | Dclo | Wsbh | Mfc1 | Cfc1 | Mfhc1 => Width::WORD,
            _ => Width::UNKNOWN,
        }
    }
}
