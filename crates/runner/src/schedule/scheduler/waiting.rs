//! Suspends threads until their turn, and wakes sleeping threads on a wake-up, a deadline, a ready file or a signal.

use longma_locks::IgnorePoison;
use std::sync::atomic::Ordering;

use longma_guest::host::masks::{self, BLOCKABLE};
use longma_guest::host::parker::{self, Parker};
use longma_linux::simulated::{self as linux, Wakeup};
use longma_sim::Time;

use super::super::idle;
use super::{Guard, Holder, Phase, Scheduler, State};
use crate::kernel_model::Work;

/// Message to a waiting thread: run.
pub(super) const RUN: u32 = 1;
/// Message to a sleeping thread: check for signals.
const CHECK_SIGNALS: u32 = 2;
/// Message to any other thread: stop for good, because a thread has called execve(2).
pub(super) const RETIRE: u32 = 4;

impl Scheduler {
    /// Wakes `thread` if it sleeps; it can run from `at` on. `by` is the core that wakes it, if that is part of the
    /// model. Interrupt handlers incur no wake-up cost. Waking a thread of another core interrupts that core.
    pub(super) fn wake_sleeper(
        &self,
        state: &mut State,
        thread: u32,
        (awoken, at): (Wakeup, Time),
        by: Option<usize>,
    ) {
        let member = &mut state.members[thread as usize];
        if member.phase != Phase::Asleep {
            return;
        }
        member.phase = Phase::Ready;
        member.awoken = awoken;
        if let Some(deadline) = member.sleep.deadline {
            state.deadlines.remove(&(deadline, thread));
        }
        if !member.sleep.files.is_empty() {
            self.file_sleepers.fetch_sub(1, Ordering::Relaxed);
        }
        let waker = by.filter(|_| !state.thread_table.is_handler(thread));
        let at = waker.map_or(at, |core| self.post(core, at, Work::WakeUp));
        state.thread_table.enqueue(thread, at);
        let core = state.thread_table.core_of(thread);
        if by.is_some_and(|by| by != core) {
            self.post(core, at, Work::WakeUpInterrupt);
        }
    }

