//! Detects varied parameters that have no effect under a load, and explains why. The interface itself reports values
//! that it rejects.
//!
//! Source: Linux net/core/dev.c (netdev_pick_tx, get_rps_cpu, napi_complete_done), include/net/gro.h (the size by
//! protocol), net/ipv4/tcp_offload.c and udp_offload.c, Documentation/networking/napi.rst; ethtool(8).

use super::{SweepParameter, Value, Variation};
use crate::interface::Nic;
use crate::load::Load;
use crate::pairs::Pair;
use std::net::IpAddr;

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
    let is_zero = |parameter| !values(parameter).iter().any(Value::is_on);
    // A name is not resolved.
    let is_ipv4 = match load {
        Load::Iperf(iperf) => iperf.server.parse().ok().map(|address: IpAddr| address.is_ipv4()),
        Load::Command(_) => None,
    };
    let why = |parameter: SweepParameter| match parameter {
        SweepParameter::Xps if nic.physical().iter().all(|nic| nic.tx_queues.len() < 2) => {
            Some(format!("{} has one transmit queue", nic.name))
        }
        SweepParameter::Gro
        | SweepParameter::Lro
        | SweepParameter::Tso
        | SweepParameter::Gso
        | SweepParameter::GroMaxSize
        | SweepParameter::GsoMaxSize
        | SweepParameter::GroIpv4MaxSize
        | SweepParameter::GsoIpv4MaxSize
            if is_udp =>
        {
            Some("iperf3's datagrams are neither merged nor segmented".into())
        }
        SweepParameter::Tso
        | SweepParameter::Gso
        | SweepParameter::GsoMaxSize
        | SweepParameter::GsoIpv4MaxSize
            if is_iperf && !sends =>
        {
            Some("this host sends only acknowledgements; with --forward it sends data".into())
        }
        SweepParameter::Gro
        | SweepParameter::Lro
        | SweepParameter::GroMaxSize
        | SweepParameter::GroIpv4MaxSize
            if is_iperf && sends =>
        {
            Some("only acknowledgements arrive here; without --forward data arrive".into())
        }
        SweepParameter::GroMaxSize | SweepParameter::GsoMaxSize if is_ipv4 == Some(true) => {
            Some("the flow is one of IPv4; gro-ipv4-max-size and gso-ipv4-max-size apply to it".into())
        }
        SweepParameter::GroIpv4MaxSize | SweepParameter::GsoIpv4MaxSize if is_ipv4 == Some(false) => {
            Some("the flow is one of IPv6; gro-max-size and gso-max-size apply to it".into())
        }
        SweepParameter::ZeroCopy if is_udp => Some("iperf3 copies datagrams".into()),
        SweepParameter::NapiDeferHardIrqs if is_zero(SweepParameter::GroFlushTimeout) => {
            Some("gro-flush-timeout is 0; vary both".into())
        }
        SweepParameter::GroFlushTimeout if is_zero(SweepParameter::NapiDeferHardIrqs) => {
            Some("napi-defer-hard-irqs is 0; vary both".into())
        }
        SweepParameter::IrqSuspendTimeout => {
            Some("the application does not poll by epoll with prefer_busy_poll; iperf3 does not".into())
        }
        SweepParameter::RxUsecs if values(SweepParameter::AdaptiveRx).iter().any(Value::is_on) => {
            Some("the driver adapts the delay (adaptive-rx=1)".into())
        }
        SweepParameter::Rfs if is_zero(SweepParameter::Rfs) => {
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
        let ipv4 = Iperf { server: "198.18.0.1".into(), ..tcp.clone() };
        let ipv6 = Iperf { server: "2001:db8::1".into(), ..tcp.clone() };
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
            ("gro-max-size=65536,185000", &one, &ipv4, &near, "gro-ipv4-max-size"),
            ("gro-ipv4-max-size=65536,185000", &one, &ipv6, &near, "the flow is one of IPv6"),
            ("gso-max-size=65536,185000", &one, &ipv6, &near, "sends only acknowledgements"),
            ("gro-flush-timeout=0,20000", &one, &tcp, &near, "napi-defer-hard-irqs is 0"),
            ("napi-defer-hard-irqs=0,2", &one, &tcp, &near, "gro-flush-timeout is 0"),
            ("irq-suspend-timeout=0,20000", &one, &tcp, &near, "prefer_busy_poll"),
            ("zero-copy=0,1", &one, &udp, &near, "iperf3 copies datagrams"),
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
            ("gro-ipv4-max-size=65536,185000", &one, &ipv4),
            ("gro-max-size=65536,185000", &one, &ipv6),
            ("zero-copy=0,1", &one, &tcp),
            ("rx-usecs=0,8", &one, &tcp),
        ] {
            assert_eq!(remarks(text, nic, iperf, &near), "", "{text}");
        }
    }
}
