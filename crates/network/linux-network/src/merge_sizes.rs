//! The maximum sizes of merged received segments, and of packets that are sent to the driver unsegmented (BIG TCP).
//!
//! Source: ip-link(8) (gso_max_size, gro_max_size and their IPv4 forms); Linux include/uapi/linux/if_link.h,
//! net/core/dev.c (netif_set_gro_max_size also changes the size of IPv4 if the new one is small), net/core/rtnetlink.c.

use crate::ethtool::DriverProperty;
use crate::packet_size::{attributes, set_attributes};
use netlink_packet_route::link::LinkAttribute;
use std::io;

/// Reads a size of `interface`, in the network namespace of the calling thread.
///
/// # Errors
/// The kernel's error; `Unsupported` if it does not report the size.
pub fn get(interface: &str, size: DriverProperty) -> io::Result<u64> {
    of(&attributes(interface)?, size).map(u64::from).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Sets a size of `interface`. The other sizes are unchanged.
///
/// # Errors
/// The kernel's error; `Unsupported` for a size that it does not report or that cannot be set.
pub fn set(interface: &str, size: DriverProperty, value: u64) -> io::Result<()> {
    let now = attributes(interface)?;
    of(&now, size).ok_or(io::ErrorKind::Unsupported)?;
    let value = u32::try_from(value).map_err(|_| io::ErrorKind::InvalidInput)?;
    set_attributes(interface, changes(&now, size, value)?)
}

fn of(attributes: &[LinkAttribute], size: DriverProperty) -> Option<u32> {
    attributes.iter().find_map(|attribute| match (size, attribute) {
        (DriverProperty::GroMaxSize, LinkAttribute::GroMaxSize(bytes))
        | (DriverProperty::GsoMaxSize, LinkAttribute::GsoMaxSize(bytes))
        | (DriverProperty::GroIpv4MaxSize, LinkAttribute::GroIpv4MaxSize(bytes))
        | (DriverProperty::GsoIpv4MaxSize, LinkAttribute::GsoIpv4MaxSize(bytes))
        | (DriverProperty::TsoMaxSize, LinkAttribute::TsoMaxSize(bytes)) => Some(*bytes),
        _ => None,
    })
}

/// The attributes that change one size. The kernel applies the limit of IPv4 last.
fn changes(now: &[LinkAttribute], size: DriverProperty, value: u32) -> io::Result<Vec<LinkAttribute>> {
    let kept = |ipv4, attribute: fn(u32) -> LinkAttribute| of(now, ipv4).map(attribute);
    Ok(match size {
        DriverProperty::GroMaxSize => {
            let ipv4 = kept(DriverProperty::GroIpv4MaxSize, LinkAttribute::GroIpv4MaxSize);
            [LinkAttribute::GroMaxSize(value)].into_iter().chain(ipv4).collect()
        }
        DriverProperty::GsoMaxSize => {
            let ipv4 = kept(DriverProperty::GsoIpv4MaxSize, LinkAttribute::GsoIpv4MaxSize);
            [LinkAttribute::GsoMaxSize(value)].into_iter().chain(ipv4).collect()
        }
        DriverProperty::GroIpv4MaxSize => vec![LinkAttribute::GroIpv4MaxSize(value)],
        DriverProperty::GsoIpv4MaxSize => vec![LinkAttribute::GsoIpv4MaxSize(value)],
        _ => return Err(io::ErrorKind::Unsupported.into()),
    })
}

#[cfg(test)]
mod tests;
