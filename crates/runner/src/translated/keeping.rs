//! What a process takes up of earlier runs of its program, and what it leaves for later ones.
//! Not the files (`cache.rs`).

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::Ordering;

use longma_linux::Process;
use longma_translate::front_end::FrontEnd;
use longma_translate::parts::{Part, Parts};

use super::cache::{CacheFile, Content};
use super::{HOT, Translated};
use crate::cores::Cores;

/// What is new is worth being kept if all that there is is no more than so many times as much: most runs have some code that no other has.
const WORTH_KEEPING: u64 = 100;

/// All that is kept takes no more than this part of the room for translated code; with more it is begun anew.
const MOST_OF_ROOM: u64 = 8;

const WORD_BYTES: u64 = 4;

/// The file of a process's program, if its code is such that another process can take it up.
pub(super) fn file_of<F: FrontEnd>(
    process: &Process,
    [folder, root]: [&Path; 2],
    parts: Parts,
    layout: &str,
) -> Option<CacheFile> {
    if !parts.has(Part::Table) || !parts.has(Part::Units) || process.simulation().is_some() {
        return None;
    }
    let program =
        [OsStr::new(F::NAME), root.as_os_str(), process.executable().as_os_str(), OsStr::new(layout)];
    let parts = parts.to_string();
    let is_based = !process.memory().base().is_null();
    CacheFile::of(folder, &program, &[F::NAME.into(), parts, layout.into(), format!("{HOT} {is_based}")])
}

impl<F: FrontEnd> Translated<F> {
    /// Takes up what earlier runs have kept. No thread runs.
    pub(super) fn take_up_kept(&self, cores: &Cores) {
        let Some(content) = self.cache.as_ref().and_then(CacheFile::read) else { return };
        let Content { units, regions, code } = content;
        if self.engine().take_up(units) {
            // The units are of use without the host's code.
            let _ = cores.code().import(&regions, &code);
        }
    }

    /// Keeps what has been translated, if it is worth it. The program is over, which other threads do not know.
    pub(super) fn keep(&self, cores: &Cores) {
        let Some(file) = &self.cache else { return };
        if self.is_forked.load(Ordering::Acquire) || self.turns.load(Ordering::SeqCst) > 0 {
            return;
        }
        // What is kept takes a while, in which they would go on.
        self.is_over.store(true, Ordering::Release);
        cores.request_all();
        self.forget_noted(cores);
        let engine = self.engine();
        let amount = engine.amount();
        let room = (self.layout.code.end - self.layout.code.start) / WORD_BYTES;
        if 2 * amount.useless > amount.all || MOST_OF_ROOM * amount.all > room {
            return file.remove();
        }
        if amount.new == 0 || WORTH_KEEPING * amount.new < amount.all {
            return;
        }
        let content = engine.keep(&self.view(cores)).and_then(|units| {
            let (regions, code) = cores.code().export()?;
            Some(Content { units, regions, code: code.into() })
        });
        drop(engine);
        if let Some(content) = content {
            // A cache: what cannot be kept is translated once more.
            let _ = file.write(&content);
        }
    }
}
