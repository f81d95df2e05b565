//! Recovers from host faults in translated code: spills the guest's registers and exits to the run loop at the faulting
//! instruction. The interpreter then executes the instruction again and determines the guest's trap. Source: Intel SDM
//! volume 1, 11.5 (floating-point exceptions), sigaction(2).

use std::{cell::Cell, ptr, sync::Arc};

use super::Translator;
use crate::cpu::{Cpu, ExitReason};

/// The data that the fault handler of this host thread needs.
struct Running {
    cpu: *mut Cpu,
    translator: *const Translator,
    /// The inaccessible page below the return stack.
    guard: (u64, u64),
}

thread_local! {
    /// Null while no core runs.
    static RUNNING: Cell<*const Running> = const { Cell::new(ptr::null()) };
}

/// Enables recovery from faults in a core's translated code.
pub(crate) struct Registration {
    running: Box<Running>,
    _translator: Arc<Translator>,
}

// SAFETY: the pointers are used only in faults of a host thread between `activate` and `deactivate` on it, while it
// runs the core. The translator may be shared between threads.
unsafe impl Send for Registration {}

impl Registration {
    /// Creates an inactive registration.
    ///
    /// # Safety
    /// `cpu` keeps its address until the registration is dropped, and the registration is not dropped while it is
    /// active.
    pub unsafe fn new(cpu: *mut Cpu, translator: Arc<Translator>, guard: std::ops::Range<u64>) -> Self {
        longma_guest::host::faults::add_recovery(recover);
        let running = Running { cpu, translator: Arc::as_ptr(&translator), guard: (guard.start, guard.end) };
        Self { running: Box::new(running), _translator: translator }
    }

    /// Assigns faults in the translator's code on this host thread to this core.
    pub fn activate(&self) {
        RUNNING.set(&raw const *self.running);
    }

    /// Ends the assignment: no core runs on this host thread.
    pub fn deactivate() {
        RUNNING.set(ptr::null());
    }
}

fn recover(signal: i32, info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> bool {
    // SAFETY: the registration is alive while it is active.
    let Some(running) = (unsafe { RUNNING.get().as_ref() }) else { return false };
    // SAFETY: the registration keeps the translator alive, and its creator keeps `cpu` in place. The run loop has lent
    // `cpu` to the interrupted translated code and does not access it until that code returns.
    let (translator, cpu) = unsafe { (&*running.translator, &mut *running.cpu) };
    let registers = &mut context.uc_mcontext.gregs;
    let at = registers[libc::REG_RIP as usize] as u64;
    if !translator.cache_range.contains(&at) {
        return false;
    }
    // SAFETY: the kernel sets the address for signals that have one.
    let address = unsafe { info.si_addr() } as u64;
    if signal == libc::SIGSEGV && (running.guard.0..running.guard.1).contains(&address) {
        // The return stack is full. Empty it; returns to the earlier callers use the lookup table instead.
        registers[libc::REG_RSP as usize] = cpu.return_stack_top as i64;
        return true;
    }
    let Ok(placed) = translator.placed.read() else { return false };
    let candidate = placed.range(at + 1..).next().map(|(_, region)| region);
    let Some(region) = candidate.filter(|region| region.code.contains(&at)) else { return false };
    let position = (at - region.code.start) as u32;
    let instruction = region.positions.partition_point(|(start, _)| *start <= position);
    let Some(&(_, pc)) = instruction.checked_sub(1).and_then(|i| region.positions.get(i)) else {
        return false;
    };
    let block = region.counted_blocks.partition_point(|(start, _)| *start <= position);
    if let Some((_, counted)) = block.checked_sub(1).and_then(|i| region.counted_blocks.get(i)) {
        cpu.interrupted_block = *counted;
    }
    cpu.state.pc = pc;
    registers[libc::REG_RAX as usize] = ExitReason::Interpret as i64;
    registers[libc::REG_RIP as usize] = region.spill as i64;
    true
}
