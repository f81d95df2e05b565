//! The process as gdbstub sees it: registers, memory, threads, breakpoints and execution control. Source: GDB manual,
//! appendix E (remote protocol); gdbstub's documentation.

use std::{
    fs::{File, OpenOptions},
    io,
    net::TcpStream,
    os::unix::{ffi::OsStrExt, fs::FileExt},
    sync::Arc,
};

use gdbstub::{
    common::{Pid, Signal, Tid},
    conn::ConnectionExt,
    stub::{
        MultiThreadStopReason,
        run_blocking::{BlockingEventLoop, Event as LoopEvent, WaitForStopReasonError},
    },
    target::{
        TargetError, TargetResult,
        ext::{
            auxv::{Auxv, AuxvOps},
            base::{
                BaseOps,
                multithread::{
                    MultiThreadBase, MultiThreadRangeStepping, MultiThreadRangeSteppingOps,
                    MultiThreadResume, MultiThreadResumeOps, MultiThreadSchedulerLocking,
                    MultiThreadSchedulerLockingOps, MultiThreadSingleStep, MultiThreadSingleStepOps,
                },
                single_register_access::{SingleRegisterAccess, SingleRegisterAccessOps},
            },
            breakpoints::{
                Breakpoints, BreakpointsOps, HwWatchpoint, HwWatchpointOps, SwBreakpoint, SwBreakpointOps,
                WatchKind,
            },
            exec_file::{ExecFile, ExecFileOps},
            host_io::HostIoOps,
            target_description_xml_override::{
                TargetDescriptionXmlOverride, TargetDescriptionXmlOverrideOps,
            },
            thread_extra_info::{ThreadExtraInfo, ThreadExtraInfoOps},
        },
    },
};
use longma_gdb::{AnyArchitecture, Number, Registers, loongarch, part_of, watched};
use longma_guest::host::descriptors;
use longma_loongarch::State;
use longma_translate::debug::Value;
use rustix::event::{PollFd, PollFlags, poll};

use super::{
    files::OpenFiles,
    session::{Activity, Control, Event, Order, Session, ThreadRecord},
    signals::{to_gdb, to_linux},
};
use crate::{cores::Cores, ending::Ending, translated::Translation};

/// The debugged process.
pub(super) struct Target {
    session: Arc<Session>,
    pub(super) cores: Arc<Cores>,
    /// The translation, which accesses the registers if the program is not for LoongArch.
    translated: Option<Arc<dyn Translation>>,
    /// The target description.
    description: String,
    /// Orders for the next resume: thread, order and signal.
    orders: Vec<(i32, Order, Option<i32>)>,
    /// Whether threads without an order stay stopped.
    locked: bool,
    pub(super) files: OpenFiles,
}

fn refused<T>(error: i32) -> TargetResult<T, Target> {
    Err(TargetError::Errno(error as u8))
}

fn number(tid: i32) -> Tid {
    Tid::new(tid.unsigned_abs() as usize).expect("thread numbers are not 0")
}

impl Target {
    pub fn new(session: Arc<Session>, cores: Arc<Cores>, translated: Option<Arc<dyn Translation>>) -> Self {
        // GDB reads registers immediately, so wait until the first thread has stopped.
        let mut control = session.lock();
        while control.threads.is_empty() {
            control = session.wait(control);
        }
        drop(session.wait_until_stopped(control));
        let description = match &translated {
            None => loongarch::description().xml(),
            Some(translated) => translated.describe_registers(),
        };
        let files = OpenFiles::default();
        Self { session, cores, translated, description, orders: Vec::new(), locked: false, files }
    }

    /// The value and size of register `number`.
    fn register(&self, state: &State, number: usize) -> Option<(Value, usize)> {
        match &self.translated {
            None => {
                let register = loongarch::description().register(number)?;
                Some((loongarch::read(register, state), register.bytes))
            }
            Some(translated) => translated.read_register(&self.cores, state, number),
        }
    }

    /// Sets register `number`. Returns false if it does not exist or cannot hold the value.
    fn set_register(&self, state: &mut State, number: usize, bytes: &[u8]) -> bool {
        if let Some(translated) = &self.translated {
            return translated.write_register(&self.cores, state, number, bytes);
        }
        let Some(register) = loongarch::description().register(number) else { return false };
        let mut value = Value::default();
        if bytes.len() == register.bytes {
            value[..bytes.len()].copy_from_slice(bytes);
            loongarch::write(register, &value, state);
        }
        bytes.len() == register.bytes
    }

