//! The state of a core in a checkpoint. Decoded and translated code, and caches of translations, are not part of it:
//! they do not affect execution.

use std::collections::BTreeMap;

use longma_loongarch::{ExtendedFlags, Fcsr, Reservation, State, Vector};
use serde::{Deserialize, Serialize};

use super::Core;
use super::timer::Timer;
use crate::checkpoint_file::InvalidState;
use crate::csr::{fields, table, table::ROWS};
use crate::tlb::{PAGE_SIZES, SavedTlb};

/// The flags of x86 in [`ExtendedFlags::eflags`].
const EFLAGS: u32 = 0x8d5;

/// The state of a core.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedCore {
    registers: SavedRegisters,
    /// The keys are the names in the manual.
    csrs: BTreeMap<String, u64>,
    tlb: SavedTlb,
    timer: Timer,
    /// Cycles since reset.
    pub clock: u64,
    pub is_idle: bool,
    pub is_parked: bool,
}

/// The registers that a user program has.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedRegisters {
    general: [u64; 32],
    vectors: [[u64; 4]; 32],
    pc: u64,
    fcc: [u8; 8],
    fcsr: u32,
    /// Address, value and the other doubleword.
    reservation: [u64; 3],
    scratch: [u64; 4],
    eflags: u32,
    top: u8,
    stack_mode: bool,
}

impl From<&State> for SavedRegisters {
    fn from(state: &State) -> Self {
        // The pattern has no `..`, so that a new register is not forgotten.
        let State { x, v, pc, fcc, fcsr, reservation, lbt } = state;
        let Reservation { address, value, neighbour } = *reservation;
        let ExtendedFlags { scratch, eflags, top, stack_mode } = *lbt;
        Self {
            general: *x,
            vectors: v.map(|vector| vector.0),
            pc: *pc,
            fcc: *fcc,
            fcsr: fcsr.0,
            reservation: [address, value, neighbour],
            scratch,
            eflags,
            top,
            stack_mode,
        }
    }
}

impl TryFrom<SavedRegisters> for State {
    type Error = InvalidState;

    fn try_from(saved: SavedRegisters) -> Result<Self, InvalidState> {
        let is_possible = saved.general[0] == 0
            && saved.fcc.iter().all(|flag| *flag <= 1)
            && saved.eflags & !EFLAGS == 0
            && saved.top < 8;
        if !is_possible {
            return Err(InvalidState::value("a register"));
        }
        let [address, value, neighbour] = saved.reservation;
        Ok(Self {
            x: saved.general,
            v: saved.vectors.map(Vector),
            pc: saved.pc,
            fcc: saved.fcc,
            fcsr: Fcsr(saved.fcsr),
            reservation: Reservation { address, value, neighbour },
            lbt: ExtendedFlags {
                scratch: saved.scratch,
                eflags: saved.eflags,
                top: saved.top,
                stack_mode: saved.stack_mode,
            },
        })
    }
}

impl Core {
    /// The state of the core, whose registers are `state`.
    pub(crate) fn saved(&self, state: &State) -> SavedCore {
        let csrs = ROWS.iter().map(|row| (row.name.to_owned(), self.registers.get(row.number)));
        SavedCore {
            registers: state.into(),
            csrs: csrs.collect(),
            tlb: self.tlb.borrow().saved(),
            timer: self.timer.clone(),
            clock: self.clock.get(),
            is_idle: self.idle.get(),
            is_parked: self.is_parked.get(),
        }
    }

    /// Replaces the state of the core and its registers.
    ///
    /// # Errors
    /// The state is not a valid state of a core.
    pub(crate) fn restore(&mut self, state: &mut State, saved: SavedCore) -> Result<(), InvalidState> {
        *state = saved.registers.try_into()?;
        self.restore_csrs(saved.csrs)?;
        self.tlb.borrow_mut().restore(saved.tlb)?;
        if !saved.timer.is_possible() {
            return Err(InvalidState::value("the timer"));
        }
        self.timer = saved.timer;
        self.clock.set(saved.clock);
        self.idle.set(saved.is_idle);
        self.is_parked.set(saved.is_parked);
        self.update_mode();
        self.forget_code();
        self.attend();
        Ok(())
    }

    fn restore_csrs(&self, mut saved: BTreeMap<String, u64>) -> Result<(), InvalidState> {
        for row in ROWS {
            let value =
                saved.remove(row.name).ok_or_else(|| InvalidState::Other(format!("no CSR {}", row.name)))?;
            // BADI is the only CSR that software cannot write and that changes.
            let is_constant = row.writable == 0 && row.number != table::BADI;
            let is_possible = match row.number {
                table::STLBPS => value < 64 && PAGE_SIZES >> value & 1 == 1,
                number if is_constant => value == self.registers.get(number),
                _ => value & !fields(row) == 0,
            };
            if !is_possible {
                return Err(InvalidState::value(row.name));
            }
            self.registers.set(row.number, value);
        }
        match saved.pop_first() {
            None => Ok(()),
            Some((name, _)) => Err(InvalidState::Other(format!("unknown CSR {name:?}"))),
        }
    }
}
