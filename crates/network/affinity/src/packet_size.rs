//! MTU range of an interface.
//!
//! Source: rtnetlink(7); Linux include/uapi/linux/if_link.h (IFLA_MIN_MTU, IFLA_MAX_MTU, 4.19), net/core/dev.c
//! (dev_validate_mtu).

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use std::io;
use std::ops::RangeInclusive;

/// Queries the kernel, in the network namespace of the calling thread.
///
/// # Errors
/// The kernel's error; `Unsupported` if it does not report a range.
pub fn range(interface: &str) -> io::Result<RangeInclusive<u64>> {
    let netlink = Socket::new(NETLINK_ROUTE)?;
    netlink.send(&request(interface), 0)?;
    let (answer, _) = netlink.recv_from_full()?;
    of_answer(&answer)
}

fn request(interface: &str) -> Vec<u8> {
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(interface.into()));
    bytes_of(RouteNetlinkMessage::GetLink(link))
}

fn bytes_of(message: RouteNetlinkMessage) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut message = NetlinkMessage::new(header, message.into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn of_answer(answer: &[u8]) -> io::Result<RangeInclusive<u64>> {
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    let link = match message.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => link,
        NetlinkPayload::Error(error) => return Err(error.to_io()),
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    let (mut min, mut max) = (None, None);
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::MinMtu(bytes) => min = Some(bytes),
            LinkAttribute::MaxMtu(bytes) => max = Some(bytes),
            _ => {}
        }
    }
    // A maximum of 0 means no limit.
    let (min, max) = min.zip(max).ok_or(io::ErrorKind::Unsupported)?;
    Ok(u64::from(min)..=u64::from(if max == 0 { u32::MAX } else { max }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_takes_packets_of_any_size_and_no_other_name_has_one() {
        assert_eq!(range("lo").unwrap(), 0..=u64::from(u32::MAX));
        assert_eq!(range("nosuch0").unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn a_truncated_or_empty_answer_gives_no_range() {
        let mut link = LinkMessage::default();
        assert!(of_answer(&bytes_of(RouteNetlinkMessage::NewLink(link.clone()))).is_err());
        link.attributes.extend([LinkAttribute::MinMtu(68), LinkAttribute::MaxMtu(9600)]);
        let answer = bytes_of(RouteNetlinkMessage::NewLink(link));
        assert_eq!(of_answer(&answer).unwrap(), 68..=9600);
        for length in 0..answer.len() {
            assert!(of_answer(&answer[..length]).is_err(), "{length}");
        }
    }
}
