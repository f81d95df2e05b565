//! Reads and changes properties of a network driver through the kernel interface that provides them: the ethtool ioctl
//! or rtnetlink.

use crate::ethtool::{self, DriverProperty};
use crate::merge_sizes;
use std::io;

/// Reads a property of `interface`, in the network namespace of the calling thread.
///
/// # Errors
/// The kernel's error: EOPNOTSUPP if the driver does not have the property, ENODEV for an unknown name.
pub fn get(interface: &str, property: DriverProperty) -> io::Result<u64> {
    match property {
        _ if is_size(property) => merge_sizes::get(interface, property),
        _ => ethtool::get(interface, property),
    }
}

/// Writes a property of `interface`.
///
/// # Errors
/// The kernel's error; `Unsupported` for a property that cannot be set.
pub fn set(interface: &str, property: DriverProperty, value: u64) -> io::Result<()> {
    match property {
        _ if is_size(property) => merge_sizes::set(interface, property, value),
        _ => ethtool::set(interface, property, value),
    }
}

fn is_size(property: DriverProperty) -> bool {
    use DriverProperty as P;
    matches!(property, P::GroMaxSize | P::GsoMaxSize | P::GroIpv4MaxSize | P::GsoIpv4MaxSize | P::TsoMaxSize)
}
