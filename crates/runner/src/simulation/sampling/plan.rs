//! The parameters of sampling: which instructions are skipped, which warm the models, and which are measured.

use std::{fmt, str::FromStr};

/// The smallest number of units for which an interval is stated. Below it, the mean of the units is not close enough to
/// a normal distribution (Wunderlich et al., ISCA 2003, section 3.1, asks for 30 as a rule).
pub const MIN_UNITS: u64 = 30;

/// How a program is sampled. Lengths are numbers of instructions. Units are rounded up to whole basic blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplingPlan {
    /// Distance between the beginnings of two measured units.
    pub every: u64,
    /// Length of a measured unit.
    pub unit: u64,
    /// Instructions before a unit that run through the timing models without being counted: they fill the pipeline, the
    /// queues and the rows of DRAM.
    pub detail: u64,
    /// Instructions before the `detail` ones that update only caches, TLBs and predictors; `None` for all instructions
    /// between two units.
    pub warm: Option<u64>,
}

impl Default for SamplingPlan {
    fn default() -> Self {
        Self { every: 200_000, unit: 10_000, detail: 4000, warm: None }
    }
}

/// The key of each parameter, in the order of printing.
const KEYS: [&str; 4] = ["every", "unit", "detail", "warm"];

impl SamplingPlan {
    /// The instructions before a unit that are not skipped.
    pub(super) fn before_unit(&self) -> u64 {
        self.warm.map_or(u64::MAX, |warm| self.detail.saturating_add(warm))
    }

    /// # Errors
    /// Two units would overlap, or a unit is empty.
    fn checked(self) -> Result<Self, String> {
        if self.unit == 0 {
            return Err("`unit` is 0: give the instructions to measure at a time, such as unit=10k".into());
        }
        let used = self.unit.saturating_add(self.detail);
        if used > self.every {
            return Err(format!(
                "`unit` and `detail` together are {used} instructions, more than the {} of `every`: give a larger `every`",
                self.every
            ));
        }
        Ok(self)
    }

    /// The distance between units at which `instructions` instructions contain twice the required number of units;
    /// `None` if units at this distance overlap.
    pub(super) fn sufficient_every(&self, instructions: u64) -> Option<u64> {
        let every = instructions / (2 * MIN_UNITS);
        (every >= self.unit + self.detail).then_some(every)
    }
}

impl FromStr for SamplingPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut plan, mut given) = (Self::default(), Vec::new());
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let (key, value) =
                word.split_once('=').ok_or_else(|| format!("`{word}`: write it as KEY=VALUE"))?;
            if given.contains(&key) {
                return Err(format!("`{key}` is given twice"));
            }
            given.push(key);
            match key {
                "every" => plan.every = number(key, value)?,
                "unit" => plan.unit = number(key, value)?,
                "detail" => plan.detail = number(key, value)?,
                "warm" if value == "all" => plan.warm = None,
                "warm" => plan.warm = Some(number(key, value)?),
                _ => return Err(format!("there is no key `{key}`: the keys are {}", KEYS.join(", "))),
            }
        }
        plan.checked()
    }
}

/// A number of instructions, such as `20000`, `20k` or `1M`.
fn number(key: &str, text: &str) -> Result<u64, String> {
    let suffixes = [("k", 1000), ("M", 1_000_000), ("G", 1_000_000_000)];
    let scaled = suffixes.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let (digits, factor) = scaled.unwrap_or((text, 1));
    let parsed: Option<u64> = digits.parse().ok().and_then(|number: u64| number.checked_mul(factor));
    parsed.ok_or_else(|| format!("`{key}={text}`: give a number of instructions, such as 20000, 20k or 1M"))
}

impl fmt::Display for SamplingPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { every, unit, detail, warm } = self;
        write!(f, "every={every},unit={unit},detail={detail},warm=")?;
        match warm {
            Some(warm) => write!(f, "{warm}"),
            None => f.write_str("all"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_with_suffixes_and_defaults_and_printed_in_full() {
        let plan: SamplingPlan = "every=2M,warm=50k".parse().unwrap();
        assert_eq!(plan, SamplingPlan { every: 2_000_000, warm: Some(50_000), ..SamplingPlan::default() });
        assert_eq!(plan.to_string(), "every=2000000,unit=10000,detail=4000,warm=50000");
        assert_eq!(plan.to_string().parse(), Ok(plan));
        assert_eq!("warm=all".parse::<SamplingPlan>().unwrap().warm, None);
        assert_eq!("".parse(), Ok(SamplingPlan::default()));
    }

    #[test]
    fn a_wrong_plan_names_the_key_and_what_to_write() {
        let message = |text: &str| text.parse::<SamplingPlan>().unwrap_err();
        assert!(
            message("evry=1M").contains("`evry`") && message("evry=1M").contains("every, unit, detail, warm")
        );
        assert!(message("every=1X").contains("every=1X") && message("every=1X").contains("20k"));
        assert!(message("every").contains("KEY=VALUE"));
        assert!(message("every=10k").contains("larger `every`"));
        assert!(message("unit=0").contains("unit=10k"));
        assert!(message("every=99999999999999999999G").contains("every="));
        assert_eq!(message("every=100k,unit=5k,every=200k"), "`every` is given twice");
    }
}
