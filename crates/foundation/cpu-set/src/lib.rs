//! A set of CPU numbers, parsed and printed in the formats of Linux: a list "0-3,8" or a mask "1,0000000f".
//!
//! Source: Linux Documentation/admin-guide/cputopology.rst (lists), lib/bitmap.c's `%*pb` (masks).

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Exclusive upper bound of CPU numbers. No architecture of Linux supports more CPUs (`CONFIG_NR_CPUS`), so a number
/// from here on is an error. It also bounds the memory of a set to 1 KiB, which a short text such as "8191" takes.
pub const MAX_CPU: u32 = 8192;

/// A set of CPU numbers below [`MAX_CPU`]. Serialized as a list such as "0-3,8".
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CpuSet {
    /// Has no trailing zero words, so equal sets compare equal.
    words: Vec<u64>,
}

/// A text that is not a valid CPU list or mask. It shows the first 80 characters of the text, control characters
/// escaped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a CPU {form} with numbers below {MAX_CPU}", text.escape_debug())]
pub struct CpuSetError {
    text: String,
    form: &'static str,
}

impl CpuSetError {
    fn new(text: &str, form: &'static str) -> Self {
        Self { text: text.chars().take(80).collect(), form }
    }
}

impl CpuSet {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The set with one CPU.
    ///
    /// # Panics
    /// If `cpu` is not below [`MAX_CPU`].
    pub fn one(cpu: u32) -> Self {
        Self::from_iter([cpu])
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
        for (word, other_word) in rest.words.iter_mut().zip(&other.words) {
            *word &= !other_word;
        }
        rest.trim();
        rest
    }

