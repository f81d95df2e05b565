//! Value of a varied parameter: a number, or a mask of more than 64 CPUs.
//!
//! Source: Linux lib/bitmap.c (`%*pb`: groups of eight hexadecimal digits separated by commas).

use longma_cpu_set::CpuSet;
use serde::{Deserialize, Serialize};
use std::fmt;

/// CPUs of a 64-bit mask.
const NUMBER_BITS: u32 = 64;
/// Digits of each group of a mask after the first.
const GROUP_DIGITS: usize = 8;

/// A value. Masks of the first 64 CPUs are numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A number, or a mask of the first 64 CPUs.
    Number(u64),
    /// A mask with later CPUs.
    Mask(LongMask),
}

/// A set with a CPU beyond the first 64. Serialized as a mask.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LongMask(CpuSet);

/// The error for a text that is no mask, or a mask without a CPU beyond the first 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a mask of more than 64 CPUs")]
pub struct LongMaskError;

impl TryFrom<String> for LongMask {
    type Error = LongMaskError;
    fn try_from(text: String) -> Result<Self, LongMaskError> {
        match CpuSet::from_mask(&text).map(Value::of_cpus) {
            Ok(Value::Mask(mask)) => Ok(mask),
            _ => Err(LongMaskError),
        }
    }
}

impl From<LongMask> for String {
    fn from(mask: LongMask) -> String {
        mask.0.mask()
    }
}

impl Value {
    /// The mask of a set of CPUs.
    pub fn of_cpus(cpus: CpuSet) -> Self {
        if cpus.iter().any(|cpu| cpu >= NUMBER_BITS) {
            return Self::Mask(LongMask(cpus));
        }
        Self::Number(cpus.iter().fold(0, |mask, cpu| mask | 1 << cpu))
    }

    /// The number; `None` for a mask with more than 64 CPUs.
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Mask(_) => None,
        }
    }

    /// Returns whether it is not zero.
    pub fn is_on(&self) -> bool {
        *self != Self::Number(0)
    }

    /// The hexadecimal mask as the kernel's files have it.
    pub fn mask(&self) -> String {
        match self {
            Self::Number(number) => {
                (0..NUMBER_BITS).filter(|bit| number >> bit & 1 == 1).collect::<CpuSet>().mask()
            }
            Self::Mask(mask) => mask.0.mask(),
        }
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => f.pad(&number.to_string()),
            Self::Mask(mask) => f.pad(&mask.0.mask()),
        }
    }
}

/// Parses masks separated by commas. A group of exactly eight digits continues the mask before it, as the kernel prints
/// masks of more than 32 CPUs: `f,00000000,1` are two masks. A mask may start with 0x. `None` if one is malformed.
pub(super) fn masks(text: &str) -> Option<Vec<Value>> {
    let mut masks: Vec<String> = Vec::new();
    for group in text.split(',').map(str::trim) {
        let continues = group.len() == GROUP_DIGITS && group.chars().all(|digit| digit.is_ascii_hexdigit());
        match masks.last_mut().filter(|_| continues) {
            Some(mask) => mask.push_str(group),
            None => masks.push(group.strip_prefix("0x").unwrap_or(group).into()),
        }
    }
    masks.iter().map(|mask| CpuSet::from_mask(mask).ok().map(Value::of_cpus)).collect()
}

#[cfg(test)]
mod tests;
