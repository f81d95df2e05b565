//! The state that the cores of a process share: execution mode, translated code, counters and traced blocks.

use std::{
    io,
    ops::Range,
    sync::{Arc, atomic::AtomicU64},
};

use longma_guest::{GuestMemory, host::schedule_fuzz::perturb};
use longma_trace::{BlockNumber, TracedBlock};

use crate::{
    block::BlockEnds,
    changes::{Change, Changes},
    counting::{Counting, Executed},
    jit::{
        CACHE_BYTES, MAX_REGION_BYTES, OriginSupport, TranslatorConfig, TranslatorGenerations,
        exported_code::ExportedRegions,
    },
    origin::Origin,
    readers::Readers,
    register_accesses::RegisterAccesses,
    traced_blocks::TracedBlocks,
};

/// Counters shared by the cores of a process.
#[derive(Debug, Default)]
pub struct Counts {
    /// Blocks decoded for interpretation.
    pub blocks: AtomicU64,
    /// Translated regions.
    pub regions: AtomicU64,
}

/// The execution mode of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    /// Translate hot code; otherwise interpret all code.
    pub translate: bool,
    /// Count executions of blocks, see [`SharedCode::executed`].
    pub counting: bool,
    /// Each core writes a [`Core::trace`].
    pub tracing: bool,
    /// Magic instructions stop a core ([`Stop::Magic`]); otherwise they are no-ops.
    pub magic: bool,
    /// Each block subtracts its length from the core's instruction budget, see
    /// [`Core::set_budget`](crate::Core::set_budget).
    pub metered: bool,
    /// With `tracing`: cores can also run without a trace, see [`Core::set_tracing`](crate::Core::set_tracing).
    pub pausable: bool,
    /// The architecture that the program was compiled for.
    pub origin: Origin,
}

impl Default for Execution {
    fn default() -> Self {
        Self {
            translate: true,
            counting: false,
            tracing: false,
            magic: false,
            metered: false,
            pausable: false,
            origin: Origin::LoongArch,
        }
    }
}

/// The translated code and the counters of a process, shared by its cores.
#[derive(Clone)]
pub struct SharedCode {
    pub(crate) translators: Option<Arc<TranslatorGenerations>>,
    pub(crate) counting: Option<Arc<Counting>>,
    /// Whether each block subtracts its length from the core's instruction budget.
    pub(crate) metered: bool,
    pub(crate) tracing: Option<Arc<TracedBlocks>>,
    pub(crate) block_ends: BlockEnds,
    pub(crate) counts: Arc<Counts>,
    pub(crate) changes: Arc<Changes>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) watch: Arc<dyn Watch>,
    pub(crate) registers: Arc<RegisterAccesses>,
    pub(crate) origin: Origin,
    /// The same code without traces, for intervals in which tracing is disabled.
    pub(crate) untraced: Option<Box<SharedCode>>,
}

/// Additional tasks of the run loop.
#[derive(Clone, Copy)]
struct RunLoopOptions {
    /// Stop before an instruction that reads the clock.
    clock: bool,
    /// Subtract executed instructions from the core's budget.
    metered: bool,
}

impl RunLoopOptions {
    fn of(execution: Execution) -> Self {
        Self { clock: execution.tracing, metered: execution.metered && !execution.tracing }
    }
}

/// Detects writes to code.
pub trait Watch: Send + Sync {
    /// Called before code is read from the host page at `address`. From then on, the implementation must call
    /// [`SharedCode::invalidate`] after a write to the page.
    fn watch(&self, address: u64);

    /// Called for an instruction barrier, which makes stores of other processors to code visible. The implementation
    /// calls [`SharedCode::invalidate`] for changes that were not detected before.
    fn barrier(&self) {}
}

impl SharedCode {
    /// Creates the shared state without any translations. If the host lacks instructions that translated code needs
    /// (AVX2, FMA, BMI2), all code is interpreted.
    ///
    /// # Errors
    /// The host cannot provide executable memory.
    pub fn new(memory: &GuestMemory, execution: Execution, watch: Arc<dyn Watch>) -> io::Result<Self> {
        Self::with_cache(memory, execution, watch, CACHE_BYTES)
    }

    /// Like [`SharedCode::new`], with a code cache of `cache_bytes` bytes of address space, clamped to 8 MiB to 1 GiB.
    /// A full cache is replaced with an empty one.
    ///
    /// # Errors
    /// The host cannot provide executable memory.
    pub fn with_cache(
        memory: &GuestMemory,
        execution: Execution,
        watch: Arc<dyn Watch>,
        cache_bytes: usize,
    ) -> io::Result<Self> {
        let mut code =
            Self::single(memory, execution, watch.clone(), cache_bytes, RunLoopOptions::of(execution))?;
        if execution.tracing && execution.pausable {
            // Metered, so that the simulator knows and limits the instructions that are executed without tracing.
            let execution = Execution { tracing: false, ..execution };
            let untraced = RunLoopOptions { clock: true, metered: true };
            code.untraced = Some(Box::new(Self::single(memory, execution, watch, cache_bytes, untraced)?));
        }
        Ok(code)
    }

