//! Lowers loads and stores of multiple vectors and of single lanes. The engine executes LD3, ST2 to ST4, and 64-bit LD2
//! and LD4, which deinterleave or interleave lanes. Source: Arm Architecture Reference Manual (Arm DDI 0487), section
//! C7.2; LoongArch Reference Manual, volume 2.

use longma_loongarch::{Instruction as Code, Op as La};

use crate::code::lower::Lowering;
use crate::code::operands::NONE;
use crate::instruction::{Instruction, Op};

/// The number of vectors that the instruction accesses.
pub(crate) fn count(i: Instruction) -> Option<u8> {
    use Op::*;
    Some(match i.op {
        St11 | St11Post | Ld11 | Ld11Post => 1,
        St12 | St12Post | Ld12 | Ld12Post | St2 | St2Post | Ld2 | Ld2Post => 2,
        St13 | St13Post | Ld13 | Ld13Post | St3 | St3Post | Ld3 | Ld3Post => 3,
        St14 | St14Post | Ld14 | Ld14Post | St4 | St4Post | Ld4 | Ld4Post => 4,
        _ if i.is_single_structure() => 1 + (i.bits(13, 1) << 1 | i.bits(21, 1)) as u8,
        _ => return None,
    })
}

/// Whether the instruction updates the base register.
pub(crate) fn steps(i: Instruction) -> bool {
    i.bits(23, 1) != 0
}

/// The lane size and the lane index of a single-lane access.
pub(crate) fn lane(i: Instruction) -> (usize, i32) {
    let index = i.bits(30, 1) << 3 | i.bits(12, 1) << 2 | i.bits(10, 2);
    match i.bits(14, 2) {
        0 => (0, index as i32),
        1 => (1, (index >> 1) as i32),
        _ if i.bits(10, 1) != 0 => (3, (index >> 3) as i32),
        _ => (2, (index >> 2) as i32),
    }
}

impl Lowering<'_> {
    pub(super) fn structures(&mut self, i: Instruction) -> bool {
        use Op::*;
        match i.op {
            St11 | St11Post | St12 | St12Post | St13 | St13Post | St14 | St14Post => self.several(i, false),
            Ld11 | Ld11Post | Ld12 | Ld12Post | Ld13 | Ld13Post | Ld14 | Ld14Post => self.several(i, true),
            Ld2 | Ld2Post | Ld4 | Ld4Post if i.is_whole() => self.deinterleaved(i),
            _ if i.replicates() => self.replicated(i),
            _ if i.is_single_structure() => self.one_lane(i),
            _ => return false,
        }
        true
    }

    fn several(&mut self, i: Instruction, loads: bool) {
        let is_whole = i.is_whole();
        let bytes = if is_whole { 16 } else { 8 };
        let base = self.full_or_stack(i.rn());
        let op = match (loads, is_whole) {
            (true, true) => La::Vld,
            (true, false) => La::FldD,
            (false, true) => La::Vst,
            (false, false) => La::FstD,
        };
        let count = count(i).unwrap_or(1);
        for index in 0..count {
            let register = (i.rd() + index) & 31;
            if loads {
                self.put_lanes(register, is_whole);
            } else {
                self.lanes(register, is_whole);
            }
            self.assembler.immediate(op, register, base, i32::from(index) * bytes);
        }
        self.step(i, base, i64::from(count) * i64::from(bytes));
    }

    /// LD2 and LD4 of full vectors. Loads all data before deinterleaving, so that no register is borrowed if a load
    /// faults.
    fn deinterleaved(&mut self, i: Instruction) {
        let size = i.bits(10, 2) as usize;
        let even = [La::VpickevB, La::VpickevH, La::VpickevW, La::VpickevD][size];
        let odd = [La::VpickodB, La::VpickodH, La::VpickodW, La::VpickodD][size];
        let base = self.full_or_stack(i.rn());
        let count = count(i).unwrap_or(2);
        let all: Vec<u8> = (0..count).map(|index| (i.rd() + index) & 31).collect();
        for (index, &register) in all.iter().enumerate() {
            self.put_lanes(register, true);
            self.assembler.immediate(La::Vld, register, base, 16 * index as i32);
        }
        let first = self.borrow_vector(&all);
        self.assembler.three(even, first, all[1], all[0]);
        if let [a, b, c, d] = all[..] {
            let second = self.borrow_vector(&all);
            self.assembler.three(odd, second, b, a);
            self.assembler.three(even, a, d, c);
            self.assembler.three(odd, b, d, c);
            self.assembler.three(odd, c, a, first);
            self.assembler.three(even, a, a, first);
            self.assembler.three(odd, d, b, second);
            self.assembler.three(even, b, b, second);
        } else {
            self.assembler.three(odd, all[1], all[1], all[0]);
            self.assembler.three(La::VorV, all[0], first, first);
        }
        self.step(i, base, i64::from(count) * 16);
    }

    /// Updates the base by a register, or by the access size if the register number is 31.
    fn step(&mut self, i: Instruction, base: u8, bytes: i64) {
        if !steps(i) {
            return;
        }
        if i.rm() == NONE {
            return self.step_base(i.rn(), base, Some(bytes));
        }
        let step = self.whole(i.rm());
        self.assembler.three(La::AddD, base, base, step);
        self.put_or_stack(i.rn(), base, true);
    }

    /// LD1R to LD4R.
    fn replicated(&mut self, i: Instruction) {
        let base = self.full_or_stack(i.rn());
        let size = i.bits(10, 2) as usize;
        let op = [La::VldreplB, La::VldreplH, La::VldreplW, La::VldreplD][size];
        let count = count(i).unwrap_or(1);
        for index in 0..count {
            let register = (i.rd() + index) & 31;
            self.assembler.immediate(op, register, base, i32::from(index) << size);
            self.put_lanes(register, i.is_whole());
        }
        self.step(i, base, i64::from(count) << size);
    }

    fn one_lane(&mut self, i: Instruction) {
        let loads = i.bits(22, 1) != 0;
        let (size, lane) = lane(i);
        let base = self.full_or_stack(i.rn());
        let count = count(i).unwrap_or(1);
        let value = self.temporary();
        for index in 0..count {
            let register = self.lanes((i.rd() + index) & 31, true);
            let at = i32::from(index) << size;
            if loads {
                let load = [La::LdBu, La::LdHu, La::LdWu, La::LdD][size];
                let insert = [La::Vinsgr2vrB, La::Vinsgr2vrH, La::Vinsgr2vrW, La::Vinsgr2vrD][size];
                self.assembler.immediate(load, value, base, at);
                self.assembler.push(Code { d: register, j: value, imm: lane, ..Code::new(insert) });
            } else {
                let pick = [La::Vpickve2grB, La::Vpickve2grH, La::Vpickve2grW, La::Vpickve2grD][size];
                self.assembler.immediate(pick, value, register, lane);
                self.assembler.immediate([La::StB, La::StH, La::StW, La::StD][size], value, base, at);
            }
        }
        self.free(value);
        self.step(i, base, i64::from(count) << size);
    }
}
