//! Zipfian random numbers by Gray's formula, plain and scrambled.
//!
//! Source: Gray et al., SIGMOD 1994, section 3.2; YCSB's ZipfianGenerator and ScrambledZipfianGenerator.

use super::{Rng, scatter};

/// YCSB's skew.
const THETA: f64 = 0.99;

/// The number of items of YCSB's scrambled generator, and its zeta, which would take minutes to compute.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// Generates ranks from 0, the most frequent one, to the number of items minus one.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    /// The number of items for which `zeta` and `eta` were computed. It grows with the number of items requested.
    counted: u64,
    zeta: f64,
    zeta_of_two: f64,
    alpha: f64,
    eta: f64,
}

/// Adds 1 / i^theta for i from `from` + 1 to `to` to `sum`.
fn zeta(from: u64, to: u64, sum: f64) -> f64 {
    (from..to).fold(sum, |sum, i| sum + 1.0 / ((i + 1) as f64).powf(THETA))
}

impl Zipfian {
    /// Creates a generator for `items` items, at least one, with theta 0.99. Takes time proportional to `items`.
    pub fn new(items: u64) -> Self {
        Self::with_zeta(items.max(1), zeta(0, items.max(1), 0.0))
    }

    fn with_zeta(items: u64, zeta_of_items: f64) -> Self {
        let zeta_of_two = zeta(0, 2, 0.0);
        let mut zipfian = Self {
            items,
            counted: items,
            zeta: zeta_of_items,
            zeta_of_two,
            alpha: 1.0 / (1.0 - THETA),
            eta: 0.0,
        };
        zipfian.set_eta();
        zipfian
    }

    fn set_eta(&mut self) {
        self.eta = (1.0 - (2.0 / self.items as f64).powf(1.0 - THETA)) / (1.0 - self.zeta_of_two / self.zeta);
    }

    /// Draws a rank.
    pub fn next(&mut self, rng: &mut Rng) -> u64 {
        self.rank(self.items, rng.fraction())
    }

    /// Draws a rank among `items`, which may have grown since the last call: the sum is extended. As in YCSB, `eta`
    /// then combines the original number of items with the new sum, and a smaller number of items changes neither.
    pub fn next_of(&mut self, items: u64, rng: &mut Rng) -> u64 {
        if items > self.counted {
            self.zeta = zeta(self.counted, items, self.zeta);
            self.counted = items;
            self.set_eta();
        }
        self.rank(items, rng.fraction())
    }

    fn rank(&self, items: u64, u: f64) -> u64 {
        let uz = u * self.zeta;
        if uz < 1.0 {
            0
        } else if uz < 1.0 + 0.5f64.powf(THETA) {
            1
        } else {
            (items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
        }
    }
}

/// Zipfian ranks over 10^10 items, hashed to `items` by FNV-1a, so that the frequent items are scattered.
#[derive(Clone, Debug)]
pub struct ScrambledZipfian {
    ranks: Zipfian,
    items: u64,
}

impl ScrambledZipfian {
    /// Creates a generator for `items` items, at least one.
    pub fn new(items: u64) -> Self {
        // YCSB's range is 0 to 10^10 inclusive.
        Self { ranks: Zipfian::with_zeta(SCRAMBLED_ITEMS + 1, SCRAMBLED_ZETA), items: items.max(1) }
    }

    /// Draws an item.
    pub fn next(&mut self, rng: &mut Rng) -> u64 {
        scatter(self.ranks.next(rng)) % self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeta_matches_published_values() {
        // Generalized harmonic numbers for theta 0.99.
        assert!((zeta(0, 1, 0.0) - 1.0).abs() < 1e-12);
        assert!((zeta(0, 2, 0.0) - 1.503_477_775_028_3).abs() < 1e-9);
        // Euler-Maclaurin: zeta(n) = zeta(0.99) + n^0.01 / 0.01 + n^-0.99 / 2, with Riemann's zeta(0.99) = -99.42351.
        // At 10^10 this is YCSB's constant.
        let estimate = |n: f64| -99.423_513_2 + n.powf(0.01) / 0.01 + n.powf(-0.99) / 2.0;
        assert!((estimate(1e10) - SCRAMBLED_ZETA).abs() < 1e-4, "{}", estimate(1e10));
        assert!((estimate(1e6) - zeta(0, 1_000_000, 0.0)).abs() < 1e-4);
    }

    #[test]
    fn ranks_follow_zipfs_law() {
        let (mut zipfian, mut rng) = (Zipfian::new(1_000), Rng::new(42));
        let (draws, mut seen) = (400_000, vec![0u32; 1_000]);
        for _ in 0..draws {
            seen[zipfian.next(&mut rng) as usize] += 1;
        }
        let expected = |rank: usize| f64::from(draws) / ((rank + 1) as f64).powf(THETA) / zipfian.zeta;
        // Gray's formula is exact for the first two ranks and an approximation for the others.
        for rank in [0, 1] {
            assert!(
                (f64::from(seen[rank]) / expected(rank) - 1.0).abs() < 0.02,
                "rank {rank}: {}",
                seen[rank]
            );
        }
        let (head, tail): (u32, u32) = (seen[..100].iter().sum(), seen[100..].iter().sum());
        let expected_head: f64 = (0..100).map(expected).sum();
        assert!((f64::from(head) / expected_head - 1.0).abs() < 0.03 && head + tail == draws);
    }

    #[test]
    fn a_growing_number_of_items_gives_the_same_distribution() {
        let (mut grown, known) = (Zipfian::new(100), Zipfian::new(5_000));
        let mut rng = Rng::new(1);
        assert!((0..5_000).all(|_| grown.next_of(5_000, &mut rng) < 5_000));
        assert!((grown.zeta - known.zeta).abs() < 1e-9);
    }

    #[test]
    fn the_hottest_scrambled_item_is_where_fnv_puts_rank_0() {
        let (mut scrambled, mut rng) = (ScrambledZipfian::new(1_000_000), Rng::new(3));
        let hottest = scatter(0) % 1_000_000;
        let draws = 100_000;
        let hits = (0..draws).filter(|_| scrambled.next(&mut rng) == hottest).count();
        let expected = f64::from(draws) / SCRAMBLED_ZETA;
        assert!((hits as f64 / expected - 1.0).abs() < 0.05, "{hits} of {expected}");
    }
}
