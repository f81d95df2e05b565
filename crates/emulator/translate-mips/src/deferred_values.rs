//! Deferred values: a result is computed only when it is read or an operand is about to change, possibly folded into
//! the reading instruction. Dead results are never computed. Positions record the deferred values, so that the engine
//! can compute them if it interrupts the code.

use super::code::{DeferredValue, MAX_DEFERRED, Pending};
use super::deferred_expressions::{DeferredExpr, ExprKind};
use super::instruction::Instruction;
use super::lower::Lowering;
use super::registers::general;
use super::uses::{Set, bit};

impl Lowering<'_> {
    /// The deferred values, for a position.
    pub(super) fn pending(&self) -> Option<Pending> {
        let pending = Pending { product: self.product, deferred_values: self.deferred_values };
        (pending.product.is_some() || pending.deferred_values.iter().any(Option::is_some)).then_some(pending)
    }

    fn all_deferred(&self) -> impl Iterator<Item = DeferredValue> + Clone + use<> {
        self.deferred_values.into_iter().flatten()
    }

    /// The expression of a LoongArch register's deferred value.
    pub(super) fn form(&self, register: u8) -> Option<DeferredExpr> {
        self.all_deferred()
            .find(|deferred| deferred.d == register && register != 0)
            .map(|deferred| deferred.form)
    }

    /// The registers with deferred values.
    pub(super) fn deferred_set(&self) -> Set {
        self.all_deferred().fold(0, |set, deferred| set | bit(deferred.d))
    }

    fn forget(&mut self, register: u8) {
        for place in &mut self.deferred_values {
            place.take_if(|deferred| deferred.d == register);
        }
    }

    /// Computes a deferred value into its register if it is live.
    pub(super) fn materialise(&mut self, register: u8) {
        let Some(form) = self.form(register) else { return };
        if self.live_before & bit(register) == 0 {
            self.forget(register);
            return;
        }
        // Dependencies are acyclic (`may_defer`).
        let dependent = self.all_deferred().filter(|other| other.d != register && other.form.reads(register));
        for other in dependent {
            self.materialise(other.d);
        }
        self.settle_before_change(register);
        form.emit(&mut self.assembler, register);
        self.forget(register);
    }

    /// Computes the deferred values of registers in `live` and drops the others.
    pub(super) fn flush(&mut self, live: Set) {
        self.compute_live(live);
        self.deferred_values = [None; MAX_DEFERRED];
    }

    /// Computes the deferred values of registers in `live`. The others stay deferred, because a fault in a delay slot
    /// needs them.
    pub(super) fn compute_live(&mut self, live: Set) {
        let previous = std::mem::replace(&mut self.live_before, live);
        for deferred in self.all_deferred().filter(|deferred| live & bit(deferred.d) != 0) {
            self.materialise(deferred.d);
        }
        self.live_before = previous;
    }

    /// Before a register changes: computes the deferred values that depend on it, if they are live after the
    /// instruction.
    pub(super) fn before_change(&mut self, register: u8) {
        let live = self.live_after;
        let dependent = self.all_deferred().filter(|other| other.d != register && other.form.reads(register));
        for other in dependent.filter(|other| live & bit(other.d) != 0) {
            self.materialise(other.d);
        }
    }

    /// Records that a register has been written.
    pub(super) fn changed(&mut self, register: u8) {
        if register == 0 {
            return;
        }
        for place in &mut self.deferred_values {
            place.take_if(|deferred| deferred.d == register || deferred.form.reads(register));
        }
    }

    /// Makes the values that an instruction reads available, in their registers or in the registers that they are
    /// copies of.
    pub(super) fn before_reads(&mut self, read: Set) {
        for deferred in self.all_deferred().filter(|deferred| read & bit(deferred.d) != 0) {
            if self.form(deferred.d).is_some_and(|form| !form.is_copy()) {
                self.materialise(deferred.d);
            }
        }
    }

    /// Prepares the destination and the sources of an instruction that is lowered separately.
    pub(super) fn before_instruction(&mut self, instruction: Instruction) {
        let written = general(instruction.destination());
        self.before_change(written);
        if instruction.reads_destination() {
            self.materialise(written);
        }
        self.before_reads(instruction.read());
    }

    /// The LoongArch register that holds a source register's value. [`Self::before_reads`] must have made it available.
    pub(super) fn read(&self, number: u8) -> u8 {
        let register = general(number);
        self.form(register).filter(|form| form.is_copy()).map_or(register, |form| form.j)
    }

    /// Whether a value can be deferred: its operands must not depend on its destination.
    pub(super) fn may_defer(&self, register: u8, form: DeferredExpr) -> bool {
        let depends = |from: u8| from != register && self.depends(from, register);
        !depends(form.j) && !depends(form.k)
    }

    /// Whether the deferred value of `from` depends on register `on`, directly or indirectly. Dependencies are few and
    /// acyclic.
    fn depends(&self, from: u8, on: u8) -> bool {
        let Some(form) = self.form(from) else { return false };
        let other_operands = [form.j, form.k].into_iter().filter(|other| *other != from);
        form.reads(on) || other_operands.into_iter().any(|other| self.depends(other, on))
    }

    /// Defers a value. The register's old value must be dead.
    pub(super) fn defer(&mut self, register: u8, form: DeferredExpr) {
        self.forget(register);
        if form.shape == ExprKind::Sum && form.is_copy() && form.j == register {
            return;
        }
        // Oldest first.
        self.deferred_values.sort_by_key(Option::is_none);
        let free =
            self.deferred_values.iter().position(Option::is_none).expect("`make_room` left an entry free");
        self.deferred_values[free] = Some(DeferredValue { d: register, form });
    }

    /// Makes sure that the value of a register can be deferred. The operands of the branch whose delay slot is being
    /// lowered are not touched even if they are dead: after a fault in the slot, the branch is executed again.
    pub(super) fn make_room(&mut self, register: u8) {
        if self.deferred_values.iter().any(Option::is_none) || self.form(register).is_some() {
            return;
        }
        let compared = self.compared;
        let mut others = self.all_deferred().filter(|deferred| compared & bit(deferred.d) == 0);
        let dead = others.clone().find(|deferred| self.live_before & bit(deferred.d) == 0);
        if let Some(deferred) = dead.or_else(|| others.next()) {
            self.materialise(deferred.d);
        }
    }
}
