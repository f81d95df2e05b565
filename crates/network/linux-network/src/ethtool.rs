//! Reads and changes a NIC driver's offloads, rings, interrupt coalescing and channels by the ethtool ioctl.
//! `property` adds the properties that only netlink has. Sysfs has the rest.
//!
//! Source: Linux include/uapi/linux/ethtool.h (commands and structures), sockios.h (SIOCETHTOOL).

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// A numeric property of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverProperty {
    /// Generic receive offload: 0 or 1.
    Gro,
    /// Large receive offload in hardware: 0 or 1.
    Lro,
    /// TCP segmentation offload in hardware: 0 or 1.
    Tso,
    /// Generic segmentation offload: 0 or 1.
    Gso,
    /// Receive checksum offload: 0 or 1.
    RxChecksum,
    /// Number of descriptors in a receive ring.
    RxRing,
    /// Maximum number of descriptors in a receive ring.
    #[serde(rename = "rx-ring-most")]
    MaxRxRing,
    /// Microseconds that a receive interrupt may be delayed.
    RxUsecs,
    /// Number of receive queues, including combined ones.
    Channels,
    /// Maximum number of receive queues.
    #[serde(rename = "channels-most")]
    MaxChannels,
    /// Number of queues that both receive and send.
    CombinedChannels,
    /// Whether the driver adapts the delay of receive interrupts to the load: 0 or 1.
    AdaptiveRx,
    /// Whether n-tuple filters, and with them accelerated RFS, are on: 0 or 1.
    Ntuple,
    /// Maximum bytes of a received packet of merged segments: IPv6, and IPv4 before Linux 6.3.
    GroMaxSize,
    /// Maximum bytes of a sent packet before segmentation: IPv6, and IPv4 before Linux 6.3.
    GsoMaxSize,
    /// Maximum bytes of a received packet of merged segments over IPv4.
    #[serde(rename = "gro-ipv4-max-size")]
    GroIpv4MaxSize,
    /// Maximum bytes of a sent packet before segmentation over IPv4.
    #[serde(rename = "gso-ipv4-max-size")]
    GsoIpv4MaxSize,
    /// The largest packet that the driver segments, in bytes.
    TsoMaxSize,
}

/// Its name in files.
impl fmt::Display for DriverProperty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Location of a property: the command that reads the structure, the command that writes it (if supported here), and
/// the word within it.
struct Location {
    get: u32,
    set: Option<u32>,
    word: usize,
    bit: Option<u32>,
}

/// Number of words in the longest structure used here, `ethtool_coalesce`.
const WORDS: usize = 24;
const ETH_FLAG_LRO_BIT: u32 = 15;
const ETH_FLAG_NTUPLE_BIT: u32 = 27;

impl DriverProperty {
    /// `None` for properties that only netlink has.
    fn location(self) -> Option<Location> {
        let at = |get, set, word| Location { get, set, word, bit: None };
        Some(match self {
            Self::Gro => at(0x2b, Some(0x2c), 1),
            Self::Lro => Location { get: 0x25, set: Some(0x26), word: 1, bit: Some(ETH_FLAG_LRO_BIT) },
            Self::Tso => at(0x1e, Some(0x1f), 1),
            Self::Gso => at(0x23, Some(0x24), 1),
            Self::RxChecksum => at(0x14, Some(0x15), 1),
            // ethtool_ringparam: rx_max_pending is the first word after the command, rx_pending the fifth.
            Self::MaxRxRing => at(0x10, None, 1),
            Self::RxRing => at(0x10, Some(0x11), 5),
            // ethtool_coalesce: rx_coalesce_usecs is the first word after the command.
            Self::RxUsecs => at(0x0e, Some(0x0f), 1),
            // ethtool_channels: max_rx, max_tx, max_other, max_combined, followed by the current values in the same
            // order.
            Self::MaxChannels => at(0x3c, None, 1),
            Self::Channels => at(0x3c, None, 5),
            Self::CombinedChannels => at(0x3c, None, 8),
            // use_adaptive_rx_coalesce is the tenth word.
            Self::AdaptiveRx => at(0x0e, Some(0x0f), 10),
            Self::Ntuple => Location { get: 0x25, set: Some(0x26), word: 1, bit: Some(ETH_FLAG_NTUPLE_BIT) },
            Self::GroMaxSize
            | Self::GsoMaxSize
            | Self::GroIpv4MaxSize
            | Self::GsoIpv4MaxSize
            | Self::TsoMaxSize => return None,
        })
    }
}

/// Reads a property of `interface`, in the network namespace of the calling thread.
///
/// # Errors
/// The kernel's error: EOPNOTSUPP if the driver does not have the property, ENODEV for an unknown name; `Unsupported` for a
/// property that only netlink has.
pub fn get(interface: &str, property: DriverProperty) -> io::Result<u64> {
    let location = property.location().ok_or(io::ErrorKind::Unsupported)?;
    let words = query(interface, location.get)?;
    Ok(match (property, location.bit) {
        // Combined channels also receive.
        (DriverProperty::Channels | DriverProperty::MaxChannels, _) => {
            u64::from(words[location.word]) + u64::from(words[location.word + 3])
        }
        (_, Some(bit)) => u64::from(words[location.word] >> bit & 1),
        (_, None) => u64::from(words[location.word]),
    })
}

/// Writes a property of `interface`.
///
/// # Errors
/// The kernel's error; `Unsupported` for a property that cannot be set here.
pub fn set(interface: &str, property: DriverProperty, value: u64) -> io::Result<()> {
    let location = property.location().ok_or(io::ErrorKind::Unsupported)?;
    let command = location.set.ok_or(io::ErrorKind::Unsupported)?;
    let mut words = query(interface, location.get)?;
    let value = u32::try_from(value).map_err(|_| io::ErrorKind::InvalidInput)?;
    words[0] = command;
    words[location.word] = match location.bit {
        Some(bit) => words[location.word] & !(1 << bit) | (value & 1) << bit,
        None => value,
    };
    exchange(interface, &mut words)
}

fn query(interface: &str, command: u32) -> io::Result<[u32; WORDS]> {
    let mut words = [0; WORDS];
    words[0] = command;
    exchange(interface, &mut words)?;
    Ok(words)
}

/// Executes one ethtool command. `words` is the command's structure, into which the kernel writes the answer.
pub fn exchange(interface: &str, words: &mut [u32]) -> io::Result<()> {
    let name = interface.as_bytes();
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let socket: OwnedFd =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: an ifreq is plain data, for which zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: the request and the words outlive the call, and the callers pass enough words for the command's
    // structure.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_is_refused_and_does_no_harm() {
        for name in ["", "no-such-interface-at-all", "a\0b", "nosuch0"] {
            assert!(get(name, DriverProperty::Gro).is_err(), "{name:?}");
        }
        assert!(set("lo", DriverProperty::MaxChannels, 1).is_err());
    }

    #[test]
    fn recordings_keep_the_names_of_properties() {
        let names = serde_json::to_string(&[DriverProperty::MaxRxRing, DriverProperty::MaxChannels]).unwrap();
        assert_eq!(names, r#"["rx-ring-most","channels-most"]"#);
        assert_eq!(DriverProperty::GroIpv4MaxSize.to_string(), "gro-ipv4-max-size");
    }

    #[test]
    fn the_loopback_interface_reports_its_segmentation_offload() {
        assert!(get("lo", DriverProperty::Gso).unwrap() <= 1);
    }
}
