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

/// A text that is not a mask with a CPU beyond the first 64.
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cpus(list: &str) -> Value {
        Value::of_cpus(list.parse().unwrap())
    }

    #[test]
    fn masks_are_those_that_the_kernel_prints() {
        assert_eq!(masks("ff,0x10,a"), Some(vec![0xff.into(), 0x10.into(), 0xa.into()]));
        assert_eq!(masks("f,00000000"), Some(vec![cpus("32-35")]));
        assert_eq!(masks("1,00000000,00000000,3"), Some(vec![cpus("64"), cpus("0-1")]));
        assert_eq!(masks("00000000,00000000,00000001"), Some(vec![1.into()]));
        assert_eq!(masks("ffffffffffffffffffff"), Some(vec![cpus("0-79")]));
        for wrong in ["", "g", "+1", "1,,2", "0x", "1,0x", "-1"] {
            assert_eq!(masks(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn short_masks_are_numbers_in_files_and_long_ones_texts() {
        let json = |value: &Value| serde_json::to_string(value).unwrap();
        assert_eq!(json(&cpus("0-3")), "15");
        assert_eq!(json(&cpus("64")), r#""1,00000000,00000000""#);
        for wrong in [r#""f""#, r#""x""#, "-1", "1.5", "null", "[]"] {
            assert!(serde_json::from_str::<Value>(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_mask_is_read_as_the_same_value(cpus in prop::collection::btree_set(0..512u32, 0..40)) {
            let value = Value::of_cpus(cpus.into_iter().collect());
            prop_assert_eq!(masks(&value.mask()), Some(vec![value.clone()]));
            let json = serde_json::to_string(&value).unwrap();
            prop_assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
        }

        #[test]
        fn any_text_is_masks_or_is_rejected(text in "[0-9a-fx, ]{0,40}|.*") {
            let _ = masks(&text);
        }
    }
}
