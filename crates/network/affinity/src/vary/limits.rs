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
mod tests;
