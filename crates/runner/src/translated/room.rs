//! Looks up the code of source addresses, and switches areas when the current one is full and the other one is empty.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use longma_translate::engine::{Engine, Refusal};
use longma_translate::front_end::{FrontEnd, Memory};

use super::steered::Steered;
use super::{Translated, must};
use crate::cores::Cores;

/// How long to wait until threads have left an area. They leave it as soon as they run, so the limit is reached only if
/// the host does not schedule them.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

impl<F: FrontEnd> Translated<F> {
    /// The code of a source address, to which the thread will jump.
    pub(super) fn code_of(&self, cores: &Cores, pc: u64) -> Result<u64, Refusal> {
        self.forget_noted(cores);
        self.with_room(cores, |engine, memory| engine.code_of(pc, memory))
    }

    /// Like [`Self::code_of`], but ignores breakpoints.
    pub(super) fn code_past_stop(&self, cores: &Cores, pc: u64) -> Result<u64, Refusal> {
        self.forget_noted(cores);
        self.with_room(cores, |engine, memory| engine.code_past_stop(pc, memory))
    }

    /// The code of the source address that the exit at `exit` leads to. The thread is at the exit.
    pub(super) fn follow(&self, cores: &Cores, exit: u64, pc: u64) -> Result<u64, Refusal> {
        let mut is_first = true;
        self.with_room(cores, |engine, memory| match std::mem::take(&mut is_first) {
            true => engine.follow(exit, pc, memory),
            // The exit may have been overwritten.
            false => engine.code_of(pc, memory),
        })
    }

    /// Looks up code. If the area is full, switches areas and looks again; the thread's old code is then gone.
    fn with_room(
        &self,
        cores: &Cores,
        mut look: impl FnMut(&mut Engine<F>, &dyn Memory) -> Result<u64, Refusal>,
    ) -> Result<u64, Refusal> {
        let mut waited = Duration::ZERO;
        let mut waiting = None;
        loop {
            let mut engine = self.engine();
            let found = look(&mut engine, &self.view(cores));
            let other = match found {
                Ok(code) => {
                    self.places.set(Some(self.area_of(code)));
                    return found;
                }
                Err(Refusal::Full) => engine.other_area().filter(|_| waited < LONGEST_WAIT),
                Err(_) => None,
            };
            let Some(other) = other else { return found };
            self.places.set(None);
            if self.places.is_left_by_others(other) {
                self.turns.fetch_add(1, Ordering::SeqCst);
                let turned = engine.turn(&self.view(cores));
                drop(engine);
                must(turned);
            } else {
                drop(engine);
                waiting.get_or_insert_with(|| self.places.wait());
                cores.request_all();
                thread::sleep(BETWEEN_LOOKS);
                waited += BETWEEN_LOOKS;
            }
        }
    }

    /// Runs `work`, which may take long, without keeping the thread's area in use. Returns the result, and whether the
    /// code at `code`, at which the thread would continue, still exists.
    pub(super) fn away<T>(&self, code: u64, work: impl FnOnce() -> T) -> (T, bool) {
        let turns = self.turns.load(Ordering::SeqCst);
        self.places.set(None);
        let done = work();
        let engine = self.engine();
        let is_there = self.turns.load(Ordering::SeqCst) == turns;
        if is_there {
            self.places.set(Some(self.area_of(code)));
        }
        drop(engine);
        (done, is_there)
    }

    /// Releases the area, because a debugger may stop the thread here. It continues at a source address.
    pub(super) fn note_hold(&self, on: &Steered) {
        if on.follower.is_some() {
            self.places.set(None);
        }
    }

    /// Updates the record of a thread that may have jumped from one area to the other.
    pub(super) fn note_place(&self, pc: u64) {
        if self.layout.code.contains(&pc) {
            self.places.go_on(self.area_of(pc));
        }
    }

    fn area_of(&self, code: u64) -> usize {
        usize::from(code >= self.second_area)
    }
}
