//! Checks by a run's own counters that the flow was processed on the CPU that it was sent to.
//!
//! Source: Linux net/core/dev.c (`softnet_data.processed` counts packets where their protocols run), proc(5)
//! (/proc/interrupts).

use super::Sample;
use crate::vary::Knob;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Fraction of the packets that the flow's CPU must process at least. Acknowledgements and other traffic may be
/// processed elsewhere: between two namespaces of a host, up to 45 % were.
const LEAST_HERE: f64 = 0.25;
/// Fraction that one other CPU must process, so that a flow spread over many CPUs by its application is not reported.
const LEAST_THERE: f64 = 0.5;
/// The same of NET_RX softirqs, which RPS also raises where packets arrive.
const LEAST_SOFTIRQS_HERE: f64 = 0.05;
/// Fewer events than this say nothing.
const MIN_EVENTS: f64 = 100.0;

/// A flow that was not processed where it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Astray {
    /// The CPU that it was sent to.
    pub flow: u32,
    /// Fraction of the events on that CPU.
    pub here: f64,
    /// The CPU that had most of them.
    pub cpu: u32,
    /// Fraction of the events on that CPU.
    pub there: f64,
    /// What was counted.
    pub what: Evidence,
}

/// What shows where a flow was processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// Interrupts of the interface's queues.
    Interrupts,
    /// Packets processed by protocols.
    Packets,
    /// NET_RX softirqs.
    Softirqs,
}

impl fmt::Display for Astray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flow, here, cpu, there, what } = self;
        let what = match what {
            Evidence::Interrupts => "interrupts of the queues",
            Evidence::Packets => "packets",
            Evidence::Softirqs => "NET_RX softirqs",
        };
        let (here, there) = (here * 100.0, there * 100.0);
        write!(
            f,
            "CPU {cpu} had {there:.0} % of the {what}, and CPU {flow}, where the flow was sent, {here:.0} %"
        )
    }
}

impl Sample {
    /// Where the flow was processed, if not on its CPU. `None` also if too little was counted, and for variants that move
    /// the processing by design: to the application's CPU, or to a thread.
    pub fn astray(&self, is_software: bool) -> Option<Astray> {
        let is_on = |knob| self.variant.get(&knob).is_some_and(|value| *value > 0);
        if [Knob::Rfs, Knob::BusyPoll, Knob::Threaded].into_iter().any(is_on) {
            return None;
        }
        let (kernel, flow) = (&self.kernel, self.pair.flow);
        let of = |what, counts: &BTreeMap<u32, u64>, least| astray(what, counts, flow, least);
        let interrupts =
            (!is_software).then(|| of(Evidence::Interrupts, &kernel.queue_interrupts, LEAST_HERE));
        let packets = of(Evidence::Packets, &kernel.packets, LEAST_HERE);
        let softirqs = || of(Evidence::Softirqs, &kernel.receptions, LEAST_SOFTIRQS_HERE);
        let is_counted = !kernel.packets.is_empty();
        interrupts.flatten().or(packets).or_else(|| softirqs().filter(|_| !is_counted))
    }

    /// Returns whether the counters show where the flow was processed.
    pub fn shows_arrival(&self) -> bool {
        let kernel = &self.kernel;
        [&kernel.packets, &kernel.receptions].into_iter().any(|counts| sum(counts) >= MIN_EVENTS)
    }
}

fn sum(counts: &BTreeMap<u32, u64>) -> f64 {
    counts.values().map(|count| *count as f64).sum()
}

fn astray(what: Evidence, counts: &BTreeMap<u32, u64>, flow: u32, least: f64) -> Option<Astray> {
    let all = sum(counts);
    let (cpu, most) = counts.iter().max_by_key(|(cpu, count)| (**count, **cpu == flow))?;
    let part = |count: u64| count as f64 / all.max(1.0);
    let (here, there) = (part(counts.get(&flow).copied().unwrap_or(0)), part(*most));
    let is_astray = all >= MIN_EVENTS && *cpu != flow && here < least && there >= LEAST_THERE;
    is_astray.then_some(Astray { flow, here, cpu: *cpu, there, what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::KernelCounts;
    use crate::pairs::{Class, Pair};

    fn sample(packets: &[(u32, u64)], softirqs: &[(u32, u64)], interrupts: &[(u32, u64)]) -> Sample {
        let counts = |counts: &[(u32, u64)]| counts.iter().copied().collect();
        let kernel = KernelCounts {
            packets: counts(packets),
            receptions: counts(softirqs),
            queue_interrupts: counts(interrupts),
            ..Default::default()
        };
        Sample {
            pair: Pair { flow: 1, application: 2 },
            class: Class::SharedCache,
            repeat: 0,
            variant: Default::default(),
            at: 0,
            rate: Some(Default::default()),
            failure: None,
            refused: false,
            kernel,
            hardware: Default::default(),
            migrations: None,
        }
    }

    /// A bond whose own queues were steered to CPU 1: its NIC delivers to CPU 2.
    #[test]
    fn a_flow_that_stayed_where_it_was_is_noticed() {
        let astray = sample(&[(0, 100), (1, 0), (2, 90_000)], &[], &[]).astray(true).unwrap();
        assert_eq!((astray.flow, astray.cpu, astray.what), (1, 2, Evidence::Packets));
        let words = astray.to_string();
        assert!(words.contains("CPU 2 had 100 % of the packets") && words.contains("CPU 1"), "{words}");
        // Older kernels and files have softirqs only.
        let astray = sample(&[], &[(1, 3), (2, 5000)], &[]).astray(true).unwrap();
        assert_eq!((astray.cpu, astray.what), (2, Evidence::Softirqs));
        // One of two interrupts was not moved, and its packets were processed where it was delivered.
        let astray = sample(&[(1, 50_000), (2, 40_000)], &[], &[(1, 10), (2, 900)]).astray(false).unwrap();
        assert_eq!(astray.what, Evidence::Interrupts);
    }

    #[test]
    fn acknowledgements_other_traffic_and_rps_do_not_count_as_astray() {
        // Measured between two namespaces with RPS, data to CPU 1 and acknowledgements on CPU 0.
        assert_eq!(sample(&[(0, 13_652), (1, 19_941)], &[(0, 14_764), (1, 19_274)], &[]).astray(true), None);
        assert_eq!(sample(&[], &[(0, 42_235), (1, 42_233)], &[]).astray(true), None);
        // A load with its own threads on all CPUs.
        assert_eq!(sample(&[(0, 300), (1, 200), (2, 300), (3, 300)], &[], &[]).astray(true), None);
        // Nothing was counted.
        assert_eq!(sample(&[(2, 20)], &[], &[]).astray(true), None);
        assert!(!sample(&[(2, 20)], &[], &[]).shows_arrival());
        // With RPS, interrupts stay where they are.
        assert_eq!(sample(&[(1, 9000)], &[], &[(2, 9000)]).astray(true), None);
        // RFS moves packets to the application's CPU.
        let mut moved = sample(&[(2, 90_000)], &[], &[]);
        moved.variant = [(Knob::Rfs, 32_768)].into();
        assert_eq!(moved.astray(true), None);
        moved.variant = [(Knob::Rfs, 0)].into();
        assert!(moved.astray(true).is_some());
    }
}
