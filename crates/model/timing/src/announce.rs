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
pub(crate) struct Ahead<R> {
    /// Records whose accesses have not been announced; `None` if the memory model does not want announcements.
    records: Option<R>,
    /// Accesses announced but not yet modelled.
    ahead: usize,
}

/// Starts at the beginning of `trace`; does nothing unless `wanted`.
pub(crate) fn of(trace: &Trace, wanted: bool) -> Ahead<impl Iterator<Item = Record<'_>>> {
    Ahead { records: wanted.then(|| trace.records()), ahead: 0 }
}

impl<'a, R: Iterator<Item = Record<'a>>> Ahead<R> {
    /// Announces accesses before `record` is modelled.
    #[inline]
    pub fn reach(&mut self, record: &Record<'_>, port: &mut impl MemoryPort) {
        let Some(records) = &mut self.records else { return };
        while self.ahead < ACCESSES + record.addresses.len() {
            let Some(next) = records.next() else { break };
            next.addresses.iter().for_each(|address| port.notice(*address));
            self.ahead += next.addresses.len();
        }
        self.ahead = self.ahead.saturating_sub(record.addresses.len());
    }
}
