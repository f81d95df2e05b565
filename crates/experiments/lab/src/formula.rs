//! Formulas over metrics: `l2.misses / instructions * 1000`. They combine the metrics of a point, and metrics of other
//! points: a baseline, or a mean over an axis.
//!
//! ```text
//! sum   = product (("+" | "-") product)*
//! product = value (("*" | "/") value)*
//! value = number | "-" value | "(" sum ")" | name | "'" name "'"
//!       | ("sum" | "mean" | "least" | "most") "(" "'" pattern "'" ")"
//!       | "at" "(" sum ("," parameter "=" setting)+ ")"
//!       | ("mean_over" | "least_over" | "most_over") "(" sum ("," parameter)+ ")"
//! ```

mod parser;

use crate::estimate::{Estimate, Fold};
use crate::units::Unit;
use std::collections::BTreeSet;

/// A parsed formula.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Formula {
    Number(f64),
    Metric(String),
    /// All metrics whose names match a pattern with `*`.
    Metrics(Fold, String),
    Negative(Box<Formula>),
    Binary(char, Box<Formula>, Box<Formula>),
    /// The value at the point with these settings.
    At(Box<Formula>, Vec<(String, String)>),
    /// The values at all points that differ only in these parameters.
    Over(Fold, Box<Formula>, Vec<String>),
}

/// The points that a formula reads.
pub(crate) trait Points {
    /// The metric called `name` at `point`.
    fn metric(&self, point: usize, name: &str) -> Option<Estimate>;
    /// Names of the workload's metrics at `point`.
    fn names(&self, point: usize) -> Vec<&str>;
    /// The point that differs from `point` in these settings only.
    fn at(&self, point: usize, settings: &[(String, String)]) -> Option<usize>;
    /// The points that differ from `point` at most in these parameters.
    fn over(&self, point: usize, parameters: &[String]) -> Vec<usize>;
}

/// Whether `name` matches `pattern`, in which `*` stands for any text.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == name };
    let Some(rest) = name.strip_prefix(before) else { return false };
    (0..=rest.len()).filter(|at| rest.is_char_boundary(*at)).any(|at| matches(after, &rest[at..]))
}

impl Formula {
    /// The value at `point`; `None` if a metric is missing there, or for a division by 0.
    pub(crate) fn value(&self, points: &dyn Points, point: usize) -> Option<Estimate> {
        let value = match self {
            Formula::Number(number) => (*number).into(),
            Formula::Metric(name) => points.metric(point, name)?,
            Formula::Metrics(fold, pattern) => {
                let names = points.names(point).into_iter().filter(|name| matches(pattern, name));
                let values: Vec<_> = names.filter_map(|name| points.metric(point, name)).collect();
                (!values.is_empty()).then(|| fold.of(values))??
            }
            Formula::Negative(inner) => inner.value(points, point)?.negated(),
            Formula::Binary(operator, left, right) => {
                left.value(points, point)?.binary(*operator, right.value(points, point)?)
            }
            Formula::At(inner, settings) => inner.value(points, points.at(point, settings)?)?,
            Formula::Over(fold, inner, parameters) => {
                let all = points.over(point, parameters);
                let values: Option<Vec<_>> = all.into_iter().map(|one| inner.value(points, one)).collect();
                fold.of(values?)?
            }
        };
        value.value.is_finite().then_some(value)
    }

