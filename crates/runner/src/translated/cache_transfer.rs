//! Import of translations from earlier runs of a program, and export for later runs.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::Ordering;

use longma_linux::Process;
use longma_translate::front_end::FrontEnd;
use longma_translate::optimizations::{Optimization, Optimizations};

use super::cache::{CacheFile, Content};
use super::{HOT, Translated};
use crate::cores::Cores;

/// Export only if the total is at most this many times the size of the new translations. Most runs execute some code
/// that no other run does.
const MAX_TOTAL_PER_NEW: u64 = 100;

/// The cache has at most 1/8 of the code area's size. A larger cache is discarded.
const MAX_OF_ROOM: u64 = 8;

const WORD_BYTES: u64 = 4;

/// The cache file of a process's program; `None` if its translations cannot be reused.
pub(super) fn file_of<F: FrontEnd>(
    process: &Process,
    [folder, root]: [&Path; 2],
    optimizations: Optimizations,
    layout: &str,
) -> Option<CacheFile> {
    if !optimizations.has(Optimization::Table)
        || !optimizations.has(Optimization::Units)
        || process.simulation().is_some()
    {
        return None;
    }
    let program =
        [OsStr::new(F::NAME), root.as_os_str(), process.executable().as_os_str(), OsStr::new(layout)];
    let optimizations = optimizations.to_string();
    let is_based = !process.memory().base().is_null();
    CacheFile::of(
        folder,
        &program,
        &[F::NAME.into(), optimizations, layout.into(), format!("{HOT} {is_based}")],
    )
}

impl<F: FrontEnd> Translated<F> {
    /// Imports the translations of earlier runs. No thread is running.
    pub(super) fn import_cache(&self, cores: &Cores) {
        let Some(content) = self.cache.as_ref().and_then(CacheFile::read) else { return };
        let Content { units, regions, code } = content;
        if self.engine().import(units) {
            // The units are useful even without host code.
            let _ = cores.code().import(&regions, &code);
        }
    }

    /// Exports the translations if that is worthwhile. The program has ended, but its other threads are still running.
    pub(super) fn export_cache(&self, cores: &Cores) {
        let Some(file) = &self.cache else { return };
        if self.is_forked.load(Ordering::Acquire) || self.area_switches.load(Ordering::SeqCst) > 0 {
            return;
        }
        // Stop the other threads, because the export takes some time.
        self.is_over.store(true, Ordering::Release);
        cores.request_attention();
        self.forget_noted(cores);
        let engine = self.engine();
        let size = engine.export_size();
        let capacity_words = (self.layout.code.end - self.layout.code.start) / WORD_BYTES;
        if 2 * size.stale > size.all || MAX_OF_ROOM * size.all > capacity_words {
            return file.remove();
        }
        if size.new == 0 || MAX_TOTAL_PER_NEW * size.new < size.all {
            return;
        }
        let content = engine.export(&self.view(cores)).and_then(|units| {
            let (regions, code) = cores.code().export()?;
            Some(Content { units, regions, code: code.into() })
        });
        drop(engine);
        if let Some(content) = content {
            // A failure is harmless: the code is translated again.
            let _ = file.write(&content);
        }
    }
}
