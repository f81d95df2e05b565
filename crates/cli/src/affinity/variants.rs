//! What settings of the interface change, in a sweep that varied them.
//! Not the pairs: each variant's own report has those.

use super::check::wrapped;
use super::{Format, Outcome, report, width};
use crate::machine::{print as put, print_json, table};
use longma_affinity::analysis::{Analysis, Interval, PairResult};
use longma_affinity::places::Pair;
use longma_affinity::sweep::Results;
use longma_affinity::vary::{Knob, Variant, words};
use longma_lab::{Contribution, Game, MOST_MEMBERS};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

/// What going from one value of a knob to another gives, over all pairs and all values of the other knobs.
struct Effect {
    knob: Knob,
    from: u64,
    to: u64,
    /// Gb/s, differences of medians.
    gbps: Interval,
    /// Core-milliseconds a Gbit; none where they were not counted.
    core_ms: Option<Interval>,
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
                    json!({ "knob": effect.knob, "from": effect.from, "to": effect.to, "gbps": effect.gbps, "core_ms": effect.core_ms })
                })
                .collect();
            let refused: Vec<_> = results
                .refused()
                .iter()
                .map(|(variant, why)| json!({ "variant": variant, "why": why }))
                .collect();
            let share = |of: Share| json!({ "knob": of.knob, "from": of.from, "to": of.to, "gbps": of.gbps, "core_ms": of.core_ms });
            let shares = shares(by_variant).ok();
            let shares = shares.map(|shares| shares.into_iter().map(share).collect::<Vec<_>>());
            print_json(&json!({
                "sweep": results.header, "variants": variants, "effects": effects, "refused": refused, "shapley": shares,
            }))
        }
        Format::Table => put(&text(results, by_variant, &effects)),
    }?;
    let has_result = by_variant.iter().any(|(_, analysis)| !analysis.pairs.is_empty());
    Ok(if has_result { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Of each knob, its first value against each other one: only what differs in nothing else is compared.
fn effects(by_variant: &[(Variant, Analysis)]) -> Vec<Effect> {
    let mut values: BTreeMap<Knob, BTreeSet<u64>> = BTreeMap::new();
    for (knob, value) in by_variant.iter().flat_map(|(variant, _)| variant) {
        values.entry(*knob).or_default().insert(*value);
    }
    let mut effects = Vec::new();
    for (knob, values) in values {
        let mut values = values.into_iter();
        let Some(from) = values.next() else { continue };
        for to in values {
            let (mut gbps, mut core_ms) = (Vec::new(), Vec::new());
            for (variant, before) in
                by_variant.iter().filter(|(variant, _)| variant.get(&knob) == Some(&from))
            {
                let mut other = variant.clone();
                other.insert(knob, to);
                let Some((_, after)) = by_variant.iter().find(|(variant, _)| *variant == other) else {
                    continue;
                };
                for one in &before.pairs {
                    let Some(then) = after.pairs.iter().find(|of| of.pair == one.pair) else { continue };
                    gbps.push(then.median_gbps - one.median_gbps);
                    core_ms.extend(then.costs.core_ms.zip(one.costs.core_ms).map(|(then, one)| then - one));
                }
            }
            if let Some(gbps) = Interval::of(&gbps) {
                effects.push(Effect { knob, from, to, gbps, core_ms: Interval::of(&core_ms) });
            }
        }
    }
    effects
}

fn text(results: &Results, by_variant: &[(Variant, Analysis)], effects: &[Effect]) -> String {
    let mut text = String::new();
    for line in report::setting(&results.header) {
        text.push_str(&wrapped("", &line, width()));
    }
    text.push_str("\nThroughput by variant, means over the pairs of a class, and the best pair\n");
    let mut rows =
        vec![["VARIANT", "CLASS", "   Gb/s", "BEST PAIR", "   Gb/s", "ms/Gbit"].map(String::from).to_vec()];
    for (variant, analysis) in by_variant {
        let best = analysis.best();
        for (index, class) in analysis.classes.iter().enumerate() {
            rows.push(vec![
                if index == 0 { words(variant) } else { String::new() },
                class.class.word().into(),
                format!("{:>7.2}", class.gbps.mean),
                best.filter(|_| index == 0).map_or(String::new(), |best| best.pair.to_string()),
                best.filter(|_| index == 0)
                    .map_or(String::new(), |best| format!("{:>7.2}", best.median_gbps)),
                class.costs.core_ms.map_or("-".into(), |ms| format!("{ms:>7.1}")),
            ]);
        }
    }
    text.push_str(&table(&rows));
    text.push_str("\nWhat a setting changes, all pairs and all else alike, with 95 % intervals\n");
    let with_half = |interval: &Interval| match interval.half {
        Some(half) => format!("{:+.2} ± {half:.2}", interval.mean),
        None => format!("{:+.2}", interval.mean),
    };
    let mut rows = vec![["SETTING", "FROM", "TO", "Gb/s", "CORE ms/Gbit"].map(String::from).to_vec()];
    for effect in effects {
        rows.push(vec![
            effect.knob.to_string(),
            effect.from.to_string(),
            effect.to.to_string(),
            with_half(&effect.gbps),
            effect.core_ms.as_ref().map_or("-".into(), with_half),
        ]);
    }
    text += &table(&rows);
    for (variant, why) in results.refused() {
        text += &wrapped(&format!("{}: ", words(variant)), &format!("not measured: {why}"), width());
    }
    text + &match shares(by_variant) {
        Ok(shares) => in_table(&shares),
        Err(why) => wrapped("", &format!("No Shapley values: {why}."), width()),
    }
}

/// What a setting has of the change from all settings' first values to all last ones.
#[derive(Debug)]
struct Share {
    knob: Knob,
    from: u64,
    to: u64,
    gbps: Contribution,
    core_ms: Option<Contribution>,
}

/// Each knob's part, over all orders in which they may be changed, from its first value to its last; means over the pairs that have all.
/// Or why there are none.
fn shares(by_variant: &[(Variant, Analysis)]) -> Result<Vec<Share>, String> {
    let mut values: BTreeMap<Knob, BTreeSet<u64>> = BTreeMap::new();
    for (knob, value) in by_variant.iter().flat_map(|(variant, _)| variant) {
        values.entry(*knob).or_default().insert(*value);
    }
    let ends = |(knob, values): (&Knob, &BTreeSet<u64>)| Some((*knob, *values.first()?, *values.last()?));
    let ends: Vec<(Knob, u64, u64)> =
        values.iter().filter_map(ends).filter(|(_, from, to)| from != to).collect();
    if ends.len() > MOST_MEMBERS {
        return Err(format!("more than {MOST_MEMBERS} settings were varied"));
    }
    let fixed = values.iter().filter(|(_, values)| values.len() == 1);
    let fixed: Vec<(Knob, u64)> =
        fixed.filter_map(|(knob, values)| Some((*knob, *values.first()?))).collect();
    let subset = |number: usize| {
        let of = |(bit, (knob, from, to)): (usize, &(Knob, u64, u64))| {
            (*knob, if number >> bit & 1 == 1 { *to } else { *from })
        };
        let variant: Variant = ends.iter().enumerate().map(of).chain(fixed.iter().copied()).collect();
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
    let share = |(index, (knob, from, to)): (usize, &(Knob, u64, u64))| Share {
        knob: *knob,
        from: *from,
        to: *to,
        gbps: gbps[index],
        core_ms: core_ms.as_ref().map(|of| of[index]),
    };
    Ok(ends.iter().enumerate().map(share).collect())
}

fn in_table(shares: &[Share]) -> String {
    let number = |value: f64| format!("{value:+.2}");
    let head = ["SETTING", "FROM", "TO", "Gb/s", "ALONE", "LAST", "CORE ms/Gbit"].map(String::from).to_vec();
    let row = |share: &Share| {
        let of = &share.gbps;
        let ms = share.core_ms.map_or("-".into(), |of| number(of.shapley));
        let (from, to) = (share.from.to_string(), share.to.to_string());
        vec![share.knob.to_string(), from, to, number(of.shapley), number(of.alone), number(of.last), ms]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(shares.iter().map(row)).collect();
    format!(
        "\nEach setting's part over all orders (Shapley value), alone, and after all others, means over pairs\n{}",
        table(&rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::matrix::tests::{made_up, pairs};

    /// A sweep in which the rate is so much in each combination of two settings.
    fn varied(rate: impl Fn(u64, u64) -> Option<f64>) -> Vec<(Variant, Analysis)> {
        let mut all = Vec::new();
        for (gro, mtu) in [(0, 1500), (0, 9000), (1, 1500), (1, 9000)] {
            let mut results = made_up(&pairs(2));
            for sample in &mut results.samples {
                sample.variant = Variant::from([(Knob::Gro, gro), (Knob::Mtu, mtu)]);
                match (rate(gro, mtu), &mut sample.rate) {
                    (Some(gbps), Some(rate)) => rate.gbps = gbps,
                    (None, rate) => *rate = None,
                    _ => {}
                }
            }
            all.push((Variant::from([(Knob::Gro, gro), (Knob::Mtu, mtu)]), Analysis::of(&results)));
        }
        all
    }

    #[test]
    fn each_settings_part_is_its_mean_over_all_orders_and_together_they_are_all() {
        // Merging brings 4, or 1 once packets are large; those bring 6, or 3 once it merges.
        let rate = |gro, mtu| {
            Some(match (gro, mtu) {
                (0, 1500) => 2.0,
                (1, 1500) => 6.0,
                (0, _) => 8.0,
                _ => 9.0,
            })
        };
        let shares = shares(&varied(rate)).unwrap();
        let found: Vec<(Knob, f64, f64, f64)> = shares
            .iter()
            .map(|share| (share.knob, share.gbps.shapley, share.gbps.alone, share.gbps.last))
            .collect();
        assert_eq!(found, [(Knob::Gro, 2.5, 4.0, 1.0), (Knob::Mtu, 4.5, 6.0, 3.0)]);
        assert!(in_table(&shares).contains("+4.50"));
    }

    #[test]
    fn where_a_combination_has_no_result_there_are_none_and_it_is_named() {
        let rate = |gro, mtu| (gro == 0 || mtu == 1500).then_some(1.0);
        assert_eq!(shares(&varied(rate)).unwrap_err(), "gro=1 mtu=9000 has no result");
    }
}