    /// Calls `visit` for this formula and all parts of it.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&Formula)) {
        visit(self);
        match self {
            Formula::Negative(inner) | Formula::At(inner, _) | Formula::Over(_, inner, _) => {
                inner.visit(visit)
            }
            Formula::Binary(_, left, right) => {
                left.visit(visit);
                right.visit(visit);
            }
            Formula::Number(_) | Formula::Metric(_) | Formula::Metrics(..) => {}
        }
    }

    /// Names and patterns of all metrics that it reads.
    pub(crate) fn metrics(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        self.visit(&mut |part| {
            if let Formula::Metric(name) | Formula::Metrics(_, name) = part {
                names.insert(name.clone());
            }
        });
        names
    }

    /// The unit of its value, if the units of its metrics are known. A number has no unit, so multiplying by 1000, for
    /// example, does not change the quantity.
    ///
    /// # Errors
    /// Two quantities, or two units of one quantity, that cannot be added.
    pub(crate) fn unit(&self, unit_of: &dyn Fn(&str) -> Option<Unit>) -> Result<Option<Unit>, String> {
        Ok(match self {
            Formula::Number(_) => Some(Unit::one()),
            Formula::Metric(name) | Formula::Metrics(_, name) => unit_of(name),
            Formula::Negative(inner) | Formula::At(inner, _) | Formula::Over(_, inner, _) => {
                inner.unit(unit_of)?
            }
            Formula::Binary(operator, left, right) => {
                let both = left.unit(unit_of)?.zip(right.unit(unit_of)?);
                let Some((of_left, of_right)) = both else { return Ok(None) };
                match operator {
                    '*' => Some(of_left.times(&of_right, 1)),
                    '/' => Some(of_left.times(&of_right, -1)),
                    _ => {
                        let has_number = [left, right].iter().any(|side| side.has_number());
                        let is_odd = !has_number && of_left.factor != of_right.factor;
                        if !of_left.is_like(&of_right) || is_odd {
                            return Err(format!("both sides of `{operator}` need the same unit"));
                        }
                        Some(of_left)
                    }
                }
            }
        })
    }

    /// Whether a number is part of it, which may convert units.
    pub(crate) fn has_number(&self) -> bool {
        let mut found = false;
        self.visit(&mut |part| found |= matches!(part, Formula::Number(_)));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Points with a size and a tree.
    struct TestPoints(Vec<(&'static str, &'static str, BTreeMap<&'static str, f64>)>);

    impl Points for TestPoints {
        fn metric(&self, point: usize, name: &str) -> Option<Estimate> {
            self.0[point].2.get(name).copied().map(Estimate::from)
        }
        fn names(&self, point: usize) -> Vec<&str> {
            self.0[point].2.keys().copied().collect()
        }
        fn at(&self, point: usize, settings: &[(String, String)]) -> Option<usize> {
            let wanted = |name: &str, now: &'static str| {
                settings.iter().find(|(known, _)| known == name).map_or(now.to_string(), |(_, v)| v.clone())
            };
            let (size, tree) = (wanted("size", self.0[point].0), wanted("tree", self.0[point].1));
            self.0.iter().position(|one| one.0 == size && one.1 == tree)
        }
        fn over(&self, point: usize, parameters: &[String]) -> Vec<usize> {
            let is_over = |name: &str| parameters.iter().any(|known| known == name);
            let same = |one: usize| {
                (is_over("size") || self.0[one].0 == self.0[point].0)
                    && (is_over("tree") || self.0[one].1 == self.0[point].1)
            };
            (0..self.0.len()).filter(|one| same(*one)).collect()
        }
    }

    fn test_points() -> TestPoints {
        let one = |size, tree, time: f64| {
            let cores = [("core0.misses", 30.0), ("core1.misses", 10.0), ("instructions", 8000.0)];
            (size, tree, cores.into_iter().chain([("time", time)]).collect())
        };
        TestPoints(vec![one("1", "zb", 4.0), one("1", "cow", 8.0), one("2", "zb", 6.0), one("2", "cow", 9.0)])
    }

    fn value(text: &str, point: usize) -> Option<f64> {
        Formula::parse(text).unwrap().value(&test_points(), point).map(|estimate| estimate.value)
    }

    #[test]
    fn a_formula_follows_the_rules_of_arithmetic() {
        assert_eq!(value("1 + 2 * 3 - 8 / 4 / 2", 0), Some(6.0));
        assert_eq!(value("-(1 - 2.5e1) * time", 0), Some(96.0));
        assert_eq!(value("time / (time - 4)", 0), None);
        assert_eq!(value("absent + 1", 0), None);
    }

    #[test]
    fn a_pattern_combines_the_metrics_of_all_cores() {
        assert_eq!(value("sum('core*.misses') / instructions * 1000", 0), Some(5.0));
        assert_eq!(value("most('core*.misses') - least('core*.misses')", 0), Some(20.0));
        assert_eq!(value("sum('gpu*.misses')", 0), None);
    }

    #[test]
    fn a_formula_may_use_other_points_as_baseline_or_axis() {
        assert_eq!(value("at(time, tree = 'cow') / time", 0), Some(2.0));
        assert_eq!(value("at(time, tree = cow, size = 2)", 0), Some(9.0));
        assert_eq!(value("at(time, tree = 'btree')", 0), None);
        assert_eq!(value("mean_over(time, size)", 0), Some(5.0));
        assert_eq!(value("mean_over(at(time, tree = 'cow') / time, size)", 2), Some(1.75));
    }

    #[test]
    fn a_malformed_formula_is_rejected_with_the_position() {
        for (text, why) in [
            ("1 +", "the formula ends where a value should be"),
            ("(1", "`)` is missing at the end"),
            ("1 2", "`2` is not expected here"),
            (
                "sqrt(4)",
                "there is no function `sqrt`; the functions are sum, mean, least, most, at, mean_over, least_over, most_over",
            ),
            ("at(time)", "`at` needs a parameter with its value: at(time, tree = 'cow')"),
            ("a $ b", "`$` is not expected here"),
            ("'a", "a `'` is missing at the end"),
        ] {
            assert_eq!(Formula::parse(text).unwrap_err(), why, "{text}");
        }
        assert!(Formula::parse(&"(".repeat(900)).unwrap_err().contains("too deep"));
    }

    #[test]
    fn the_unit_of_a_formula_follows_from_its_operands() {
        let unit_of = |name: &str| Unit::parse(if name == "time" { "us" } else { "B" });
        let unit = |text: &str| Formula::parse(text).unwrap().unit(&unit_of);
        assert!(unit("bytes / time").unwrap().unwrap().is_like(&Unit::parse("MB/s").unwrap()));
        assert_eq!(unit("bytes + time").unwrap_err(), "both sides of `+` need the same unit");
        assert!(unit("at(time, a = 1) - time").unwrap().unwrap().is_like(&Unit::parse("s").unwrap()));
    }
}
