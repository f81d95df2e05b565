//! Values that wait: an instruction's result is not computed before somebody reads it or what it depends on changes, and then perhaps as a part
//! of what reads it; never if nobody does. Where the program can be interrupted, its position says which they are.
//! Not which results wait (`deferred`), and not their code (`forms`).

use super::code::{Pending, WAITING, Waiting};
use super::forms::{Form, Shape};
use super::instruction::Instruction;
use super::lower::Lowering;
use super::registers::general;
use super::uses::{Set, bit};

impl Lowering<'_> {
    /// What is yet to be, for a position.
    pub(super) fn pending(&self) -> Option<Pending> {
        let pending = Pending { product: self.product, waiting: self.waiting };
        (pending.product.is_some() || pending.waiting.iter().any(Option::is_some)).then_some(pending)
    }

    fn all_waiting(&self) -> impl Iterator<Item = Waiting> + Clone + use<> {
        self.waiting.into_iter().flatten()
    }

    /// The form in which the value of a LoongArch register waits.
    pub(super) fn form(&self, register: u8) -> Option<Form> {
        self.all_waiting().find(|waiting| waiting.d == register && register != 0).map(|waiting| waiting.form)
    }

    /// Registers whose values wait.
    pub(super) fn waiting_set(&self) -> Set {
        self.all_waiting().fold(0, |set, waiting| set | bit(waiting.d))
    }

    fn forget(&mut self, register: u8) {
        for place in &mut self.waiting {
            place.take_if(|waiting| waiting.d == register);
        }
    }

    /// Computes a value that waits into its register, if somebody reads it from here on.
    pub(super) fn materialise(&mut self, register: u8) {
        let Some(form) = self.form(register) else { return };
        if self.live_before & bit(register) == 0 {
            self.forget(register);
            return;
        }
        // No value depends on one that depends on it (`may_wait`).
        let dependent = self.all_waiting().filter(|other| other.d != register && other.form.reads(register));
        for other in dependent {
            self.materialise(other.d);
        }
        self.settle_before_change(register);
        form.emit(&mut self.assembler, register);
        self.forget(register);
    }

    /// Values that wait come to their registers as far as `live` has them; the others are never computed.
    pub(super) fn flush(&mut self, live: Set) {
        self.flush_living(live);
        self.waiting = [None; WAITING];
    }

    /// Values that wait come to their registers as far as `live` has them; the others wait on, for who is told of a fault in a delay slot.
    pub(super) fn flush_living(&mut self, live: Set) {
        let before = std::mem::replace(&mut self.live_before, live);
        for waiting in self.all_waiting().filter(|waiting| live & bit(waiting.d) != 0) {
            self.materialise(waiting.d);
        }
        self.live_before = before;
    }

    /// Before a register changes: values that depend on what it holds are computed, if they are read behind the instruction that changes it.
    pub(super) fn before_change(&mut self, register: u8) {
        let live = self.live_after;
        let dependent = self.all_waiting().filter(|other| other.d != register && other.form.reads(register));
        for other in dependent.filter(|other| live & bit(other.d) != 0) {
            self.materialise(other.d);
        }
    }

    /// A register has been written.
    pub(super) fn changed(&mut self, register: u8) {
        if register == 0 {
            return;
        }
        for place in &mut self.waiting {
            place.take_if(|waiting| waiting.d == register || waiting.form.reads(register));
        }
    }

    /// The registers that an instruction reads hold their values, or copies of them.
    pub(super) fn before_reads(&mut self, read: Set) {
        for waiting in self.all_waiting().filter(|waiting| read & bit(waiting.d) != 0) {
            if self.form(waiting.d).is_some_and(|form| !form.is_copy()) {
                self.materialise(waiting.d);
            }
        }
    }

    /// Before an instruction that is by itself: its destination may change, and registers hold what it reads.
    pub(super) fn before_instruction(&mut self, instruction: Instruction) {
        let written = general(instruction.destination());
        self.before_change(written);
        if instruction.reads_destination() {
            self.materialise(written);
        }
        self.before_reads(instruction.read());
    }

    /// The LoongArch register that holds what a source register has; [`Self::before_reads`] has seen to it that one does.
    pub(super) fn read(&self, number: u8) -> u8 {
        let register = general(number);
        self.form(register).filter(|form| form.is_copy()).map_or(register, |form| form.j)
    }

    /// Whether a value may wait in a form: what it depends on does not wait for it in turn.
    pub(super) fn may_wait(&self, register: u8, form: Form) -> bool {
        let depends = |from: u8| from != register && self.depends(from, register);
        !depends(form.j) && !depends(form.k)
    }

    /// Whether the value of `from`, which waits, depends on what `on` holds, be it by way of others. They are few and in no circle.
    fn depends(&self, from: u8, on: u8) -> bool {
        let Some(form) = self.form(from) else { return false };
        let others = [form.j, form.k].into_iter().filter(|other| *other != from);
        form.reads(on) || others.into_iter().any(|other| self.depends(other, on))
    }

    /// Has a value wait. Nobody reads what the register had before.
    pub(super) fn put_aside(&mut self, register: u8, form: Form) {
        self.forget(register);
        if form.shape == Shape::Sum && form.is_copy() && form.j == register {
            return;
        }
        // The oldest stands first.
        self.waiting.sort_by_key(Option::is_none);
        let free =
            self.waiting.iter().position(Option::is_none).expect("there is room before each instruction");
        self.waiting[free] = Some(Waiting { d: register, form });
    }

    /// The value of a register may wait. What the branch whose slot is translated compares stays as it is, be it that nobody reads it
    /// behind: after a fault in the slot, the branch is executed again.
    pub(super) fn make_room(&mut self, register: u8) {
        if self.waiting.iter().any(Option::is_none) || self.form(register).is_some() {
            return;
        }
        let kept = self.compared;
        let mut others = self.all_waiting().filter(|waiting| kept & bit(waiting.d) == 0);
        let dead = others.clone().find(|waiting| self.live_before & bit(waiting.d) == 0);
        if let Some(waiting) = dead.or_else(|| others.next()) {
            self.materialise(waiting.d);
        }
    }
}
