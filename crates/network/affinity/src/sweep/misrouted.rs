//! Checks from the counters of a run that the flow was processed on the CPU to which it was steered.
//!
//! Source: Linux net/core/dev.c (`softnet_data.processed` counts packets where their protocols run), proc(5)
//! (/proc/interrupts).

use super::Sample;
use crate::vary::{SweepParameter, Value};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Minimum fraction of the packets that the flow's CPU must process. Acknowledgements and other traffic may be processed
/// on other CPUs: between two namespaces of a host, up to 45 % of the packets were.
const MIN_FLOW_SHARE: f64 = 0.25;
/// Minimum fraction that one other CPU must process. It excludes flows that their application distributes over many CPUs.
const MIN_OTHER_SHARE: f64 = 0.5;
/// Minimum fraction of the load's bytes that its network namespace must have transferred in the counted interval. It is low,
/// because on a busy host a load may begin so late that most of it is after the interval.
const MIN_COUNTED_SHARE: f64 = 0.1;
/// Minimum fraction of NET_RX softirqs on the flow's CPU. It is lower, because RPS also raises softirqs on the CPU where
/// packets arrive.
const MIN_FLOW_SOFTIRQ_SHARE: f64 = 0.05;
/// Minimum number of events for a conclusion.
const MIN_EVENTS: f64 = 100.0;
/// Maximum size of a packet in bytes, with BIG TCP (GRO_MAX_SIZE). Packets are counted for the whole host: fewer packets
/// than the flow's rate needs at this size are packets of other flows.
const MAX_PACKET: f64 = 524_280.0;
/// Maximum size of a packet in bytes unless BIG TCP is configured. If the flow's CPU processed enough of these packets, the
/// others may be those of other flows.
const MAX_USUAL_PACKET: u64 = 65_536;

/// A flow that was processed on a CPU other than the one to which it was steered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MisroutedFlow {
    /// The CPU to which it was steered.
    pub flow: u32,
    /// Fraction of the events on CPU `flow`.
    pub flow_share: f64,
    /// The CPU that had most of the events; `flow` if bytes are the evidence.
    pub cpu: u32,
    /// Fraction of the events on CPU `cpu`.
    pub other_share: f64,
    /// The type of the counted events.
    pub what: Evidence,
}

/// A type of event that shows which CPU processed a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// Interrupts of the interface's queues.
    Interrupts,
    /// Packets processed by protocols.
    Packets,
    /// NET_RX softirqs.
    Softirqs,
    /// Bytes of the network namespace. The shares are the interface's part.
    Bytes,
}

impl fmt::Display for MisroutedFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flow, flow_share, cpu, other_share, what } = self;
        let what = match what {
            Evidence::Bytes => {
                let percent = flow_share * 100.0;
                return write!(
                    f,
                    "the interface transferred {percent:.0} % of the bytes, and other interfaces of its namespace the rest"
                );
            }
            Evidence::Interrupts => "interrupts of the queues",
            Evidence::Packets => "packets",
            Evidence::Softirqs => "NET_RX softirqs",
        };
        let (flow_share, other_share) = (flow_share * 100.0, other_share * 100.0);
        write!(
            f,
            "CPU {cpu} had {other_share:.0} % of the {what}, and CPU {flow}, to which the flow was steered, {flow_share:.0} %"
        )
    }
}