    /// Accesses a thread that is not running.
    fn with_thread<R>(
        &self,
        tid: Tid,
        act: impl FnOnce(&mut ThreadRecord) -> TargetResult<R, Self>,
    ) -> TargetResult<R, Self> {
        let mut control = self.session.lock();
        if !control.running {
            // A thread that has just started will stop.
            control = self.session.wait_until_stopped(control);
        }
        match control.threads.get_mut(&(tid.get() as i32)) {
            None => refused(libc::ESRCH),
            Some(record) if record.activity == Activity::Running => refused(libc::EBUSY),
            Some(record) => act(record),
        }
    }

    /// Changes the registers of a thread. Fails during a system call.
    fn change_thread(&self, tid: Tid, act: impl FnOnce(&mut State) -> bool) -> TargetResult<(), Self> {
        self.with_thread(tid, |record| match record.activity {
            Activity::InCall => refused(libc::EBUSY),
            _ if act(&mut record.state) => Ok(()),
            _ => refused(libc::EINVAL),
        })
    }

    fn set_order(&mut self, tid: Tid, order: Order, signal: Option<Signal>) {
        self.orders.push((tid.get() as i32, order, signal.and_then(to_linux)));
    }

    /// Opens the host's view of guest memory, which ignores the guest's page permissions.
    fn own_memory(&self, address: u64, write: bool) -> io::Result<(File, u64)> {
        let file = OpenOptions::new().read(true).write(write).open("/proc/self/mem")?;
        let file = File::from(descriptors::move_to_reserved(file.into())?);
        Ok((file, (self.cores.process().memory().base() as u64).wrapping_add(address)))
    }

    /// The number of mapped bytes from `address` on, at most `length`.
    fn mapped(&self, address: u64, length: usize) -> usize {
        let space = self.cores.process().address_space();
        let end = address.saturating_add(length as u64);
        let mut at = address;
        while at < end {
            match space.mapping(at) {
                Some((range, _)) => at = range.end,
                None => break,
            }
        }
        (at.min(end) - address) as usize
    }

    fn reason(&self, control: &Control) -> Option<MultiThreadStopReason<u64>> {
        if let Some(ending) = control.ended {
            return Some(match ending {
                Ending::Exit(status) => MultiThreadStopReason::Exited(status as u8),
                Ending::Signal(signal) => MultiThreadStopReason::Terminated(to_gdb(signal)),
            });
        }
        Some(match control.event? {
            Event::Breakpoint { tid } => MultiThreadStopReason::SwBreak(number(tid)),
            Event::Watchpoint { tid, address } => {
                MultiThreadStopReason::Watch { tid: number(tid), kind: WatchKind::Write, addr: address }
            }
            Event::Signal { tid, signal } => {
                MultiThreadStopReason::SignalWithThread { tid: number(tid), signal: to_gdb(signal) }
            }
        })
    }
}

impl gdbstub::target::Target for Target {
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

    fn support_exec_file(&mut self) -> Option<ExecFileOps<'_, Self>> {
        Some(self)
    }

    fn support_auxv(&mut self) -> Option<AuxvOps<'_, Self>> {
        Some(self)
    }

    fn support_host_io(&mut self) -> Option<HostIoOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadBase for Target {
    fn read_registers(&mut self, registers: &mut Registers, tid: Tid) -> TargetResult<(), Self> {
        self.with_thread(tid, |record| {
            registers.pc = record.state.pc;
            let values = (0..).map_while(|number| self.register(&record.state, number));
            registers.bytes = values.flat_map(|(value, bytes)| value.into_iter().take(bytes)).collect();
            Ok(())
        })
    }

    fn write_registers(&mut self, registers: &Registers, tid: Tid) -> TargetResult<(), Self> {
        self.change_thread(tid, |state| {
            let mut rest = registers.bytes.as_slice();
            let mut fits = true;
            // Some registers overlap. Writing unchanged ones would revert changes to others.
            for number in 0.. {
                let Some((before, bytes)) = self.register(state, number) else { break };
                let Some((value, remaining)) = rest.split_at_checked(bytes) else { return false };
                rest = remaining;
                fits &= before[..bytes] == *value || self.set_register(state, number, value);
            }
            fits && rest.is_empty()
        })
    }

    fn support_single_register_access(&mut self) -> Option<SingleRegisterAccessOps<'_, Tid, Self>> {
        Some(self)
    }

    fn read_addrs(&mut self, start: u64, data: &mut [u8], _: Tid) -> TargetResult<usize, Self> {
        let count = self.mapped(start, data.len());
        let data = &mut data[..count];
        if count == 0 {
            return Err(TargetError::Errno(libc::EFAULT as u8));
        }
        if self.cores.process().memory().read(start, data).is_err() {
            let (file, at) = self.own_memory(start, false)?;
            return Ok(file.read_at(data, at)?);
        }
        Ok(count)
    }

    fn write_addrs(&mut self, start: u64, data: &[u8], _: Tid) -> TargetResult<(), Self> {
        if self.mapped(start, data.len()) < data.len() {
            return Err(TargetError::Errno(libc::EFAULT as u8));
        }
        if self.cores.process().memory().write(start, data).is_err() {
            let (file, at) = self.own_memory(start, true)?;
            file.write_all_at(data, at)?;
        }
        let written = start..start + data.len() as u64;
        if let Some(translated) = &self.translated {
            translated.note_change(written.clone());
        }
        self.cores.code().invalidate(&written);
        self.cores.request_attention();
        Ok(())
    }

    fn list_active_threads(&mut self, report: &mut dyn FnMut(Tid)) -> Result<(), Self::Error> {
        self.session.lock().threads.keys().for_each(|&tid| report(number(tid)));
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }

    fn support_thread_extra_info(&mut self) -> Option<ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

