//! The timing model of one core, of whatever kind it is.
//! Not a kind: each is in a module of its own.

use longma_memory::MemoryPort;
use longma_sim::Cycle;
use longma_topology::parts;
use longma_trace::{BlockNumber, Blocks, Trace};

use crate::{
    counting,
    front_end::{self, BranchCounts, FetchOptions},
    in_order,
    model_error::ModelError,
    out_of_order,
    program::{self, BlockCounts},
    stack::{Cause, CpiStack},
};

/// How much of a core is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelKind {
    /// Counts only; one cycle an instruction.
    Counting,
    /// Issue in program order.
    InOrder,
    /// Issue as operands are ready.
    OutOfOrder,
}

/// The timing model of one core.
#[derive(Debug)]
pub struct TimingModel(Model);

#[derive(Debug)]
enum Model {
    Counting(Box<counting::Counting>),
    InOrder(Box<in_order::InOrder>),
    OutOfOrder(Box<out_of_order::OutOfOrder>),
}

impl TimingModel {
    /// A cold model of `core`, of the given kind or, without one, as the machine file says whether it executes out of order.
    ///
    /// # Errors
    /// The machine file describes no core that can be modelled; the message says what to change.
    pub fn new(core: &parts::Core, kind: Option<ModelKind>, fetch: FetchOptions) -> Result<Self, ModelError> {
        let own = if core.out_of_order { ModelKind::OutOfOrder } else { ModelKind::InOrder };
        Ok(Self(match kind.unwrap_or(own) {
            ModelKind::Counting => Model::Counting(Box::new(counting::Counting::new(core, fetch)?)),
            ModelKind::InOrder => Model::InOrder(Box::new(in_order::InOrder::new(core, fetch)?)),
            ModelKind::OutOfOrder => Model::OutOfOrder(Box::new(out_of_order::OutOfOrder::new(core, fetch)?)),
        }))
    }

    /// Which kind it is.
    pub fn kind(&self) -> ModelKind {
        match self.0 {
            Model::Counting(_) => ModelKind::Counting,
            Model::InOrder(_) => ModelKind::InOrder,
            Model::OutOfOrder(_) => ModelKind::OutOfOrder,
        }
    }

    /// Runs everything that `trace` holds, with its memory accesses going to `port`. The caller clears the trace.
    pub fn drain(&mut self, trace: &Trace, blocks: &impl Blocks, port: &mut impl MemoryPort) {
        match &mut self.0 {
            Model::Counting(model) => model.drain(trace, blocks, port),
            Model::InOrder(model) => front_end::drain(&mut **model, trace, blocks, port),
            Model::OutOfOrder(model) => front_end::drain(&mut **model, trace, blocks, port),
        }
    }

    /// The first cycle in which nothing has retired yet (issued, in order).
    pub fn now(&self) -> Cycle {
        Cycle(match &self.0 {
            Model::Counting(model) => model.cycle,
            Model::InOrder(model) => model.now(),
            Model::OutOfOrder(model) => model.retired.now(),
        })
    }

    /// Waits for all that has begun: until every result is there and every store is in the cache. Nothing behind begins before.
    pub fn complete(&mut self) {
        match &mut self.0 {
            Model::Counting(_) => {}
            Model::InOrder(model) => model.complete(),
            Model::OutOfOrder(model) => model.complete(),
        }
    }

    /// No instruction runs before `cycle`: the core is idle, or waits for something outside it. Earlier cycles change nothing.
    pub fn advance_to(&mut self, cycle: Cycle) {
        match &mut self.0 {
            Model::Counting(model) => model.advance_to(cycle.0),
            Model::InOrder(model) => model.advance_to(cycle.0, Cause::Idle),
            Model::OutOfOrder(model) => model.advance_to(cycle.0, Cause::Idle),
        }
    }

    /// The kernel has the core until `cycle`. The counting model, which times nothing, takes no note.
    pub fn system_until(&mut self, cycle: Cycle) {
        match &mut self.0 {
            Model::Counting(_) => {}
            Model::InOrder(model) => model.advance_to(cycle.0, Cause::System),
            Model::OutOfOrder(model) => model.advance_to(cycle.0, Cause::System),
        }
    }

    /// The kernel has the core until `cycle` for work of its own: as [`system_until`](Self::system_until), and in the counting model, too,
    /// where it is time that passes as if the core were idle.
    pub fn kernel_until(&mut self, cycle: Cycle) {
        match &mut self.0 {
            Model::Counting(model) => model.advance_to(cycle.0),
            Model::InOrder(_) | Model::OutOfOrder(_) => self.system_until(cycle),
        }
    }

