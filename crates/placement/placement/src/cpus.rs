//! A set of CPU numbers, parsed and printed in Linux's list format: "0-3,8".
//!
//! Source: Linux Documentation/admin-guide/cputopology.rst.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Exclusive upper bound of CPU numbers. It is higher than Linux supports, so a list that exceeds it is corrupt.
pub const MAX_CPU: u32 = 8192;

/// A set of CPU numbers below [`MAX_CPU`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CpuSet {
    /// Has no trailing zero words, so equal sets compare equal.
    words: Vec<u64>,
}

/// A text that is not a valid CPU list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a CPU list such as 0-3,8 with numbers below {MAX_CPU}")]
pub struct CpuListError {
    text: String,
}

impl CpuSet {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `cpu`. Returns whether it was absent.
    ///
    /// # Panics
    /// If `cpu` is not below [`MAX_CPU`].
    pub fn insert(&mut self, cpu: u32) -> bool {
        assert!(cpu < MAX_CPU, "CPU {cpu} is not below {MAX_CPU}");
        let word = cpu as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let bit = 1 << (cpu % 64);
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        new
    }

    /// Removes `cpu`. Returns whether it was present.
    pub fn remove(&mut self, cpu: u32) -> bool {
        let was = self.contains(cpu);
        if was {
            self.words[cpu as usize / 64] &= !(1 << (cpu % 64));
            self.trim();
        }
        was
    }

    /// Returns whether the set contains `cpu`.
    pub fn contains(&self, cpu: u32) -> bool {
        self.words.get(cpu as usize / 64).is_some_and(|w| w >> (cpu % 64) & 1 == 1)
    }

    /// Number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Iterates over the CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index as u32 * 64 + bit)
        })
    }

    /// The CPUs that are in this set but not in `other`.
    pub fn difference(&self, other: &Self) -> Self {
        let mut rest = self.clone();
        for (mine, theirs) in rest.words.iter_mut().zip(&other.words) {
            *mine &= !theirs;
        }
        rest.trim();
        rest
    }

    /// Returns whether the two sets have a CPU in common.
    pub fn intersects(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

impl Extend<u32> for CpuSet {
    fn extend<T: IntoIterator<Item = u32>>(&mut self, cpus: T) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Self {
        let mut set = Self::new();
        set.extend(cpus);
        set
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&longma_topology::format_cpu_list(self.iter()))
    }
}

impl FromStr for CpuSet {
    type Err = CpuListError;
    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let mut set = Self::new();
        let error = || CpuListError { text: text.chars().take(80).collect() };
        for range in text.trim().split(',').filter(|r| !r.is_empty()) {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let number = |t: &str| t.trim().parse::<u32>().ok().filter(|c| *c < MAX_CPU).ok_or_else(error);
            let (from, to) = (number(from)?, number(to)?);
            if from > to {
                return Err(error());
            }
            set.extend(from..=to);
        }
        Ok(set)
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_list_reads_and_prints_as_linux_writes_it() {
        let set: CpuSet = "0-3,8, 10-11".parse().unwrap();
        assert_eq!(set.to_string(), "0-3,8,10-11");
        assert_eq!(set.len(), 7);
        assert_eq!("".parse(), Ok(CpuSet::new()));
        for bad in ["3-1", "x", "1-", "-1", "0-99999", "1;2"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(cpus in prop::collection::btree_set(0..MAX_CPU, 0..60)) {
            let mut set: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(set.to_string().parse(), Ok(set.clone()));
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), cpus.iter().copied().collect::<Vec<_>>());
            for cpu in &cpus {
                prop_assert!(set.remove(*cpu));
            }
            prop_assert_eq!(set, CpuSet::new());
        }
    }
}
