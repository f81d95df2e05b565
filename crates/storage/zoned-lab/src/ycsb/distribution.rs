//! The choice of the record for an operation.
//!
//! Source: YCSB's CoreWorkload and its generators.

use super::{Rng, ScrambledZipfian, Zipfian};
use serde::{Deserialize, Serialize};

/// The distribution of accesses over records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// All records are equally likely.
    Uniform,
    /// A few records, scattered over the key space, are accessed very often (YCSB's "zipfian" is the scrambled
    /// variant).
    Zipfian,
    /// The newest records are accessed most often.
    Latest,
    /// The first fifth of the records gets four fifths of the accesses.
    Hotspot,
    /// The newest records are accessed most often, with exponential decay: 95 % of the accesses go to the newest 6/7.
    Exponential,
}

/// YCSB's defaults: hotspotdatafraction and hotspotopnfraction, exponential.percentile and exponential.frac.
const HOT_RECORDS: f64 = 0.2;
const HOT_OPERATIONS: f64 = 0.8;
const EXPONENTIAL_PERCENTILE: f64 = 95.0;
const EXPONENTIAL_PART: f64 = 0.857_142_857_1;

/// Chooses records according to a distribution.
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
    /// Creates a chooser for `records` loaded records, with `expected` inserts to follow. Only the zipfian distribution
    /// includes the expected inserts from the start, as in YCSB (which uses twice the expected number).
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

    /// Chooses a record from 0 to `newest`, the number of the newest record.
    pub fn choose(&mut self, newest: u64, rng: &mut Rng) -> u64 {
        // As in YCSB, out-of-range results are drawn again.
        loop {
            let record = match &mut self.0 {
                Kind::Uniform { records } => Some(rng.below(*records)),
                Kind::Zipfian(zipfian) => Some(zipfian.next(rng)),
                Kind::Latest(zipfian) => newest.checked_sub(zipfian.next_of(newest.max(1), rng)),
                Kind::Hotspot { hot, cold } => Some(match rng.fraction() < HOT_OPERATIONS {
                    true => rng.below(*hot),
                    false => *hot + rng.below(*cold),
                }),
                Kind::Exponential { gamma } => {
                    newest.checked_sub((-rng.fraction().max(f64::MIN_POSITIVE).ln() / *gamma) as u64)
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

    /// The fraction of draws that satisfy `inside`.
    fn share(distribution: Distribution, newest: u64, inside: impl Fn(u64) -> bool) -> f64 {
        let (mut chooser, mut rng) = (Chooser::new(distribution, RECORDS, 0), Rng::new(9));
        let draws = 100_000;
        let hits = (0..draws).map(|_| chooser.choose(newest, &mut rng));
        hits.filter(|&record| record <= newest && inside(record)).count() as f64 / f64::from(draws)
    }

    #[test]
    fn every_distribution_has_its_shape() {
        let newest = RECORDS - 1;
        let near = |share: f64, expected: f64| (share - expected).abs() < 0.01;
        assert!(near(share(Distribution::Uniform, newest, |record| record < RECORDS / 4), 0.25));
        assert!(near(share(Distribution::Hotspot, newest, |record| record < RECORDS / 5), 0.8));
        // 95 % of the exponential draws are in the newest 6/7. The rest includes out-of-range draws, which are
        // repeated.
        let (part, all) = (0.95, 1.0 - (0.05f64).powf(1.0 / EXPONENTIAL_PART));
        let newest_part = (RECORDS as f64 * EXPONENTIAL_PART) as u64;
        assert!(near(
            share(Distribution::Exponential, newest, |record| newest - record < newest_part),
            part / all
        ));
        // The newest record has a share of 1 / zeta(10^4, 0.99).
        let latest = share(Distribution::Latest, newest, |record| record == newest);
        assert!(near(latest, 1.0 / 10.224), "{latest}");
    }

    #[test]
    fn latest_follows_the_inserts() {
        let grown = RECORDS * 2;
        assert!(share(Distribution::Latest, grown, |record| record > RECORDS) > 0.8);
    }
}
