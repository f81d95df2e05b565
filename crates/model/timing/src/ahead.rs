//! A look ahead into a trace: which memory the models will ask for soon, so that the host can get ready for it.
//! Not a part of what is modelled: it changes the host's time alone.
//! Source: prefetching for pointer-based structures, Mowry, Lam and Gupta (ASPLOS 1992), where addresses are known in advance.

use longma_memory::MemoryPort;
use longma_trace::{Record, Trace};

/// Accesses to look ahead: a few of the host's misses take as long as modelling this many.
const ACCESSES: usize = 12;

/// The accesses ahead of the record that is being modelled.
pub(crate) struct Ahead<R> {
    /// The records whose accesses have not been noticed; `None` if nobody wants to know.
    records: Option<R>,
    /// Accesses noticed beyond those that were modelled.
    ahead: usize,
}

/// What is ahead at the beginning of `trace`, if it is `wanted`.
pub(crate) fn of(trace: &Trace, wanted: bool) -> Ahead<impl Iterator<Item = Record<'_>>> {
    Ahead { records: wanted.then(|| trace.records()), ahead: 0 }
}

impl<'a, R: Iterator<Item = Record<'a>>> Ahead<R> {
    /// `record` is about to be modelled.
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
