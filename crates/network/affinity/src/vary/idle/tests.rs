//! Tests of `idle`.

use super::*;
use crate::fake::FakeHost;
use crate::interface::{self, Irq};
use crate::load::Iperf;

#[test]
fn ineffective_settings_are_reported_with_their_reason() {
    let host = FakeHost::with(&[
        ("sys/class/net/eth1/queues/rx-0/rps_cpus", "0"),
        ("sys/class/net/eth1/queues/tx-0/xps_cpus", "0"),
    ]);
    let one = interface::read(&host, &"eth1".parse().unwrap()).unwrap();
    let irq = |number, cpus: &str| Irq { number, name: "eth1".into(), cpus: cpus.parse().ok() };
    let bound = Nic { irqs: vec![irq(40, "0-3"), irq(41, "2")], ..one.clone() };
    let two = Nic { tx_queues: vec![0, 1], ..one.clone() };
    let tcp = Iperf { server: "a".into(), port: 1, zero_copy: true, reverse: true, udp: false, flows: 1 };
    let (udp, forward) = (Iperf { udp: true, ..tcp.clone() }, Iperf { reverse: false, ..tcp.clone() });
    let ipv4 = Iperf { server: "198.18.0.1".into(), ..tcp.clone() };
    let ipv6 = Iperf { server: "2001:db8::1".into(), ..tcp.clone() };
    let pair = |flow, application| Pair { flow, application };
    let remarks = |text: &str, nic: &Nic, iperf: &Iperf, pairs: &[Pair]| {
        idle(&host, &[text.parse().unwrap()], nic, &Load::Iperf(iperf.clone()), pairs).concat()
    };
    let (near, same) = ([pair(0, 1)], [pair(0, 1), pair(1, 1)]);
    for (text, nic, iperf, pairs, why) in [
        ("xps=1,2", &one, &tcp, &near[..], "xps does nothing where eth1 has one transmit queue"),
        ("gro=1,0", &one, &udp, &near, "datagrams are neither merged nor segmented"),
        ("gso=1,0", &one, &tcp, &near, "sends only acknowledgements"),
        ("lro=1,0", &one, &forward, &near, "only acknowledgements arrive here"),
        ("rfs=0", &one, &tcp, &near, "a flow table without entries does nothing"),
        ("arfs=0", &one, &tcp, &near, "a flow table without entries does nothing"),
        ("arfs=0,64", &one, &tcp, &near, "no interrupt of eth1 is bound to one CPU"),
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
        ("arfs=0,64", &bound, &tcp),
    ] {
        assert_eq!(remarks(text, nic, iperf, &near), "", "{text}");
    }
    // A veth without GRO: its packets go through the backlog.
    host.put_napi(Vec::new());
    let both = ["napi-defer-hard-irqs=2", "gro-flush-timeout=20000"].map(|text| text.parse().unwrap());
    let found = |variations: &[Variation]| idle(&host, variations, &one, &Load::Iperf(tcp.clone()), &near);
    assert_eq!(found(&both).len(), 2);
    assert!(found(&both).iter().all(|words| words.contains("eth1 has no NAPI instance")));
    let with_gro = [&both[..], &["gro=0,1".parse().unwrap()]].concat();
    assert!(found(&with_gro).is_empty());
}
