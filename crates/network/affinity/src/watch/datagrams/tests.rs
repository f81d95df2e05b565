//! Tests of `datagrams`.

use super::*;
use crate::fake::FakeHost;

const SNMP: &str = "Ip: Forwarding DefaultTTL\nIp: 1 64\nUdp: InDatagrams NoPorts InErrors OutDatagrams\nUdp: 70 1 2 30\nUdpLite: InDatagrams\nUdpLite: 9";

fn counters(bytes: [u64; 2], datagrams: [u64; 2]) -> Counters {
    Counters { bytes: [("eth0".parse().unwrap(), bytes)].into(), datagrams, dropped: HashMap::new() }
}

#[test]
fn bytes_that_are_not_tcps_are_udps_as_far_as_datagrams_can_carry_them() {
    let (before, now) = (counters([0, 0], [0, 0]), counters([2_000_000, 500], [1000, 1000]));
    let rates = |tcp| rates((&before, &now), tcp, 2.0);
    assert_eq!(rates(Some([0.0, 0.0])), [1e6, 250.0]);
    // The rest may be headers and acknowledgements of TCP.
    assert_eq!(rates(Some([950_000.0, 0.0])), [0.0, 0.0]);
    assert_eq!(rates(None), [0.0, 0.0], "the rates of TCP are not known");
    let few = counters([2_000_000, 0], [2, 0]);
    assert_eq!(super::rates((&before, &few), Some([0.0; 2]), 2.0), [MAX_DATAGRAM, 0.0]);
    assert_eq!(super::rates((&now, &before), Some([0.0; 2]), 2.0), [0.0; 2], "a counter that was reset");
    assert_eq!(super::rates((&before, &now), Some([0.0; 2]), 0.0), [0.0; 2]);
}

#[test]
fn datagrams_of_both_families_are_counted() {
    let host = FakeHost::with(&[("proc/net/snmp", SNMP)]);
    assert_eq!(datagrams(&host), [70, 30]);
    host.put(
        "proc/net/snmp6",
        "Udp6InDatagrams                 \t5\nUdp6OutDatagrams \t6\nUdpLite6InDatagrams 9",
    );
    assert_eq!(datagrams(&host), [75, 36]);
    for text in ["", "Udp: InDatagrams", "Udp: InDatagrams\nUdp: x", "Udp: \nUdp: 1 2"] {
        host.put("proc/net/snmp", text);
        assert_eq!(datagrams(&host), [5, 6], "{text}");
    }
}
