//! The machine as gdbstub sees it: cores as threads, their registers, memory through their page tables, breakpoints and
//! execution control. Source: GDB manual, appendix E (remote protocol); gdbstub's documentation.

use gdbstub::common::{Signal, Tid};
use gdbstub::stub::MultiThreadStopReason;
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::{
    MultiThreadBase, MultiThreadRangeStepping, MultiThreadRangeSteppingOps, MultiThreadResume,
    MultiThreadResumeOps, MultiThreadSchedulerLocking, MultiThreadSchedulerLockingOps, MultiThreadSingleStep,
    MultiThreadSingleStepOps,
};
use gdbstub::target::ext::base::single_register_access::{SingleRegisterAccess, SingleRegisterAccessOps};
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, HwBreakpoint, HwBreakpointOps, HwWatchpoint, HwWatchpointOps, SwBreakpoint,
    SwBreakpointOps, WatchKind,
};
use gdbstub::target::ext::target_description_xml_override::{
    TargetDescriptionXmlOverride, TargetDescriptionXmlOverrideOps,
};
use gdbstub::target::ext::thread_extra_info::{ThreadExtraInfo, ThreadExtraInfoOps};
use gdbstub::target::{Target, TargetError, TargetResult};
use longma_core::system::Frame;
use longma_gdb::{AnyArchitecture, Number, Registers, part_of, watched};

use super::registers;
use crate::core::{Accesses, Breakpoint, Core, Event, Order, Translation, Watchpoint};
use crate::machine::Machine;
use crate::memory::PAGE_BYTES;

/// GDB's number of a core's thread.
pub fn thread(core: usize) -> Tid {
    Tid::new(core + 1).expect("it is not 0")
}

fn refused<T>(error: i32) -> TargetResult<T, Machine> {
    Err(TargetError::Errno(error as u8))
}

/// The stop reason reported to GDB for an event.
pub fn reason(event: Event) -> MultiThreadStopReason<u64> {
    match event {
        Event::Breakpoint { core, is_hardware: true } => MultiThreadStopReason::HwBreak(thread(core)),
        Event::Breakpoint { core, is_hardware: false } => MultiThreadStopReason::SwBreak(thread(core)),
        Event::Watchpoint { core, address, accesses } => {
            let kind = match accesses {
                Accesses::Writes => WatchKind::Write,
                Accesses::Reads => WatchKind::Read,
                Accesses::All => WatchKind::ReadWrite,
            };
            MultiThreadStopReason::Watch { tid: thread(core), kind, addr: address }
        }
        Event::Step { core } => {
            MultiThreadStopReason::SignalWithThread { tid: thread(core), signal: Signal::SIGTRAP }
        }
    }
}

impl Machine {
    fn core_of(&mut self, tid: Tid) -> TargetResult<(&mut Frame, &Core), Self> {
        match self.cores.get_mut(tid.get() - 1) {
            Some((frame, core)) => Ok((frame, core)),
            None => refused(libc::ESRCH),
        }
    }

    fn set_order(&mut self, tid: Tid, order: Order) -> Result<(), &'static str> {
        let (frame, _) = self.core_of(tid).map_err(|_| "the machine has no such core")?;
        let pc = frame.state.pc;
        self.bus.debug.set_order(tid.get() - 1, order, pc);
        Ok(())
    }

    /// The physical ranges of a range of virtual addresses in memory: offset in the range, address and length. Ends at
    /// the first address that is not mapped to memory.
    fn physical_parts(&self, tid: Tid, start: u64, bytes: usize) -> Vec<(usize, u64, usize)> {
        let Some((_, core)) = self.cores.get(tid.get() - 1) else { return Vec::new() };
        let mut parts = Vec::new();
        let mut offset = 0;
        while offset < bytes {
            let address = start.wrapping_add(offset as u64);
            let length = (bytes - offset).min((PAGE_BYTES - address % PAGE_BYTES) as usize);
            let physical = core.look_up(address).filter(|at| self.bus.memory.page(*at).is_some());
            let Some(physical) = physical else { break };
            parts.push((offset, physical, length));
            offset += length;
        }
        parts
    }

    /// Makes the cores apply the debugger's changes.
    fn refresh_cores(&self) {
        self.cores.iter().for_each(|(_, core)| core.refresh());
    }
}

