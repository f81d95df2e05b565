//! The scheduler's interface to system calls.

use std::sync::atomic::Ordering;

use longma_guest::host::parker;
use longma_linux::simulated::{self as linux, CoreSet, Sleep, ThreadNumber, Wakeup};
use longma_sim::{Duration, Time};

use longma_locks::IgnorePoison;

use super::{Holder, Member, Phase, Scheduler, waiting};

impl linux::Scheduler for Scheduler {
    fn now(&self) -> Time {
        Time::from_ps(self.now_ps.load(Ordering::Relaxed))
    }

    fn run_time(&self, thread: Option<ThreadNumber>) -> Duration {
        self.lock().thread_table.run_time(thread.map(|thread| thread.0))
    }

    fn add(&self, thread: ThreadNumber) {
        let mut state = self.lock();
        debug_assert_eq!(thread.0 as usize, state.members.len(), "numbers are dense");
        let seen_signals = state.signals;
        state.members.push(Member::new(Phase::Ready, seen_signals));
        let allowed = match state.holder {
            // As after clone(2), the new thread inherits the creator's affinity.
            Holder::Thread(maker) if maker < thread.0 => state.thread_table.allowed(maker),
            _ => self.config.allowed,
        };
        let allowed = allowed.unwrap_or_else(|| CoreSet::first_n(state.thread_table.cores()));
        state.thread_table.add(allowed, self.now());
    }

    fn remove_last(&self, thread: ThreadNumber) {
        let mut state = self.lock();
        state.thread_table.dequeue(thread.0);
        state.members[thread.0 as usize].phase = Phase::Gone;
    }

    fn sleep(&self, thread: ThreadNumber, sleep: Sleep) -> Wakeup {
        if parker::is_attention_requested() {
            return Wakeup::NotBegun;
        }
        let me = thread.0;
        let arrived_before = parker::arrived_signals();
        let mut state = self.lock();
        if sleep.deadline.is_some_and(|deadline| deadline <= self.now()) {
            return Wakeup::TimedOut;
        }
        state.thread_table.dequeue(me);
        if let Some(deadline) = sleep.deadline {
            state.deadlines.insert((deadline, me));
        }
        if !sleep.files.is_empty() {
            self.file_sleepers.fetch_add(1, Ordering::Relaxed);
        }
        let member = &mut state.members[me as usize];
        let parker = member.parker.clone();
        (member.phase, member.sleep) = (Phase::Asleep, sleep);
        (member.arrived_before, member.reaches_outside) = (arrived_before, None);
        member.in_call = true;
        if !self.hand_over(state, Some(me)) {
            self.wait_asleep(me, &parker);
            self.check_signals_at_turn(me);
        }
        let mut state = self.lock();
        let member = &mut state.members[me as usize];
        (member.sleep, member.in_call) = (Sleep::default(), false);
        member.awoken
    }

    fn wake(&self, thread: ThreadNumber) {
        let now = self.now();
        let mut state = self.lock();
        let by = self.running_core(&state);
        self.wake_sleeper(&mut state, thread.0, (Wakeup::Woken, now), by);
    }

    fn yield_now(&self, thread: ThreadNumber) {
        self.lock().thread_table.rotate(thread.0);
    }

    fn run_blocking(&self, thread: ThreadNumber, call: &mut dyn FnMut()) {
        let me = thread.0;
        let mut state = self.lock();
        state.thread_table.dequeue(me);
        (state.members[me as usize].phase, state.members[me as usize].in_call) = (Phase::Outside, true);
        state.outside += 1;
        let parker = state.members[me as usize].parker.clone();
        self.hand_over(state, None);
        call();
        let mut state = self.lock();
        if state.members[me as usize].is_retired {
            drop(state);
            self.retire();
        }
        state.outside -= 1;
        state.members[me as usize].phase = Phase::Ready;
        state.thread_table.enqueue(me, self.now());
        let is_resumed = self.resume_idle(state, me);
        if !is_resumed {
            self.wait_ready(&parker);
        }
        self.lock().members[me as usize].in_call = false;
        self.check_signals_at_turn(me);
    }

    fn signals_sent(&self, sender: ThreadNumber) {
        let now = self.now();
        drop(self.check_all_signals(self.lock(), Some(sender.0), now));
    }

    fn files_changed(&self) {
        if self.file_sleepers.load(Ordering::Relaxed) > 0 {
            let now = self.now();
            let mut state = self.lock();
            let by = self.running_core(&state);
            self.wake_for_files(&mut state, now, by);
        }
    }

    fn retire_others(&self, thread: ThreadNumber) -> Vec<ThreadNumber> {
        let mut state = self.lock();
        let others = (0..state.members.len() as u32).filter(|other| *other != thread.0);
        let alive = others.filter(|other| state.members[*other as usize].phase != Phase::Gone);
        let alive: Vec<u32> = alive.collect();
        state.pending_retirements = alive.len();
        let mut outside = Vec::new();
        for other in alive {
            state.thread_table.dequeue(other);
            let member = &mut state.members[other as usize];
            let phase = std::mem::replace(&mut member.phase, Phase::Gone);
            member.is_retired = true;
            if phase == Phase::Outside {
                outside.push(ThreadNumber(other));
            }
            member.parker.post(waiting::RETIRE);
        }
        outside
    }

    fn become_only(&self, thread: ThreadNumber) {
        let mut state = self.lock();
        while state.pending_retirements > 0 {
            state = self.retired.wait(state).ignore_poison();
        }
        state.thread_table.keep_only(thread.0);
        let only = Member::new(Phase::Ready, state.signals);
        // The thread continues its turn.
        only.parker.post(waiting::RUN);
        state.members = vec![only];
        state.deadlines.clear();
        (state.outside, state.holder) = (0, Holder::Thread(0));
        self.file_sleepers.store(0, Ordering::Relaxed);
    }

    fn handle_interrupts(&self, thread: ThreadNumber) -> usize {
        let mut state = self.lock();
        state.thread_table.set_handler(thread.0);
        state.thread_table.core_of(thread.0)
    }

    fn cores(&self) -> usize {
        self.config.nodes.len()
    }

    fn core_and_node(&self, thread: ThreadNumber) -> (usize, usize) {
        let core = self.lock().thread_table.core_of(thread.0);
        (core, self.config.nodes[core])
    }

    fn affinity(&self, thread: ThreadNumber) -> Option<CoreSet> {
        let state = self.lock();
        let alive = state.members.get(thread.0 as usize).is_some_and(|member| member.phase != Phase::Gone);
        if alive { state.thread_table.allowed(thread.0) } else { None }
    }

    fn set_affinity(&self, thread: ThreadNumber, cores: CoreSet) -> bool {
        let now = self.now();
        let mut state = self.lock();
        let alive = state.members.get(thread.0 as usize).is_some_and(|member| member.phase != Phase::Gone);
        if alive {
            state.thread_table.allow(thread.0, cores, now);
        }
        alive
    }
}
