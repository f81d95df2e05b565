//! One thread as plain data.
//! Not when it is safe to take it: a thread is saved between instructions, or at a system call that has had no effect yet.

use longma_loongarch::{Fcsr, Reservation, State, Vector};
use longma_sim::Time;
use serde::{Deserialize, Serialize};

use super::ImageError;
use crate::Thread;
use crate::process::{AlternateStack, Arrivals};
use crate::simulated::ThreadNumber;

/// What the kernel knows of a thread besides its registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelState {
    /// Blocked signals.
    pub mask: u64,
    /// The alternate signal stack: address, flags, size.
    pub signal_stack: (u64, u32, u64),
    /// The address that is cleared at its end.
    pub clear_child_tid: u64,
    /// The address of its robust list.
    pub robust_list: u64,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadImage {
    /// Its number.
    pub number: u32,
    /// r0-r31.
    pub general: Vec<u64>,
    /// Four lanes of each of xr0-xr31, the lowest first.
    pub vectors: Vec<u64>,
    /// Where it goes on.
    pub pc: u64,
    /// fcc0-fcc7.
    pub conditions: [u8; 8],
    /// fcsr0.
    pub fcsr: u32,
    /// scr0-scr3, eflags, x87 top, x87 stack mode.
    pub translation: ([u64; 4], u32, u8, bool),
    /// What the kernel knows of it.
    pub kernel: KernelState,
    /// When the wait ends that it makes again, picoseconds of simulated time.
    pub deadline_ps: Option<u64>,
    /// What it is called (PR_SET_NAME); empty if that is not known yet.
    pub name: Vec<u8>,
}

impl Thread {
    /// What the kernel knows of the thread.
    pub fn kernel_state(&self) -> KernelState {
        let stack = self.signals.stack;
        KernelState {
            mask: self.signals.mask,
            signal_stack: (stack.address, stack.flags, stack.size),
            clear_child_tid: self.clear_child_tid,
            robust_list: self.robust_list,
        }
    }

    /// What has arrived for it and is not delivered, which its image does not keep.
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
    /// A thread that goes on from `state`.
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

    /// Its registers. A load-linked before is forgotten, as it may be at any time.
    ///
    /// # Errors
    /// Their number is wrong.
    pub fn state(&self) -> Result<State, ImageError> {
        const WRONG: ImageError = ImageError::Inconsistent("a thread has another number of registers");
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