    /// Makes all sleeping threads check for signals, and waits until they have.
    pub(super) fn check_all_signals<'a>(
        &'a self,
        mut state: Guard<'a>,
        me: Option<u32>,
        now: Time,
    ) -> Guard<'a> {
        state.signals += 1;
        let asleep = (0..state.members.len() as u32).filter(|thread| Some(*thread) != me);
        let asleep: Vec<u32> =
            asleep.filter(|thread| state.members[*thread as usize].phase == Phase::Asleep).collect();
        state.pending_signal_checks = asleep.len();
        asleep.iter().for_each(|thread| state.members[*thread as usize].parker.post(CHECK_SIGNALS));
        state.is_checking_signals = true;
        while state.pending_signal_checks > 0 {
            state = self.signals_checked.wait(state).ignore_poison();
        }
        state.is_checking_signals = false;
        if let Some(me) = me {
            self.check_signals(&mut state, me, now);
        }
        for thread in 0..state.members.len() as u32 {
            if state.members[thread as usize].sleep.any_signal {
                self.wake_sleeper(&mut state, thread, (Wakeup::Woken, now), None);
            }
        }
        state
    }

    /// Wakes `thread` if a signal has arrived. Must run on its host thread.
    fn check_signals(&self, state: &mut State, thread: u32, now: Time) {
        let arrived = parker::arrived_signals();
        state.members[thread as usize].seen_signals = state.signals;
        if arrived & !state.members[thread as usize].arrived_before != 0 {
            let by = self.running_core(state);
            self.wake_sleeper(state, thread, (Wakeup::Signalled, now), by);
        }
    }

    /// Wakes threads whose files are ready. `by` is the core that made them ready.
    pub(super) fn wake_for_files(&self, state: &mut State, now: Time, by: Option<usize>) {
        if self.file_sleepers.load(Ordering::Relaxed) == 0 {
            return;
        }
        for thread in idle::ready(&self.awaited_files(state)) {
            self.wake_sleeper(state, thread, (Wakeup::Woken, now), by);
        }
    }

    /// All files that sleeping threads wait for.
    pub(in crate::schedule) fn awaited_files(&self, state: &State) -> Vec<(u32, linux::AwaitedFile)> {
        let sleepers = (0u32..).zip(&state.members).filter(|(_, member)| member.phase == Phase::Asleep);
        sleepers
            .flat_map(|(thread, member)| member.sleep.files.iter().map(move |file| (thread, *file)))
            .collect()
    }

    /// Wakes threads whose files became ready by an external event.
    pub(in crate::schedule) fn wake_sleepers(&self, state: &mut State, threads: &[u32]) {
        let now = linux::Scheduler::now(self);
        for thread in threads {
            // The thread may have been woken already and sleep on something else.
            if !state.members[*thread as usize].sleep.files.is_empty() {
                self.wake_sleeper(state, *thread, (Wakeup::Woken, now), None);
            }
        }
    }

    /// Waits for the turn of a runnable thread.
    pub(super) fn wait_ready(&self, parker: &Parker) {
        loop {
            let messages = parker.wait();
            if messages & CHECK_SIGNALS != 0 {
                self.report_signal_check();
            }
            if messages & RETIRE != 0 {
                self.retire();
            }
            if messages & RUN != 0 {
                return;
            }
        }
    }

    /// Stops a retired thread for good. Its host thread stays, because its stack may refer to the old program's process.
    pub(super) fn retire(&self) -> ! {
        // Other threads receive the process's signals.
        masks::replace(BLOCKABLE);
        let mut state = self.lock();
        state.pending_retirements = state.pending_retirements.saturating_sub(1);
        self.retired.notify_all();
        drop(state);
        loop {
            std::thread::park();
        }
    }

    fn report_signal_check(&self) {
        let mut state = self.lock();
        state.pending_signal_checks = state.pending_signal_checks.saturating_sub(1);
        self.signals_checked.notify_all();
    }

    /// Checks for signals at the start of a turn, so that they are delivered before the next instruction.
    pub(super) fn check_signals_at_turn(&self, thread: u32) {
        let mut state = self.lock();
        let sent = state.signals;
        let seen_before = std::mem::replace(&mut state.members[thread as usize].seen_signals, sent);
        drop(state);
        if seen_before != sent {
            parker::arrived_signals();
        }
    }

    /// Waits for the turn of a sleeping thread. Checks for signals when asked to or when interrupted.
    pub(super) fn wait_asleep(&self, thread: u32, parker: &Parker) {
        let mut owed = false;
        loop {
            let messages = parker.wait_interruptible();
            if messages.is_none() {
                owed |= parker::take_attention();
            }
            let messages = messages.unwrap_or(0);
            if messages & RETIRE != 0 {
                self.retire();
            }
            if messages & RUN != 0 {
                break;
            }
            // A signal that arrives after this check triggers another one.
            let arrived = parker::arrived_signals();
            let mut state = self.lock();
            let member = &state.members[thread as usize];
            let was_asleep = member.phase == Phase::Asleep;
            if was_asleep && arrived & !member.arrived_before != 0 {
                let now = linux::Scheduler::now(self);
                self.wake_sleeper(&mut state, thread, (Wakeup::Signalled, now), None);
            }
            state.members[thread as usize].seen_signals = state.signals;
            if messages & CHECK_SIGNALS != 0 {
                state.pending_signal_checks = state.pending_signal_checks.saturating_sub(1);
                self.signals_checked.notify_all();
            }
            if state.members[thread as usize].phase == Phase::Asleep {
                continue;
            }
            let is_resumed = self.resume_idle(state, thread);
            if !is_resumed {
                self.wait_ready(parker);
            }
            break;
        }
        if owed {
            parker::request_own_attention();
        }
    }

    /// Starts a turn if none is in progress, because a thread has become runnable through an external event. Returns
    /// true if the turn goes to `me`. While the idle thread waits for signal checks, it is in the middle of a decision
    /// and will find this thread; deciding here as well would start two turns.
    pub(super) fn resume_idle(&self, state: Guard<'_>, me: u32) -> bool {
        state.holder == Holder::Idler && !state.is_checking_signals && self.hand_over(state, Some(me))
    }
}