impl TargetDescriptionXmlOverride for Target {
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
        Ok(part_of(self.description.as_bytes(), offset, length, buffer))
    }
}

impl SingleRegisterAccess<Tid> for Target {
    fn read_register(&mut self, tid: Tid, number: Number, buffer: &mut [u8]) -> TargetResult<usize, Self> {
        self.with_thread(tid, |record| {
            let Some((value, bytes)) = self.register(&record.state, number.0) else {
                return refused(libc::EINVAL);
            };
            let Some(buffer) = buffer.get_mut(..bytes) else { return refused(libc::EINVAL) };
            buffer.copy_from_slice(&value[..bytes]);
            Ok(bytes)
        })
    }

    fn write_register(&mut self, tid: Tid, number: Number, value: &[u8]) -> TargetResult<(), Self> {
        self.change_thread(tid, |state| self.set_register(state, number.0, value))
    }
}

impl MultiThreadResume for Target {
    fn resume(&mut self) -> Result<(), Self::Error> {
        let mut control = self.session.lock();
        let is_ordered = |tid: &i32| self.orders.iter().any(|(of, ..)| of == tid);
        if self.locked && !control.threads.keys().any(is_ordered) {
            // Without this, the process would never stop again.
            return Err("no existing thread was resumed");
        }
        let default = if self.locked { Order::Stay } else { Order::Continue };
        for (tid, record) in &mut control.threads {
            // The first order for a thread takes effect.
            let given = self.orders.iter().find(|(of, ..)| of == tid);
            record.order = given.map_or(default.clone(), |(_, order, _)| match order {
                Order::Step(range) if range.is_empty() => Order::Step(0..0),
                order => order.clone(),
            });
            record.signal = given.and_then(|(.., signal)| *signal);
            if record.activity == Activity::InCall
                && let Some(signal) = record.signal.take()
            {
                // SAFETY: the call takes no pointers.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), *tid, signal) };
            }
        }
        let breakpoints = control.plan.breakpoints.clone();
        drop(control);
        if let Some(translated) = &self.translated {
            translated.set_breakpoints(&self.cores, &breakpoints);
        }
        self.session.resume();
        Ok(())
    }

    fn clear_resume_actions(&mut self) -> Result<(), Self::Error> {
        self.orders.clear();
        self.locked = false;
        Ok(())
    }

