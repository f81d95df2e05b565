//! One thread as plain data. A thread can be captured between instructions, or at a system call that has had no effect
//! yet.

use longma_loongarch::{Fcsr, Reservation, State, Vector};
use longma_sim::Time;
use serde::{Deserialize, Serialize};

use super::ImageError;
use crate::Thread;
use crate::process::{AlternateStack, Arrivals};
use crate::simulated::ThreadNumber;

/// The state of a thread in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelState {
    /// Blocked signals.
    pub mask: u64,
    /// The alternate signal stack: address, flags, size.
    pub signal_stack: (u64, u32, u64),
    /// The address that is cleared when it ends.
    pub clear_child_tid: u64,
    /// The address of its robust list.
    pub robust_list: u64,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadImage {
    /// The thread number.
    pub number: u32,
    /// r0 to r31.
    pub general: Vec<u64>,
    /// The four lanes of each of xr0 to xr31, lowest first.
    pub vectors: Vec<u64>,
    /// The program counter.
    pub pc: u64,
    /// fcc0 to fcc7.
    pub conditions: [u8; 8],
    /// fcsr0.
    pub fcsr: u32,
    /// scr0 to scr3, eflags, x87 top, x87 stack mode.
    pub translation: ([u64; 4], u32, u8, bool),
    /// Its state in the kernel.
    pub kernel: KernelState,
    /// The end of the wait that it repeats, in picoseconds of simulated time.
    pub deadline_ps: Option<u64>,
    /// Its name (PR_SET_NAME); empty if not known yet.
    pub name: Vec<u8>,
}

impl Thread {
    /// The thread's state in the kernel.
    pub fn kernel_state(&self) -> KernelState {
        let stack = self.signals.stack;
        KernelState {
            mask: self.signals.mask,
            signal_stack: (stack.address, stack.flags, stack.size),
            clear_child_tid: self.clear_child_tid,
            robust_list: self.robust_list,
        }
    }

    /// The signals that have arrived for the thread, which an image does not contain.
    pub fn arrivals(&self) -> Arrivals {
        self.signals.arrivals()
    }

    pub(super) fn set_kernel_state(&mut self, kernel: &KernelState) {
        let (address, flags, size) = kernel.signal_stack;
        self.signals.stack = AlternateStack { address, flags, size };
        self.clear_child_tid = kernel.clear_child_tid;
        self.robust_list = kernel.robust_list;
    }
}

impl ThreadImage {
    /// Creates the image of a thread with registers `state`.
    pub fn new(number: ThreadNumber, state: &State, kernel: KernelState, deadline: Option<Time>) -> Self {
        let lbt = &state.lbt;
        Self {
            number: number.0,
            general: state.x.to_vec(),
            vectors: state.v.iter().flat_map(|vector| vector.0).collect(),
            pc: state.pc,
            conditions: state.fcc,
            fcsr: state.fcsr.0,
            translation: (lbt.scratch, lbt.eflags, lbt.top, lbt.stack_mode),
            kernel,
            deadline_ps: deadline.map(Time::ps),
            name: Vec::new(),
        }
    }

    /// The registers. The reservation of a load-linked is lost, which may happen at any time on hardware.
    ///
    /// # Errors
    /// The number of registers is wrong.
    pub fn state(&self) -> Result<State, ImageError> {
        const WRONG: ImageError = ImageError::Inconsistent("the number of registers of a thread differs");
        let general: [u64; 32] = self.general.clone().try_into().map_err(|_| WRONG)?;
        if general[0] != 0 || self.vectors.len() != 128 || self.translation.2 > 7 {
            return Err(WRONG);
        }
        let mut state =
            State { pc: self.pc, fcc: self.conditions, fcsr: Fcsr(self.fcsr), ..State::default() };
        state.x = general;
        state.v = std::array::from_fn(|n| Vector(std::array::from_fn(|lane| self.vectors[4 * n + lane])));
        (state.lbt.scratch, state.lbt.eflags, state.lbt.top, state.lbt.stack_mode) = self.translation;
        state.reservation = Reservation::default();
        if self.conditions.iter().any(|condition| *condition > 1) {
            return Err(WRONG);
        }
        Ok(state)
    }
}
