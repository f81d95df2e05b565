//! A channel of the interconnect: one direction of a crossbar port or of a link, or a whole bus.

use super::BUCKET;
use longma_sim::{Duration, Resource, Served, Statistics, StatisticsError, Time};

/// A resource that data crosses in one direction: one set of wires, or several in parallel.
#[derive(Clone, Debug)]
pub struct Channel {
    name: String,
    /// Parallel links between the same ends, used round robin.
    lanes: Vec<Resource>,
    turn: usize,
}

impl Channel {
    pub(super) fn new(name: String, bytes_per_second: u64) -> Self {
        Self { name, lanes: vec![Resource::new(bytes_per_second, BUCKET)], turn: 0 }
    }

    /// Adds a parallel link.
    pub(super) fn add_lane(&mut self, bytes_per_second: u64) {
        self.lanes.push(Resource::new(bytes_per_second, BUCKET));
    }

    #[inline]
    pub(super) fn serve(&mut self, at: Time, bytes: u32) -> Served {
        let lane = self.turn;
        self.turn = if lane + 1 == self.lanes.len() { 0 } else { lane + 1 };
        self.lanes[lane].serve(at, bytes, Duration::ZERO)
    }

    /// Time to transfer `bytes` on the slowest of the parallel links, picoseconds.
    pub(super) fn service_ps(&self, bytes: u32) -> u64 {
        self.lanes.iter().map(|lane| lane.service(bytes).ps()).max().unwrap_or(0)
    }

    /// The name, such as `chip0.x1.core0.in`: `in` is into the crossbar, `out` out of it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The total rate of all parallel links, bytes per second.
    pub fn bytes_per_second(&self) -> u64 {
        self.lanes.iter().map(Resource::bytes_per_second).sum()
    }

    /// Total bytes transferred.
    pub fn bytes(&self) -> u64 {
        self.lanes.iter().map(Resource::bytes).sum()
    }

    /// Fraction of `elapsed` during which the channel was busy, 0 to 1 (slightly more while transfers are in progress).
    pub fn utilisation(&self, elapsed: Duration) -> f64 {
        let busy: u64 = self.lanes.iter().map(|lane| lane.busy().ps()).sum();
        busy as f64 / (elapsed.ps().max(1) as f64 * self.lanes.len() as f64)
    }

    pub(crate) fn lanes(&mut self) -> &mut [Resource] {
        &mut self.lanes
    }

    pub(super) fn clear_statistics(&mut self) {
        self.lanes.iter_mut().for_each(Resource::clear_statistics);
    }

    pub(super) fn report(
        &self,
        statistics: &mut Statistics,
        below: &str,
        elapsed: Duration,
    ) -> Result<(), StatisticsError> {
        let name = format!("{below}.{}", self.name);
        match &self.lanes[..] {
            [lane] => lane.report(statistics, &name, elapsed),
            lanes => lanes
                .iter()
                .enumerate()
                .try_for_each(|(i, lane)| lane.report(statistics, &format!("{name}.lane{i}"), elapsed)),
        }
    }
}
