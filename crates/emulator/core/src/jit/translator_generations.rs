//! Replaces the translator of a process when its code cache is full. Each core switches to the new one between blocks
//! (`core.rs`).

use longma_locks::IgnorePoison;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use longma_guest::host::locks::RwLock;

use super::{Translator, TranslatorConfig, exported_code::ExportedRegions};

/// The current translator of a process. A replaced translator stays in memory until no core runs its code.
pub(crate) struct TranslatorGenerations {
    current: RwLock<Arc<Translator>>,
    generation: AtomicU64,
    config: TranslatorConfig,
}

impl TranslatorGenerations {
    /// Creates the first translator.
    ///
    /// # Errors
    /// The host cannot provide executable memory.
    pub fn begin(config: TranslatorConfig) -> io::Result<Self> {
        let current = RwLock::new(Arc::new(Translator::new(&config)?));
        Ok(Self { current, generation: AtomicU64::new(0), config })
    }

    /// The number of translators replaced so far.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The current translator and its generation.
    pub fn current(&self) -> (Arc<Translator>, u64) {
        let current = self.current.read().ignore_poison();
        (current.clone(), self.generation())
    }

    /// Replaces `full` with an empty translator. Does nothing if another core has already replaced it or the host has
    /// no memory; the core then continues with the current one.
    pub fn replace(&self, full: &Arc<Translator>) {
        let mut current = self.current.write().ignore_poison();
        if Arc::ptr_eq(&current, full)
            && let Ok(empty) = Translator::new(&self.config)
        {
            *current = Arc::new(empty);
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Exports the code of the current translator, see [`Translator::export`].
    pub fn export(&self) -> Option<(ExportedRegions, Vec<u8>)> {
        self.current().0.export()
    }

    /// Imports code into the current translator, see [`Translator::import`].
    pub fn import(&self, exported: &ExportedRegions, code: &[u8]) -> bool {
        self.current().0.import(exported, code)
    }

    /// The number of blocks in all regions translated so far.
    pub fn translated_blocks(&self) -> u64 {
        self.config.translated_blocks.load(Ordering::Relaxed)
    }

    /// Saves the code of the current translator for a forked child. Call it before the fork, while no other thread
    /// holds a lock.
    pub fn prepare_fork(&self) {
        self.current().0.prepare_fork();
    }

    /// Runs in a forked child: takes over the code of the current translator, see [`Translator::adopt_in_child`]. Code
    /// of older translators is not run again.
    pub fn adopt_in_child(&self) -> Vec<u64> {
        self.current().0.adopt_in_child()
    }
}
