//! Reference in-order core.

use super::{
    Access, Executed, Sizes, Stages, Window, front_end::FrontEnd, happened, memory::data_cycles, trap_ends,
};

/// Runs `program` and returns the stages of each instruction. Dispatch is the same as issue, and an instruction retires
/// when it and all older ones are complete.
pub fn run(sizes: Sizes, program: &[Executed]) -> Vec<Stages> {
    // A branch takes one cycle, so the total penalty is that of the machine file.
    let mut front = FrontEnd::new(sizes.fetch_width, sizes.mispredict.saturating_sub(1));
    let mut window = Window::new(sizes, program);
    let width = sizes.decode_width.min(sizes.issue_width);
    let mut next = 0;
    for cycle in 0.. {
        for _ in 0..width {
            if next == program.len() || !window.issue_in_order(next, cycle, &mut front) {
                break;
            }
            next += 1;
        }
        if next == program.len() {
            break;
        }
        assert!(cycle < 1_000_000, "the pipeline is deadlocked");
    }
    window.stages
}

impl Window<'_> {
    /// Issues the next instruction if it can.
    fn issue_in_order(&mut self, index: usize, cycle: u64, front: &mut FrontEnd) -> bool {
        let fetched = front.dispatchable(index, self.program, &self.stages);
        let possible = fetched.is_some_and(|from| from <= cycle)
            && self.has_operands(index, cycle)
            && self.passes_barriers(index, cycle)
            && self.is_alone(index, cycle)
            && self.has_queue_entry(index, cycle)
            && self.has_window_entry(index, cycle.saturating_sub(1))
            && self.take_unit(index, cycle);
        if possible && !self.translated[index] {
            self.translated[index] = true;
            let older = self.stages[..index].iter().filter_map(|stages| stages.retired).max();
            let trapped_at = (cycle + 1).max(older.unwrap_or(0));
            front.fetch_again(trap_ends(trapped_at, front.depth() + 1, self.program[index].refill_access));
            return false;
        }
        if possible {
            self.stages[index].dispatched = Some(cycle);
            self.stages[index].issued = Some(cycle);
            self.complete(index, cycle);
        }
        possible
    }

    /// Returns whether no atomic operation is in flight; nothing issues together with one.
    fn is_alone(&self, index: usize, cycle: u64) -> bool {
        let mut older = self.program[..index].iter().zip(&self.stages);
        older.all(|(executed, stages)| !executed.is_atomic() || happened(stages.done, cycle))
    }

    /// Returns whether the window has room: the instructions that have issued and not retired.
    fn has_window_entry(&self, index: usize, cycle: u64) -> bool {
        let before = index.checked_sub(self.sizes.rob_entries as usize);
        before.is_none_or(|before| happened(self.stages[before].retired, cycle))
    }

    fn has_queue_entry(&self, index: usize, cycle: u64) -> bool {
        // Entries are allocated a cycle before issue.
        let before = cycle.saturating_sub(1);
        let plain_store = |executed: &Executed| executed.operation.access == Access::Store;
        let has_store_entry = self.queued(before, Executed::is_store, |_, stages| stages.drained)
            < self.sizes.store_queue_entries;
        match self.program[index].operation.access {
            Access::Nothing => true,
            Access::Load => {
                self.queued(before, Executed::is_load, |_, stages| stages.retired)
                    < self.sizes.load_queue_entries
            }
            Access::Store => has_store_entry,
            // All older instructions must be complete.
            Access::Atomic | Access::AtomicBarrier | Access::Barrier => {
                let mut older = self.program[..index].iter().zip(&self.stages);
                (!self.program[index].is_store() || has_store_entry)
                    && older.all(|(executed, stages)| {
                        happened(stages.retired, cycle)
                            && (!plain_store(executed) || happened(stages.drained, cycle))
                    })
            }
        }
    }

    fn complete(&mut self, index: usize, cycle: u64) {
        let executed = &self.program[index];
        let completed = match executed.operation.access {
            Access::Load => {
                let from = self.source_of(index, cycle);
                self.data_at(index, cycle, &from)
            }
            Access::Atomic | Access::AtomicBarrier => Some(cycle + data_cycles(executed.address) + 1),
            Access::Nothing | Access::Store | Access::Barrier => Some(cycle + executed.operation.latency),
        };
        let older = index.checked_sub(1).and_then(|before| self.stages[before].retired);
        // At most as many instructions retire per cycle as issue.
        let width = self.sizes.decode_width.min(self.sizes.issue_width) as usize;
        let full = index.checked_sub(width).and_then(|before| self.stages[before].retired);
        let retired =
            completed.map(|completed| completed.max(older.unwrap_or(0)).max(full.map_or(0, |full| full + 1)));
        if executed.operation.access == Access::Store {
            // One store per cycle leaves for the cache, after it has retired.
            let leaves = retired.map(|retired| retired.max(self.next_leaves(index)));
            self.stages[index].left = leaves;
            self.stages[index].drained = leaves.map(|leaves| self.drained_at(index, leaves));
        } else if executed.is_atomic() {
            self.stages[index].drained = completed;
        }
        (self.stages[index].done, self.stages[index].retired) = (completed, retired);
    }
}
