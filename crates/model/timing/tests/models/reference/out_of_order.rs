//! Reference out-of-order core: issues ready instructions, oldest first.

use super::{
    Access, Executed, Loads, Sizes, Stages, Window,
    front_end::FrontEnd,
    happened,
    memory::{From, data_cycles},
    trap_ends,
};

/// Runs `program` and returns the stages of each instruction.
pub fn run(sizes: Sizes, program: &[Executed]) -> Vec<Stages> {
    let mut collisions = vec![0; program.len()];
    loop {
        match attempt(sizes, program, &collisions) {
            Ok(stages) => return stages,
            Err(load) => {
                collisions[load] += 1;
                // Younger instructions do not run before the squash, so they cannot collide before it.
                collisions[load + 1..].fill(0);
            }
        }
    }
}

/// Runs `program`, in which each load collides with a passed store as often as stated in `collisions`.
///
/// # Errors
/// The index of a load that collides once more. Younger instructions must not run before that collision.
fn attempt(sizes: Sizes, program: &[Executed], collisions: &[usize]) -> Result<Vec<Stages>, usize> {
    // A branch issues a cycle after its dispatch and takes one cycle, so the total penalty is that of the machine file.
    let depth = sizes.mispredict.saturating_sub(2);
    let mut core = Core {
        window: Window::new(sizes, program),
        front: FrontEnd::new(sizes.fetch_width, depth),
        dispatched: 0,
        retired: 0,
        waiting: Vec::new(),
        stores: program
            .iter()
            .enumerate()
            .filter(|(_, executed)| executed.operation.access == Access::Store)
            .map(|(index, _)| index)
            .collect(),
        left: 0,
        collisions: collisions.to_vec(),
    };
    for cycle in 0.. {
        core.settle();
        core.retire(cycle);
        core.trap(cycle);
        core.drain(cycle);
        core.collide(cycle)?;
        core.dispatch(cycle);
        core.issue(cycle);
        if core.retired == program.len() {
            break;
        }
        assert!(cycle < 1_000_000, "the pipeline is deadlocked");
    }
    Ok(core.window.stages)
}

struct Core<'a> {
    window: Window<'a>,
    front: FrontEnd,
    /// Number of instructions dispatched and retired.
    dispatched: usize,
    retired: usize,
    /// Issued loads whose completion is not decided yet.
    waiting: Vec<(usize, From)>,
    /// The program's stores, and how many of them have left for the cache.
    stores: Vec<usize>,
    left: usize,
    /// For each load, the number of remaining collisions with a passed store.
    collisions: Vec<usize>,
}

