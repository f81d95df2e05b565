//! Checks varied values against the limits of the interface and the host, before anything is changed.

use super::{SweepParameter, Value, Variant};
use crate::ethtool::DriverProperty;
use crate::host::Host;
use crate::interface::Nic;
use longma_cpu_set::CpuSet;

/// Describes the first value that exceeds the limits of `nic`, as far as the host reports them.
pub fn beyond(host: &dyn Host, nic: &Nic, variants: &[Variant]) -> Option<String> {
    let is_beyond = |(parameter, value): (&SweepParameter, &Value)| {
        let why = match parameter {
            SweepParameter::Mtu => mtu(host, nic, value),
            SweepParameter::RxRing => of_driver(host, nic, value, DriverProperty::MaxRxRing, |name, max| {
                format!("a receive ring of {name} has at most {max} descriptors")
            }),
            SweepParameter::GsoMaxSize | SweepParameter::GsoIpv4MaxSize => {
                of_driver(host, nic, value, DriverProperty::TsoMaxSize, |name, max| {
                    format!("the driver of {name} takes packets of at most {max} bytes to segment")
                })
            }
            SweepParameter::Xps => absent(host, value),
            _ => None,
        }?;
        Some(format!("{parameter}={}: {why}", parameter.shown(value)))
    };
    variants.iter().flatten().find_map(is_beyond)
}

fn mtu(host: &dyn Host, nic: &Nic, value: &Value) -> Option<String> {
    let name = &nic.name;
    let sizes =
        host.packet_sizes(name.name()).ok().filter(|sizes| !sizes.contains(&value.number().unwrap_or(0)))?;
    Some(format!("{name} accepts packets of {} to {} bytes", sizes.start(), sizes.end()))
}

/// Compares with a maximum that the drivers of the physical interfaces report.
fn of_driver(
    host: &dyn Host,
    nic: &Nic,
    value: &Value,
    max: DriverProperty,
    words: fn(&str, u64) -> String,
) -> Option<String> {
    let value = value.number()?;
    nic.physical().into_iter().find_map(|nic| {
        let name = nic.name.name();
        let max = host.driver(name, max).ok().filter(|max| value > *max)?;
        Some(words(name, max))
    })
}

/// Names a CPU of a mask that does not exist. The kernel ignores such CPUs.
fn absent(host: &dyn Host, mask: &Value) -> Option<String> {
    let last = host.places().iter().map(|place| place.cpu).max()?;
    let cpus = CpuSet::from_mask(&mask.mask()).ok()?;
    let missing = cpus.iter().find(|cpu| *cpu > last)?;
    Some(format!("there is no CPU {missing}; the last is CPU {last}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeHost, topology};
    use crate::interface;
    use crate::vary::variants;

    #[test]
    fn a_value_outside_the_interfaces_range_is_named_with_its_limit() {
        let mut host = FakeHost::with(&[("sys/class/net/eth1/mtu", "1500")]);
        let nic = interface::read(&host, &"eth1".parse().unwrap()).unwrap();
        let limit_error =
            |host: &FakeHost, text: &str| beyond(host, &nic, &variants(&[text.parse().unwrap()]));
        assert_eq!(limit_error(&host, "mtu=1500,99999"), None, "no remark");
        host.packet_sizes = Some(68..=9600);
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
}
