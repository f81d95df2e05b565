//! Sections of the page of a sweep that varied settings: the effect of each setting, the throughput of each variant, the
//! share of each setting, and the combinations that the interface rejected.

use super::intervals::{MAX_LABEL, Mean, figure, paragraph, table, with_half};
use crate::affinity::report::percent;
use crate::affinity::variants::{Effect, Share, effects, remarks, shares};
use longma_affinity::analysis::{Analysis, Interval};
use longma_affinity::pairs::Class;
use longma_affinity::sweep::Results;
use longma_affinity::vary::{Variant, words};
use longma_lab::{Section, number};

/// The sections.
pub fn sections(results: &Results, by_variant: &[(Variant, Analysis)]) -> Vec<Section> {
    let mut all =
        vec![effects_section(&effects(by_variant)), throughputs(by_variant), shares_section(by_variant)];
    let refused: Vec<Vec<String>> =
        results.refused().iter().map(|(variant, why)| vec![words(variant), (*why).into()]).collect();
    if !refused.is_empty() {
        let body = table(2, &["combination", "why"], &refused);
        all.push(section("refused", "Combinations that were rejected", body));
    }
    all
}

fn section(id: &str, title: &str, body: String) -> Section {
    Section { id: id.into(), title: title.into(), body }
}

fn change(effect: &Effect) -> String {
    let parameter = effect.parameter;
    format!("{parameter} {} → {}", parameter.shown(&effect.from), parameter.shown(&effect.to))
}

fn effects_section(effects: &[Effect]) -> Section {
    let mean =
        |effect: &Effect, interval: &Interval| Mean { label: change(effect), group: 0, interval: *interval };
    let gbps: Vec<Mean> = effects.iter().map(|effect| mean(effect, &effect.gbps)).collect();
    let core_ms: Vec<Mean> =
        effects.iter().filter_map(|effect| Some(mean(effect, effect.core_ms.as_ref()?))).collect();
    let mut body = paragraph(
        "Change of the median of each pair, with all other settings equal: mean over pairs and settings, with a 95 % interval. Where the interval contains 0, no effect is shown.",
    );
    body += "<div class=\"charts\">\n";
    body += &figure("Effect on throughput", "Gb/s", &[], &gbps);
    if !core_ms.is_empty() {
        body += &figure("Effect on processor time", "core ms/Gbit", &[], &core_ms);
    }
    body += "</div>\n";
    let row = |effect: &Effect| {
        let parameter = effect.parameter;
        vec![
            parameter.to_string(),
            parameter.shown(&effect.from),
            parameter.shown(&effect.to),
            with_half(&effect.gbps),
            effect.core_ms.as_ref().map_or("–".into(), with_half),
        ]
    };
    let head = ["setting", "from", "to", "Gb/s", "core ms/Gbit"];
    body += &table(3, &head, &effects.iter().map(row).collect::<Vec<_>>());
    section("effects", "Effect of each setting", body)
}

fn throughputs(by_variant: &[(Variant, Analysis)]) -> Section {
    let present: Vec<Class> = Class::ALL
        .into_iter()
        .filter(|class| {
            by_variant.iter().any(|(_, analysis)| analysis.classes.iter().any(|of| of.class == *class))
        })
        .collect();
    // Long descriptions are in the table only.
    let is_long = by_variant.iter().any(|(variant, _)| words(variant).chars().count() > MAX_LABEL);
    let (mut means, mut rows) = (Vec::new(), Vec::new());
    for (place, (variant, analysis)) in by_variant.iter().enumerate() {
        let place = format!("({})", place + 1);
        let (label, name) = match is_long {
            true => (place.clone(), format!("{place} {}", words(variant))),
            false => (words(variant), words(variant)),
        };
        for class in &analysis.classes {
            let group = present.iter().position(|of| *of == class.class).unwrap_or(0);
            means.push(Mean { label: label.clone(), group, interval: class.gbps });
            rows.push(vec![
                name.clone(),
                class.class.word().into(),
                with_half(&class.gbps),
                percent(class.loss),
                class.costs.core_ms.map_or("–".into(), number),
                analysis.best().map_or("–".into(), |best| best.pair.to_string()),
            ]);
        }
    }
    let names: Vec<&str> = present.iter().map(|class| class.word()).collect();
    let mut body = paragraph("Means over the pairs of a class with 95 % intervals.");
    body += &format!(
        "<div class=\"charts\">\n{}</div>\n",
        figure("Throughput by variant", "Gb/s", &names, &means)
    );
    let head = ["variant", "class", "Gb/s", "lost", "core ms/Gbit", "best pair of the variant"];
    body += &table(2, &head, &rows);
    for (variants, remark) in remarks(by_variant) {
        let names: Vec<String> = variants.iter().map(|index| words(&by_variant[*index].0)).collect();
        let of =
            if names.len() == by_variant.len() { String::new() } else { format!("{}: ", names.join(", ")) };
        body += &paragraph(&format!("Note: {of}{remark}."));
    }
    section("variants", "Throughput of each variant", body)
}

fn shares_section(by_variant: &[(Variant, Analysis)]) -> Section {
    let title = "Share of each setting";
    let shares = match shares(by_variant) {
        Ok(shares) => shares,
        Err(why) => return section("shares", title, paragraph(&format!("No Shapley values: {why}."))),
    };
    let row = |share: &Share| {
        let of = &share.gbps;
        let ms = share.core_ms.map_or("–".into(), |of| number(of.shapley));
        let parameter = share.parameter;
        let (from, to) = (parameter.shown(&share.from), parameter.shown(&share.to));
        vec![parameter.to_string(), from, to, number(of.shapley), number(of.alone), number(of.last), ms]
    };
    let mut body = paragraph(
        "Share of the change from the first values of all settings to the last: over all orders of changing them (Shapley value), alone, and after all others. Means over pairs.",
    );
    let head = ["setting", "from", "to", "Gb/s", "alone", "after the others", "core ms/Gbit"];
    body += &table(3, &head, &shares.iter().map(row).collect::<Vec<_>>());
    section("shares", title, body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::matrix::tests::{made_up, pairs};
    use crate::affinity::variants::tests::varied;

    #[test]
    fn a_page_of_variants_has_an_interval_for_each_effect_and_each_class() {
        let by_variant = varied(|gro, mtu| Some(4.0 + gro as f64 + mtu as f64 / 1500.0));
        let sections = sections(&made_up(&pairs(2)), &by_variant);
        assert_eq!(sections.iter().map(|of| &*of.id).collect::<Vec<_>>(), ["effects", "variants", "shares"]);
        // Two settings, of throughput and processor time.
        assert_eq!(sections[0].body.matches("mark dot").count(), 4);
        assert!(sections[0].body.contains("gro 0 → 1"), "{}", sections[0].body);
        let classes: usize = by_variant.iter().map(|(_, analysis)| analysis.classes.len()).sum();
        assert_eq!(sections[1].body.matches("mark dot").count(), classes);
        assert!(sections[2].body.contains("after the others"));
        assert!(sections[1].body.contains("Note: no hardware counters"), "{}", sections[1].body);
        let some = varied(|gro, mtu| (gro == 0 || mtu == 1500).then_some(1.0));
        let sections = super::sections(&made_up(&pairs(2)), &some);
        assert!(sections[2].body.contains("No Shapley values"), "{}", sections[2].body);
    }
}