    /// One instruction that is in no trace, an access to a device's register, keeps the core until `cycle`. Everything before it has
    /// retired, and nothing behind it begins before.
    pub fn access_device_until(&mut self, cycle: Cycle) {
        match &mut self.0 {
            Model::Counting(model) => {
                model.instructions += 1;
                model.program.apart += 1;
                model.cycle = model.cycle.max(cycle.0);
            }
            Model::InOrder(model) => {
                model.issued.instructions += 1;
                model.program.apart += 1;
                model.advance_to(cycle.0, Cause::Device);
            }
            Model::OutOfOrder(model) => {
                model.retired.instructions += 1;
                model.program.apart += 1;
                model.advance_to(cycle.0, Cause::Device);
            }
        }
    }

    /// As [`advance_to`](Self::advance_to), and the time in between is not counted: it lies outside of what is measured.
    pub fn pass_to(&mut self, cycle: Cycle) {
        match &mut self.0 {
            Model::Counting(model) => model.cycle = model.cycle.max(cycle.0),
            Model::InOrder(model) => model.pass_to(cycle.0),
            Model::OutOfOrder(model) => model.pass_to(cycle.0),
        }
    }

    /// Instructions since counting began.
    pub fn instructions(&self) -> u64 {
        match &self.0 {
            Model::Counting(model) => model.instructions,
            Model::InOrder(model) => model.issued.instructions,
            Model::OutOfOrder(model) => model.retired.instructions,
        }
    }

    /// Where the cycles since counting began went; `None` of the counting model.
    pub fn stack(&self) -> Option<CpiStack> {
        match &self.0 {
            Model::Counting(_) => None,
            Model::InOrder(model) => Some(model.issued.stack()),
            Model::OutOfOrder(model) => Some(model.retired.stack()),
        }
    }

    /// Branches since counting began; `None` of the counting model.
    pub fn branches(&self) -> Option<BranchCounts> {
        match &self.0 {
            Model::Counting(_) => None,
            Model::InOrder(model) => Some(model.front.counts),
            Model::OutOfOrder(model) => Some(model.front.counts),
        }
    }

    /// What each block that ran since counting began cost, in the order of the numbers.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockNumber, &BlockCounts)> {
        self.program().counts()
    }

    /// Keeps the stages of the next `instructions` instructions for [`pipeline_log`](Self::pipeline_log). The counting model has
    /// no stages.
    pub fn log_pipeline(&mut self, instructions: usize) {
        match &mut self.0 {
            Model::Counting(_) => {}
            Model::InOrder(model) => model.log.begin(instructions),
            Model::OutOfOrder(model) => model.log.begin(instructions),
        }
    }

    /// The stages that were kept, as the text the Konata pipeline viewer opens; `None` if there are none.
    pub fn pipeline_log(&self) -> Option<String> {
        match &self.0 {
            Model::Counting(_) => None,
            Model::InOrder(model) => model.log.to_kanata(),
            Model::OutOfOrder(model) => model.log.to_kanata(),
        }
    }

    /// Whether blocks that do what they did before are timed from memory of it, as at first, or each time anew, which takes the host
    /// longer and changes nothing else: to check the one against the other. Only the in-order model repeats.
    pub fn set_repetition(&mut self, on: bool) {
        if let Model::InOrder(model) = &mut self.0 {
            model.repeats = on;
        }
    }

    /// Counting begins again: a region of interest starts. What was learnt stays, and time goes on.
    pub fn reset(&mut self) {
        match &mut self.0 {
            Model::Counting(model) => {
                model.program.clear_counts();
                (model.instructions, model.idle) = (0, 0);
            }
            Model::InOrder(model) => model.clear_counts(),
            Model::OutOfOrder(model) => model.clear_counts(),
        }
    }

    pub(crate) fn program(&self) -> &program::Program {
        match &self.0 {
            Model::Counting(model) => &model.program,
            Model::InOrder(model) => &model.program,
            Model::OutOfOrder(model) => &model.program,
        }
    }

    /// Loads that were fetched again since they had passed a store to their address; `None` of a core whose loads never are.
    pub(crate) fn passed_stores(&self) -> Option<u64> {
        match &self.0 {
            Model::OutOfOrder(model) => model.passed_stores(),
            Model::Counting(_) | Model::InOrder(_) => None,
        }
    }

    /// Instruction lines that were fetched where a mispredicted branch did not go; `None` of a core that fetches none.
    pub(crate) fn wrong_path_lines(&self) -> Option<u64> {
        match &self.0 {
            Model::Counting(_) => None,
            Model::InOrder(model) => model.front.wrong_path_lines(),
            Model::OutOfOrder(model) => model.front.wrong_path_lines(),
        }
    }

    pub(crate) fn forwarded(&self) -> Option<u64> {
        match &self.0 {
            Model::Counting(_) => None,
            Model::InOrder(model) => Some(model.forwarded()),
            Model::OutOfOrder(model) => Some(model.accesses.forwarded),
        }
    }
}