impl Sample {
    /// Returns how the flow was processed if another CPU processed it. Returns `None` also if too few events were counted,
    /// and for variants that move the processing by design, to the application's CPU or to a thread.
    pub fn misrouted(&self, is_software: bool) -> Option<MisroutedFlow> {
        let is_on = |parameter| self.variant.get(&parameter).is_some_and(Value::is_on);
        use SweepParameter::{Arfs, BusyPoll, Rfs, Threaded};
        if [Rfs, Arfs, BusyPoll, Threaded].into_iter().any(is_on) {
            return None;
        }
        let (kernel, flow) = (&self.kernel, self.pair.flow);
        let of = |what, counts: &BTreeMap<u32, u64>, min_share| misrouted(what, counts, flow, min_share);
        let bytes = self.rate.map_or(0.0, |rate| rate.gbps) * 1e9 / 8.0 * kernel.seconds;
        let on_flow_cpu = kernel.packets.get(&flow).copied().unwrap_or(0) as f64;
        let is_carried = bytes > 0.0 && on_flow_cpu >= bytes / self.max_merged_bytes() as f64;
        let are_of_flow = sum(&kernel.packets) >= bytes / MAX_PACKET && !is_carried;
        if let Some(flow_share) = self.share_of_interface(bytes) {
            return Some(MisroutedFlow {
                flow,
                flow_share,
                cpu: flow,
                other_share: 1.0 - flow_share,
                what: Evidence::Bytes,
            });
        }
        let interrupts =
            (!is_software).then(|| of(Evidence::Interrupts, &kernel.queue_interrupts, MIN_FLOW_SHARE));
        let packets = of(Evidence::Packets, &kernel.packets, MIN_FLOW_SHARE).filter(|_| are_of_flow);
        let softirqs = || of(Evidence::Softirqs, &kernel.receptions, MIN_FLOW_SOFTIRQ_SHARE);
        let is_counted = !kernel.packets.is_empty();
        interrupts.flatten().or(packets).or_else(|| softirqs().filter(|_| !is_counted))
    }

    /// The interface's fraction of the bytes of its network namespace; `None` unless the load's bytes passed through other
    /// interfaces, such as the loopback. Traffic of other namespaces does not affect the result.
    fn share_of_interface(&self, bytes: f64) -> Option<f64> {
        let (own, all) = (self.kernel.interface_bytes? as f64, self.kernel.namespace_bytes? as f64);
        let is_small = own < MIN_FLOW_SHARE * bytes && own < MIN_FLOW_SHARE * all;
        (is_small && all - own >= MIN_COUNTED_SHARE * bytes && bytes > 0.0).then(|| own / all)
    }

    /// Maximum size of the flow's packets, from the varied settings.
    fn max_merged_bytes(&self) -> u64 {
        let sizes = [SweepParameter::GroMaxSize, SweepParameter::GroIpv4MaxSize];
        let varied = sizes.iter().filter_map(|size| self.variant.get(size)?.number());
        varied.fold(MAX_USUAL_PACKET, u64::max)
    }

    /// Returns whether the counters show which CPU processed the flow.
    pub fn shows_arrival(&self) -> bool {
        let kernel = &self.kernel;
        [&kernel.packets, &kernel.receptions].into_iter().any(|counts| sum(counts) >= MIN_EVENTS)
    }
}

fn sum(counts: &BTreeMap<u32, u64>) -> f64 {
    counts.values().map(|count| *count as f64).sum()
}

