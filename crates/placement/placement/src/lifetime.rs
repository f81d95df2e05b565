//! Expected lifetimes of virtual machines. Whenever a virtual machine outlives its expected lifetime, the expectation
//! doubles. Lifetimes are heavy-tailed: the longer a virtual machine has lived, the longer it will probably continue to
//! live.
//!
//! Source: Ling et al., "LAVA" (MLSys 2025): lifetime classes that grow geometrically, and lifetimes predicted anew for virtual
//! machines that outlive them.

use serde::{Deserialize, Serialize};

/// When a virtual machine began, and how long it is expected to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lifetime {
    /// Seconds since 1970.
    pub since_s: i64,
    /// Expected lifetime in seconds, at least 1.
    pub expected_s: u64,
}

/// Largest lifetime class.
pub(crate) const MAX_CLASS: u8 = 7;
/// Upper bound of class 0, seconds.
const FIRST_CLASS_S: u64 = 3600;
/// Ratio of the upper bounds of consecutive classes.
const CLASS_RATIO: u64 = 4;

/// Class of a remaining lifetime: 0 up to one hour, 1 up to four hours, ..., 6 up to half a year, 7 beyond.
pub(crate) fn class(remaining_s: u64) -> u8 {
    let (mut class, mut bound) = (0, FIRST_CLASS_S);
    while class < MAX_CLASS && remaining_s > bound {
        class += 1;
        bound *= CLASS_RATIO;
    }
    class
}

impl Lifetime {
    /// Expected remaining lifetime at `now_s`, seconds.
    pub(crate) fn remaining_s(&self, now_s: i64) -> u64 {
        let age = u64::try_from(now_s.saturating_sub(self.since_s)).unwrap_or(0);
        let mut expected = self.expected_s.max(1);
        while expected <= age {
            expected = expected.saturating_mul(2);
        }
        expected - age
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_grow_fourfold() {
        let hours = |hours: u64| class(hours * 3600);
        assert_eq!([1, 2, 4, 5, 16, 17, 4096, 4097, 100_000].map(hours), [0, 1, 1, 2, 2, 3, 6, 7, 7]);
    }

    #[test]
    fn an_expectation_doubles_until_it_is_ahead() {
        let lifetime = Lifetime { since_s: 1000, expected_s: 100 };
        let remaining = [0, 1000, 1099, 1100, 1199, 1200, 1399].map(|now_s| lifetime.remaining_s(now_s));
        assert_eq!(remaining, [100, 100, 1, 100, 1, 200, 1]);
        assert!(Lifetime { since_s: i64::MIN, expected_s: 0 }.remaining_s(i64::MAX) > 0);
    }
}
