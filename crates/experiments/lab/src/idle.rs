//! Finds swept parameters that change nothing, such as a key of the machine that the workload does not use.

use crate::campaign::Campaign;
use crate::point::Point;
use crate::store::{Record, Results};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

impl Campaign<'_> {
    /// Swept parameters without effect: all points that differ only in them have the same results. Parameters of one
    /// `[[zip]]` are one entry. Those with a single value, replicates, and those without two such points are left out.
    pub fn idle_parameters(&self, results: &Results) -> Vec<Vec<String>> {
        let axes = self.experiment.axes_of(self.quick);
        let is_replicate = |axis: &Vec<String>| axis.iter().any(|name| self.experiment.is_replicate(name));
        axes.into_iter().filter(|axis| !is_replicate(axis) && self.is_idle(axis, results)).collect()
    }

    fn is_idle(&self, axis: &[String], results: &Results) -> bool {
        let is_on_axis = |name: &String| axis.contains(name);
        // The values of the axis and the results of the first point of each group.
        let mut groups: HashMap<u64, (u64, u64)> = HashMap::new();
        let mut has_pair = false;
        for point in &self.points {
            let Some(record) = results.get(&point.key).filter(|record| record.failure.is_none()) else {
                continue;
            };
            let group = settings(point, &|name| !is_on_axis(name));
            let (here, result) = (settings(point, &is_on_axis), result(record));
            let first = groups.entry(group).or_insert((here, result));
            if first.1 != result {
                return false;
            }
            has_pair |= first.0 != here;
        }
        has_pair
    }
}

/// A hash of those settings of a point whose names are `wanted`.
fn settings(point: &Point, wanted: &dyn Fn(&String) -> bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    let varied = point.varied.iter().filter(|(name, _)| wanted(name));
    varied.for_each(|(_, value)| value.to_string().hash(&mut hasher));
    hasher.finish()
}

/// A hash of the metrics that do not depend on the host.
fn result(record: &Record) -> u64 {
    let mut hasher = DefaultHasher::new();
    record.metrics.iter().for_each(|(name, value)| (name, value.to_bits()).hash(&mut hasher));
    hasher.finish()
}
