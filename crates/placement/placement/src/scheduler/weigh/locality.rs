//! Prefers nodes that can hold all of the memory locally.

use super::{Candidate, NodeWeigher, Weights};
use crate::scheduler::filter::free_mib;

pub(crate) struct Locality;

impl NodeWeigher for Locality {
    fn name(&self) -> &'static str {
        "locality"
    }
    fn weigh(&self, c: &Candidate<'_>) -> f32 {
        let own = free_mib(c.host, c.at, c.demand.page_kib).min(c.cell.mib);
        own as f32 / c.cell.mib.max(1) as f32
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.locality
    }
}
