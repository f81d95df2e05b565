//! Points that differ only in parameters that repeat a measurement, such as the seed, as one row: means with confidence
//! intervals.

use crate::campaign::Campaign;
use crate::experiment::Experiment;
use crate::table::{Row, Table};
use longma_confidence::Interval;
use std::collections::{BTreeMap, HashMap};

impl Experiment {
    /// Whether the parameter called `name` repeats a measurement.
    pub(crate) fn is_replicate(&self, name: &str) -> bool {
        self.parts().replicates.iter().any(|replicate| **replicate == *name)
    }
}

/// The points of `campaign` in groups that differ only in replicates, in the order of their first points.
pub(crate) fn groups(campaign: &Campaign<'_>) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut known: HashMap<Vec<String>, usize> = HashMap::new();
    for (index, point) in campaign.points.iter().enumerate() {
        let kept = point.varied.iter().filter(|(name, _)| !campaign.experiment.is_replicate(name));
        let place: Vec<_> = kept.map(|(_, value)| value.to_string()).collect();
        let group = *known.entry(place).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(index);
    }
    groups
}

impl Table {
    /// Whether the replicates change nothing: at every point with several runs, all have the same values. `None` if no
    /// point has several. The interval of a mean of equal values carries no information about the measurement.
    pub fn repeats_itself(&self, campaign: &Campaign<'_>) -> Option<bool> {
        let by_key: BTreeMap<_, _> = self.rows.iter().map(|row| (&row.key, row)).collect();
        let mut several = None;
        for group in groups(campaign) {
            let keys = group.iter().map(|point| &campaign.points[*point].key);
            let rows: Vec<&Row> = keys.filter_map(|key| by_key.get(key).copied()).collect();
            if rows.iter().filter(|row| row.failure.is_none()).count() > 1 {
                let same = rows.iter().all(|row| row.values == rows[0].values);
                several = Some(several.unwrap_or(true) && same);
            }
        }
        several
    }

    /// The table with one row for all points that differ only in the experiment's `replicates`: the mean of their
    /// values. Its key is the key of the first of these points. Returns the same table if the experiment has no
    /// replicates.
    pub fn summarized(&self, campaign: &Campaign<'_>) -> Self {
        if campaign.experiment.parts().replicates.is_empty() {
            return self.clone();
        }
        let by_key: BTreeMap<_, _> = self.rows.iter().map(|row| (&row.key, row)).collect();
        let kept: Vec<usize> = (0..self.parameters.len())
            .filter(|index| !campaign.experiment.is_replicate(&self.parameters[*index]))
            .collect();
        let rows = groups(campaign).into_iter().filter_map(|group| {
            let keys: Vec<_> = group.iter().map(|point| &campaign.points[*point].key).collect();
            let rows: Vec<&Row> = keys.iter().filter_map(|key| by_key.get(key).copied()).collect();
            let first = *rows.first()?;
            let interval = |metric: usize| {
                let values: Vec<f64> = rows.iter().filter_map(|row| row.values[metric]).collect();
                // Runs also differ by their samples. A single run has only the interval of its sample.
                let sampled = || rows.iter().find_map(|row| row.interval(metric));
                Interval::of(&values).map(|mean| match values.len() {
                    1 => sampled().unwrap_or(mean),
                    _ => mean,
                })
            };
            let intervals: Vec<_> = (0..self.metrics.len()).map(interval).collect();
            let all_failed = rows.iter().all(|row| row.failure.is_some());
            Some(Row {
                key: keys[0].clone(),
                machine: first.machine.clone(),
                settings: kept.iter().map(|index| first.settings[*index].clone()).collect(),
                values: intervals.iter().map(|interval| interval.map(|interval| interval.mean)).collect(),
                intervals,
                replicates: group.len(),
                failure: first.failure.clone().filter(|_| all_failed),
                shortened: rows.iter().any(|row| row.shortened),
            })
        });
        Self {
            parameters: kept.iter().map(|index| self.parameters[*index].clone()).collect(),
            rows: rows.collect(),
            ..self.clone()
        }
    }
}