    fn single(
        memory: &GuestMemory,
        execution: Execution,
        watch: Arc<dyn Watch>,
        cache_bytes: usize,
        RunLoopOptions { clock, metered }: RunLoopOptions,
    ) -> io::Result<Self> {
        let counting = execution.counting.then(Arc::<Counting>::default);
        let tracing = execution.tracing.then(Arc::<TracedBlocks>::default);
        let block_ends = BlockEnds { magic: execution.magic, clock };
        let registers: Arc<RegisterAccesses> = Arc::default();
        let readers: Arc<Readers> = Arc::default();
        let config = TranslatorConfig {
            based: !memory.base().is_null(),
            cache_bytes: cache_bytes.clamp(2 * MAX_REGION_BYTES, 1 << 30),
            counting: counting.clone(),
            metered,
            tracing: tracing.clone(),
            translated_blocks: Arc::default(),
            registers: registers.clone(),
            readers: readers.clone(),
            origin: OriginSupport::supported_by_host(execution.origin),
        };
        let translates = execution.translate && host_supports_translation();
        let translators = translates.then(|| TranslatorGenerations::begin(config)).transpose()?.map(Arc::new);
        let (counts, changes) = (Arc::default(), Arc::default());
        Ok(Self {
            translators,
            counting,
            metered,
            tracing,
            block_ends,
            counts,
            changes,
            readers,
            watch,
            registers,
            origin: execution.origin,
            untraced: None,
        })
    }

    /// Whether hot code is translated.
    pub fn translates(&self) -> bool {
        self.translators.is_some()
    }

    /// All executed blocks, if blocks are counted.
    pub fn executed(&self) -> Vec<Executed> {
        let Some(counting) = &self.counting else { return Vec::new() };
        let mut executed = counting.executed();
        // The same block may occur twice; callers sum by address.
        executed.extend(self.untraced.iter().flat_map(|untraced| untraced.executed()));
        executed
    }

    /// The block with this number in a [`Trace`] of one of this code's cores. A number always refers to the same block,
    /// so the caller may cache it.
    ///
    /// # Panics
    /// If no such trace contains the number.
    pub fn traced_block(&self, number: BlockNumber) -> TracedBlock {
        let block = self.tracing.as_ref().and_then(|blocks| blocks.get(number));
        block.expect("the number comes from a trace of this code")
    }

    /// Numbers the blocks of traces from `first` on, so that the numbers differ from those of an earlier program. Call
    /// it before any core runs.
    pub fn number_traced_blocks_from(&self, first: BlockNumber) {
        if let Some(blocks) = &self.tracing {
            blocks.begin_at(first);
        }
    }

    /// The number of the next new block of a trace.
    pub fn next_traced_block(&self) -> BlockNumber {
        self.tracing.as_ref().map_or(BlockNumber(0), |blocks| blocks.end())
    }

    /// The number of blocks translated so far, including those of removed regions.
    pub fn translated_blocks(&self) -> u64 {
        self.translators.as_ref().map_or(0, |translators| translators.translated_blocks())
    }

    /// The counters.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Removes translations of a range of guest addresses. Set the attention flag of each core afterwards, so that
    /// cores leave the old code.
    pub fn invalidate(&self, range: &Range<u64>) {
        // The order matters: a core that is translating either finishes before translations are removed here, or sees
        // that a change has begun that it has not processed.
        self.changes.begin();
        perturb();
        let translator = self.translators.as_ref().map(|translators| translators.current().0);
        let (invalidated, old) = translator.as_ref().map(|t| t.invalidate(range)).unwrap_or_default();
        let count = self.changes.add(Change { range: range.clone(), removed: invalidated });
        if let Some(translator) = translator {
            translator.retire(old, count);
        }
        if let Some(untraced) = &self.untraced {
            untraced.invalidate(range);
        }
    }

    /// Exports the translated code for another process of this executable that executes the same guest code at the same
    /// addresses. Returns `None` if nothing is translated, if blocks are counted or traced, or in a forked child that
    /// has no code cache.
    pub fn export(&self) -> Option<(ExportedRegions, Vec<u8>)> {
        self.translators.as_ref().filter(|_| self.untraced.is_none())?.export()
    }

    /// Imports code [exported](Self::export) by another process, before any core runs. The caller compares the guest
    /// code with the code it was translated from and [invalidates](Self::invalidate) words that differ before a core
    /// reaches them. Returns false, and imports nothing, if the code does not fit.
    pub fn import(&self, exported: &ExportedRegions, code: &[u8]) -> bool {
        self.untraced.is_none() && self.translators.as_ref().is_some_and(|all| all.import(exported, code))
    }

    /// Saves the state that a forked child needs. Call it before the fork, while no other thread holds a lock.
    pub fn prepare_fork(&self) {
        self.translators.iter().for_each(|translators| translators.prepare_fork());
        self.untraced.iter().for_each(|untraced| untraced.prepare_fork());
    }

    /// Runs in a forked child before its thread executes guest code: takes over the translated code. Until the host has
    /// memory for a copy, the child interprets.
    pub fn adopt_in_child(&self) {
        self.readers.leave_all();
        if let Some(translators) = &self.translators {
            let invalidated = translators.adopt_in_child();
            // No code has changed, but some translations may be missing.
            self.changes.begin();
            self.changes.add(Change { range: 0..0, removed: invalidated });
        }
        self.untraced.iter().for_each(|untraced| untraced.adopt_in_child());
    }
}

pub(crate) fn host_supports_translation() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
        && std::arch::is_x86_feature_detected!("lzcnt")
        && std::arch::is_x86_feature_detected!("sse4.2")
        && std::arch::is_x86_feature_detected!("pclmulqdq")
}