impl Core<'_> {
    /// Decides the completion of waiting loads.
    fn settle(&mut self) {
        for (load, from) in std::mem::take(&mut self.waiting) {
            let Some(issued) = self.window.stages[load].issued else { continue };
            match self.window.data_at(load, issued, &from) {
                Some(completed) => self.window.stages[load].done = Some(completed),
                None => self.waiting.push((load, from)),
            }
        }
    }

    fn retire(&mut self, cycle: u64) {
        let width = self.window.sizes.retire_width.min(self.window.sizes.decode_width);
        for _ in 0..width {
            let Some(oldest) = self.window.stages.get_mut(self.retired) else { return };
            if !happened(oldest.done, cycle) {
                return;
            }
            oldest.retired = Some(cycle);
            self.retired += 1;
        }
    }

    /// Takes the exception of the oldest instruction if it issued without a translation, and refetches it.
    fn trap(&mut self, cycle: u64) {
        let index = self.retired;
        let issued = self.window.stages.get(index).and_then(|stages| stages.issued);
        if issued.is_none_or(|issued| issued >= cycle) || self.window.translated[index] {
            return;
        }
        // Issue is one cycle after dispatch.
        let refetch = self.front.depth() + 2;
        self.front.fetch_again(trap_ends(cycle, refetch, self.window.program[index].refill_access));
        self.window.translated[index] = true;
        self.window.stages[index] = Stages::default();
        self.dispatched = index;
    }

    /// Squashes and refetches the oldest load that should have waited for a store whose address becomes known in
    /// `cycle`.
    fn collide(&mut self, cycle: u64) -> Result<(), usize> {
        if self.window.sizes.loads != Loads::Blind {
            return Ok(());
        }
        let Some(load) = (self.retired..self.dispatched).find(|index| self.window.collides(*index, cycle))
        else {
            return Ok(());
        };
        if self.collisions[load] == 0 {
            return Err(load);
        }
        assert_eq!(self.dispatched, load + 1, "nothing younger was dispatched");
        self.collisions[load] -= 1;
        self.front.fetch_again(cycle);
        self.waiting.retain(|(waiting, _)| *waiting != load);
        self.window.stages[load] = Stages::default();
        self.dispatched = load;
        Ok(())
    }

    /// Sends a retired store to the cache, one line per cycle.
    fn drain(&mut self, cycle: u64) {
        let Some(&store) = self.stores.get(self.left) else { return };
        if cycle >= self.window.next_leaves(store) && happened(self.window.stages[store].retired, cycle) {
            self.window.stages[store].left = Some(cycle);
            self.window.stages[store].drained = Some(self.window.drained_at(store, cycle));
            self.left += 1;
        }
    }

    fn dispatch(&mut self, cycle: u64) {
        for _ in 0..self.window.sizes.decode_width {
            let index = self.dispatched;
            // Instructions after a trapping access or a colliding load would be squashed.
            let traps = index > 0 && (!self.window.translated[index - 1] || self.collisions[index - 1] > 0);
            if index == self.window.program.len() || traps || !self.has_room(index, cycle) {
                return;
            }
            let stages = &self.window.stages;
            match self.front.dispatchable(index, self.window.program, stages) {
                Some(from) if from <= cycle => self.window.stages[index].dispatched = Some(cycle),
                _ => return,
            }
            self.dispatched += 1;
        }
    }

    /// Returns whether every queue that the instruction needs has a free entry.
    fn has_room(&self, index: usize, cycle: u64) -> bool {
        let (window, executed) = (&self.window, &self.window.program[index]);
        let sizes = &window.sizes;
        let in_flight = self.retired..self.dispatched;
        let registers = |file| {
            let writes =
                |index: &usize| window.program[*index].writes.is_some_and(|register| register.0 == file);
            in_flight.clone().filter(writes).count() as u64
        };
        let free = match executed.writes.map(|register| register.0) {
            None => true,
            Some(super::Integer) => registers(super::Integer) < sizes.int_registers - 32,
            Some(super::Float) => registers(super::Float) < sizes.fp_registers - 32,
        };
        let waits = |index: &usize| {
            window.stages[*index].issued.is_none() && window.program[*index].queue() == executed.queue()
        };
        free && (in_flight.len() as u64) < sizes.rob_entries
            && (in_flight.clone().filter(waits).count() as u64) < sizes.issue_queue_entries[executed.queue()]
            && (!executed.is_load()
                || window.queued(cycle, Executed::is_load, |_, stages| stages.retired)
                    < sizes.load_queue_entries)
            && (!executed.is_store()
                || window.queued(cycle, Executed::is_store, |executed, stages| {
                    if executed.is_atomic() { stages.retired } else { stages.drained }
                }) < sizes.store_queue_entries)
    }

    fn issue(&mut self, cycle: u64) {
        let mut slots_left = self.window.sizes.issue_width;
        for index in self.retired..self.dispatched {
            let ready = self.window.stages[index].issued.is_none() && self.may_issue(index, cycle);
            if slots_left == 0 || !ready || !self.window.take_unit(index, cycle) {
                continue;
            }
            slots_left -= 1;
            self.window.stages[index].issued = Some(cycle);
            if self.window.translated[index] {
                self.execute(index, cycle);
            }
        }
    }

    fn may_issue(&self, index: usize, cycle: u64) -> bool {
        let window = &self.window;
        // Atomic operations and barriers are not speculative: all older instructions must have retired.
        let is_serialising = match window.program[index].operation.access {
            Access::Load if window.sizes.loads == Loads::Conservative => {
                let stores = (0..index).filter(|older| window.program[*older].is_store());
                stores.into_iter().all(|store| happened(window.known(store), cycle))
            }
            Access::Nothing | Access::Load | Access::Store => true,
            Access::Atomic => {
                self.retired == index
                    && window.are_in_cache(index, cycle, |executed| executed.overlaps(&window.program[index]))
            }
            Access::AtomicBarrier | Access::Barrier => {
                self.retired == index && window.are_in_cache(index, cycle, |_| true)
            }
        };
        let dispatched = window.stages[index].dispatched.is_some_and(|at| at < cycle);
        is_serialising
            && dispatched
            && window.has_operands(index, cycle)
            && window.passes_barriers(index, cycle)
    }

    fn execute(&mut self, index: usize, cycle: u64) {
        let executed = &self.window.program[index];
        match executed.operation.access {
            Access::Load => {
                let from = self.window.source_of(index, cycle);
                self.waiting.push((index, from));
                self.settle();
            }
            Access::Atomic | Access::AtomicBarrier => {
                let completed = cycle + data_cycles(executed.address) + 1;
                self.window.stages[index].done = Some(completed);
                self.window.stages[index].drained = Some(completed);
            }
            Access::Nothing | Access::Store | Access::Barrier => {
                self.window.stages[index].done = Some(cycle + executed.operation.latency);
            }
        }
    }
}
