//! The bottleneck of a modelled run.

use super::Measurement;

/// Busy fraction from which a core counts as saturated.
const FULL: f64 = 0.9;
/// Fraction of the link's goodput from which the link counts as saturated. Acknowledgements and the ends of the
/// measurement take the rest.
const FULL_LINK: f64 = 0.99;

/// Describes the saturated resource of a run: the link at line rate; otherwise a core, unless `polls`, since a core
/// that polls is busy at any rate. `goodput` is the goodput of the link in Gb/s.
pub fn limit(one: &Measurement, goodput: f64, polls: bool) -> &'static str {
    match (one.gbps >= FULL_LINK * goodput, busier(one), polls) {
        (true, ..) => "the link is saturated",
        (_, _, true) => "not known: the application polls, which keeps its core busy at any rate",
        (_, (0, busy), _) if busy >= FULL => "the flow's core is saturated",
        (_, (_, busy), _) if busy >= FULL => "the application's core is saturated",
        _ => "no core or link is saturated: limited by latencies and windows",
    }
}

/// The busier core of a run, 0 for the flow's, and its busy fraction.
pub fn busier(one: &Measurement) -> (usize, f64) {
    let core = usize::from(one.busy[0].0 <= one.busy[1].0);
    (core, one.busy[core].0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs::{COSTS, STAGES};
    use longma_affinity::pairs::{Class, Pair};

    #[test]
    fn a_limit_is_that_of_each_run_and_polling_is_none() {
        let limit = |gbps, flow, polls| {
            let one = Measurement {
                pair: Pair { flow: 0, application: 1 },
                seed: 1,
                class: Class::SharedCache,
                gbps,
                costs: [0.0; COSTS.len()],
                stages: [0.0; STAGES.len()],
                busy: [(flow, "system".into()), (0.5, "system".into())],
            };
            limit(&one, 39.6, polls)
        };
        assert_eq!(limit(39.5, 1.0, false), "the link is saturated");
        // 93 % of the link.
        assert!(limit(36.8, 0.5, false).starts_with("no core or link is saturated"));
        assert_eq!(limit(36.8, 0.95, false), "the flow's core is saturated");
        assert!(limit(36.8, 1.0, true).starts_with("not known"));
    }
}
