//! Which record an operation is for.
//! Not which operation: see `workload`.
//! Source: YCSB's CoreWorkload and its generators.

use super::{Chance, ScrambledZipfian, Zipfian};
use serde::{Deserialize, Serialize};

/// How records are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Each record as often as any other.
    Uniform,
    /// Few records very often, lying anywhere (YCSB's "zipfian" is the scrambled one).
    Zipfian,
    /// The newest records most often.
    Latest,
    /// Four fifths of the operations on the first fifth of the records.
    Hotspot,
    /// The newest records most often, falling off exponentially: 95 of 100 operations on the newest 6/7.
    Exponential,
}

/// YCSB's defaults: hotspotdatafraction and hotspotopnfraction, exponential.percentile and exponential.frac.
const HOT_RECORDS: f64 = 0.2;
const HOT_OPERATIONS: f64 = 0.8;
const EXPONENTIAL_PERCENTILE: f64 = 95.0;
const EXPONENTIAL_PART: f64 = 0.857_142_857_1;

/// Chooses records by a distribution.
#[derive(Clone, Debug)]
pub struct Chooser(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Uniform { records: u64 },
    Zipfian(ScrambledZipfian),
    Latest(Zipfian),
    Hotspot { hot: u64, cold: u64 },
    Exponential { gamma: f64 },
}

impl Chooser {
    /// Chooses among `records` that were loaded; `expected` more may be inserted. Of these distributions only the zipfian one has
    /// room for them from the start, as in YCSB (twice those that the mixture leads to expect).
    pub fn new(distribution: Distribution, records: u64, expected: u64) -> Self {
        let records = records.max(1);
        let hot = (records as f64 * HOT_RECORDS) as u64;
        Self(match distribution {
            Distribution::Uniform => Kind::Uniform { records },
            Distribution::Zipfian => Kind::Zipfian(ScrambledZipfian::new(records + expected + 1)),
            Distribution::Latest => Kind::Latest(Zipfian::new(records)),
            Distribution::Hotspot => Kind::Hotspot { hot: hot.max(1), cold: records - hot.min(records - 1) },
            Distribution::Exponential => {
                let range = records as f64 * EXPONENTIAL_PART;
                Kind::Exponential { gamma: -(1.0 - EXPONENTIAL_PERCENTILE / 100.0).ln() / range }
            }
        })
    }

    /// A record from 0 to `newest`, the number of the newest one.
    pub fn choose(&mut self, newest: u64, chance: &mut Chance) -> u64 {
        // As in YCSB, what is out of range is drawn again.
        loop {
            let record = match &mut self.0 {
                Kind::Uniform { records } => Some(chance.below(*records)),
                Kind::Zipfian(zipfian) => Some(zipfian.next(chance)),
                Kind::Latest(zipfian) => newest.checked_sub(zipfian.next_of(newest.max(1), chance)),
                Kind::Hotspot { hot, cold } => Some(match chance.fraction() < HOT_OPERATIONS {
                    true => chance.below(*hot),
                    false => *hot + chance.below(*cold),
                }),
                Kind::Exponential { gamma } => {
                    newest.checked_sub((-chance.fraction().max(f64::MIN_POSITIVE).ln() / *gamma) as u64)
                }
            };
            if let Some(record) = record.filter(|&record| record <= newest) {
                return record;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDS: u64 = 10_000;

    /// The share of draws that `inside` accepts.
    fn share(distribution: Distribution, newest: u64, inside: impl Fn(u64) -> bool) -> f64 {
        let (mut chooser, mut chance) = (Chooser::new(distribution, RECORDS, 0), Chance::new(9));
        let draws = 100_000;
        let hits = (0..draws).map(|_| chooser.choose(newest, &mut chance));
        hits.filter(|&record| record <= newest && inside(record)).count() as f64 / f64::from(draws)
    }

    #[test]
    fn every_distribution_has_its_shape() {
        let newest = RECORDS - 1;
        let near = |share: f64, expected: f64| (share - expected).abs() < 0.01;
        assert!(near(share(Distribution::Uniform, newest, |record| record < RECORDS / 4), 0.25));
        assert!(near(share(Distribution::Hotspot, newest, |record| record < RECORDS / 5), 0.8));
        // Of the exponential draws 95 % are in the newest 6/7, and what is out of range is drawn again.
        let (part, all) = (0.95, 1.0 - (0.05f64).powf(1.0 / EXPONENTIAL_PART));
        let newest_part = (RECORDS as f64 * EXPONENTIAL_PART) as u64;
        assert!(near(
            share(Distribution::Exponential, newest, |record| newest - record < newest_part),
            part / all
        ));
        // The newest record: one of zeta(10^4, 0.99).
        let latest = share(Distribution::Latest, newest, |record| record == newest);
        assert!(near(latest, 1.0 / 10.224), "{latest}");
    }

    #[test]
    fn latest_follows_the_inserts() {
        let grown = RECORDS * 2;
        assert!(share(Distribution::Latest, grown, |record| record > RECORDS) > 0.8);
    }
}