impl Target for Machine {
    type Arch = AnyArchitecture;
    type Error = &'static str;

    fn base_ops(&mut self) -> BaseOps<'_, Self::Arch, Self::Error> {
        BaseOps::MultiThread(self)
    }

    fn support_target_description_xml_override(
        &mut self,
    ) -> Option<TargetDescriptionXmlOverrideOps<'_, Self>> {
        Some(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadBase for Machine {
    fn read_registers(&mut self, registers: &mut Registers, tid: Tid) -> TargetResult<(), Self> {
        let (frame, core) = self.core_of(tid)?;
        registers.pc = frame.state.pc;
        let values = (0..).map_while(|number| registers::read(frame, core, number));
        registers.bytes = values.flat_map(|(value, bytes)| value.into_iter().take(bytes)).collect();
        Ok(())
    }

    fn write_registers(&mut self, registers: &Registers, tid: Tid) -> TargetResult<(), Self> {
        let (frame, core) = self.core_of(tid)?;
        let mut rest = registers.bytes.as_slice();
        for number in 0.. {
            let Some((before, bytes)) = registers::read(frame, core, number) else { break };
            let Some((own, behind)) = rest.split_at_checked(bytes) else { return refused(libc::EINVAL) };
            rest = behind;
            // Some registers overlap. Writing unchanged ones would revert changes to others.
            if before[..bytes] != *own && !registers::write(frame, core, number, own) {
                return refused(libc::EINVAL);
            }
        }
        if rest.is_empty() { Ok(()) } else { refused(libc::EINVAL) }
    }

    fn support_single_register_access(&mut self) -> Option<SingleRegisterAccessOps<'_, Tid, Self>> {
        Some(self)
    }

    fn read_addrs(&mut self, start: u64, data: &mut [u8], tid: Tid) -> TargetResult<usize, Self> {
        let mut count = 0;
        for (offset, physical, length) in self.physical_parts(tid, start, data.len()) {
            if self.bus.memory.read(physical, &mut data[offset..offset + length]).is_err() {
                break;
            }
            count += length;
        }
        if count == 0 { refused(libc::EFAULT) } else { Ok(count) }
    }

    fn write_addrs(&mut self, start: u64, data: &[u8], tid: Tid) -> TargetResult<(), Self> {
        let parts = self.physical_parts(tid, start, data.len());
        if parts.iter().map(|(.., length)| length).sum::<usize>() < data.len() {
            return refused(libc::EFAULT);
        }
        for (offset, physical, length) in parts {
            if self.bus.memory.write(physical, &data[offset..offset + length]).is_err() {
                return refused(libc::EFAULT);
            }
            self.cores[0].1.invalidate_code(physical, length as u64);
        }
        self.refresh_cores();
        Ok(())
    }

    fn list_active_threads(&mut self, found: &mut dyn FnMut(Tid)) -> Result<(), Self::Error> {
        (0..self.cores.len()).for_each(|core| found(thread(core)));
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }

    fn support_thread_extra_info(&mut self) -> Option<ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

impl TargetDescriptionXmlOverride for Machine {
    fn target_description_xml(
        &self,
        annex: &[u8],
        offset: u64,
        length: usize,
        buffer: &mut [u8],
    ) -> TargetResult<usize, Self> {
        if annex != b"target.xml" {
            return refused(libc::ENOENT);
        }
        Ok(part_of(registers::description().as_bytes(), offset, length, buffer))
    }
}

impl SingleRegisterAccess<Tid> for Machine {
    fn read_register(&mut self, tid: Tid, number: Number, buffer: &mut [u8]) -> TargetResult<usize, Self> {
        let (frame, core) = self.core_of(tid)?;
        let Some((value, bytes)) = registers::read(frame, core, number.0) else {
            return refused(libc::EINVAL);
        };
        let Some(buffer) = buffer.get_mut(..bytes) else { return refused(libc::EINVAL) };
        buffer.copy_from_slice(&value[..bytes]);
        Ok(bytes)
    }

    fn write_register(&mut self, tid: Tid, number: Number, value: &[u8]) -> TargetResult<(), Self> {
        let (frame, core) = self.core_of(tid)?;
        if registers::write(frame, core, number.0, value) { Ok(()) } else { refused(libc::EINVAL) }
    }
}

impl MultiThreadResume for Machine {
    fn resume(&mut self) -> Result<(), Self::Error> {
        if self.bus.debug.begin() {
            self.bus.translation.as_ref().inspect(|translation| Translation::clear(translation));
            self.refresh_cores();
        }
        Ok(())
    }

    fn clear_resume_actions(&mut self) -> Result<(), Self::Error> {
        self.bus.debug.clear_orders();
        Ok(())
    }

    fn set_resume_action_continue(&mut self, tid: Tid, _: Option<Signal>) -> Result<(), Self::Error> {
        self.set_order(tid, Order::Continue)
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_range_step(&mut self) -> Option<MultiThreadRangeSteppingOps<'_, Self>> {
        Some(self)
    }

    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadSingleStep for Machine {
    fn set_resume_action_step(&mut self, tid: Tid, _: Option<Signal>) -> Result<(), Self::Error> {
        self.set_order(tid, Order::Step(0..0))
    }
}

impl MultiThreadRangeStepping for Machine {
    fn set_resume_action_range_step(&mut self, tid: Tid, start: u64, end: u64) -> Result<(), Self::Error> {
        self.set_order(tid, Order::Step(start..end))
    }
}

impl MultiThreadSchedulerLocking for Machine {
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), Self::Error> {
        self.bus.debug.lock();
        Ok(())
    }
}

impl ThreadExtraInfo for Machine {
    fn thread_extra_info(&self, tid: Tid, buffer: &mut [u8]) -> Result<usize, Self::Error> {
        let (frame, core) = self.cores.get(tid.get() - 1).ok_or("the machine has no such core")?;
        let text = format!("core {}: {}", tid.get() - 1, core.activity(&frame.state));
        Ok(part_of(text.as_bytes(), 0, text.len(), buffer))
    }
}

impl Breakpoints for Machine {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

/// Breakpoints may be at addresses that are not mapped yet, since they do not change memory.
impl SwBreakpoint for Machine {
    fn add_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.bus.debug.set_breakpoint(Breakpoint { address, is_hardware: false }, true);
        Ok(true)
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.bus.debug.set_breakpoint(Breakpoint { address, is_hardware: false }, false);
        Ok(true)
    }
}

impl HwBreakpoint for Machine {
    fn add_hw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.bus.debug.set_breakpoint(Breakpoint { address, is_hardware: true }, true);
        Ok(true)
    }

    fn remove_hw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.bus.debug.set_breakpoint(Breakpoint { address, is_hardware: true }, false);
        Ok(true)
    }
}

fn watchpoint(address: u64, length: u64, kind: WatchKind) -> Option<Watchpoint> {
    let accesses = match kind {
        WatchKind::Write => Accesses::Writes,
        WatchKind::Read => Accesses::Reads,
        WatchKind::ReadWrite => Accesses::All,
    };
    watched(address, length).map(|range| Watchpoint { range, accesses })
}

impl HwWatchpoint for Machine {
    fn add_hw_watchpoint(&mut self, address: u64, length: u64, kind: WatchKind) -> TargetResult<bool, Self> {
        let Some(point) = watchpoint(address, length, kind) else { return Ok(false) };
        self.bus.debug.add_watchpoint(point);
        self.refresh_cores();
        Ok(true)
    }

    fn remove_hw_watchpoint(
        &mut self,
        address: u64,
        length: u64,
        kind: WatchKind,
    ) -> TargetResult<bool, Self> {
        if let Some(point) = watchpoint(address, length, kind) {
            self.bus.debug.remove_watchpoint(&point);
        }
        Ok(true)
    }
}
