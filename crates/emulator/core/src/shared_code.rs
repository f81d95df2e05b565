//! What the cores of a process share: how they execute, translated code, counters, the blocks of traces.
//! Not a core.

use std::{
    io,
    ops::Range,
    sync::{Arc, atomic::AtomicU64},
};

use longma_guest::{GuestMemory, host::shake::shake};
use longma_trace::{BlockNumber, TracedBlock};

use crate::{
    block::Interest,
    changes::{Change, Changes},
    counting::{Counting, Executed},
    jit::{CACHE_BYTES, Origin, REGION_ROOM_BYTES, Succession, kept::KeptRegions},
    readers::Readers,
    register_accesses::RegisterAccesses,
    traced_blocks::TracedBlocks,
};

/// What cores of one process count together.
#[derive(Debug, Default)]
pub struct Counts {
    /// Blocks decoded for interpretation.
    pub blocks: AtomicU64,
    /// Regions translated.
    pub regions: AtomicU64,
}

/// How a process is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    /// Hot code is translated; otherwise everything is interpreted.
    pub translate: bool,
    /// Every run of a block is counted, see [`SharedCode::executed`].
    pub counting: bool,
    /// What each core does is written to its [`Core::trace`].
    pub tracing: bool,
    /// Magic instructions stop a core ([`Stop::Magic`]); otherwise they do nothing.
    pub magic: bool,
    /// With `tracing`: cores can also run without a trace, see [`Core::set_tracing`](crate::Core::set_tracing).
    pub pausable: bool,
}

impl Default for Execution {
    fn default() -> Self {
        Self { translate: true, counting: false, tracing: false, magic: false, pausable: false }
    }
}

/// The translated code of a process and its counters; cores of the process share it.
#[derive(Clone)]
pub struct SharedCode {
    pub(crate) translators: Option<Arc<Succession>>,
    pub(crate) counting: Option<Arc<Counting>>,
    pub(crate) tracing: Option<Arc<TracedBlocks>>,
    pub(crate) interest: Interest,
    pub(crate) counts: Arc<Counts>,
    pub(crate) changes: Arc<Changes>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) watch: Arc<dyn Watch>,
    pub(crate) registers: Arc<RegisterAccesses>,
    /// The same code without traces, for stretches that nobody follows.
    pub(crate) untraced: Option<Box<SharedCode>>,
}

/// Notices writes to code.
pub trait Watch: Send + Sync {
    /// Code is about to be read from the host page at `address`: from now on, whoever writes there makes
    /// [`SharedCode::invalidate`] be called.
    fn watch(&self, address: u64);

    /// A core makes the stores of others to code seen: whoever finds such that nobody noticed makes [`SharedCode::invalidate`] be called.
    fn barrier(&self) {}
}

impl SharedCode {
    /// Nothing translated yet. Where the host lacks what translated code needs (AVX2, FMA, BMI2), everything is interpreted.
    ///
    /// # Errors
    /// The host gives no executable memory.
    pub fn new(memory: &GuestMemory, execution: Execution, watch: Arc<dyn Watch>) -> io::Result<Self> {
        Self::with_cache(memory, execution, watch, CACHE_BYTES)
    }

    /// As [`SharedCode::new`], with translated code in a cache of `cache_bytes` bytes of address space, which is emptied when it is
    /// full: at least 8 MiB and at most 1 GiB, else the nearest of these.
    ///
    /// # Errors
    /// The host gives no executable memory.
    pub fn with_cache(
        memory: &GuestMemory,
        execution: Execution,
        watch: Arc<dyn Watch>,
        cache_bytes: usize,
    ) -> io::Result<Self> {
        let mut code = Self::single(memory, execution, watch.clone(), cache_bytes, execution.tracing)?;
        if execution.tracing && execution.pausable {
            // Counted, so that the one who simulates knows how long the stretch was.
            let execution = Execution { tracing: false, counting: true, ..execution };
            code.untraced = Some(Box::new(Self::single(memory, execution, watch, cache_bytes, true)?));
        }
        Ok(code)
    }

