//! A set of CPUs in the kernel's file formats: a list "0-3,8" or a mask "1,0000000f".
//!
//! Source: Linux Documentation/admin-guide/cputopology.rst (lists), lib/bitmap.c's `%*pb` (masks).

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Exclusive upper bound of CPU numbers. It is higher than Linux supports, so a list that exceeds it is corrupt.
pub const MAX_CPU: u32 = 8192;

/// A set of CPU numbers below [`MAX_CPU`]. Serialized as a list such as "0-3,8".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<u32>);

/// A text that is not a valid CPU set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a {form} with numbers below {MAX_CPU}", longma_topology::sanitize(text))]
pub struct CpuSetError {
    text: String,
    form: &'static str,
}

impl CpuSet {
    /// The set with one CPU.
    pub fn one(cpu: u32) -> Self {
        Self(BTreeSet::from([cpu]))
    }

    /// Returns whether the set contains `cpu`.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Parses a hexadecimal mask, as in `rps_cpus`.
    ///
    /// # Errors
    /// If the text is not a mask.
    pub fn from_mask(text: &str) -> Result<Self, CpuSetError> {
        let error = || CpuSetError { text: text.into(), form: "CPU mask such as 1,0000000f" };
        let digits: String = text.trim().chars().filter(|c| *c != ',').collect();
        if digits.is_empty() || digits.len() > MAX_CPU as usize / 4 {
            return Err(error());
        }
        let mut cpus = BTreeSet::new();
        for (place, digit) in digits.chars().rev().enumerate() {
            let bits = digit.to_digit(16).ok_or_else(error)?;
            cpus.extend((0..4).filter(|bit| bits >> bit & 1 == 1).map(|bit| place as u32 * 4 + bit));
        }
        Ok(Self(cpus))
    }

    /// Formats the set as a hexadecimal mask in groups of 32 bits.
    pub fn mask(&self) -> String {
        let words = self.0.last().map_or(1, |last| last / 32 + 1);
        let word = |index: u32| {
            let inside = self.0.range(index * 32..(index + 1) * 32);
            inside.fold(0u32, |word, cpu| word | 1 << (cpu % 32))
        };
        let mut text = format!("{:x}", word(words - 1));
        for index in (0..words - 1).rev() {
            text.push_str(&format!(",{:08x}", word(index)));
        }
        text
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let error = || CpuSetError { text: text.into(), form: "CPU list such as 0-3,8" };
        let mut cpus = BTreeSet::new();
        for range in text.trim().split(',').filter(|range| !range.is_empty()) {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.trim().parse::<u32>().map_err(|_| error());
            let (from, to) = (number(from)?, number(to)?);
            if from > to || to >= MAX_CPU {
                return Err(error());
            }
            cpus.extend(from..=to);
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&longma_topology::format_cpu_list(self.iter()))
    }
}

impl TryFrom<String> for CpuSet {
    type Error = CpuSetError;
    fn try_from(text: String) -> Result<Self, CpuSetError> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(cpus: CpuSet) -> String {
        cpus.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_survives_both_ways_of_writing(cpus in proptest::collection::btree_set(0u32..300, 0..40)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(&set.to_string().parse::<CpuSet>().unwrap(), &set);
            prop_assert_eq!(&CpuSet::from_mask(&set.mask()).unwrap(), &set);
        }
    }

    #[test]
    fn sets_are_written_as_the_kernel_writes_them() {
        let set: CpuSet = "0-2,33".parse().unwrap();
        assert_eq!((set.to_string(), set.mask()), ("0-2,33".into(), "2,00000007".into()));
        assert_eq!(CpuSet::default().mask(), "0");
        assert_eq!(CpuSet::from_mask("00000000,00000003").unwrap(), "0-1".parse().unwrap());
    }

    #[test]
    fn malformed_cpu_lists_are_rejected() {
        for text in ["3-1", "x", "1-", "9000", "0,,a"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text}");
        }
        for text in ["", "g", "0x3"] {
            assert!(CpuSet::from_mask(text).is_err(), "{text}");
        }
    }
}
