//! One translator after another: when a code cache is full, an empty one takes its place.
//! Not the moving of cores from one to the next: each does that between blocks (see `core.rs`).

use std::{
    io,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use longma_guest::host::locks::RwLock;

use super::{Origin, Translator, kept::KeptRegions};

/// The translator of a process. Those before it live as long as a core runs their code.
pub(crate) struct Succession {
    newest: RwLock<Arc<Translator>>,
    generation: AtomicU64,
    origin: Origin,
}

impl Succession {
    /// A translator with nothing translated.
    ///
    /// # Errors
    /// The host gives no executable memory.
    pub fn begin(origin: Origin) -> io::Result<Self> {
        let newest = RwLock::new(Arc::new(Translator::new(&origin)?));
        Ok(Self { newest, generation: AtomicU64::new(0), origin })
    }

    /// How many there have been before the newest.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The newest translator and its generation.
    pub fn newest(&self) -> (Arc<Translator>, u64) {
        let newest = self.newest.read().unwrap_or_else(PoisonError::into_inner);
        (newest.clone(), self.generation())
    }

    /// Puts an empty translator in the place of `full`, unless another core has done so or the host has no memory for one.
    pub fn replace(&self, full: &Arc<Translator>) {
        let mut newest = self.newest.write().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&newest, full)
            && let Ok(empty) = Translator::new(&self.origin)
        {
            *newest = Arc::new(empty);
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// What the newest translator has, see [`Translator::keep`].
    pub fn keep(&self) -> Option<(KeptRegions, Vec<u8>)> {
        self.newest().0.keep()
    }

    /// Lets the newest translator begin with what another process has kept, see [`Translator::take_up`].
    pub fn take_up(&self, kept: &KeptRegions, code: &[u8]) -> bool {
        self.newest().0.take_up(kept, code)
    }

    /// The number of blocks in all regions ever translated.
    pub fn translated_blocks(&self) -> u64 {
        self.origin.translated_blocks.load(Ordering::Relaxed)
    }

    /// Before a fork, while no other thread holds a lock: keeps what the child will need of the newest translator's code.
    pub fn prepare_fork(&self) {
        self.newest().0.prepare_fork();
    }

    /// In a forked child: the newest translator's code becomes its own, see [`Translator::become_forked`]. The others' is not run again.
    pub fn become_forked(&self) -> Vec<u64> {
        self.newest().0.become_forked()
    }
}
