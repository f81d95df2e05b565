//! Maps values to positions on an axis, and chooses ticks at 1, 2 and 5 times powers of ten.

use crate::number::number;
use crate::setting::Setting;

/// An axis with its limits in values and on the page.
#[derive(Clone, Debug)]
pub struct Scale {
    from: f64,
    to: f64,
    page: (f64, f64),
    log: bool,
}

impl Scale {
    /// Creates a scale for `values` between two positions on the page. It is logarithmic if `log` is set and a value is
    /// positive. With `from_zero`, a linear scale includes 0.
    pub fn of(
        values: impl Iterator<Item = f64> + Clone,
        page: (f64, f64),
        log: bool,
        from_zero: bool,
    ) -> Self {
        let positive = values.clone().filter(|v| *v > 0.0);
        let log = log && positive.clone().next().is_some();
        let fold = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)))
        };
        let (min, max) = if log { fold(&mut positive.clone()) } else { fold(&mut values.clone()) };
        let (mut from, mut to) = if min <= max { (min, max) } else { (0.0, 1.0) };
        if log {
            (from, to) = (from.ln(), to.ln());
        } else if from_zero {
            (from, to) = (from.min(0.0), to.max(0.0));
        }
        if to - from < 1e-12 * to.abs().max(1.0) {
            (from, to) =
                if from_zero && !log { (from.min(0.0), to.max(1.0)) } else { (from - 1.0, to + 1.0) };
        }
        Self { from, to, page, log }
    }

    /// Extends the scale by fractions of its length at both ends.
    pub fn padded(mut self, below: f64, above: f64) -> Self {
        let length = (self.to - self.from).min(f64::MAX);
        let finite = |end: f64| end.clamp(f64::MIN, f64::MAX);
        (self.from, self.to) = (finite(self.from - length * below), finite(self.to + length * above));
        self
    }

    /// Returns whether the axis can show `value`: a logarithmic one shows only positive values.
    pub fn has(&self, value: f64) -> bool {
        !self.log || value > 0.0
    }

    /// Position of `value` on the page, clamped to the ends of the axis.
    pub fn place(&self, value: f64) -> f64 {
        let inner = if !self.log {
            value
        } else if value > 0.0 {
            value.ln()
        } else {
            self.from
        };
        // Halve each term, because the length of the axis may overflow.
        let share = ((inner / 2.0 - self.from / 2.0) / (self.to / 2.0 - self.from / 2.0)).clamp(0.0, 1.0);
        self.page.0 + share * (self.page.1 - self.page.0)
    }

    /// About `about` tick values with their labels.
    pub fn ticks(&self, about: usize) -> Vec<(f64, String)> {
        let values = if self.log { self.log_ticks(about) } else { self.linear_ticks(about) };
        values.into_iter().map(|value| (value, short(value))).collect()
    }

    fn linear_ticks(&self, about: usize) -> Vec<f64> {
        let about = about.max(1) as f64;
        let rough = self.to / about - self.from / about;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|s| s * power)
            .find(|s| *s >= rough)
            .unwrap_or(10.0 * power);
        let first = (self.from / step - 1e-9).ceil() as i64;
        let last = (self.to / step + 1e-9).floor() as i64;
        (first..=last).take(50).map(|index| index as f64 * step).collect()
    }

    fn log_ticks(&self, about: usize) -> Vec<f64> {
        let finite = |end: f64| end.clamp(f64::MIN_POSITIVE, f64::MAX);
        let (min, max) = (finite(self.from.exp() * (1.0 - 1e-9)), finite(self.to.exp() * (1.0 + 1e-9)));
        let decades = (min.log10().floor() as i32)..=(max.log10().ceil() as i32);
        let within = |steps: &[f64]| -> Vec<f64> {
            let all = decades.clone().flat_map(|d| steps.iter().map(move |s| s * 10f64.powi(d)));
            all.filter(|v| (min..=max).contains(v)).collect()
        };
        let tens = within(&[1.0]);
        if tens.len() > about + 2 {
            let every = tens.len().div_ceil(about.max(1));
            return tens.into_iter().step_by(every).collect();
        }
        let candidates = [within(&[1.0, 2.0, 5.0]), within(&[1.0, 3.0])];
        let finer = candidates.into_iter().find(|ticks| tens.len() < 3 && ticks.len() <= about + 4);
        match finer.filter(|ticks| ticks.len() > tens.len()).unwrap_or(tens) {
            // The range is smaller than the finest logarithmic step, so use linear steps.
            ticks if ticks.len() < 2 => {
                let plain = Scale { from: min, to: max, page: self.page, log: false };
                plain.linear_ticks(about).into_iter().filter(|v| *v > 0.0).collect()
            }
            ticks => ticks,
        }
    }
}

/// Label of a tick: 20 k, 3 M.
fn short(value: f64) -> String {
    let magnitude = value.abs();
    let units = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")];
    let unit = units.into_iter().find(|(size, _)| magnitude >= *size);
    match unit {
        Some((size, sign)) => format!("{}{sign}", trim(value / if sign == " k" { 1e3 } else { size })),
        None => trim(value),
    }
}

fn trim(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-4 {
        return number(value);
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// Distinct values along an axis, sorted if all are numbers, otherwise in order of appearance.
pub(super) fn categories<'a>(settings: impl Iterator<Item = &'a Setting>) -> Vec<Setting> {
    let mut all: Vec<Setting> = Vec::new();
    for setting in settings {
        if !all.contains(setting) {
            all.push(setting.clone());
        }
    }
    if all.iter().all(|s| s.number().is_some()) {
        all.sort_by(|a, b| a.number().unwrap_or(0.0).total_cmp(&b.number().unwrap_or(0.0)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tick_labels(values: &[f64], log: bool) -> Vec<String> {
        let scale = Scale::of(values.iter().copied(), (0.0, 100.0), log, true);
        scale.ticks(5).into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(tick_labels(&[3.0, 97.0], false), ["0", "20", "40", "60", "80"]);
        assert_eq!(tick_labels(&[9467.0, 18060.0], false), ["0", "5000", "10 k", "15 k"]);
        assert_eq!(tick_labels(&[1.0, 1000.0], true), ["1", "10", "100", "1000"]);
        assert_eq!(tick_labels(&[85.0, 240.0], true), ["100", "200"]);
    }

    #[test]
    fn the_largest_numbers_have_positions_and_ticks() {
        for values in [[f64::MIN, f64::MAX], [1e300, f64::MAX], [5e-324, 1e308], [1.7e308, f64::MAX]] {
            for (log, zero) in [(false, false), (false, true), (true, false)] {
                let scale = Scale::of(values.into_iter(), (10.0, 500.0), log, zero).padded(0.05, 0.1);
                for value in values {
                    let place = scale.place(value);
                    assert!((10.0..=500.0).contains(&place), "{values:?} {log} {zero}: {place}");
                }
                let ticks = scale.ticks(6);
                assert!(ticks.len() <= 50 && ticks.iter().all(|(value, _)| value.is_finite()), "{ticks:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn every_position_is_within_the_axis(values in prop::collection::vec(-1e12..1e12f64, 1..20), log: bool, zero: bool) {
            let scale = Scale::of(values.iter().copied(), (10.0, 500.0), log, zero);
            for value in values {
                let place = scale.place(value);
                prop_assert!((10.0..=500.0).contains(&place), "{place}");
            }
            prop_assert!(scale.ticks(6).len() <= 50);
        }
    }
}
