//! Checks varied values against the limits of the interface and the host, before anything is changed.

use super::{SweepParameter, Value, Variant};
use crate::host::Host;
use crate::interface::Nic;
use longma_cpu_set::CpuSet;
use longma_linux_network::ethtool::DriverProperty;

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

/// The minimum MTU of a link with IPv6. Source: RFC 8200, section 5.
const MIN_IPV6_MTU: u64 = 1280;

fn mtu(host: &dyn Host, nic: &Nic, value: &Value) -> Option<String> {
    let (name, bytes) = (&nic.name, value.number()?);
    if let Some(sizes) = host.packet_sizes(name.name()).ok().filter(|sizes| !sizes.contains(&bytes)) {
        return Some(format!("{name} accepts packets of {} to {} bytes", sizes.start(), sizes.end()));
    }
    if host.ends_with_writer() {
        return None;
    }
    let has_ipv6 = || {
        let addresses = host.read("proc/net/if_inet6").unwrap_or_default();
        addresses.lines().any(|line| line.split_whitespace().last() == Some(name.name()))
    };
    if bytes < MIN_IPV6_MTU && has_ipv6() {
        return Some(format!(
            "below {MIN_IPV6_MTU}, the kernel deletes the IPv6 addresses and routes of {name}, which a sweep cannot restore"
        ));
    }
    let above = upper_with_larger_mtu(host, name.name(), bytes)?;
    Some(format!(
        "the kernel would reduce the MTU of {above}, which is on {name}, and a sweep cannot restore it"
    ))
}

/// An interface on top of `name`, such as a VLAN or a macvlan, whose MTU the kernel reduces together with the MTU of
/// `name`. Bridges and bonds set their own MTU.
fn upper_with_larger_mtu(host: &dyn Host, name: &str, bytes: u64) -> Option<String> {
    let uppers = host.names(&format!("sys/class/net/{name}")).into_iter();
    let mut uppers = uppers.filter_map(|entry| entry.strip_prefix("upper_").map(str::to_string));
    uppers.find(|upper| {
        let of = |file: &str| format!("sys/class/net/{upper}/{file}");
        let is_master = !host.names(&of("bridge")).is_empty() || !host.names(&of("bonding")).is_empty();
        let mtu = host.read(&of("mtu")).ok().and_then(|text| text.parse::<u64>().ok());
        !is_master && mtu.is_some_and(|mtu| mtu > bytes)
    })
}

/// Compares `value` with the maximum that the drivers of the physical interfaces report. `words` describes an excess.
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
mod tests;
