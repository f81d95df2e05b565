//! Detects varied parameters that have no effect under a load, and explains why. The interface itself reports values
//! that it rejects.
//!
//! Source: Linux net/core/dev.c (netdev_pick_tx, get_rps_cpu), net/ipv4/tcp_offload.c and udp_offload.c; ethtool(8).

use super::{SweepParameter, Variation};
use crate::interface::Nic;
use crate::load::Load;
use crate::pairs::Pair;

/// Describes, in one sentence each, the `variations` that have no effect on some of the `pairs`.
pub fn idle(variations: &[Variation], nic: &Nic, load: &Load, pairs: &[Pair]) -> Vec<String> {
    let values = |parameter: SweepParameter| {
        variations
            .iter()
            .find(|variation| variation.parameter == parameter)
            .map_or(&[][..], |variation| &variation.values)
    };
    let (is_udp, sends) = match load {
        Load::Iperf(iperf) => (iperf.udp, !iperf.reverse),
        Load::Command(_) => (false, false),
    };
    let is_iperf = matches!(load, Load::Iperf(_));
    let why = |parameter: SweepParameter| match parameter {
        SweepParameter::Xps if nic.physical().iter().all(|nic| nic.tx_queues.len() < 2) => {
            Some(format!("{} has one transmit queue", nic.name))
        }
        SweepParameter::Gro | SweepParameter::Lro | SweepParameter::Tso | SweepParameter::Gso if is_udp => {
            Some("iperf3's datagrams are neither merged nor segmented".into())
        }
        SweepParameter::Tso | SweepParameter::Gso if is_iperf && !sends => {
            Some("this host sends only acknowledgements; with --forward it sends data".into())
        }
        SweepParameter::Gro | SweepParameter::Lro if is_iperf && sends => {
            Some("only acknowledgements arrive here; without --forward data arrive".into())
        }
        SweepParameter::Rfs if !values(SweepParameter::Rfs).iter().any(|entries| *entries > 0) => {
            Some("a flow table without entries does nothing".into())
        }
        SweepParameter::Rfs => {
            let same = pairs.iter().filter(|pair| pair.flow == pair.application).count();
            let why = "the application runs on the flow's own CPU";
            match same {
                0 => None,
                all if all == pairs.len() => Some(why.into()),
                some => Some(format!("{why} on {some} of {} pairs", pairs.len())),
            }
        }
        _ => None,
    };
    let words = |variation: &Variation| {
        let parameter = variation.parameter;
        why(parameter).map(|why| format!("{parameter} does nothing where {why}"))
    };
    variations.iter().filter_map(words).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeHost;
    use crate::interface;
    use crate::load::Iperf;

    #[test]
    fn ineffective_settings_are_reported_with_their_reason() {
        let host = FakeHost::with(&[
            ("sys/class/net/eth1/queues/rx-0/rps_cpus", "0"),
            ("sys/class/net/eth1/queues/tx-0/xps_cpus", "0"),
        ]);
        let one = interface::read(&host, &"eth1".parse().unwrap()).unwrap();
        let two = Nic { tx_queues: vec![0, 1], ..one.clone() };
        let tcp = Iperf { server: "a".into(), port: 1, zero_copy: true, reverse: true, udp: false, flows: 1 };
        let (udp, forward) = (Iperf { udp: true, ..tcp.clone() }, Iperf { reverse: false, ..tcp.clone() });
        let pair = |flow, application| Pair { flow, application };
        let remarks = |text: &str, nic: &Nic, iperf: &Iperf, pairs: &[Pair]| {
            idle(&[text.parse().unwrap()], nic, &Load::Iperf(iperf.clone()), pairs).concat()
        };
        let (near, same) = ([pair(0, 1)], [pair(0, 1), pair(1, 1)]);
        for (text, nic, iperf, pairs, why) in [
            ("xps=1,2", &one, &tcp, &near[..], "xps does nothing where eth1 has one transmit queue"),
            ("gro=1,0", &one, &udp, &near, "datagrams are neither merged nor segmented"),
            ("gso=1,0", &one, &tcp, &near, "sends only acknowledgements"),
            ("lro=1,0", &one, &forward, &near, "only acknowledgements arrive here"),
            ("rfs=0", &one, &tcp, &near, "a flow table without entries does nothing"),
            ("rfs=0,64", &one, &tcp, &same, "the flow's own CPU on 1 of 2 pairs"),
            (
                "rfs=0,64",
                &one,
                &tcp,
                &same[1..],
                "rfs does nothing where the application runs on the flow's own CPU",
            ),
        ] {
            let found = remarks(text, nic, iperf, pairs);
            assert!(found.contains(why), "{text}: {found}");
        }
        for (text, nic, iperf) in [
            ("xps=1,2", &two, &tcp),
            ("gro=1,0", &one, &tcp),
            ("tso=1,0", &one, &forward),
            ("rfs=0,64", &one, &tcp),
            ("mtu=1500,9000", &one, &udp),
        ] {
            assert_eq!(remarks(text, nic, iperf, &near), "", "{text}");
        }
    }
}
