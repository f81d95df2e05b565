//! The DHCP server, which leases one address. Source: RFC 2131.

use std::net::{Ipv4Addr, SocketAddrV4};

use smoltcp::wire::{DhcpMessageType, DhcpPacket, DhcpRepr};

use super::{DNS, GATEWAY, GUEST};

/// The server's port.
pub const SERVER_PORT: u16 = 67;
/// Source address of answers.
pub const SERVER: SocketAddrV4 = SocketAddrV4::new(GATEWAY, SERVER_PORT);
/// Destination address of answers: the client has none yet.
pub const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::BROADCAST, 68);
const MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);
const LEASE_S: u32 = 24 * 60 * 60;

/// The answer to a client's message, if it needs one.
pub fn answer(message: &[u8]) -> Option<Vec<u8>> {
    let packet = DhcpPacket::new_checked(message).ok()?;
    let request = DhcpRepr::parse(&packet).ok()?;
    if request.server_identifier.is_some_and(|server| server != GATEWAY) {
        return None;
    }
    let wanted = request.requested_ip.unwrap_or(request.client_ip);
    let is_other = wanted != GUEST && !wanted.is_unspecified();
    let message_type = match request.message_type {
        DhcpMessageType::Discover => DhcpMessageType::Offer,
        DhcpMessageType::Request if is_other => DhcpMessageType::Nak,
        DhcpMessageType::Request | DhcpMessageType::Inform => DhcpMessageType::Ack,
        _ => return None,
    };
    let is_granted = message_type != DhcpMessageType::Nak;
    let has_lease = is_granted && request.message_type != DhcpMessageType::Inform;
    let answer = DhcpRepr {
        message_type,
        transaction_id: request.transaction_id,
        secs: 0,
        client_hardware_address: request.client_hardware_address,
        client_ip: request.client_ip,
        your_ip: if has_lease { GUEST } else { Ipv4Addr::UNSPECIFIED },
        server_ip: Ipv4Addr::UNSPECIFIED,
        router: is_granted.then_some(GATEWAY),
        subnet_mask: is_granted.then_some(MASK),
        relay_agent_ip: Ipv4Addr::UNSPECIFIED,
        broadcast: request.broadcast,
        requested_ip: None,
        client_identifier: None,
        server_identifier: Some(GATEWAY),
        parameter_request_list: None,
        dns_servers: is_granted.then(|| [DNS].into_iter().collect()),
        max_size: None,
        lease_duration: has_lease.then_some(LEASE_S),
        renew_duration: None,
        rebind_duration: None,
        additional_options: &[],
    };
    let mut bytes = vec![0; answer.buffer_len()];
    answer.emit(&mut DhcpPacket::new_unchecked(&mut bytes[..])).ok()?;
    Some(bytes)
}
