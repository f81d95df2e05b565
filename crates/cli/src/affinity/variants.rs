//! What settings of the interface change, in a sweep that varied them.
//! Not the pairs: each variant's own report has those.

use super::check::wrapped;
use super::{Format, Outcome, report, width};
use crate::machine::{print as put, print_json, table};
use longma_affinity::analysis::{Analysis, Interval};
use longma_affinity::sweep::Results;
use longma_affinity::vary::{Knob, Variant, words};
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
            print_json(&json!({ "sweep": results.header, "variants": variants, "effects": effects }))
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
    text + &table(&rows)
}
