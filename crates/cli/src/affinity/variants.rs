//! Reports a sweep that varied interface settings: throughput of each variant, effect of each setting, and Shapley
//! values.

use super::check::wrapped;
use super::terminal::{print as put, print_json};
use super::{Format, Outcome, report, width};
use crate::experiment::columns::rows as fitted;
use longma_affinity::analysis::{Analysis, Interval, PairResult};
use longma_affinity::pairs::Pair;
use longma_affinity::sweep::Results;
use longma_affinity::vary::{SweepParameter, Value, Variant, words};
use longma_lab::{Contribution, Game, MAX_MECHANISMS};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

/// The effect of changing one setting, over all pairs and all values of the other settings.
pub struct Effect {
    pub parameter: SweepParameter,
    pub from: Value,
    pub to: Value,
    /// Difference of the medians of the pairs, Gb/s; if only one can be computed, of the means of its runs.
    pub gbps: Interval,
    /// The same in core-milliseconds per Gbit; `None` if they were not counted.
    pub core_ms: Option<Interval>,
}

/// Prints the results of a sweep with several variants.
pub fn print(results: &Results, by_variant: &[(Variant, Analysis)], format: Format) -> Outcome {
    let effects = effects(by_variant);
    match format {
        Format::Json => {
            let variants: Vec<_> = by_variant
                .iter()
                .map(|(variant, analysis)| json!({ "variant": variant, "analysis": analysis }))
                .collect();
            let effects: Vec<_> = effects
                .iter()
                .map(|effect| {
                    json!({ "knob": effect.parameter, "from": effect.from, "to": effect.to, "gbps": effect.gbps, "core_ms": effect.core_ms })
                })
                .collect();
            let refused: Vec<_> = results
                .refused()
                .iter()
                .map(|(variant, why)| json!({ "variant": variant, "why": why }))
                .collect();
            let share = |of: Share| json!({ "knob": of.parameter, "from": of.from, "to": of.to, "gbps": of.gbps, "core_ms": of.core_ms });
            let shares = shares(by_variant).ok();
            let shares = shares.map(|shares| shares.into_iter().map(share).collect::<Vec<_>>());
            print_json(&json!({
                "sweep": results.header, "variants": variants, "effects": effects, "refused": refused, "shapley": shares,
            }))
        }
        Format::Table => put(&text(results, by_variant, &effects, width())),
    }?;
    let has_result = by_variant.iter().any(|(_, analysis)| !analysis.pairs.is_empty());
    Ok(if has_result { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Compares the first value of each setting with each of its other values, among variants that are otherwise equal.
pub fn effects(by_variant: &[(Variant, Analysis)]) -> Vec<Effect> {
    let mut values: BTreeMap<SweepParameter, BTreeSet<Value>> = BTreeMap::new();
    for (parameter, value) in by_variant.iter().flat_map(|(variant, _)| variant) {
        values.entry(*parameter).or_default().insert(value.clone());
    }
    let mut effects = Vec::new();
    for (parameter, values) in values {
        let mut values = values.into_iter();
        let Some(from) = values.next() else { continue };
        for to in values {
            let (mut gbps, mut core_ms, mut compared) = (Vec::new(), Vec::new(), Vec::new());
            for (variant, before) in
                by_variant.iter().filter(|(variant, _)| variant.get(&parameter) == Some(&from))
            {
                let mut other = variant.clone();
                other.insert(parameter, to.clone());
                let Some((_, after)) = by_variant.iter().find(|(variant, _)| *variant == other) else {
                    continue;
                };
                for one in &before.pairs {
                    let Some(then) = after.pairs.iter().find(|of| of.pair == one.pair) else { continue };
                    gbps.push(then.median_gbps - one.median_gbps);
                    core_ms.extend(then.costs.core_ms.zip(one.costs.core_ms).map(|(then, one)| then - one));
                    compared.push((one, then));
                }
            }
            let (gbps, core_ms) = match compared[..] {
                [(one, then)] => (
                    Interval::of_difference(&one.gbps, &then.gbps),
                    Interval::of_difference(&one.core_ms, &then.core_ms),
                ),
                _ => (Interval::of(&gbps), Interval::of(&core_ms)),
            };
            effects.extend(gbps.map(|gbps| Effect { parameter, from: from.clone(), to, gbps, core_ms }));
        }
    }
    effects
}

fn text(results: &Results, by_variant: &[(Variant, Analysis)], effects: &[Effect], width: usize) -> String {
    let mut text = String::new();
    for line in report::setting(&results.header) {
        text.push_str(&wrapped("", &line, width));
    }
    text.push('\n');
    text += &wrapped("", "Throughput by variant, means over the pairs of a class, and the best pair", width);
    text += &throughputs(by_variant, width);
    text.push('\n');
    text += &wrapped(
        "",
        "Effect of each setting over all pairs, with all other settings equal, with 95 % intervals",
        width,
    );
    let with_half = |interval: &Interval| match interval.half {
        Some(half) => format!("{:+.2} ± {half:.2}", interval.mean),
        None => format!("{:+.2}", interval.mean),
    };
    let row = |effect: &Effect| {
        vec![
            effect.parameter.to_string(),
            effect.parameter.shown(&effect.from),
            effect.parameter.shown(&effect.to),
            with_half(&effect.gbps),
            effect.core_ms.as_ref().map_or("-".into(), with_half),
        ]
    };
    let headings = [("SETTING", ""), ("FROM", ""), ("TO", ""), ("Gb/s", ""), ("CORE ms/Gbit", "")];
    text += &fitted(&headings, 3, &effects.iter().map(row).collect::<Vec<_>>(), width);
    for (variant, why) in results.refused() {
        text += &wrapped("", &format!("{}: not measured: {why}", words(variant)), width);
    }
    text + &match shares(by_variant) {
        Ok(shares) => in_table(&shares, width),
        Err(why) => wrapped("", &format!("No Shapley values: {why}."), width),
    }
}

/// Means of the classes by variant. Long descriptions of variants are listed above the table and referred to by number.
fn throughputs(by_variant: &[(Variant, Analysis)], width: usize) -> String {
    let longest = by_variant.iter().map(|(variant, _)| words(variant).chars().count()).max().unwrap_or(0);
    let has_room = longest <= width / 3;
    let name =
        |index: usize, variant: &Variant| if has_room { words(variant) } else { format!("({})", index + 1) };
    let mut text = String::new();
    let mut rows = Vec::new();
    for (number, (variant, analysis)) in by_variant.iter().enumerate() {
        if !has_room {
            text += &wrapped(&format!("{:6}", name(number, variant)), &words(variant), width);
        }
        let best = analysis.best();
        for (index, class) in analysis.classes.iter().enumerate() {
            let of_best = |value: &dyn Fn(&PairResult) -> String| {
                best.filter(|_| index == 0).map_or(String::new(), value)
            };
            rows.push(vec![
                if index == 0 { name(number, variant) } else { String::new() },
                class.class.word().into(),
                format!("{:.2}", class.gbps.mean),
                report::percent(class.loss),
                class.costs.core_ms.map_or("-".into(), |ms| format!("{ms:.1}")),
                of_best(&|best| best.pair.to_string()),
                of_best(&|best| format!("{:.2}", best.median_gbps)),
            ]);
        }
    }
    let headings = ["VARIANT", "CLASS", "Gb/s", "LOST", "ms/Gbit", "BEST PAIR", "Gb/s"];
    text += &fitted(&headings.map(|heading| (heading, "")), 2, &rows, width);
    for (variants, remark) in remarks(by_variant) {
        let names = variants.iter().map(|index| name(*index, &by_variant[*index].0));
        let of = match variants.len() == by_variant.len() {
            true => String::new(),
            false => format!("{}: ", names.collect::<Vec<_>>().join(", ")),
        };
        text += &wrapped("note: ", &format!("{of}{remark}"), width);
    }
    text
}

/// Each remark once, in the order of the variants, with the indices of the variants that it applies to.
pub fn remarks(by_variant: &[(Variant, Analysis)]) -> Vec<(Vec<usize>, &str)> {
    let mut all: Vec<(Vec<usize>, &str)> = Vec::new();
    for (index, (_, analysis)) in by_variant.iter().enumerate() {
        for remark in &analysis.remarks {
            match all.iter_mut().find(|(_, known)| known == remark) {
                Some((variants, _)) => variants.push(index),
                None => all.push((vec![index], remark)),
            }
        }
    }
    all
}

/// The Shapley value of a setting: its share of the change from the first values of all settings to their last values.
#[derive(Debug)]
pub struct Share {
    pub parameter: SweepParameter,
    pub from: Value,
    pub to: Value,
    pub gbps: Contribution,
    pub core_ms: Option<Contribution>,
}

/// The share of each setting, averaged over all orders of changing the settings and over the pairs measured in all
/// variants. Returns the reason if it cannot be computed.
pub fn shares(by_variant: &[(Variant, Analysis)]) -> Result<Vec<Share>, String> {
    let mut values: BTreeMap<SweepParameter, BTreeSet<Value>> = BTreeMap::new();
    for (parameter, value) in by_variant.iter().flat_map(|(variant, _)| variant) {
        values.entry(*parameter).or_default().insert(value.clone());
    }
    let ends = |(parameter, values): (&SweepParameter, &BTreeSet<Value>)| {
        Some((*parameter, values.first()?.clone(), values.last()?.clone()))
    };
    let ends: Vec<(SweepParameter, Value, Value)> =
        values.iter().filter_map(ends).filter(|(_, from, to)| from != to).collect();
    if ends.len() > MAX_MECHANISMS {
        return Err(format!("more than {MAX_MECHANISMS} settings were varied"));
    }
    let fixed = values.iter().filter(|(_, values)| values.len() == 1);
    let fixed: Vec<(SweepParameter, Value)> =
        fixed.filter_map(|(parameter, values)| Some((*parameter, values.first()?.clone()))).collect();
    let subset = |number: usize| {
        let of = |(bit, (parameter, from, to)): (usize, &(SweepParameter, Value, Value))| {
            (*parameter, if number >> bit & 1 == 1 { to.clone() } else { from.clone() })
        };
        let variant: Variant = ends.iter().enumerate().map(of).chain(fixed.iter().cloned()).collect();
        let found = by_variant.iter().find(|(of, analysis)| *of == variant && !analysis.pairs.is_empty());
        found.map(|(_, analysis)| analysis).ok_or_else(|| format!("{} has no result", words(&variant)))
    };
    let all = (0..1usize << ends.len()).map(subset).collect::<Result<Vec<&Analysis>, String>>()?;
    let of_all = |pair: &Pair| all.iter().all(|analysis| analysis.pairs.iter().any(|one| one.pair == *pair));
    let pairs: BTreeSet<Pair> = all[0].pairs.iter().map(|one| one.pair).filter(of_all).collect();
    let game = |value: &dyn Fn(&PairResult) -> Option<f64>| {
        let mean = |analysis: &&Analysis| {
            let of_pairs = analysis.pairs.iter().filter(|one| pairs.contains(&one.pair)).map(value);
            Some(of_pairs.sum::<Option<f64>>()? / pairs.len() as f64)
        };
        Game::new(all.iter().map(mean).collect::<Option<Vec<f64>>>()?)
    };
    let gbps = game(&|one| Some(one.median_gbps))
        .ok_or("no pair has a result in every combination")?
        .contributions();
    let core_ms = game(&|one| one.costs.core_ms).map(|game| game.contributions());
    let share = |(index, (parameter, from, to)): (usize, &(SweepParameter, Value, Value))| Share {
        parameter: *parameter,
        from: from.clone(),
        to: to.clone(),
        gbps: gbps[index],
        core_ms: core_ms.as_ref().map(|of| of[index]),
    };
    Ok(ends.iter().enumerate().map(share).collect())
}

fn in_table(shares: &[Share], width: usize) -> String {
    let number = |value: f64| format!("{value:+.2}");
    let headings =
        ["SETTING", "FROM", "TO", "Gb/s", "ALONE", "LAST", "CORE ms/Gbit"].map(|heading| (heading, ""));
    let row = |share: &Share| {
        let of = &share.gbps;
        let ms = share.core_ms.map_or("-".into(), |of| number(of.shapley));
        let (from, to) = (share.parameter.shown(&share.from), share.parameter.shown(&share.to));
        vec![share.parameter.to_string(), from, to, number(of.shapley), number(of.alone), number(of.last), ms]
    };
    let words = "Share of each setting: over all orders (Shapley value), alone, and after all others; means over pairs";
    let rows: Vec<Vec<String>> = shares.iter().map(row).collect();
    format!("\n{}{}", wrapped("", words, width), fitted(&headings, 3, &rows, width))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::affinity::matrix::tests::{made_up, pairs};

    fn variant(gro: u64, mtu: u64) -> Variant {
        Variant::from([(SweepParameter::Gro, gro.into()), (SweepParameter::Mtu, mtu.into())])
    }

    /// A sweep in which `rate` computes the rate from two settings.
    pub fn varied(rate: impl Fn(u64, u64) -> Option<f64>) -> Vec<(Variant, Analysis)> {
        let mut all = Vec::new();
        for (gro, mtu) in [(0, 1500), (0, 9000), (1, 1500), (1, 9000)] {
            let mut results = made_up(&pairs(2));
            for sample in &mut results.samples {
                sample.variant = variant(gro, mtu);
                match (rate(gro, mtu), &mut sample.rate) {
                    (Some(gbps), Some(rate)) => rate.gbps = gbps,
                    (None, rate) => *rate = None,
                    _ => {}
                }
            }
            all.push((variant(gro, mtu), Analysis::of(&results)));
        }
        all
    }

    #[test]
    fn shapley_values_are_means_over_all_orders_and_add_up() {
        // GRO adds 4 Gb/s, or 1 with large packets; large packets add 6, or 3 with GRO.
        let rate = |gro, mtu| {
            Some(match (gro, mtu) {
                (0, 1500) => 2.0,
                (1, 1500) => 6.0,
                (0, _) => 8.0,
                _ => 9.0,
            })
        };
        let shares = shares(&varied(rate)).unwrap();
        let found: Vec<(SweepParameter, f64, f64, f64)> = shares
            .iter()
            .map(|share| (share.parameter, share.gbps.shapley, share.gbps.alone, share.gbps.last))
            .collect();
        assert_eq!(found, [(SweepParameter::Gro, 2.5, 4.0, 1.0), (SweepParameter::Mtu, 4.5, 6.0, 3.0)]);
        assert!(in_table(&shares, 80).contains("+4.50"));
    }

    /// All settings in each variant, with values of five digits where possible.
    #[test]
    fn the_tables_of_many_settings_fit_into_eighty_columns() {
        let results = made_up(&pairs(12));
        let variant = |gro: u64| {
            Variant::from_iter(SweepParameter::ALL.map(|parameter| {
                (parameter, if parameter == SweepParameter::Gro { gro } else { 32_768 }.into())
            }))
        };
        let by_variant: Vec<(Variant, Analysis)> =
            [0, 1].map(|gro| (variant(gro), Analysis::of(&results))).into();
        let text = text(&results, &by_variant, &effects(&by_variant), 80);
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{long:#?}");
        assert!(text.contains("(2)") && text.contains("busy-poll=32768"), "{text}");
    }

    #[test]
    fn losses_and_remarks_of_every_variant_are_shown() {
        let mut by_variant = varied(|_, _| Some(1.0));
        by_variant[1].1.classes[0].loss = 0.63;
        for (_, analysis) in &mut by_variant {
            analysis.remarks = vec!["of all".into()];
        }
        by_variant[2].1.remarks.push("1 run was not processed on its CPU".into());
        let text = text(&made_up(&pairs(2)), &by_variant, &[], 80);
        assert!(text.contains("63.00 %") && text.contains("LOST"), "{text}");
        assert!(text.contains("note: of all\n"), "{text}");
        assert!(text.contains("note: gro=1 mtu=1500: 1 run was not processed on its CPU"), "{text}");
    }

    /// The runs of a single pair tell how much of a difference is noise.
    #[test]
    fn the_effect_on_a_single_pair_has_an_interval_over_its_runs() {
        let of = |gro: u64, rates: [f64; 3]| {
            let mut results = made_up(&pairs(1));
            let first = results.samples[0].clone();
            let run = |gbps: f64| {
                let mut sample = first.clone();
                sample.rate.as_mut().unwrap().gbps = gbps;
                sample
            };
            results.samples = rates.map(run).into();
            (Variant::from([(SweepParameter::Gro, gro.into())]), Analysis::of(&results))
        };
        let effects = effects(&[of(0, [9.0, 10.0, 11.0]), of(1, [10.0, 11.0, 12.0])]);
        let half = effects[0].gbps.half.unwrap();
        assert_eq!(effects[0].gbps.mean, 1.0);
        assert!((2.2..2.3).contains(&half), "{half}");
        assert!(effects[0].core_ms.is_none_or(|core_ms| core_ms.half.is_some()));
    }

    #[test]
    fn a_combination_without_result_prevents_shapley_values() {
        let rate = |gro, mtu| (gro == 0 || mtu == 1500).then_some(1.0);
        assert_eq!(shares(&varied(rate)).unwrap_err(), "gro=1 mtu=9000 has no result");
    }
}
