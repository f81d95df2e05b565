//! A prefetcher as a WebAssembly module.

use super::{Event, Limits, MAX_DEGREE, Prediction, PrefetchAlgorithm};
use crate::cache::Line;
use longma_plugin::{Geometry, PluginError, PrefetcherPlugin};
use longma_topology::parts::Prefetcher as Parameters;

const _: () = assert!(MAX_DEGREE as usize == longma_plugin::MAX_LINES);

#[derive(Debug)]
pub(super) struct Plugin(PrefetcherPlugin);

impl Plugin {
    pub(super) fn new(
        parameters: &Parameters,
        line_bytes: u32,
        page_lines: u64,
    ) -> Result<Self, PluginError> {
        let Parameters { degree, distance, streams, .. } = *parameters;
        let geometry = Geometry { line_bytes, page_lines, degree, distance, streams };
        let module = parameters.module.as_ref().map(|module| module.bytes()).unwrap_or_default();
        PrefetcherPlugin::new(module, geometry).map(Self)
    }
}

impl PrefetchAlgorithm for Plugin {
    fn observe(&mut self, line: Line, instruction: u64, limits: Limits) -> Prediction {
        self.observe_event(line, instruction, Event::Miss, limits)
    }

    fn observe_event(&mut self, line: Line, instruction: u64, event: Event, limits: Limits) -> Prediction {
        let mut prediction = Prediction::default();
        for requested in self.0.observe(line.0, instruction, event) {
            limits.append(&mut prediction, line, requested.wrapping_sub(line.0) as i64);
        }
        prediction
    }

    fn truncated(&mut self, from: Line) {
        self.0.truncated(from.0);
    }

    fn sees_hits(&self) -> bool {
        true
    }

    fn failure(&self) -> Option<&PluginError> {
        self.0.failure()
    }
}
