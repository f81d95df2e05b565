//! Lowers exclusive, acquire/release and atomic memory accesses. Source: Arm Architecture Reference Manual (Arm DDI
//! 0487), sections B2.9 (exclusives), B2.3 (acquire and release) and C6.2; LoongArch Reference Manual, volume 1,
//! sections 2.2.7 and 2.2.8.

use longma_loongarch::{Instruction as Code, Op as La};

use super::known::Facts;
use super::lower::Lowering;
use super::operands::NONE;
use crate::instruction::{Instruction, Op};
use crate::registers::*;
use longma_translate::assembler::JumpTarget;

/// Whether the lowered code of an instruction uses [`TRUTH`] as a temporary.
pub(super) fn needs_truth(i: Instruction) -> bool {
    let (swap, change) = (i.word & 0x3fa0_7c00 == 0x08a0_7c00, i.word & 0x3f20_0c00 == 0x3820_0000);
    swap || change || i.word & 0xbfa0_7c00 == 0x0820_7c00
}

/// The hints of `dbar`. `FULL` orders all earlier accesses before all later ones, `ACQUIRE` earlier loads before all
/// later accesses, and `RELEASE` all earlier accesses before later stores.
pub(super) const FULL: i32 = 0x10;
const ACQUIRE: i32 = 0x14;
const RELEASE: i32 = 0x12;

