//! Units of metrics: which quantity a unit measures, and its size. A word that is not a unit of a quantity, such as
//! `cycles`, counts something.
//!
//! Source: SI Brochure, 9th edition (prefixes); IEC 80000-13 (bit, byte, binary prefixes).

use std::collections::BTreeMap;

/// A parsed unit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unit {
    /// Its size in seconds, bits and operations.
    pub(crate) factor: f64,
    /// Exponents of seconds, bits and floating-point operations; empty for a number.
    dimensions: BTreeMap<&'static str, i32>,
    /// Whether words are part of it, such as `misses`.
    counts: bool,
}

/// How a measured value converts to the unit in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Conversion {
    /// The value times this number is in the unit of the file.
    By(f64),
    /// The units measure different quantities.
    Impossible,
    /// At least one unit counts something, and whether both count the same thing cannot be determined.
    Unknown,
}

impl Unit {
    /// A number.
    pub(crate) fn one() -> Self {
        Self { factor: 1.0, dimensions: BTreeMap::new(), counts: false }
    }

    /// Parses a unit such as `MB/s`, `10^6 cycles/Gbit` or `misses`. `None` if there is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut unit = Self::one();
        if text.trim().is_empty() {
            return None;
        }
        for (index, part) in text.split('/').enumerate() {
            for word in part.split_whitespace() {
                unit = unit.times(&Self::of_word(word), if index == 0 { 1 } else { -1 });
            }
        }
        Some(unit)
    }

    fn of_word(word: &str) -> Self {
        let number = match word.split_once('^') {
            Some((base, power)) => base.parse::<f64>().ok().zip(power.parse().ok()).map(|(b, p)| b.powi(p)),
            None => word.parse().ok(),
        };
        if let Some(factor) = number.filter(|factor: &f64| factor.is_finite() && *factor > 0.0) {
            return Self { factor, ..Self::one() };
        }
        if word == "%" {
            return Self { factor: 0.01, ..Self::one() };
        }
        for (name, dimension, power, size) in BASES {
            let Some(factor) = word.strip_suffix(name).and_then(prefix) else { continue };
            let dimensions = BTreeMap::from([(dimension, power)]);
            return Self { factor: factor * size, dimensions, counts: false };
        }
        Self { counts: true, ..Self::one() }
    }

    /// The product with `other`, raised to `power`.
    pub(crate) fn times(&self, other: &Self, power: i32) -> Self {
        let mut dimensions = self.dimensions.clone();
        for (name, exponent) in &other.dimensions {
            *dimensions.entry(name).or_default() += exponent * power;
        }
        dimensions.retain(|_, exponent| *exponent != 0);
        let factor = self.factor * other.factor.powi(power);
        Self { factor, dimensions, counts: self.counts || other.counts }
    }

    /// Whether both measure the same quantity.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.dimensions == other.dimensions
    }

    /// How a value in this unit becomes one in the unit `to`.
    pub(crate) fn conversion(&self, to: &Self) -> Conversion {
        match self.is_like(to) {
            false => Conversion::Impossible,
            true if to.dimensions.is_empty() && to.counts => Conversion::Unknown,
            true => Conversion::By(self.factor / to.factor),
        }
    }
}

/// Names of units with their dimension, its exponent, and their size.
const BASES: [(&str, &str, i32, f64); 6] = [
    ("flop", "operation", 1, 1.0),
    ("bit", "bit", 1, 1.0),
    ("Hz", "second", -1, 1.0),
    ("B", "bit", 1, 8.0),
    ("b", "bit", 1, 1.0),
    ("s", "second", 1, 1.0),
];

/// The size of a prefix. `None` if `text` is not a prefix.
fn prefix(text: &str) -> Option<f64> {
    Some(match text {
        "" => 1.0,
        "p" => 1e-12,
        "n" => 1e-9,
        "u" | "µ" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        "Ti" => 1_099_511_627_776.0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn into(from: &str, to: &str) -> Conversion {
        Unit::parse(from).unwrap().conversion(&Unit::parse(to).unwrap())
    }

    #[test]
    fn a_unit_converts_into_another_of_the_same_quantity() {
        let near = |from: &str, to: &str, factor: f64| match into(from, to) {
            Conversion::By(found) => assert!((found / factor - 1.0).abs() < 1e-12, "{from} in {to}: {found}"),
            other => panic!("{from} in {to}: {other:?}"),
        };
        near("ps", "s", 1e-12);
        near("MB/s", "Gb/s", 0.008);
        near("KiB", "B", 1024.0);
        near("messages/s", "10^3/s", 1e-3);
        near("nodes", "10^6", 1e-6);
        near("share", "%", 100.0);
        near("10^6 instructions/s", "instructions/us", 1.0);
    }

    #[test]
    fn different_quantities_are_not_converted_and_conversions_of_counts_are_unknown() {
        assert_eq!(into("us", "MB"), Conversion::Impossible);
        assert_eq!(into("accesses", "ns"), Conversion::Impossible);
        assert_eq!(into("accesses", "misses"), Conversion::Unknown);
        assert_eq!(into("accesses", "misses a step"), Conversion::Unknown);
        assert_eq!(Unit::parse(" "), None);
    }
}
