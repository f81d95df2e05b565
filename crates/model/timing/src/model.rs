//! The timing model of one core: a common interface to the counting, in-order and out-of-order models.

use longma_memory::MemoryPort;
use longma_plugin::PluginError;
use longma_sim::Cycle;
use longma_topology::parts;
use longma_trace::{BlockNumber, Blocks, Trace};

use crate::{
    branch, counting,
    front_end::{self, BranchCounts, FetchOptions},
    functional_warming, in_order,
    instruction_counts::{InstructionCounts, InstructionLog},
    model_error::ModelError,
    out_of_order,
    program::{self, BlockCounts},
    stack::{Cause, CpiStack},
};

/// The type of a timing model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelKind {
    /// Counts only; one cycle per instruction.
    Counting,
    /// Issue in program order.
    InOrder,
    /// Issue in any order as operands become ready.
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
    /// Creates a model of `core` with empty pipeline and untrained predictors. Without a `kind`, the machine file
    /// determines whether it is in-order or out-of-order.
    ///
    /// # Errors
    /// If the machine file describes a core that cannot be modelled. The message states what to change.
    pub fn new(core: &parts::Core, kind: Option<ModelKind>, fetch: FetchOptions) -> Result<Self, ModelError> {
        let default_kind = if core.out_of_order { ModelKind::OutOfOrder } else { ModelKind::InOrder };
        Ok(Self(match kind.unwrap_or(default_kind) {
            ModelKind::Counting => Model::Counting(Box::new(counting::Counting::new(core, fetch)?)),
            ModelKind::InOrder => Model::InOrder(Box::new(in_order::InOrder::new(core, fetch)?)),
            ModelKind::OutOfOrder => Model::OutOfOrder(Box::new(out_of_order::OutOfOrder::new(core, fetch)?)),
        }))
    }

    /// The type of the model.
    pub fn kind(&self) -> ModelKind {
        match self.0 {
            Model::Counting(_) => ModelKind::Counting,
            Model::InOrder(_) => ModelKind::InOrder,
            Model::OutOfOrder(_) => ModelKind::OutOfOrder,
        }
    }

    /// Processes all records of `trace`, with memory accesses through `port`. The caller clears the trace.
    pub fn drain(&mut self, trace: &Trace, blocks: &impl Blocks, port: &mut impl MemoryPort) {
        match &mut self.0 {
            Model::Counting(model) => model.drain(trace, blocks, port),
            Model::InOrder(model) => front_end::drain(&mut **model, trace, blocks, port),
            Model::OutOfOrder(model) => front_end::drain(&mut **model, trace, blocks, port),
        }
    }

    /// Updates predictors, caches and TLBs with all records of `trace`, without timing them: the core's cycle and its
    /// CPI stack do not change. For the memory system, the instructions execute at one a cycle from `start` on. The
    /// counts of blocks change; [`reset`](Self::reset) them before counting. The counting model advances, as it has no
    /// other timing.
    pub fn warm(&mut self, trace: &Trace, start: Cycle, blocks: &impl Blocks, port: &mut impl MemoryPort) {
        match &mut self.0 {
            Model::Counting(model) => model.drain(trace, blocks, port),
            Model::InOrder(model) => functional_warming::warm(&mut **model, trace, start.0, blocks, port),
            Model::OutOfOrder(model) => functional_warming::warm(&mut **model, trace, start.0, blocks, port),
        }
    }

    /// The first cycle in which no instruction has retired yet (in an in-order core: issued).
    pub fn now(&self) -> Cycle {
        Cycle(match &self.0 {
            Model::Counting(model) => model.cycle,
            Model::InOrder(model) => model.now(),
            Model::OutOfOrder(model) => model.retired.now(),
        })
    }

    /// Waits until all results are available and all stores are in the cache. Later instructions begin after that.
    pub fn complete(&mut self) {
        match &mut self.0 {
            Model::Counting(_) => {}
            Model::InOrder(model) => model.complete(),
            Model::OutOfOrder(model) => model.complete(),
        }
    }

    /// Delays the core until `cycle`, because it is idle or waits for an external event. Has no effect for a past
    /// cycle.
    pub fn advance_to(&mut self, cycle: Cycle) {
        match &mut self.0 {
            Model::Counting(model) => model.advance_to(cycle.0),
            Model::InOrder(model) => model.advance_to(cycle.0, Cause::Idle),
            Model::OutOfOrder(model) => model.advance_to(cycle.0, Cause::Idle),
        }
    }

    /// Delays the core until `cycle` for the kernel's work on a system call. The counting model ignores it.
    pub fn system_until(&mut self, cycle: Cycle) {
        match &mut self.0 {
            Model::Counting(_) => {}
            Model::InOrder(model) => model.advance_to(cycle.0, Cause::System),
            Model::OutOfOrder(model) => model.advance_to(cycle.0, Cause::System),
        }
    }

    /// Delays the core until `cycle` for other kernel work. Like [`system_until`](Self::system_until), except that the
    /// counting model advances too, as if the core were idle.
    pub fn kernel_until(&mut self, cycle: Cycle) {
        match &mut self.0 {
            Model::Counting(model) => model.advance_to(cycle.0),
            Model::InOrder(_) | Model::OutOfOrder(_) => self.system_until(cycle),
        }
    }

    /// Models an access to a device register, an instruction that is not in the trace and takes until `cycle`. All
    /// earlier instructions have retired, and later ones begin after it.
    pub fn access_device_until(&mut self, cycle: Cycle) {
        match &mut self.0 {
            Model::Counting(model) => {
                model.instructions += 1;
                model.program.outside_blocks += 1;
                model.cycle = model.cycle.max(cycle.0);
            }
            Model::InOrder(model) => {
                model.issued.instructions += 1;
                model.program.outside_blocks += 1;
                model.advance_to(cycle.0, Cause::Device);
            }
            Model::OutOfOrder(model) => {
                model.retired.instructions += 1;
                model.program.outside_blocks += 1;
                model.advance_to(cycle.0, Cause::Device);
            }
        }
    }

    /// Like [`advance_to`](Self::advance_to), but the time in between is outside the measured region and not counted.
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

    /// Cycles by cause since counting began; `None` for the counting model.
    pub fn stack(&self) -> Option<CpiStack> {
        match &self.0 {
            Model::Counting(_) => None,
            Model::InOrder(model) => Some(model.issued.stack()),
            Model::OutOfOrder(model) => Some(model.retired.stack()),
        }
    }

    /// Branches since counting began; `None` for the counting model.
    pub fn branches(&self) -> Option<BranchCounts> {
        match &self.0 {
            Model::Counting(_) => None,
            Model::InOrder(model) => Some(model.front.counts),
            Model::OutOfOrder(model) => Some(model.front.counts),
        }
    }

    /// The counts of each block that ran since counting began, ordered by block number.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockNumber, &BlockCounts)> {
        self.program().counts()
    }

    /// Keeps counts of every single instruction from now on, for
    /// [`instructions_of_blocks`](Self::instructions_of_blocks). This changes no result. It needs about 100 bytes for
    /// each instruction of the program that runs, and makes an in-order model several times slower, because the model
    /// then memoizes nothing.
    pub fn count_instructions(&mut self) {
        let log = Some(InstructionLog::default());
        match &mut self.0 {
            Model::Counting(model) => model.log = log,
            Model::InOrder(model) => model.log.counts = log,
            Model::OutOfOrder(model) => model.log.counts = log,
        }
    }

    /// The counts of the instructions of each block that ran since counting began, ordered by block number; empty
    /// without [`count_instructions`](Self::count_instructions).
    pub fn instructions_of_blocks(&self) -> impl Iterator<Item = (BlockNumber, &[InstructionCounts])> {
        let log = match &self.0 {
            Model::Counting(model) => &model.log,
            Model::InOrder(model) => &model.log.counts,
            Model::OutOfOrder(model) => &model.log.counts,
        };
        log.iter().flat_map(InstructionLog::counts)
    }

    /// Records the stages of the next `instructions` instructions for [`pipeline_log`](Self::pipeline_log). The
    /// counting model has no stages.
    pub fn log_pipeline(&mut self, instructions: usize) {
        match &mut self.0 {
            Model::Counting(_) => {}
            Model::InOrder(model) => model.log.begin(instructions),
            Model::OutOfOrder(model) => model.log.begin(instructions),
        }
    }

    /// The recorded stages in the format of the Konata pipeline viewer; `None` if there are none.
    pub fn pipeline_log(&self) -> Option<String> {
        match &self.0 {
            Model::Counting(_) => None,
            Model::InOrder(model) => model.log.to_kanata(),
            Model::OutOfOrder(model) => model.log.to_kanata(),
        }
    }

    /// Enables or disables memoization of the timing of blocks, which is enabled at first. Disabling it only makes the
    /// simulation slower, to verify that results are equal. Only the in-order model memoizes.
    pub fn set_memoization(&mut self, on: bool) {
        if let Model::InOrder(model) = &mut self.0 {
            model.repeats = on;
        }
    }

    /// Resets the counts at the start of a region of interest. Predictors stay trained, and time continues.
    pub fn reset(&mut self) {
        match &mut self.0 {
            Model::Counting(model) => {
                model.program.clear_counts();
                model.log.iter_mut().for_each(InstructionLog::clear);
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

    /// Loads squashed because they had passed an older store to their address; `None` for a core whose loads never do.
    pub(crate) fn passed_stores(&self) -> Option<u64> {
        match &self.0 {
            Model::OutOfOrder(model) => model.passed_stores(),
            Model::Counting(_) | Model::InOrder(_) => None,
        }
    }

    /// Instruction lines fetched on wrong paths; `None` for a core that fetches none.
    pub(crate) fn wrong_path_lines(&self) -> Option<u64> {
        match &self.0 {
            Model::Counting(_) => None,
            Model::InOrder(model) => model.front.wrong_path_lines(),
            Model::OutOfOrder(model) => model.front.wrong_path_lines(),
        }
    }

    /// Whether a plug-in of the core has failed, so that its statistics will not be available.
    pub fn plugin_failed(&self) -> bool {
        self.failure().is_some()
    }

    /// The predictor that has failed and why, if one has.
    pub(crate) fn failure(&self) -> Option<(&'static str, &PluginError)> {
        match &self.0 {
            Model::Counting(_) => None,
            Model::InOrder(model) => branch::failure(&model.front.direction, &model.front.indirect),
            Model::OutOfOrder(model) => branch::failure(&model.front.direction, &model.front.indirect),
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