impl Lowering<'_> {
    /// Lowers the instruction. Returns false for other instructions.
    pub fn atomic(&mut self, i: Instruction) -> bool {
        use Op::*;
        match i.op {
            LdxrW | LdaxrW | LdxrX | LdaxrX => self.load_exclusive(i),
            Ldxrb | Ldaxrb | Ldxrh | Ldaxrh => self.load_exclusive_part(i),
            StxrW | StlxrW | StxrX | StlxrX => self.store_exclusive(i),
            Stxrb | Stlxrb | Stxrh | Stlxrh => self.store_exclusive_part(i),
            LdxpW | LdaxpW | LdxpX | LdaxpX => self.load_exclusive_pair(i),
            StxpW | StlxpW | StxpX | StlxpX => self.store_exclusive_pair(i),
            Ldarb | Ldarh | LdarW | LdarX | Ldlarb | Ldlarh | LdlarW | LdlarX | Ldaprb | Ldaprh | LdaprW
            | LdaprX => self.load_acquire(i),
            Stlrb | Stlrh | StlrW | StlrX | Stllrb | Stllrh | StllrW | StllrX => self.store_release(i),
            Casb | Cash | CasW | CasX => self.compare_and_swap(i),
            CaspW | CaspX => self.compare_and_swap_pair(i),
            Clrex => {
                // Moves the reservation to a location that is never stored to exclusively.
                let to = self.temporary();
                self.assembler.immediate(La::LlD, to, SLOTS, SLOT_OF_EXCLUSIVE);
            }
            _ => return self.read_modify_write(i),
        }
        true
    }

    pub fn barrier(&mut self, hint: i32) {
        self.assembler.push(Code { imm: hint, ..Code::new(La::Dbar) });
    }

    /// Emits the barrier if o0 (bit 15) requests acquire or release.
    fn barrier_if(&mut self, i: Instruction, hint: i32) {
        if i.bits(15, 1) != 0 {
            self.barrier(hint);
        }
    }

    fn load_exclusive(&mut self, i: Instruction) {
        let is_wide = i.bits(30, 1) != 0;
        let acquires = i.bits(15, 1) != 0;
        let base = self.base(i);
        let to = self.target(i.rd());
        let op = match (is_wide, acquires) {
            (true, true) => La::LlacqD,
            (true, false) => La::LlD,
            (false, true) => La::LlacqW,
            (false, false) => La::LlW,
        };
        self.assembler.immediate(op, to, base, 0);
        self.put_sum(i.rd(), to, is_wide);
    }

    /// Returns, in temporary registers, the address of the aligned word that contains a byte or halfword, and the
    /// right-rotation in bits that brings the part to bit 0.
    fn word_around(&mut self, base: u8) -> (u8, u8) {
        let amount = self.temporary();
        self.assembler.immediate(La::SlliD, amount, base, 3);
        let word = self.own(base);
        self.assembler.copy(word, base);
        self.assembler.field(La::BstrinsD, word, 0, 1, 0);
        (word, amount)
    }

    fn load_exclusive_part(&mut self, i: Instruction) {
        let width = 8 << i.bits(30, 2);
        let base = self.base(i);
        let (word, amount) = self.word_around(base);
        let load = if i.bits(15, 1) != 0 { La::LlacqW } else { La::LlW };
        self.assembler.immediate(load, word, word, 0);
        self.assembler.immediate(La::StW, word, SLOTS, SLOT_OF_EXCLUSIVE);
        self.assembler.three(La::RotrW, word, word, amount);
        let is_own = i.rd() != NONE && matches!(self.location_of(i.rd()), Location::Register(_));
        let to = if is_own { self.target(i.rd()) } else { word };
        self.assembler.field(La::BstrpickD, to, word, width - 1, 0);
        self.put(i.rd(), to, true, Facts::of_width(width));
    }

    /// Emits the conditional store of `value`, a temporary register, to `address`. Rs becomes 0 on success and 1 on
    /// failure.
    fn store_if_reserved(&mut self, i: Instruction, op: La, value: u8, address: u8) {
        self.assembler.immediate(op, value, address, 0);
        // A result that is written to memory does not need another register.
        let is_own = i.rm() != NONE && matches!(self.location_of(i.rm()), Location::Register(_));
        let to = if is_own { self.target(i.rm()) } else { value };
        self.assembler.immediate(La::Xori, to, value, 1);
        self.put(i.rm(), to, true, Facts::of_width(1));
    }

    fn store_exclusive(&mut self, i: Instruction) {
        let (is_wide, releases) = (i.bits(30, 1) != 0, i.bits(15, 1) != 0);
        let base = self.base(i);
        let from = self.source(i.rd(), is_wide);
        // LoongArch's conditional store overwrites its source register with the outcome. The store uses a copy, so that
        // no source register has changed if it faults.
        let value = self.own_except(from, base);
        self.assembler.copy(value, from);
        let op = match (is_wide, releases) {
            (true, true) => La::ScrelD,
            (true, false) => La::ScD,
            (false, true) => La::ScrelW,
            (false, false) => La::ScW,
        };
        self.store_if_reserved(i, op, value, base);
    }

    /// Stores the loaded word with the part replaced. The store fails if the word has changed since.
    fn store_exclusive_part(&mut self, i: Instruction) {
        let width = 8 << i.bits(30, 2);
        let base = self.base(i);
        let (address, amount) = self.word_around(base);
        let value = self.temporary();
        self.assembler.immediate(La::LdW, value, SLOTS, SLOT_OF_EXCLUSIVE);
        self.assembler.three(La::RotrW, value, value, amount);
        let from = self.word(i.rd());
        self.assembler.field(La::BstrinsW, value, from, width - 1, 0);
        self.assembler.three(La::SubW, amount, 0, amount);
        self.assembler.three(La::RotrW, value, value, amount);
        let store = if i.bits(15, 1) != 0 { La::ScrelW } else { La::ScW };
        self.store_if_reserved(i, store, value, address);
    }

    fn load_exclusive_pair(&mut self, i: Instruction) {
        let (first, second) = (i.rd(), i.ra());
        let base = self.base(i);
        let low = self.temporary();
        self.assembler.immediate(La::LlD, low, base, 0);
        let high = self.temporary();
        if i.bits(30, 1) != 0 {
            self.assembler.immediate(La::LdD, high, base, 8);
            self.put(first, low, true, Facts::NONE);
            self.put(second, high, true, Facts::NONE);
        } else {
            self.assembler.immediate(La::SrliD, high, low, 32);
            self.assembler.field(La::BstrpickD, low, low, 31, 0);
            self.put(first, low, true, Facts::ZERO_EXTENDED);
            self.put(second, high, true, Facts::ZERO_EXTENDED);
        }
        self.barrier_if(i, ACQUIRE);
    }

    fn store_exclusive_pair(&mut self, i: Instruction) {
        let is_wide = i.bits(30, 1) != 0;
        self.barrier_if(i, RELEASE);
        let base = self.base(i);
        let from = self.source(i.rd(), is_wide);
        let value = self.own_except(from, base);
        self.assembler.copy(value, from);
        let high = self.source(i.ra(), is_wide);
        if is_wide {
            self.assembler.three(La::ScQ, value, base, high);
            self.assembler.immediate(La::Xori, value, value, 1);
            self.put(i.rm(), value, true, Facts::of_width(1));
        } else {
            self.assembler.field(La::BstrinsD, value, high, 63, 32);
            self.store_if_reserved(i, La::ScD, value, base);
        }
    }

    fn load_acquire(&mut self, i: Instruction) {
        let (op, facts) = match i.bits(30, 2) {
            0 => (La::LdBu, Facts::of_width(8)),
            1 => (La::LdHuAligned, Facts::of_width(16)),
            2 => (La::LdWuAligned, Facts::ZERO_EXTENDED),
            _ => (La::LdDAligned, Facts::NONE),
        };
        let base = self.base(i);
        let to = self.target(i.rd());
        self.assembler.two(op, to, base);
        self.put(i.rd(), to, true, facts);
        self.barrier(ACQUIRE);
    }

    /// STLR. Later acquire loads must not move before the store.
    fn store_release(&mut self, i: Instruction) {
        let op = [La::AmswapDbB, La::AmswapDbH, La::AmswapDbW, La::AmswapDbD][i.bits(30, 2) as usize];
        let base = self.base(i);
        let from = self.source(i.rd(), i.bits(30, 2) == 3);
        // A swap with a barrier is a single instruction. The old value is discarded.
        let old = self.temporary();
        self.three(op, old, from, base);
    }

    fn three(&mut self, op: La, d: u8, value: u8, address: u8) {
        self.assembler.push(Code { d, j: address, k: value, ..Code::new(op) });
    }

    fn compare_and_swap(&mut self, i: Instruction) {
        let size = i.bits(30, 2);
        let is_wide = size == 3;
        let base = self.base(i);
        // The comparison operand must be sign-extended, like the loaded value.
        let from = self.source(i.rm(), is_wide);
        let expected = self.own_except(from, base);
        match size {
            0 => self.assembler.two(La::ExtWB, expected, from),
            1 => self.assembler.two(La::ExtWH, expected, from),
            2 => self.assembler.immediate(La::SlliW, expected, from, 0),
            _ => self.assembler.copy(expected, from),
        }
        let value = self.source(i.rd(), is_wide);
        let op = [La::AmcasDbB, La::AmcasDbH, La::AmcasDbW, La::AmcasDbD][size as usize];
        if size < 2 {
            self.three(op, expected, value, base);
            self.assembler.field(La::BstrpickD, expected, expected, (8 << size) - 1, 0);
            return self.put(i.rm(), expected, true, Facts::of_width(8 << size));
        }
        let old = self.temporary();
        let (load, store) = if is_wide { (La::LlD, La::ScD) } else { (La::LlW, La::ScW) };
        let (retry, write) = (self.assembler.label(), self.assembler.label());
        self.assembler.place(retry);
        self.assembler.immediate(load, old, base, 0);
        self.assembler.copy(TRUTH, value);
        self.assembler.jump(Code { j: old, d: expected, ..Code::new(La::Beq) }, JumpTarget::Label(write));
        // A failed comparison writes the old value, and thus faults on a page that is not writable.
        self.assembler.copy(TRUTH, old);
        self.assembler.place(write);
        self.assembler.immediate(store, TRUTH, base, 0);
        self.assembler.jump(Code { j: TRUTH, ..Code::new(La::Beqz) }, JumpTarget::Label(retry));
        self.barrier(FULL);
        self.put_sum(i.rm(), old, is_wide);
    }

    /// CASP: compares and swaps a register pair. Retries until no other store interferes.
    fn compare_and_swap_pair(&mut self, i: Instruction) {
        let is_wide = i.op == Op::CaspX;
        let (expected, values) = ([i.rm(), i.rm() + 1], [i.rd(), i.rd() + 1]);
        for number in expected.into_iter().chain(values).filter(|number| *number != NONE) {
            if is_wide {
                self.clear_upper(number);
            }
            self.apply_increment(number);
        }
        let base = self.base(i);
        let [low, high, spare] = [(); 3].map(|()| self.temporary());
        let [retry, differs, end] = [(); 3].map(|()| self.assembler.label());
        let differ = |j, d| Code { j, d, ..Code::new(La::Bne) };
        if is_wide {
            self.assembler.place(retry);
            self.assembler.immediate(La::LlD, low, base, 0);
            self.assembler.immediate(La::LdD, high, base, 8);
            for (old, number) in [(low, expected[0]), (high, expected[1])] {
                let comparand = self.value_in(number, spare);
                self.assembler.jump(differ(old, comparand), JumpTarget::Label(differs));
            }
            let first = self.value_in(values[0], TRUTH);
            self.assembler.copy(TRUTH, first);
            let second = self.value_in(values[1], spare);
            self.assembler.three(La::ScQ, TRUTH, base, second);
        } else {
            let joined = |lowering: &mut Self, to: u8, [first, second]: [u8; 2]| {
                let from = lowering.value_in(first, to);
                lowering.assembler.copy(to, from);
                let upper = lowering.value_in(second, high);
                lowering.assembler.field(La::BstrinsD, to, upper, 63, 32);
            };
            joined(self, spare, expected);
            self.assembler.place(retry);
            self.assembler.immediate(La::LlD, low, base, 0);
            self.assembler.jump(differ(low, spare), JumpTarget::Label(differs));
            joined(self, TRUTH, values);
            self.assembler.immediate(La::ScD, TRUTH, base, 0);
        }
        self.assembler.jump(Code { j: TRUTH, ..Code::new(La::Bnez) }, JumpTarget::Label(end));
        self.assembler.go(JumpTarget::Label(retry));
        // A failed comparison writes the old values, so it faults on a page that is not writable. If the store
        // succeeds, no other thread has written either half between the loads.
        self.assembler.place(differs);
        self.assembler.copy(TRUTH, low);
        if is_wide {
            self.assembler.three(La::ScQ, TRUTH, base, high);
        } else {
            self.assembler.immediate(La::ScD, TRUTH, base, 0);
        }
        self.assembler.jump(Code { j: TRUTH, ..Code::new(La::Beqz) }, JumpTarget::Label(retry));
        self.assembler.place(end);
        self.barrier(FULL);
        self.free(spare);
        let facts = if is_wide { Facts::NONE } else { Facts::ZERO_EXTENDED };
        if !is_wide {
            self.assembler.immediate(La::SrliD, high, low, 32);
            self.assembler.field(La::BstrpickD, low, low, 31, 0);
        }
        self.put(expected[0], low, true, facts);
        self.put(expected[1], high, true, facts);
    }

    /// Returns a register that contains x`number`: the assigned register, or `spare`, into which the value is loaded.
    fn value_in(&mut self, number: u8, spare: u8) -> u8 {
        if number == NONE {
            return 0;
        }
        match self.location_of(number) {
            Location::Register(own) => return own,
            Location::Scratch(scratch) => self.assembler.two(La::Movscr2gr, spare, scratch),
            Location::Slot(offset) => self.assembler.immediate(La::LdD, spare, SLOTS, offset.into()),
        }
        spare
    }

    /// LDADD and related instructions, and SWP.
    fn read_modify_write(&mut self, i: Instruction) -> bool {
        use Op::*;
        let size = i.bits(30, 2);
        let (words, change) = match i.op {
            Ldaddb | Ldaddh | LdaddW | LdaddX => ([La::AmaddDbW, La::AmaddDbD], La::AddD),
            Ldclrb | Ldclrh | LdclrW | LdclrX => ([La::AmandDbW, La::AmandDbD], La::And),
            Ldeorb | Ldeorh | LdeorW | LdeorX => ([La::AmxorDbW, La::AmxorDbD], La::Xor),
            Ldsetb | Ldseth | LdsetW | LdsetX => ([La::AmorDbW, La::AmorDbD], La::Or),
            Ldsmaxb | Ldsmaxh | LdsmaxW | LdsmaxX => ([La::AmmaxDbW, La::AmmaxDbD], La::Slt),
            Ldsminb | Ldsminh | LdsminW | LdsminX => ([La::AmminDbW, La::AmminDbD], La::Slt),
            Ldumaxb | Ldumaxh | LdumaxW | LdumaxX => ([La::AmmaxDbWu, La::AmmaxDbDu], La::Sltu),
            Lduminb | Lduminh | LduminW | LduminX => ([La::AmminDbWu, La::AmminDbDu], La::Sltu),
            Swpb | Swph | SwpW | SwpX => ([La::AmswapDbW, La::AmswapDbD], La::Or),
            _ => return false,
        };
        let base = self.base(i);
        let mut value = self.source(i.rm(), size == 3);
        if matches!(i.op, Ldclrb | Ldclrh | LdclrW | LdclrX) {
            let to = self.own_except(value, base);
            self.assembler.three(La::Nor, to, value, 0);
            value = to;
        }
        if size < 2 {
            self.modify_part(i, value, base, change);
            return true;
        }
        let to = self.target_except(i.rd(), &[base, value]);
        self.three(words[usize::from(size == 3)], to, value, base);
        self.put_sum(i.rd(), to, size == 3);
        true
    }

    /// Read-modify-write of a byte or halfword: a compare-and-swap loop.
    fn modify_part(&mut self, i: Instruction, value: u8, base: u8, change: La) {
        let is_half = i.bits(30, 2) == 1;
        let (load, extend, swap) =
            if is_half { (La::LdHu, La::ExtWH, La::AmcasDbH) } else { (La::LdBu, La::ExtWB, La::AmcasDbB) };
        let last = if is_half { 15 } else { 7 };
        let name = i.mnemonic();
        let is_signed = name.starts_with("lds") && !name.starts_with("ldset");
        let picks = matches!(change, La::Slt | La::Sltu);
        if picks {
            // Extends the operand in the same way as the loaded value.
            let to = self.own_except(value, base);
            if is_signed {
                self.assembler.two(extend, to, value);
            } else {
                self.assembler.field(La::BstrpickD, to, value, last, 0);
            }
            return self.pick_part(i, to, base, (load, extend, swap, last, is_signed));
        }
        let retry = self.assembler.label();
        self.assembler.place(retry);
        let old = self.temporary();
        self.assembler.immediate(load, old, base, 0);
        if name.starts_with("swp") {
            self.assembler.copy(TRUTH, value);
        } else {
            self.assembler.three(change, TRUTH, old, value);
        }
        self.swap_part(i, old, base, retry, (extend, swap, last));
    }

    /// Maximum and minimum of a byte or halfword.
    fn pick_part(&mut self, i: Instruction, value: u8, base: u8, operation: (La, La, La, u8, bool)) {
        let (load, extend, swap, last, is_signed) = operation;
        let is_most = i.mnemonic().contains("max");
        let retry = self.assembler.label();
        self.assembler.place(retry);
        let old = self.temporary();
        self.assembler.immediate(load, old, base, 0);
        let keeps_old = self.temporary();
        if is_signed {
            self.assembler.two(extend, old, old);
        }
        let op = if is_signed { La::Slt } else { La::Sltu };
        if is_most {
            self.assembler.three(op, keeps_old, value, old);
        } else {
            self.assembler.three(op, keeps_old, old, value);
        }
        self.assembler.three(La::Masknez, TRUTH, value, keeps_old);
        self.assembler.three(La::Maskeqz, keeps_old, old, keeps_old);
        self.assembler.three(La::Or, TRUTH, TRUTH, keeps_old);
        self.free(keeps_old);
        self.assembler.field(La::BstrpickD, old, old, last, 0);
        self.swap_part(i, old, base, retry, (extend, swap, last));
    }

    /// Stores [`TRUTH`] by compare-and-swap if memory still contains `old`, which is zero-extended. Branches to `retry`
    /// if it does not.
    fn swap_part(
        &mut self,
        i: Instruction,
        old: u8,
        base: u8,
        retry: usize,
        (extend, swap, last): (La, La, u8),
    ) {
        let current = self.temporary();
        self.assembler.two(extend, current, old);
        self.three(swap, current, TRUTH, base);
        self.assembler.field(La::BstrpickD, current, current, last, 0);
        self.assembler.jump(Code { j: current, d: old, ..Code::new(La::Bne) }, JumpTarget::Label(retry));
        self.put(i.rd(), old, true, Facts::of_width(last + 1));
    }
}