    fn set_resume_action_continue(&mut self, tid: Tid, signal: Option<Signal>) -> Result<(), Self::Error> {
        self.set_order(tid, Order::Continue, signal);
        Ok(())
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

impl MultiThreadSingleStep for Target {
    fn set_resume_action_step(&mut self, tid: Tid, signal: Option<Signal>) -> Result<(), Self::Error> {
        self.set_order(tid, Order::Step(0..0), signal);
        Ok(())
    }
}

impl MultiThreadRangeStepping for Target {
    fn set_resume_action_range_step(&mut self, tid: Tid, start: u64, end: u64) -> Result<(), Self::Error> {
        self.set_order(tid, Order::Step(start..end), None);
        Ok(())
    }
}

impl MultiThreadSchedulerLocking for Target {
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), Self::Error> {
        self.locked = true;
        Ok(())
    }
}

impl ThreadExtraInfo for Target {
    fn thread_extra_info(&self, tid: Tid, buffer: &mut [u8]) -> Result<usize, Self::Error> {
        let control = self.session.lock();
        let activity = control.threads.get(&(tid.get() as i32)).map(|record| record.activity);
        let text: &[u8] = match activity {
            Some(Activity::InCall) => b"in a system call",
            Some(_) => b"stopped",
            None => b"gone",
        };
        Ok(part_of(text, 0, text.len(), buffer))
    }
}

impl Breakpoints for Target {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for Target {
    fn add_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        if self.mapped(address, 1) < 1 {
            return Err(TargetError::Errno(libc::EFAULT as u8));
        }
        self.session.lock().plan.breakpoints.insert(address);
        Ok(true)
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.session.lock().plan.breakpoints.remove(&address);
        Ok(true)
    }
}

impl HwWatchpoint for Target {
    fn add_hw_watchpoint(&mut self, address: u64, length: u64, kind: WatchKind) -> TargetResult<bool, Self> {
        // Watchpoints compare contents, so they detect only writes.
        let Some(range) = watched(address, length).filter(|_| kind == WatchKind::Write) else {
            return Ok(false);
        };
        self.session.lock().plan.watchpoints.push(range);
        Ok(true)
    }

    fn remove_hw_watchpoint(&mut self, address: u64, length: u64, _: WatchKind) -> TargetResult<bool, Self> {
        let mut control = self.session.lock();
        let points = &mut control.plan.watchpoints;
        let position = watched(address, length).and_then(|range| points.iter().position(|set| *set == range));
        Ok(position.map(|index| points.remove(index)).is_some())
    }
}

impl ExecFile for Target {
    fn get_exec_file(
        &self,
        _: Option<Pid>,
        offset: u64,
        length: usize,
        buffer: &mut [u8],
    ) -> TargetResult<usize, Self> {
        let path = self.cores.process().executable().as_os_str().as_bytes();
        Ok(part_of(path, offset, length, buffer))
    }
}

impl Auxv for Target {
    fn get_auxv(&self, offset: u64, length: usize, buffer: &mut [u8]) -> TargetResult<usize, Self> {
        Ok(part_of(self.cores.process().auxiliary_vector(), offset, length, buffer))
    }
}

/// Waits for data from the debugger or an event of a thread.
pub(super) enum Events {}

impl BlockingEventLoop for Events {
    type Target = Target;
    type Connection = TcpStream;
    type StopReason = MultiThreadStopReason<u64>;

    fn wait_for_stop_reason(
        target: &mut Target,
        connection: &mut TcpStream,
    ) -> Result<LoopEvent<Self::StopReason>, WaitForStopReasonError<&'static str, io::Error>> {
        loop {
            let mut control = target.session.lock();
            if control.event.is_some() || control.ended.is_some() {
                control = target.session.wait_until_stopped(control);
                if let Some(reason) = target.reason(&control) {
                    return Ok(LoopEvent::TargetStopped(reason));
                }
            }
            drop(control);
            let events = PollFlags::IN;
            let mut ready = [PollFd::new(&*connection, events), PollFd::new(&target.session.wake, events)];
            match poll(&mut ready, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(WaitForStopReasonError::Connection(error.into())),
            }
            let [spoken, woken] = ready.map(|descriptor| !descriptor.revents().is_empty());
            if woken {
                // Resets the eventfd.
                let _ = rustix::io::read(&target.session.wake, &mut [0; 8]);
            }
            if spoken {
                let byte = connection.read().map_err(WaitForStopReasonError::Connection)?;
                return Ok(LoopEvent::IncomingData(byte));
            }
        }
    }

    fn on_interrupt(target: &mut Target) -> Result<Option<Self::StopReason>, &'static str> {
        let mut control = target.session.lock();
        if control.event.is_none() && control.running {
            target.session.stop(&mut control, &target.cores);
        }
        let control = target.session.wait_until_stopped(control);
        if let Some(reason) = target.reason(&control) {
            return Ok(Some(reason));
        }
        // Prefer a thread that was running over one in a system call.
        let stopped = control.threads.iter().find(|(_, place)| place.activity == Activity::Stopped);
        let first = stopped.or_else(|| control.threads.iter().next());
        Ok(first.map(|(&tid, _)| MultiThreadStopReason::SignalWithThread {
            tid: number(tid),
            signal: Signal::SIGINT,
        }))
    }
}
