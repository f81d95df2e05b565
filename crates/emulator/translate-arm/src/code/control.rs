//! Lowers system register accesses, barriers, hints and cache maintenance. Source: Arm Architecture Reference Manual
//! (Arm DDI 0487), sections C5.2, C5.3 and C6.2 (MRS, MSR, DMB, DSB, HINT); LoongArch Reference Manual, volume 1,
//! section 2.2.8.

use longma_loongarch::{Instruction as Code, Op as La};

use super::atomic::FULL;
use super::flags::Flags;
use super::known::Facts;
use super::lower::Lowering;
use super::operands::NONE;
use crate::instruction::{Instruction, Op};
use crate::registers::*;

/// The hints of `dbar`. `OF_LOADS` orders earlier loads before all later accesses, and `OF_STORES` earlier stores
/// before later stores.
const OF_LOADS: i32 = 0x14;
const OF_STORES: i32 = 0x1a;
/// CTR_EL0: 64-byte lines in both caches; instruction cache maintenance is required after code changes.
const CACHES: i64 = 0x8444_c004;
/// DCZID_EL0: DC ZVA clears 64 bytes.
const CLEARED: i64 = 4;
/// The frequency of the stable counter in hertz.
const COUNTER_HZ: i64 = 100_000_000;

/// The value of an identification register, as Linux shows it to programs: the features that AT_HWCAP announces, and
/// the minimum value in all other fields.
fn identification(register: u16) -> i64 {
    match register {
        MIDR_EL1 => 0x414f_d0b1,
        MPIDR_EL1 => 1 << 31,
        // FP and Advanced SIMD with half precision.
        ID_AA64PFR0_EL1 => 0x11_0011,
        ID_AA64DFR0_EL1 => 6,
        // AES with PMULL, SHA-1, SHA-256, CRC32, atomics, RDM and dot products.
        ID_AA64ISAR0_EL1 => 0x1000_1021_1120,
        // DC CVAP and LDAPR.
        ID_AA64ISAR1_EL1 => 0x10_0001,
        ID_AA64MMFR0_EL1 => 0xff00_0000,
        _ => 0,
    }
}

impl Lowering<'_> {
    /// Lowers the instruction. Returns false for other instructions.
    pub fn system(&mut self, i: Instruction) -> bool {
        use Op::*;
        match i.op {
            // ISB does nothing: IC IVAU has already invalidated changed code.
            Hint | Isb | DcCvac | DcCvap | DcCvau | DcCivac => {}
            Dmb | Dsb => {
                let hint = match i.bits(8, 2) {
                    1 => OF_LOADS,
                    2 => OF_STORES,
                    _ => FULL,
                };
                self.barrier(hint);
            }
            DcZva => self.clear_block(i),
            Mrs => return self.read_register(i),
            Msr => return self.write_register(i),
            _ => return false,
        }
        true
    }

    fn read_register(&mut self, i: Instruction) -> bool {
        let d = i.rd();
        if i.is_of_float_control() {
            return false;
        }
        if d == NONE {
            return true;
        }
        let to = self.target(d);
        match i.system_register() {
            TPIDR_EL0 => self.assembler.two(La::Movscr2gr, to, THREAD_POINTER),
            CTR_EL0 => self.assembler.constant(to, CACHES),
            DCZID_EL0 => self.assembler.constant(to, CLEARED),
            CNTFRQ_EL0 => self.assembler.constant(to, COUNTER_HZ),
            CNTVCT_EL0 => self.assembler.two(La::RdtimeD, to, 0),
            NZCV => {
                let part = self.temporary();
                self.assembler.two(La::Movcf2gr, to, NEGATIVE);
                for flag in [ZERO, CARRY, OVERFLOW] {
                    self.assembler.two(La::Movcf2gr, part, flag);
                    self.assembler.push(Code { d: to, j: to, k: part, imm: 1, ..Code::new(La::AlslD) });
                }
                self.assembler.immediate(La::SlliD, to, to, 28);
            }
            register => self.assembler.constant(to, identification(register)),
        }
        self.put(d, to, true, Facts::NONE);
        true
    }

    fn write_register(&mut self, i: Instruction) -> bool {
        if i.is_of_float_control() {
            return false;
        }
        let from = self.whole(i.rd());
        if i.system_register() == TPIDR_EL0 {
            self.assembler.two(La::Movgr2scr, THREAD_POINTER, from);
            return true;
        }
        let part = self.temporary();
        for (bit, flag) in [(31, NEGATIVE), (30, ZERO), (29, CARRY), (28, OVERFLOW)] {
            self.assembler.field(La::BstrpickD, part, from, bit, bit);
            self.assembler.two(La::Movgr2cf, flag, part);
        }
        self.known.flags = Flags::Stored;
        true
    }
}
