//! Tests of `limits`.

use super::*;
use crate::fake::{FakeHost, topology};
use crate::interface;
use crate::vary::variants;

#[test]
fn a_value_outside_the_interfaces_range_is_named_with_its_limit() {
    let mut host = FakeHost::with(&[("sys/class/net/eth1/mtu", "1500")]);
    let nic = interface::read(&host, &"eth1".parse().unwrap()).unwrap();
    let limit_error = |host: &FakeHost, text: &str| beyond(host, &nic, &variants(&[text.parse().unwrap()]));
    assert_eq!(limit_error(&host, "mtu=1500,99999"), None, "no remark");
    host.packet_sizes = Some(68..=9600);
    // IPv6 is enabled on another interface.
    host.put("proc/net/if_inet6", "fe80000000000000000000000000000a 02 40 20 80 eth2");
    host.put_driver("eth1", DriverProperty::MaxRxRing, 4096);
    host.put_driver("eth1", DriverProperty::TsoMaxSize, 185_000);
    host.cpus = topology(1, 1, 4, 1);
    assert_eq!(limit_error(&host, "mtu=68,9600"), None);
    assert_eq!(limit_error(&host, "rx-ring=4096"), None);
    assert_eq!(limit_error(&host, "gso-ipv4-max-size=185000"), None);
    assert_eq!(limit_error(&host, "xps=f"), None);
    for (text, why) in [
        ("mtu=1500,9601", "mtu=9601: eth1 accepts packets of 68 to 9600 bytes"),
        ("mtu=67", "mtu=67: eth1 accepts packets of 68 to 9600 bytes"),
        ("rx-ring=512,8192", "rx-ring=8192: a receive ring of eth1 has at most 4096 descriptors"),
        (
            "gso-max-size=65536,200000",
            "gso-max-size=200000: the driver of eth1 takes packets of at most 185000 bytes to segment",
        ),
        ("xps=1,00000000,00000001", "xps=1,00000000,00000001: there is no CPU 64; the last is CPU 3"),
    ] {
        assert_eq!(limit_error(&host, text).as_deref(), Some(why));
    }
}

/// A sweep does not restore other settings that the kernel changes together with the MTU.
#[test]
fn an_mtu_that_changes_more_than_the_interface_is_refused() {
    let host = FakeHost::with(&[
        ("sys/class/net/eth1/mtu", "1500"),
        ("sys/class/net/eth1/upper_vlan7/ifindex", "9"),
        ("sys/class/net/vlan7/mtu", "1500"),
        ("sys/class/net/eth1/upper_br0/ifindex", "10"),
        ("sys/class/net/br0/mtu", "9000"),
        ("sys/class/net/br0/bridge/stp_state", "0"),
        (
            "proc/net/if_inet6",
            "fe800000000000000000000000000001 01 80 10 80 lo\nfe80000000000000000000000000000a 02 40 20 80 eth1",
        ),
    ]);
    let nic = interface::read(&host, &"eth1".parse().unwrap()).unwrap();
    let limit_error = |text: &str| beyond(&host, &nic, &variants(&[text.parse().unwrap()]));
    assert_eq!(limit_error("mtu=1500,9000"), None);
    assert!(limit_error("mtu=1500,1400").unwrap().contains("the MTU of vlan7, which is on eth1"));
    assert!(limit_error("mtu=1000").unwrap().contains("deletes the IPv6 addresses and routes of eth1"));
    host.put("sys/class/net/vlan7/mtu", "1280");
    assert_eq!(limit_error("mtu=1500,1400"), None);
}
