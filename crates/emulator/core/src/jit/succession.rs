//! Replaces the translator of a process when its code cache is full. Each core switches to the new one between blocks
//! (`core.rs`).

use std::{
    io,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use longma_guest::host::locks::RwLock;

use super::{Origin, Translator, kept::KeptRegions};

/// The current translator of a process. Replaced translators live as long as a core runs their code.
pub(crate) struct Succession {
    newest: RwLock<Arc<Translator>>,
    generation: AtomicU64,
    origin: Origin,
}

impl Succession {
    /// Creates the first translator.
    ///
    /// # Errors
    /// The host gives no executable memory.
    pub fn begin(origin: Origin) -> io::Result<Self> {
        let newest = RwLock::new(Arc::new(Translator::new(&origin)?));
        Ok(Self { newest, generation: AtomicU64::new(0), origin })
    }

    /// The number of translators replaced so far.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The current translator and its generation.
    pub fn newest(&self) -> (Arc<Translator>, u64) {
        let newest = self.newest.read().unwrap_or_else(PoisonError::into_inner);
        (newest.clone(), self.generation())
    }

    /// Replaces `full` with an empty translator, unless another core has done so or the host has no memory.
    pub fn replace(&self, full: &Arc<Translator>) {
        let mut newest = self.newest.write().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&newest, full)
            && let Ok(empty) = Translator::new(&self.origin)
        {
            *newest = Arc::new(empty);
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Exports the code of the current translator, see [`Translator::keep`].
    pub fn keep(&self) -> Option<(KeptRegions, Vec<u8>)> {
        self.newest().0.keep()
    }

    /// Imports code into the current translator, see [`Translator::take_up`].
    pub fn take_up(&self, kept: &KeptRegions, code: &[u8]) -> bool {
        self.newest().0.take_up(kept, code)
    }

    /// The number of blocks in all regions translated so far.
    pub fn translated_blocks(&self) -> u64 {
        self.origin.translated_blocks.load(Ordering::Relaxed)
    }

    /// Saves the code of the current translator for a forked child. Call it before the fork, while no other thread
    /// holds a lock.
    pub fn prepare_fork(&self) {
        self.newest().0.prepare_fork();
    }

    /// Runs in a forked child: takes over the code of the current translator, see [`Translator::become_forked`]. Code
    /// of older translators is not run again.
    pub fn become_forked(&self) -> Vec<u64> {
        self.newest().0.become_forked()
    }
}
