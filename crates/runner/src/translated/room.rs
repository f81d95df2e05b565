//! The code of source addresses for the threads of a process, and room for it: when an area of translated code is full and nobody is in the
//! other one any more, it goes on there, and what was there is gone.
//! Not who is where (`places.rs`), nor what lies in the areas (`longma_translate::engine`).

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use longma_translate::engine::{Engine, Refusal};
use longma_translate::front_end::{FrontEnd, Memory};

use super::steered::Steered;
use super::{Translated, must};
use crate::cores::Cores;

/// So long do threads have to come out of an area. They do as soon as they run: this is for a host that does not let them.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

impl<F: FrontEnd> Translated<F> {
    /// The code of a source address, to which the thread will go.
    pub(super) fn code_of(&self, cores: &Cores, pc: u64) -> Result<u64, Refusal> {
        self.forget_noted(cores);
        self.with_room(cores, |engine, memory| engine.code_of(pc, memory))
    }

    /// The same, whether threads are to stop there or not.
    pub(super) fn code_past_stop(&self, cores: &Cores, pc: u64) -> Result<u64, Refusal> {
        self.forget_noted(cores);
        self.with_room(cores, |engine, memory| engine.code_past_stop(pc, memory))
    }

    /// The code of the source address that the exit at `exit`, where the thread is, leads to.
    pub(super) fn follow(&self, cores: &Cores, exit: u64, pc: u64) -> Result<u64, Refusal> {
        let mut is_first = true;
        self.with_room(cores, |engine, memory| match std::mem::take(&mut is_first) {
            true => engine.follow(exit, pc, memory),
            // Something else may be at the exit's address by now.
            false => engine.code_of(pc, memory),
        })
    }

    /// Looks for code, and if there is no room, makes some and looks again. From then on the thread is not where it was.
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

    /// Lets a thread that would go on at `code` do `work` that may take long, and not be in the way meanwhile: what came of it, and
    /// whether `code` is still there.
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

    /// A thread that is followed may be held here for long, and will go on at an address of the source.
    pub(super) fn note_hold(&self, on: &Steered) {
        if on.follower.is_some() {
            self.places.set(None);
        }
    }

    /// Notes where a thread is that may have gone from one area to the other by itself.
    pub(super) fn note_place(&self, pc: u64) {
        if self.layout.code.contains(&pc) {
            self.places.go_on(self.area_of(pc));
        }
    }

    fn area_of(&self, code: u64) -> usize {
        usize::from(code >= self.second_area)
    }
}