fn misrouted(
    what: Evidence,
    counts: &BTreeMap<u32, u64>,
    flow: u32,
    min_share: f64,
) -> Option<MisroutedFlow> {
    let all = sum(counts);
    let (cpu, most) = counts.iter().max_by_key(|(cpu, count)| (**count, **cpu == flow))?;
    let part = |count: u64| count as f64 / all.max(1.0);
    let (flow_share, other_share) = (part(counts.get(&flow).copied().unwrap_or(0)), part(*most));
    let is_misrouted =
        all >= MIN_EVENTS && *cpu != flow && flow_share < min_share && other_share >= MIN_OTHER_SHARE;
    is_misrouted.then_some(MisroutedFlow { flow, flow_share, cpu: *cpu, other_share, what })
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
        let misrouted = sample(&[(0, 100), (1, 0), (2, 90_000)], &[], &[]).misrouted(true).unwrap();
        assert_eq!((misrouted.flow, misrouted.cpu, misrouted.what), (1, 2, Evidence::Packets));
        let words = misrouted.to_string();
        assert!(words.contains("CPU 2 had 100 % of the packets") && words.contains("CPU 1"), "{words}");
        // Older kernels and files have softirqs only.
        let misrouted = sample(&[], &[(1, 3), (2, 5000)], &[]).misrouted(true).unwrap();
        assert_eq!((misrouted.cpu, misrouted.what), (2, Evidence::Softirqs));
        // One of two interrupts was not moved, and its packets were processed where it was delivered.
        let misrouted =
            sample(&[(1, 50_000), (2, 40_000)], &[], &[(1, 10), (2, 900)]).misrouted(false).unwrap();
        assert_eq!(misrouted.what, Evidence::Interrupts);
    }

    /// A load that uses the loopback, beside another namespace's flow on the flow's CPU.
    #[test]
    fn a_load_that_passes_another_interface_is_noticed_beside_others_traffic() {
        let mut bypassing = sample(&[(1, 35_000), (2, 9000)], &[], &[]);
        bypassing.rate = Some(crate::load::Rate { gbps: 3.0, ..Default::default() });
        bypassing.kernel.seconds = 1.0;
        assert_eq!(bypassing.misrouted(true), None);
        (bypassing.kernel.interface_bytes, bypassing.kernel.namespace_bytes) =
            (Some(9000), Some(375_000_000));
        let misrouted = bypassing.misrouted(true).unwrap();
        assert_eq!(misrouted.what, Evidence::Bytes);
        assert!(misrouted.to_string().contains("transferred 0 % of the bytes"), "{misrouted}");
        // On a busy host, most of the load was after the counted interval.
        bypassing.kernel.namespace_bytes = Some(75_000_000);
        assert!(bypassing.misrouted(true).is_some());
        bypassing.kernel.interface_bytes = Some(375_000_000);
        assert_eq!(bypassing.misrouted(true), None);
        // A load that hardly uses the network.
        (bypassing.kernel.interface_bytes, bypassing.kernel.namespace_bytes) = (Some(9000), Some(9000));
        assert_eq!(bypassing.misrouted(true), None);
    }

    #[test]
    fn acknowledgements_other_traffic_and_rps_do_not_count_as_misrouted() {
        // Measured between two namespaces with RPS, data to CPU 1 and acknowledgements on CPU 0.
        assert_eq!(
            sample(&[(0, 13_652), (1, 19_941)], &[(0, 14_764), (1, 19_274)], &[]).misrouted(true),
            None
        );
        assert_eq!(sample(&[], &[(0, 42_235), (1, 42_233)], &[]).misrouted(true), None);
        // A load with its own threads on all CPUs.
        assert_eq!(sample(&[(0, 300), (1, 200), (2, 300), (3, 300)], &[], &[]).misrouted(true), None);
        // Nothing was counted.
        assert_eq!(sample(&[(2, 20)], &[], &[]).misrouted(true), None);
        assert!(!sample(&[(2, 20)], &[], &[]).shows_arrival());
        // Packets that are too few for the rate belong to other flows: the load uses another path, or no network.
        let mut foreign = sample(&[(2, 300)], &[], &[]);
        foreign.rate = Some(crate::load::Rate { gbps: 5.0, ..Default::default() });
        foreign.kernel.seconds = 0.75;
        assert_eq!(foreign.misrouted(true), None);
        foreign.kernel.packets = [(2, 3000)].into();
        assert!(foreign.misrouted(true).is_some());
        // Measured: 20 Mb/s on CPU 1, beside 2000 datagrams a second that another program sends to itself on CPU 2.
        let mut beside_others = sample(&[(1, 69), (2, 1480)], &[], &[]);
        beside_others.rate = Some(crate::load::Rate { gbps: 0.021, ..Default::default() });
        beside_others.kernel.seconds = 0.75;
        assert_eq!(beside_others.misrouted(true), None);
        // Fewer packets than the rate needs, unless they are larger (BIG TCP).
        beside_others.kernel.packets.insert(1, 20);
        assert!(beside_others.misrouted(true).is_some());
        beside_others.variant = [(SweepParameter::GroIpv4MaxSize, 131_072.into())].into();
        assert_eq!(beside_others.misrouted(true), None);
        // With RPS, interrupts stay where they are.
        assert_eq!(sample(&[(1, 9000)], &[], &[(2, 9000)]).misrouted(true), None);
        // RFS moves packets to the application's CPU.
        let mut moved = sample(&[(2, 90_000)], &[], &[]);
        moved.variant = [(SweepParameter::Rfs, 32_768.into())].into();
        assert_eq!(moved.misrouted(true), None);
        moved.variant = [(SweepParameter::Rfs, 0.into())].into();
        assert!(moved.misrouted(true).is_some());
    }
}
