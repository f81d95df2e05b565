//! Draws the throughput of all pairs as a matrix of circles in the terminal; a fuller circle is a higher rate.
//! Source: the layout follows Hanford et al. 2014.

use super::check::wrapped;
use longma_affinity::analysis::PairResult;
use longma_affinity::pairs::Pair;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Circles, each with the smallest fraction of the best throughput that it represents.
const CIRCLES: [(f64, char); 5] = [(0.95, '●'), (0.75, '◕'), (0.5, '◑'), (0.25, '◔'), (0.0, '○')];
/// Width of the row labels, in characters.
const LABEL: usize = 10;
/// Width of a column with and without a number, in characters.
const NUMBERED: usize = 9;
const BARE: usize = 4;

/// Draws the matrix with numbers if the width allows, otherwise without; if even that is too wide, returns a message
/// instead. Circles and numbers show rates without lost packets.
pub fn text(pairs: &[PairResult], width: usize) -> String {
    let best = pairs.iter().map(PairResult::median_weighed_gbps).fold(0.0, f64::max);
    let cpus = |of: fn(&Pair) -> u32| pairs.iter().map(|result| of(&result.pair)).collect::<BTreeSet<u32>>();
    let (flows, applications) = (cpus(|pair| pair.flow), cpus(|pair| pair.application));
    let has_room = |column: usize| LABEL + applications.len() * column <= width;
    let column = match (has_room(NUMBERED), has_room(BARE)) {
        (true, _) => NUMBERED,
        (_, true) => BARE,
        _ => {
            let words = format!(
                "{} by {} pairs do not fit here: use a wider terminal or --format json; `longma affinity report --html FILE` draws \
                 those of a real host.",
                flows.len(),
                applications.len()
            );
            return wrapped("", &words, width);
        }
    };
    let above = "application on CPU";
    let set_in = if LABEL + above.len() <= width { LABEL } else { 0 };
    let mut text = format!("{:set_in$}{above}\n{:LABEL$}", "", "flow");
    for application in &applications {
        let _ = write!(text, "{application:<column$}");
    }
    text = text.trim_end().to_string() + "\n";
    for flow in &flows {
        let mut line = format!("{:<LABEL$}", format!("CPU {flow}"));
        for application in &applications {
            let pair = Pair { flow: *flow, application: *application };
            let cell = pairs.iter().find(|result| result.pair == pair).map_or(String::new(), |result| {
                let gbps = result.median_weighed_gbps();
                let circle = circle(gbps, best);
                if column == NUMBERED { format!("{circle} {gbps:.2}") } else { circle.to_string() }
            });
            let _ = write!(line, "{cell:<column$}");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let legend = CIRCLES.map(|(from, circle)| format!("{circle} >= {:.0} %", from * 100.0));
    let lost = if pairs.iter().any(|pair| pair.loss > 0.0) { "; rates without lost packets" } else { "" };
    text + &wrapped("", &format!("{} of the best{lost}", legend.join(", ")), width)
}

fn circle(value: f64, best: f64) -> char {
    let part = if best > 0.0 { value / best } else { 0.0 };
    CIRCLES.into_iter().find(|(from, _)| part >= *from).map_or('○', |(_, circle)| circle)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use longma_affinity::analysis::Analysis;
    use longma_affinity::pairs::{all_pairs, classify, of_machine};
    use longma_affinity::sweep::Results;
    use longma_topology::Machine;
    use serde_json::json;

    /// Pairs of the first CPUs of the host in the paper, with rates by class.
    pub fn pairs(cpus: u32) -> Vec<(Pair, f64)> {
        let rate =
            |pair: Pair| if pair.flow == pair.application { 10.0 } else { 20.0 + f64::from(pair.flow) };
        all_pairs(&(0..cpus).collect::<Vec<_>>()).into_iter().map(|pair| (pair, rate(pair))).collect()
    }

    /// Results as read from a file.
    pub fn made_up(pairs: &[(Pair, f64)]) -> Results {
        let places = of_machine(&Machine::open("sandybridge-2x6").unwrap());
        let header = json!({
            "affinity_sweep": 1, "kernel": "6.1", "processor": "Intel Xeon E5-2667", "seconds": 2, "sender": null,
            "nic": { "name": "eth2", "driver": "mlx4_en", "node": 0, "speed_mbps": 40000, "mtu": 9000, "state": "up",
                "rx_queues": [0], "tx_queues": [0], "irqs": [] },
            "steering": { "interrupts": { "interface": "eth2", "irqs": [50], "queues": [0] } },
            "load": { "iperf": { "server": "10.0.0.1", "port": 5201, "zero_copy": true, "reverse": true, "udp": false, "flows": 1 } },
            "places": places,
        });
        let share = |busy: f64| json!({ "user": 0.0, "system": busy, "irq": 0.0, "softirq": 0.2, "steal": 0.0, "idle": 0.8 - busy });
        let sample = |(pair, gbps): &(Pair, f64)| {
            let mut cpus = serde_json::Map::new();
            cpus.insert(pair.flow.to_string(), share(0.1));
            cpus.insert(pair.application.to_string(), share(0.75));
            serde_json::from_value(json!({
                "pair": pair, "class": classify(&places, *pair).unwrap(), "repeat": 0, "at": 0, "failure": null, "hardware": {},
                "migrations": null, "rate": { "gbps": gbps, "retransmits": 0, "lost": null, "remote_cpu": null },
                "kernel": { "seconds": 1.0, "cpus": cpus, "interrupts": {}, "receptions": {}, "context_switches": 100, "running_before": 1 },
            }))
            .unwrap()
        };
        Results {
            samples: pairs.iter().map(sample).collect(),
            header: serde_json::from_value(header).unwrap(),
            is_cut: false,
        }
    }

    fn drawn(cpus: u32, width: usize) -> String {
        let analysis = Analysis::of(&made_up(&pairs(cpus)));
        text(&analysis.pairs, width)
    }

    #[test]
    fn numbers_are_shown_only_if_they_fit() {
        assert!(drawn(2, 80).contains("CPU 0     ◔ 10.00  ● 20.00"), "{}", drawn(2, 80));
        let twelve = drawn(12, 80);
        assert!(twelve.contains("CPU 11    ●   ●") && twelve.contains("◔"), "{twelve}");
        assert!(twelve.lines().all(|line| line.chars().count() <= 80), "{twelve}");
        let narrow = drawn(12, 50);
        assert!(narrow.contains("do not fit"), "{narrow}");
        assert!(narrow.lines().all(|line| line.chars().count() <= 50), "{narrow}");
    }

    #[test]
    fn an_unmeasured_pair_is_left_blank() {
        let measured = [(Pair { flow: 0, application: 1 }, 5.0), (Pair { flow: 1, application: 0 }, 5.0)];
        let analysis = Analysis::of(&made_up(&measured));
        assert!(text(&analysis.pairs, 80).contains("CPU 0              ● 5.00"));
    }

    /// The pair with the higher rate loses most of its packets.
    #[test]
    fn circles_and_numbers_show_the_same_rates() {
        let measured = [(Pair { flow: 0, application: 1 }, 10.0), (Pair { flow: 1, application: 1 }, 8.0)];
        let mut pairs = Analysis::of(&made_up(&measured)).pairs;
        (pairs[0].loss, pairs[0].weighed_gbps) = (0.6, vec![4.0]);
        let drawn = text(&pairs, 80);
        assert!(drawn.contains("◑ 4.00") && drawn.contains("● 8.00") && !drawn.contains("10.00"), "{drawn}");
        let words = drawn.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("rates without lost packets"), "{drawn}");
    }
}