    /// Returns whether the two sets have a CPU in common.
    pub fn intersects(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// Parses a hexadecimal mask, as in `rps_cpus`.
    ///
    /// # Errors
    /// If the text is not a mask.
    pub fn from_mask(text: &str) -> Result<Self, CpuSetError> {
        let error = || CpuSetError::new(text, "mask such as 1,0000000f");
        let digits: String = text.trim().chars().filter(|c| *c != ',').collect();
        if digits.is_empty() || digits.len() > MAX_CPU as usize / 4 {
            return Err(error());
        }
        let mut set = Self::new();
        for (position, digit) in digits.chars().rev().enumerate() {
            let bits = digit.to_digit(16).ok_or_else(error)?;
            set.extend((0..4).filter(|bit| bits >> bit & 1 == 1).map(|bit| position as u32 * 4 + bit));
        }
        Ok(set)
    }

    /// Formats the set as a hexadecimal mask in groups of 32 bits.
    pub fn mask(&self) -> String {
        let halves = self.words.iter().flat_map(|word| [*word as u32, (word >> 32) as u32]);
        let mut halves: Vec<u32> = halves.collect();
        while halves.last() == Some(&0) {
            halves.pop();
        }
        let mut text = format!("{:x}", halves.pop().unwrap_or(0));
        halves.iter().rev().for_each(|half| text += &format!(",{half:08x}"));
        text
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

/// # Panics
/// If a number is not below [`MAX_CPU`].
impl Extend<u32> for CpuSet {
    fn extend<T: IntoIterator<Item = u32>>(&mut self, cpus: T) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

/// # Panics
/// If a number is not below [`MAX_CPU`].
impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Self {
        let mut set = Self::new();
        set.extend(cpus);
        set
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|next| *next == last + 1) {
                last = next;
            }
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

/// Parses a list. Like the kernel, it accepts white space around numbers, and nothing between commas.
impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let error = || CpuSetError::new(text, "list such as 0-3,8");
        let mut set = Self::new();
        for range in text.trim().split(',').filter(|range| !range.is_empty()) {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.trim().parse().ok().filter(|cpu| *cpu < MAX_CPU).ok_or_else(error);
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
    use std::collections::BTreeSet;

    #[test]
    fn a_list_reads_and_prints_as_linux_writes_it() {
        let set: CpuSet = "0-3,8, 10-11\n".parse().unwrap();
        assert_eq!(set.to_string(), "0-3,8,10-11");
        assert_eq!(set.len(), 7);
        assert_eq!(
            ["", ",", "\n"].map(str::parse),
            [Ok(CpuSet::new()), Ok(CpuSet::new()), Ok(CpuSet::new())]
        );
        assert_eq!(CpuSet::from_iter([MAX_CPU - 1]), CpuSet::one(8191));
    }

    #[test]
    fn a_mask_reads_and_prints_as_linux_writes_it() {
        let set: CpuSet = "0-2,33".parse().unwrap();
        assert_eq!(set.mask(), "2,00000007");
        assert_eq!(CpuSet::one(64).mask(), "1,00000000,00000000");
        assert_eq!(CpuSet::new().mask(), "0");
        assert_eq!(CpuSet::from_mask("00000000,00000003\n"), Ok("0-1".parse().unwrap()));
        assert_eq!(CpuSet::from_mask("0"), Ok(CpuSet::new()));
    }

    #[test]
    fn malformed_lists_and_masks_are_rejected() {
        for bad in
            ["3-1", "x", "1-", "-1", "8192", "0-99999", "1;2", "0,,a", "0 1", "0-1-2", "99999999999999999999"]
        {
            let error = bad.parse::<CpuSet>().unwrap_err();
            let message = format!("`{bad}` is not a CPU list such as 0-3,8 with numbers below 8192");
            assert_eq!(error.to_string(), message);
        }
        for bad in ["", "g", "0x3", &"1".repeat(2049)] {
            assert!(CpuSet::from_mask(bad).unwrap_err().to_string().contains("CPU mask such as"), "{bad}");
        }
    }

    #[test]
    fn an_error_shows_the_beginning_of_the_text_without_control_characters() {
        let error = format!("\x1b[2J{}", "9".repeat(100)).parse::<CpuSet>().unwrap_err().to_string();
        let expected = format!("`\\u{{1b}}[2J{}` is", "9".repeat(76));
        assert!(error.starts_with(&expected), "{error}");
    }

    fn sets() -> impl Strategy<Value = BTreeSet<u32>> {
        prop_oneof![
            prop::collection::btree_set(0..MAX_CPU, 0..60),
            prop::collection::btree_set(0..100u32, 0..90),
        ]
    }

    proptest! {
        #[test]
        fn printed_sets_parse_to_the_same_sets(cpus in sets()) {
            let mut set: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(set.to_string().parse(), Ok(set.clone()));
            prop_assert_eq!(CpuSet::from_mask(&set.mask()), Ok(set.clone()));
            prop_assert_eq!(serde_json::from_str::<CpuSet>(&serde_json::to_string(&set).unwrap()).unwrap(), set.clone());
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), cpus.iter().copied().collect::<Vec<_>>());
            for cpu in &cpus {
                prop_assert!(set.remove(*cpu));
            }
            prop_assert_eq!(set, CpuSet::new());
        }

        #[test]
        fn it_agrees_with_a_set_of_the_standard_library(one in sets(), other in sets()) {
            let set = |cpus: &BTreeSet<u32>| cpus.iter().copied().collect::<CpuSet>();
            let (first, second) = (set(&one), set(&other));
            prop_assert_eq!((first.len(), first.is_empty()), (one.len(), one.is_empty()));
            prop_assert_eq!(first.difference(&second), set(&(&one - &other)));
            prop_assert_eq!(first.intersects(&second), !one.is_disjoint(&other));
            prop_assert!(other.iter().all(|cpu| first.contains(*cpu) == one.contains(cpu)));
        }

        #[test]
        fn any_text_is_accepted_or_rejected(text in "[-0-9, x]{0,12}|.*") {
            if let Ok(set) = text.parse::<CpuSet>() {
                prop_assert_eq!(set.to_string().parse(), Ok(set));
            }
            if let Ok(set) = CpuSet::from_mask(&text) {
                prop_assert_eq!(CpuSet::from_mask(&set.mask()), Ok(set));
            }
        }
    }
}

/// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