    fn single(
        memory: &GuestMemory,
        execution: Execution,
        watch: Arc<dyn Watch>,
        cache_bytes: usize,
        clock: bool,
    ) -> io::Result<Self> {
        let counting = execution.counting.then(Arc::<Counting>::default);
        let tracing = execution.tracing.then(Arc::<TracedBlocks>::default);
        let interest = Interest { magic: execution.magic, clock };
        let registers: Arc<RegisterAccesses> = Arc::default();
        let readers: Arc<Readers> = Arc::default();
        let origin = Origin {
            based: !memory.base().is_null(),
            cache_bytes: cache_bytes.clamp(2 * REGION_ROOM_BYTES, 1 << 30),
            counting: counting.clone(),
            tracing: tracing.clone(),
            translated_blocks: Arc::default(),
            registers: registers.clone(),
            readers: readers.clone(),
        };
        let translates = execution.translate && host_is_able();
        let translators = translates.then(|| Succession::begin(origin)).transpose()?.map(Arc::new);
        let (counts, changes) = (Arc::default(), Arc::default());
        Ok(Self {
            translators,
            counting,
            tracing,
            interest,
            counts,
            changes,
            readers,
            watch,
            registers,
            untraced: None,
        })
    }

    /// True if hot code is translated.
    pub fn translates(&self) -> bool {
        self.translators.is_some()
    }

    /// Every block that ran, if blocks are counted.
    pub fn executed(&self) -> Vec<Executed> {
        let Some(counting) = &self.counting else { return Vec::new() };
        let mut executed = counting.executed();
        // The same blocks may be in both: whoever adds up adds by place.
        executed.extend(self.untraced.iter().flat_map(|untraced| untraced.executed()));
        executed
    }

    /// The block of a number in a [`Trace`] of one of this code's cores; it never changes, so that the caller may keep it.
    ///
    /// # Panics
    /// With a number that is in no such trace.
    pub fn traced_block(&self, number: BlockNumber) -> TracedBlock {
        let block = self.tracing.as_ref().and_then(|blocks| blocks.get(number));
        block.expect("the number comes from a trace of this code")
    }

    /// The number of blocks that were translated, those of regions that have been forgotten since included.
    pub fn translated_blocks(&self) -> u64 {
        self.translators.as_ref().map_or(0, |translators| translators.translated_blocks())
    }

    /// What was counted so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Forgets what was translated from a range of guest addresses. Raise the attention flag of every core afterwards, so that they
    /// leave the old code.
    pub fn invalidate(&self, range: &Range<u64>) {
        // In this order: a core that translates what it knows either does so before the code is looked for, or finds that a change
        // has begun that it has not taken note of.
        self.changes.begin();
        shake();
        let translator = self.translators.as_ref().map(|translators| translators.newest().0);
        let (gone, old) = translator.as_ref().map(|t| t.invalidate(range)).unwrap_or_default();
        let count = self.changes.add(Change { range: range.clone(), gone });
        if let Some(translator) = translator {
            translator.retire(old, count);
        }
        if let Some(untraced) = &self.untraced {
            untraced.invalidate(range);
        }
    }

    /// What has been translated, and its host code, for another process of this very program that executes the same code at the same
    /// addresses. `None` if nothing is translated, if blocks are counted or traced, or in a forked child that has no code of its own.
    pub fn keep(&self) -> Option<(KeptRegions, Vec<u8>)> {
        self.translators.as_ref().filter(|_| self.untraced.is_none())?.keep()
    }

    /// Takes up what another process has [kept](Self::keep), before a core runs. Where its code comes from must be what it was there before a core comes to it;
    /// a word that is not is to be [forgotten](Self::invalidate). False, and nothing is taken up, if it does not fit.
    pub fn take_up(&self, kept: &KeptRegions, code: &[u8]) -> bool {
        self.untraced.is_none() && self.translators.as_ref().is_some_and(|all| all.take_up(kept, code))
    }

    /// Before a fork, while no other thread holds a lock: keeps what a child will need.
    pub fn prepare_fork(&self) {
        self.translators.iter().for_each(|translators| translators.prepare_fork());
        self.untraced.iter().for_each(|untraced| untraced.prepare_fork());
    }

    /// In a forked child, before its only thread runs anything: what is translated becomes the child's own. Until the host gives memory for
    /// that, the child interprets.
    pub fn become_forked(&self) {
        self.readers.leave_all();
        if let Some(translators) = &self.translators {
            let gone = translators.become_forked();
            // No code has changed, but some may have been left behind.
            self.changes.begin();
            self.changes.add(Change { range: 0..0, gone });
        }
        self.untraced.iter().for_each(|untraced| untraced.become_forked());
    }
}

fn host_is_able() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
        && std::arch::is_x86_feature_detected!("lzcnt")
        && std::arch::is_x86_feature_detected!("sse4.2")
        && std::arch::is_x86_feature_detected!("pclmulqdq")
}
