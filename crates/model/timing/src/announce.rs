//! Announces the memory accesses of upcoming trace records to the memory model, so that it can prefetch its tables on
//! the host. Has no effect on modelled state.
//!
//! Source: prefetching for pointer-based structures, Mowry, Lam and Gupta (ASPLOS 1992), for addresses known in
//! advance.

use longma_memory::MemoryPort;
use longma_trace::{Record, Trace};

/// Accesses to announce in advance: modelling this many takes about as long as a few cache misses of the host.
const ACCESSES: usize = 12;

/// An iterator that runs ahead of the record being modelled.
pub(crate) struct Announcer<R> {
    /// Records whose accesses have not been announced; `None` if the memory model does not use announcements.
    records: Option<R>,
    /// Accesses announced but not yet modelled.
    announced: usize,
}

/// Starts at the beginning of `trace`; does nothing unless `is_enabled`.
pub(crate) fn announcer(trace: &Trace, is_enabled: bool) -> Announcer<impl Iterator<Item = Record<'_>>> {
    Announcer { records: is_enabled.then(|| trace.records()), announced: 0 }
}

impl<'a, R: Iterator<Item = Record<'a>>> Announcer<R> {
    /// Announces accesses before `record` is modelled.
    #[inline]
    pub fn before(&mut self, record: &Record<'_>, port: &mut impl MemoryPort) {
        let Some(records) = &mut self.records else { return };
        while self.announced < ACCESSES + record.addresses.len() {
            let Some(next) = records.next() else { break };
            next.addresses.iter().for_each(|address| port.announce(*address));
            self.announced += next.addresses.len();
        }
        self.announced = self.announced.saturating_sub(record.addresses.len());
    }
}
