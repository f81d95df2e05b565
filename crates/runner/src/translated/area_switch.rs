//! Looks up the code of source addresses, and switches areas when the current one is full and the other one is empty.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use longma_translate::engine::{CodeError, Engine};
use longma_translate::front_end::{FrontEnd, Memory};
use longma_translate::interpretation::Continuation;

use super::debugged::DebuggedThread;
use super::{Translated, expect_invalidated};
use crate::cores::Cores;

/// How long to wait until threads have left an area. Threads leave the area as soon as they run, so the limit is
/// reached only if the host does not schedule them.
const AREA_DRAIN_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

impl<F: FrontEnd> Translated<F> {
    /// The code of a source address, to which the thread will jump.
    pub(super) fn code_of(&self, cores: &Cores, pc: u64) -> Result<u64, CodeError> {
        self.forget_noted(cores);
        self.code_with_free_area(cores, |engine, memory| engine.code_of(pc, memory))
    }

    /// Like [`Self::code_of`], but ignores breakpoints.
    pub(super) fn code_past_breakpoint(&self, cores: &Cores, pc: u64) -> Result<u64, CodeError> {
        self.forget_noted(cores);
        self.code_with_free_area(cores, |engine, memory| engine.code_past_breakpoint(pc, memory))
    }

    /// The code of the single instruction at `pc`.
    pub(super) fn code_of_one(&self, cores: &Cores, pc: u64) -> Result<u64, CodeError> {
        self.forget_noted(cores);
        self.code_with_free_area(cores, |engine, memory| engine.code_of_one(pc, memory))
    }

    /// The code at `pc`, the target of the exit at `exit`, which the thread has reached.
    pub(super) fn follow(&self, cores: &Cores, exit: u64, pc: u64) -> Result<u64, CodeError> {
        let mut is_first = true;
        self.code_with_free_area(cores, |engine, memory| match std::mem::take(&mut is_first) {
            true => engine.follow(exit, pc, memory),
            // The exit may have been overwritten.
            false => engine.code_of(pc, memory),
        })
    }

    /// How to continue at `pc`. If `exit` is given, it is the exit in translated code that the thread has reached. If
    /// `is_indirect`, an interpreted indirect jump led to `pc`.
    pub(super) fn continue_at(
        &self,
        cores: &Cores,
        mut exit: Option<u64>,
        pc: u64,
        is_indirect: bool,
    ) -> Result<Continuation<F::DecodedInstruction>, CodeError> {
        self.forget_noted(cores);
        self.with_free_area(cores, |engine, memory| {
            if is_indirect {
                engine.note_indirect(pc);
            }
            match exit.take() {
                Some(exit) => engine.follow_exit(exit, pc, memory),
                // After a switch of areas, the exit may have been overwritten.
                None => engine.continue_at(pc, memory),
            }
        })
    }

    /// The code of an instruction that the interpreter refused to execute.
    pub(super) fn code_of_refused(&self, cores: &Cores, pc: u64) -> Result<u64, CodeError> {
        self.forget_noted(cores);
        self.code_with_free_area(cores, |engine, memory| engine.code_of_refused(pc, memory))
    }

    fn code_with_free_area(
        &self,
        cores: &Cores,
        mut lookup: impl FnMut(&mut Engine<F>, &dyn Memory) -> Result<u64, CodeError>,
    ) -> Result<u64, CodeError> {
        let continuation =
            self.with_free_area(cores, |engine, memory| lookup(engine, memory).map(Continuation::Code))?;
        match continuation {
            Continuation::Code(code) => Ok(code),
            Continuation::Block(_) => unreachable!("the lookup returns code"),
        }
    }

    /// Looks up how to continue. If the area is full, switches areas and repeats the look-up. The switch discards the
    /// thread's old code.
    fn with_free_area(
        &self,
        cores: &Cores,
        mut lookup: impl FnMut(
            &mut Engine<F>,
            &dyn Memory,
        ) -> Result<Continuation<F::DecodedInstruction>, CodeError>,
    ) -> Result<Continuation<F::DecodedInstruction>, CodeError> {
        let mut total_wait = Duration::ZERO;
        let mut waiting = None;
        loop {
            let mut engine = self.engine();
            let result = lookup(&mut engine, &self.view(cores));
            let other = match result {
                Ok(Continuation::Code(code)) => {
                    self.area_usage.set(Some(self.area_of(code)));
                    return result;
                }
                Ok(Continuation::Block(_)) => {
                    self.area_usage.set(None);
                    return result;
                }
                Err(CodeError::Full) => engine.free_area().filter(|_| total_wait < AREA_DRAIN_TIMEOUT),
                Err(_) => None,
            };
            let Some(other) = other else { return result };
            self.area_usage.set(None);
            if self.area_usage.is_drained_by_others(other) {
                self.area_switches.fetch_add(1, Ordering::SeqCst);
                let switched = engine.switch_area(&self.view(cores));
                drop(engine);
                expect_invalidated(switched);
            } else {
                drop(engine);
                waiting.get_or_insert_with(|| self.area_usage.wait());
                cores.request_attention();
                thread::sleep(POLL_INTERVAL);
                total_wait += POLL_INTERVAL;
            }
        }
    }

    /// Runs `work`, which may take long, without keeping the thread's area in use. Returns the result, and whether the
    /// code at `code`, at which the thread would continue, still exists.
    pub(super) fn outside_area<T>(&self, code: u64, work: impl FnOnce() -> T) -> (T, bool) {
        let area_switches = self.area_switches.load(Ordering::SeqCst);
        self.area_usage.set(None);
        let result = work();
        let engine = self.engine();
        let is_area_valid = self.area_switches.load(Ordering::SeqCst) == area_switches;
        if is_area_valid {
            self.area_usage.set(Some(self.area_of(code)));
        }
        drop(engine);
        (result, is_area_valid)
    }

    /// Releases the area, because a debugger may stop the thread here. It continues at a source address.
    pub(super) fn release_area(&self, on: &DebuggedThread) {
        if on.follower.is_some() {
            self.area_usage.set(None);
        }
    }

    /// Updates the record of a thread that may have jumped from one area to the other.
    pub(super) fn record_area(&self, pc: u64) {
        if self.layout.code.contains(&pc) {
            self.area_usage.arrive(self.area_of(pc));
        }
    }

    fn area_of(&self, code: u64) -> usize {
        usize::from(code >= self.second_area)
    }
}
