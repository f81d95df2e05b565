//! Attributes of an interface by rtnetlink, and its MTU range.
//!
//! Source: rtnetlink(7); Linux include/uapi/linux/if_link.h (IFLA_MIN_MTU, IFLA_MAX_MTU, 4.19), net/core/dev.c
//! (dev_validate_mtu).

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use std::io;
use std::ops::RangeInclusive;

/// MTU range of `interface`, in the network namespace of the calling thread.
///
/// # Errors
/// The kernel's error; `Unsupported` if it does not report a range.
pub fn range(interface: &str) -> io::Result<RangeInclusive<u64>> {
    of_attributes(&attributes(interface)?)
}

/// All attributes of `interface`, in the network namespace of the calling thread.
///
/// # Errors
/// The kernel's error.
pub fn attributes(interface: &str) -> io::Result<Vec<LinkAttribute>> {
    of_answer(&exchange(RouteNetlinkMessage::GetLink(named(interface)), NLM_F_REQUEST)?)
}

/// Changes attributes of `interface`, in the network namespace of the calling thread.
///
/// # Errors
/// The kernel's error.
pub fn set_attributes(interface: &str, attributes: Vec<LinkAttribute>) -> io::Result<()> {
    let mut link = named(interface);
    link.attributes.extend(attributes);
    is_acknowledged(&exchange(RouteNetlinkMessage::SetLink(link), NLM_F_REQUEST | NLM_F_ACK)?)
}

fn named(interface: &str) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(interface.into()));
    link
}

fn exchange(message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<u8>> {
    let netlink = Socket::new(NETLINK_ROUTE)?;
    netlink.send(&bytes_of(message, flags), 0)?;
    Ok(netlink.recv_from_full()?.0)
}

fn bytes_of(message: RouteNetlinkMessage, flags: u16) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    let mut message = NetlinkMessage::new(header, message.into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn payload(answer: &[u8]) -> io::Result<NetlinkPayload<RouteNetlinkMessage>> {
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    Ok(message.payload)
}

fn of_answer(answer: &[u8]) -> io::Result<Vec<LinkAttribute>> {
    match payload(answer)? {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => Ok(link.attributes),
        NetlinkPayload::Error(error) => Err(error.to_io()),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn is_acknowledged(answer: &[u8]) -> io::Result<()> {
    match payload(answer)? {
        // An acknowledgement is an error with the code 0.
        NetlinkPayload::Error(error) if error.code.is_none() => Ok(()),
        NetlinkPayload::Error(error) => Err(error.to_io()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn of_attributes(attributes: &[LinkAttribute]) -> io::Result<RangeInclusive<u64>> {
    let (mut min, mut max) = (None, None);
    for attribute in attributes {
        match attribute {
            LinkAttribute::MinMtu(bytes) => min = Some(*bytes),
            LinkAttribute::MaxMtu(bytes) => max = Some(*bytes),
            _ => {}
        }
    }
    // A maximum of 0 means no limit.
    let (min, max) = min.zip(max).ok_or(io::ErrorKind::Unsupported)?;
    Ok(u64::from(min)..=u64::from(if max == 0 { u32::MAX } else { max }))
}

#[cfg(test)]
mod tests;
